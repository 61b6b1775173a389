//! Looks into handles, which are opaque to everybody else: a test wants to know what it holds.

use ff_backend_sqlite::{SqliteBackend, SqliteStore};
use ff_core::handle::{Handle, HandlePayload};
use ff_core::token::SealKey;
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::Store;

/// What opens the handles of a deployment.
#[derive(Clone)]
pub(crate) struct Seal(SealKey);

impl Seal {
    pub(crate) async fn of(backend: &SqliteBackend) -> Self {
        match backend.store().read(&[Key::keyring()]).await.expect("keys are readable").remove(0) {
            Some(Record::KeyringRecord(record)) => Self(record.ring.handle_key.clone().expect("a sealing key")),
            other => panic!("no keys: {other:?}"),
        }
    }

    pub(crate) fn open(&self, handle: &Handle) -> HandlePayload {
        handle.open(SqliteStore::TAG, &self.0).expect("the handle is ours")
    }
}
