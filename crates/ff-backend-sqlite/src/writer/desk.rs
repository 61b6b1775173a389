//! What the writer has before it: its connection, its clock, and what it remembers between groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use ff_engine::clock::Clock;
use ff_engine::event::Event;
use ff_engine::index::{Bounds, Index, Listed, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use rusqlite::Connection;

use crate::error::explain;
use crate::tables;
use crate::tables::execution::Stored;
use crate::topics::Topics;

/// The store's time, never backwards in this process.
#[derive(Clone)]
pub(crate) struct StoreClock {
    clock: Arc<dyn Clock>,
    latest: Arc<AtomicI64>,
}

impl StoreClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, latest: Arc::new(AtomicI64::new(i64::MIN)) }
    }

    pub(crate) fn now(&self) -> TimestampMs {
        let now = self.clock.now().0;
        TimestampMs(self.latest.fetch_max(now, Ordering::AcqRel).max(now))
    }

    pub(crate) fn source(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

/// The writer's desk.
pub(crate) struct Desk {
    pub(crate) db: Connection,
    pub(crate) clock: StoreClock,
    topics: Arc<Topics>,
    /// The news of the open group.
    news: Vec<Topic>,
    /// Changes whenever another connection commits.
    seen_version: Option<i64>,
    /// The last event of the log, while no other process writes.
    last_event: Option<u64>,
    /// Rare records that every operation asks for, while no other process writes.
    rare: HashMap<Key, Option<Record>>,
    /// Lists of rare records, as long.
    rare_lists: HashMap<(Index, Bounds), Vec<Listed>>,
    /// Rows that were written lately, as long: most executions are claimed and completed soon after they came.
    recent: HashMap<ExecutionId, Stored>,
}

impl Desk {
    pub(crate) fn new(db: Connection, clock: StoreClock, topics: Arc<Topics>) -> Self {
        Self {
            db,
            clock,
            topics,
            news: Vec::new(),
            seen_version: None,
            last_event: None,
            rare: HashMap::new(),
            rare_lists: HashMap::new(),
            recent: HashMap::new(),
        }
    }

    /// Opens the group's transaction.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.execute("BEGIN IMMEDIATE")?;
        self.look_for_others()
    }

    /// Makes the group durable, and tells its news.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.execute("COMMIT")?;
        for topic in std::mem::take(&mut self.news) {
            self.topics.wake(&topic);
        }
        Ok(())
    }

    /// Undoes the group.
    pub(super) fn roll_back(&mut self) {
        self.news.clear();
        self.forget();
        // SQLite may have undone it by itself; then there is nothing to undo.
        let _ = self.execute("ROLLBACK");
    }

    fn execute(&self, sql: &str) -> Result<()> {
        self.db.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map(drop).map_err(explain)
    }

    /// Runs something in a transaction of its own.
    pub(crate) fn alone<T>(&mut self, job: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.begin()?;
        match job(&self.db).and_then(|out| self.commit().map(|()| out)) {
            Ok(out) => {
                self.forget();
                Ok(out)
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Looks whether another process wrote, and wakes everybody if so.
    pub(super) fn look_around(&mut self) {
        // What keeps us from looking keeps the next operation from running, and that one can tell somebody.
        let _ = self.look_for_others();
    }

    fn look_for_others(&mut self) -> Result<()> {
        let version: i64 = self
            .db
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(explain)?;
        if self.seen_version.replace(version).is_some_and(|seen| seen != version) {
            self.forget();
            self.topics.wake_all();
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.last_event = None;
        self.rare.clear();
        self.rare_lists.clear();
        self.recent.clear();
    }

    /// The row of an execution.
    pub(super) fn row(&self, id: ExecutionId) -> Result<Option<Stored>> {
        match self.recent.get(&id) {
            Some(found) => Ok(Some(found.clone())),
            None => tables::execution::load(&self.db, id),
        }
    }

    /// A row was written.
    pub(super) fn keep(&mut self, id: ExecutionId, row: Stored) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.clear();
        }
        self.recent.insert(id, row);
    }

    /// A row was removed.
    pub(super) fn drop_row(&mut self, id: ExecutionId) {
        self.recent.remove(&id);
    }

    /// Records that stand in an index; lists of rare ones are remembered.
    pub(super) fn list(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
        if !matches!(index, Index::ClassesOfLane(_)) {
            return tables::list(&self.db, index, bounds);
        }
        let asked = (index.clone(), bounds.clone());
        if let Some(listed) = self.rare_lists.get(&asked) {
            return Ok(listed.clone());
        }
        let listed = tables::list(&self.db, index, bounds)?;
        if self.rare_lists.len() >= RARE_MAX {
            self.rare_lists.clear();
        }
        self.rare_lists.insert(asked, listed.clone());
        Ok(listed)
    }

    /// A stored record; rare ones are remembered.
    pub(super) fn load(&mut self, key: &Key) -> Result<Option<Record>> {
        if !is_rare(key) {
            return tables::load(&self.db, key);
        }
        if let Some(found) = self.rare.get(key) {
            return Ok(found.clone());
        }
        let found = tables::load(&self.db, key)?;
        if self.rare.len() >= RARE_MAX {
            self.rare.clear();
        }
        self.rare.insert(key.clone(), found.clone());
        Ok(found)
    }

    /// A record is about to change.
    pub(super) fn touched(&mut self, key: &Key) {
        if is_rare(key) {
            self.rare.remove(key);
            self.rare_lists.clear();
        }
    }

    pub(super) fn append(&mut self, event: &Event) -> Result<()> {
        let last = match self.last_event {
            Some(last) => last,
            None => tables::event::extent(&self.db)?.last,
        };
        tables::event::append(&self.db, last + 1, event)?;
        self.last_event = Some(last + 1);
        Ok(())
    }

    pub(super) fn announce(&mut self, topic: Topic) {
        if !self.news.contains(&topic) {
            self.news.push(topic);
        }
    }
}

/// Rare records remembered at most, and lists of them.
const RARE_MAX: usize = 10_000;

/// Rows remembered at most.
const RECENT_MAX: usize = 4_096;

/// Whether a record is of the kind that is read by all and written by few.
fn is_rare(key: &Key) -> bool {
    key.partition == ff_core::partition::Partition::GLOBAL
}
