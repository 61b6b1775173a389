//! What the writer has before it: its connection, its clock, and what it remembers between groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ff_core::{Result, TimestampMs};
use ff_engine::clock::Clock;
use ff_engine::event::Event;
use ff_engine::index::Topic;
use ff_engine::key::Key;
use rusqlite::Connection;

use crate::error::explain;
use crate::tables::{self, Found};
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
    rare: HashMap<Key, Option<Found>>,
}

impl Desk {
    pub(crate) fn new(db: Connection, clock: StoreClock, topics: Arc<Topics>) -> Self {
        Self { db, clock, topics, news: Vec::new(), seen_version: None, last_event: None, rare: HashMap::new() }
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
    }

    /// A stored record; rare ones are remembered.
    pub(super) fn load(&mut self, key: &Key) -> Result<Option<Found>> {
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

/// Rare records remembered at most.
const RARE_MAX: usize = 10_000;

/// Whether a record is of the kind that is read by all and written by few.
fn is_rare(key: &Key) -> bool {
    key.partition == ff_core::partition::Partition::GLOBAL
}
