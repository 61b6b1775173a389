//! (being written)

use crate::cases;

cases!["subscriptions":];
