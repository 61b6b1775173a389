//! (being written)

use crate::cases;

cases!["budgets":];
