//! What goes wrong with a file, in words that say what to do.

use std::path::Path;
use std::sync::Arc;

use ff_core::EngineError;
use ff_core::error::ValidationKind;
use rusqlite::ErrorCode;

/// A failure of the database, explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("another process kept the database locked for too long; try again, or stop the process that holds it")]
    Busy,
    #[error("the disk is full; nothing of this operation was stored. Free some space and try again")]
    DiskFull,
    #[error("the database cannot be written: {0}. Make the file and its directory writable for this user")]
    ReadOnly(String),
    #[error(
        "the database cannot be opened: {0}. Check that its directory exists, that this user may write in it, and that the file is \
         readable and writable for this user"
    )]
    CannotOpen(String),
    #[error(
        "the disk did not take a commit: {0}. Whether it is stored shows after the store is opened again; open it again"
    )]
    Unflushed(String),
    #[error("input or output failed: {0}. Check the disk, then try again")]
    Io(String),
    #[error("the database refused a statement: {0}")]
    Driver(rusqlite::Error),
    #[error("{0}")]
    Other(String),
    #[error("the store is closed")]
    Closed,
}

impl Trouble {
    const fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy | Self::DiskFull | Self::Io(_))
    }
}

impl From<Trouble> for EngineError {
    fn from(trouble: Trouble) -> Self {
        Self::Transport { backend: "sqlite", retryable: trouble.is_retryable(), source: Arc::new(trouble) }
    }
}

/// The file does not hold what it should.
pub(crate) fn corrupt(detail: impl std::fmt::Display) -> EngineError {
    EngineError::validation(
        ValidationKind::Corruption,
        format_args!("the database file is damaged: {detail}. Restore a backup, or move the file away to start anew"),
    )
}

/// Says which file an error is about.
pub(crate) fn about(path: &Path, error: EngineError) -> EngineError {
    match error {
        EngineError::Validation { kind, detail } => {
            EngineError::validation(kind, format_args!("{}: {detail}", path.display()))
        }
        other => other.with_context(path.display().to_string()),
    }
}

/// Explains an error of the driver.
pub(crate) fn explain(error: rusqlite::Error) -> EngineError {
    let told = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
            Trouble::Busy.into()
        }
        Some(ErrorCode::DiskFull) => Trouble::DiskFull.into(),
        Some(ErrorCode::ReadOnly) => Trouble::ReadOnly(told).into(),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Trouble::CannotOpen(told).into(),
        Some(ErrorCode::SystemIoFailure) => Trouble::Io(told).into(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => corrupt(told),
        _ => Trouble::Driver(error).into(),
    }
}
