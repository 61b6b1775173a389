//! (being written)

use crate::cases;

cases!["ingress":];
