//! (being written)

use crate::cases;

cases!["streams":];
