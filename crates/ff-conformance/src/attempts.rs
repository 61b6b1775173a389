//! (being written)

use crate::cases;

cases!["attempts":];
