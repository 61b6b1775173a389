//! (being written)

use crate::cases;

cases!["dependencies":];
