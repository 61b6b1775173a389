//! (being written)

use crate::cases;

cases!["hostile":];
