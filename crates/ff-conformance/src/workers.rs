//! (being written)

use crate::cases;

cases!["workers":];
