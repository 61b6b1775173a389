//! Looks into handles, which are opaque to everybody else: a test wants to know what it holds.

use ff_core::handle::{BackendTag, Handle, HandlePayload};
use ff_core::token::SealKey;
use ff_engine::Engine;
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::Store;

/// What opens the handles of a deployment.
#[derive(Clone)]
pub struct Seal {
    key: SealKey,
    tag: BackendTag,
}

impl Seal {
    /// That of the deployment which an engine works for.
    ///
    /// # Panics
    /// When its keys cannot be read.
    pub async fn of<S: Store>(engine: &Engine<S>) -> Self {
        match engine.store().read(&[Key::keyring()]).await.expect("keys are readable").remove(0) {
            Some(Record::KeyringRecord(record)) => {
                Self { key: record.ring.handle_key.clone().expect("a sealing key"), tag: S::TAG }
            }
            other => panic!("no keys: {other:?}"),
        }
    }

    /// What a handle of this deployment says.
    ///
    /// # Panics
    /// For a handle of another one.
    #[must_use]
    pub fn open(&self, handle: &Handle) -> HandlePayload {
        handle.open(self.tag, &self.key).expect("the handle is ours")
    }
}
