//! The stores of these tests: SQLite.

use tempfile::TempDir;

/// A store that several processes can open, there until this is dropped.
pub(crate) struct Shared {
    pub(crate) address: String,
    _folder: TempDir,
}

/// A new store for several processes.
pub(crate) fn shared() -> Shared {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("sqlite:{}", folder.path().join("shared.db").display());
    Shared { address, _folder: folder }
}

/// The address of a new store for this process.
pub(crate) fn own() -> String {
    "sqlite::memory:".to_owned()
}
