//! (being written)

use crate::cases;

cases!["signals":];
