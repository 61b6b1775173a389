//! (being written)

use crate::cases;

cases!["suspension":];
