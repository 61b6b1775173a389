//! Where a store is, in one line of text.

use ff_backend_postgres::PostgresOptions;
use ff_backend_sqlite::SqliteOptions;
use ff_backend_valkey::ValkeyOptions;

use crate::{Error, Result};

/// A store that can be opened.
pub(crate) enum Address {
    Sqlite(SqliteOptions),
    Postgres(Box<PostgresOptions>),
    Valkey(Box<ValkeyOptions>),
}

impl Address {
    pub(crate) fn parse(address: &str) -> Result<Self> {
        match address.split_once(':') {
            Some(("sqlite", ":memory:")) => Ok(Self::Sqlite(SqliteOptions::memory())),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(SqliteOptions::file(path))),
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(Box::new(PostgresOptions::new(address)?))),
            Some(("redis" | "rediss" | "valkey" | "valkeys", _)) => {
                Ok(Self::Valkey(Box::new(ValkeyOptions::new(address)?)))
            }
            other => Err(unknown(other.map(|(kind, _)| kind))),
        }
    }
}

/// Names no more than the kind: what follows it may hold a password.
fn unknown(kind: Option<&str>) -> Error {
    let what = match kind.filter(|kind| kind.chars().all(|c| c.is_ascii_alphanumeric())) {
        Some(kind) => format!("{kind}:… is no address of a store"),
        None => "this is no address of a store".to_owned(),
    };
    let known = "sqlite:<path>, sqlite::memory:, postgres://user:password@host:5432/database or redis://user:password@host:6379";
    Error::Setup(format!("{what}: expected {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_file_memory_or_a_server() {
        for address in ["sqlite:work.db", "sqlite::memory:"] {
            assert!(matches!(Address::parse(address), Ok(Address::Sqlite(_))), "{address}");
        }
        for address in ["postgres://anna@host/work", "postgresql://host:6432/work?sslmode=require&schema=jobs"] {
            assert!(matches!(Address::parse(address), Ok(Address::Postgres(_))), "{address}");
        }
        for address in ["redis://host", "rediss://anna:geheim@host:6380", "valkey://host:7000?cluster=true&prefix=jobs"]
        {
            assert!(matches!(Address::parse(address), Ok(Address::Valkey(_))), "{address}");
        }
    }

    #[test]
    fn an_address_that_is_not_understood_says_what_is_and_shows_no_password() {
        for address in [
            "",
            "sqlite:",
            "work.db",
            "mysql://anna:geheim@host/work",
            "host=there password=geheim",
            "anna:geheim@host/work",
            "postgres:geheim@host",
            "postgres://anna:geheim@host/work?pool_size=5",
            "postgres://anna:geheim@host/work?schema=Work",
            "redis://anna:geheim@host?schema=work",
            "redis:anna:geheim@host",
        ] {
            let Err(error) = Address::parse(address) else { panic!("{address} is understood") };
            let told = error.to_string();
            assert!(!told.contains("geheim"), "{told}");
            assert!(
                ["sqlite:<path>", "postgres://", "redis://", "unknown", "not known", "lower-case"]
                    .iter()
                    .any(|word| told.contains(word)),
                "{told}"
            );
        }
    }
}
