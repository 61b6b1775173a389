//! A record as it is stored: its version, then what it says. That of an execution has a second version, which changes with its owner alone.

use std::sync::{Arc, OnceLock};

use ff_core::Result;
use ff_engine::codec::decode_record;
use ff_engine::index::Entry;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::error::corrupt;
use crate::indexes::is_unlisted;

/// Where a record stands in indexes.
pub(crate) type Entries = Arc<[Entry]>;

/// A version that nothing has had.
pub(crate) fn new_version() -> u64 {
    fastrand::u64(..)
}

/// What a key holds.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Changes with every write.
    pub(crate) version: u64,
    /// Of an execution, changes with its owner; of others the same.
    pub(crate) fence: u64,
    /// The record, or why it cannot be read.
    pub(crate) record: Result<Record>,
    /// Bytes of the record.
    pub(crate) size: usize,
    /// In which indexes it stands, once that was asked for.
    entries: OnceLock<Entries>,
}

impl Stored {
    /// As it was read.
    pub(crate) fn read(key: &Key, value: &[u8]) -> Result<Self> {
        let damaged = || corrupt(format_args!("{key:?} is too short"));
        let (version, rest) = value.split_first_chunk().ok_or_else(damaged)?;
        let (fence, body) =
            if has_fence(key) { rest.split_first_chunk().ok_or_else(damaged)? } else { (version, rest) };
        Ok(Self {
            version: u64::from_be_bytes(*version),
            fence: u64::from_be_bytes(*fence),
            record: decode_record(key, body),
            size: body.len(),
            entries: if is_unlisted(key) { Entries::default().into() } else { OnceLock::new() },
        })
    }

    /// As it is written.
    pub(crate) fn written(version: u64, fence: u64, record: Record, size: usize, entries: Entries) -> Self {
        Self { version, fence, record: Ok(record), size, entries: entries.into() }
    }

    /// In which indexes it stands.
    pub(crate) fn entries(&self) -> &Entries {
        self.entries.get_or_init(|| self.record.as_ref().map(Record::entries).unwrap_or_default().into())
    }

    /// Whether it is an execution that is over.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.record, Ok(Record::Execution(execution)) if execution.is_terminal())
    }
}

/// The value that holds a record.
pub(crate) fn value(key: &Key, version: u64, fence: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&version.to_be_bytes());
    if has_fence(key) {
        out.extend_from_slice(&fence.to_be_bytes());
    }
    out.extend_from_slice(body);
    out
}

const fn has_fence(key: &Key) -> bool {
    matches!(key.name, Name::Execution(_))
}
