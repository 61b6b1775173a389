//! x
use crate::cases;
cases!["claims":];
