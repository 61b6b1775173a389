//! Records that were read or written lately. What is here may be old: whoever decides on it has the commit make sure that it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ff_core::ids::ExecutionId;
use ff_engine::index::{Bounds, Index};
use ff_engine::key::{Key, Name};
use ff_engine::recent::Recent;

use crate::tables::Page;
use crate::tables::record::Stored;

/// Bytes of a record that is worth remembering.
const BYTES_MAX: usize = 4_096;

/// For how many looks at queues those who stand there are taken for strangers, after most of them were.
const STRANGE_LOOKS: u32 = 32;

/// What a key holds; none for one that holds nothing.
pub(crate) type Row = Option<Arc<Stored>>;

/// Records by key.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    rows: Recent<Key, Row>,
    /// Parts of lists that hardly ever change.
    pages: Recent<(Index, Bounds), Arc<Page>>,
    /// Executions that this process created: what it does not know of them is likely not to be there.
    born: Recent<ExecutionId, ()>,
    /// For how many looks at queues it is expected that others created what stands there.
    strange_looks: AtomicU32,
}

impl Cache {
    pub(crate) fn get(&self, key: &Key) -> Option<Row> {
        if let Some(row) = self.rows.get(key) {
            return Some(row);
        }
        // Large records are not kept although they are there, and the execution itself surely is.
        let is_likely_absent = is_worth_keeping(key) && !matches!(key.name, Name::Execution(_));
        let id = key.execution_id().filter(|_| is_likely_absent)?;
        self.born.get(&id).map(|()| None)
    }

    /// A part of a list, as it was when somebody last looked.
    pub(crate) fn page(&self, part: &(Index, Bounds)) -> Option<Arc<Page>> {
        self.pages.get(part)
    }

    /// Remembers a part of a list.
    pub(crate) fn put_page(&self, part: (Index, Bounds), page: Arc<Page>) {
        self.pages.put(part, page);
    }

    pub(crate) fn forget_page(&self, part: &(Index, Bounds)) {
        self.pages.forget(part);
    }

    /// Whether those at the heads of queues are likely to be unknown.
    pub(crate) fn expects_strangers(&self) -> bool {
        let one_less = |looks: u32| looks.checked_sub(1);
        self.strange_looks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// So many of those at the head of a queue were unknown.
    pub(crate) fn note_strangers(&self, strangers: usize, all: usize) {
        if strangers * 2 > all {
            self.strange_looks.store(STRANGE_LOOKS, Ordering::Relaxed);
        }
    }

    /// An execution was created.
    pub(crate) fn note_birth(&self, id: ExecutionId) {
        self.born.put(id, ());
    }

    /// Remembers what a key holds; forgets what is not worth keeping.
    pub(crate) fn put(&self, key: Key, row: Row) {
        let is_small = row.as_ref().is_none_or(|stored| stored.size <= BYTES_MAX);
        if let (Name::Execution(id), true) = (&key.name, row.as_ref().is_none_or(|stored| stored.has_ended())) {
            // Hardly anybody asks for what has ended.
            self.born.forget(id);
            self.rows.forget(&key);
        } else if is_small && is_worth_keeping(&key) {
            self.rows.put(key, row);
        } else {
            self.forget(&key);
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        if let Some(id) = key.execution_id() {
            self.born.forget(&id);
        }
        self.rows.forget(key);
    }
}

/// Whether a record is likely to be asked for again, and small.
const fn is_worth_keeping(key: &Key) -> bool {
    !matches!(key.name, Name::Payload(_) | Name::Outcome(_) | Name::Frame(..) | Name::Summary(..) | Name::Step(..))
}
