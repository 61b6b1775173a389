//! (being written)

use crate::cases;

cases!["maintenance":];
