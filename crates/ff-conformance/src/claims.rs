//! (being written)

use crate::cases;

cases!["claims":];
