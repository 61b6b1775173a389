//! (being written)

use crate::cases;

cases!["quotas":];
