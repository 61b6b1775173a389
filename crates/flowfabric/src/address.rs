//! Where a store is, in one line of text.

use ff_backend_postgres::PostgresOptions;
use ff_backend_sqlite::SqliteOptions;

use crate::{Error, Result};

/// A store that can be opened.
pub(crate) enum Address {
    Sqlite(SqliteOptions),
    Postgres(Box<PostgresOptions>),
}

impl Address {
    pub(crate) fn parse(address: &str) -> Result<Self> {
        match address.split_once(':') {
            Some(("sqlite", ":memory:")) => Ok(Self::Sqlite(SqliteOptions::memory())),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(SqliteOptions::file(path))),
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(Box::new(PostgresOptions::new(address)?))),
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
    let known = "sqlite:<path>, sqlite::memory: or postgres://user:password@host:5432/database";
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
        ] {
            let Err(error) = Address::parse(address) else { panic!("{address} is understood") };
            let told = error.to_string();
            assert!(!told.contains("geheim"), "{told}");
            assert!(
                ["sqlite:<path>", "postgres://", "unknown", "lower-case"].iter().any(|word| told.contains(word)),
                "{told}"
            );
        }
    }
}
