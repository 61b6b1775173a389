//! Why a server does not run, in words that say what to do.

use std::io;
use std::path::PathBuf;

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its programs are not installed.
    #[error(
        "PostgreSQL is not installed: neither `pg_config --bindir` nor /usr/lib/postgresql/*/bin nor the PATH has initdb, \
         postgres and psql. Install the Debian packages postgresql and postgresql-contrib; `make tools` does"
    )]
    NotInstalled,
    /// The pooler is not installed.
    #[error(
        "PgBouncer is not installed: neither /usr/sbin nor the PATH has pgbouncer. Install the Debian package pgbouncer; `make tools` does"
    )]
    NoPooler,
    /// Neither of two servers that do the same is installed.
    #[error(
        "neither Valkey nor Redis is installed: the PATH has neither valkey-server nor redis-server. Install the Debian package valkey-server or \
         redis-server; `make tools` does"
    )]
    NoValkey,
    /// It knows nothing of encryption.
    #[error("{} was built without TLS; install one that has it, as the Debian packages do: {told}", program.display())]
    NoEncryption {
        /// The program.
        program: PathBuf,
        /// The end of what it told.
        told: String,
    },
    /// It refuses to run as root, and nobody else is there.
    #[error(
        "PostgreSQL refuses to run as root, and there is no user named postgres. Install the Debian package postgresql, \
         which creates it, or run as another user"
    )]
    NoUser,
    /// One of its programs failed.
    #[error("{program} failed: {told}")]
    Failed {
        /// The program.
        program: &'static str,
        /// The end of what it told.
        told: String,
    },
    /// It runs and accepts no connections.
    #[error("the server accepts no connections after {seconds} s: {told}")]
    TooSlow {
        /// How long it was waited for.
        seconds: u64,
        /// The end of its log.
        told: String,
    },
    /// A file or a process could not be had.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// Says what was attempted when it failed.
pub(crate) trait Attempted<T> {
    fn attempted(self, what: impl Into<String>) -> Result<T, ServerError>;
}

impl<T> Attempted<T> for io::Result<T> {
    fn attempted(self, what: impl Into<String>) -> Result<T, ServerError> {
        self.map_err(|source| ServerError::Io { what: what.into(), source })
    }
}
