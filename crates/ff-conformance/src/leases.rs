//! (being written)

use crate::cases;

cases!["leases":];
