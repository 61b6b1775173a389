//! (being written)

use crate::cases;

cases!["flows":];
