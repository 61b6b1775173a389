//! (being written)

use crate::cases;

cases!["inspection":];
