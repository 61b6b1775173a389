//! (being written)

use crate::cases;

cases!["connection":];
