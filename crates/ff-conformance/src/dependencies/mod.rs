use crate::cases; cases!["dependencies":];
