//! What the writer has before it: its connection, its clock, and what it remembers between groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use ff_engine::clock::Clock;
use ff_engine::codec::encode_event;
use ff_engine::event::Event;
use ff_engine::index::{Bounds, Index, Listed, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use rusqlite::Connection;

use super::checkpointer::Checkpointer;
use super::flusher::{Committed, Durability, Flusher, Log, publish};
use super::work::Work;
use crate::error::explain;
use crate::indexes::Place;
use crate::options::FlushedLog;
use crate::tables;
use crate::tables::event::Appended;
use crate::tables::execution::Stored;
use crate::topics::Topics;

/// Keys come from this process, so a fast hash is safe enough; it is seeded all the same.
pub(super) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

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

/// What flushes the log: a thread for groups, and a handle for what the writer does alone.
struct Flushing {
    flusher: Flusher,
    checkpointer: Checkpointer,
    durability: Durability,
    log: Log,
}

impl Flushing {
    fn start(log: &FlushedLog, durability: &Durability, topics: &Arc<Topics>) -> Result<Self> {
        let (checkpointer, growth) = Checkpointer::start(&log.database, log.busy_timeout)?;
        let flusher = Flusher::start(Log::new(log.path.clone()), durability.clone(), Arc::clone(topics), growth)?;
        Ok(Self { flusher, checkpointer, durability: durability.clone(), log: Log::new(log.path.clone()) })
    }

    /// Flushes on the writer's own thread, up to and with a group.
    fn flush(&mut self, number: u64) -> Result<()> {
        let outcome = self.durability.check().and_then(|()| self.log.flush());
        self.durability.advance(number, &outcome);
        outcome
    }
}

/// The writer's desk.
pub(crate) struct Desk {
    pub(crate) db: Connection,
    pub(crate) clock: StoreClock,
    topics: Arc<Topics>,
    /// Flushes groups beside the writer; none where a commit is all there is to wait for.
    flushing: Option<Flushing>,
    /// How many groups were committed.
    committed: Arc<AtomicU64>,
    /// The news of the open group.
    news: Vec<Topic>,
    /// Whether the open group has written anything.
    has_written: bool,
    /// Changes whenever another connection commits.
    seen_version: Option<i64>,
    /// The last event of the log, while no other process writes.
    last_event: Option<u64>,
    /// Rare records that every operation asks for, while no other process writes.
    rare: HashMap<Key, Option<Record>>,
    /// Lists of rare records, as long.
    rare_lists: HashMap<(Index, Bounds), Vec<Listed>>,
    /// Whether there is any list of a kind, as long.
    kinds: HashMap<[u8; 2], bool>,
    /// Events of the open group.
    events: Vec<Appended>,
    /// Rows that were written lately, as long: most executions are claimed and completed soon after they came.
    recent: HashMap<ExecutionId, Stored>,
}

impl Desk {
    /// A desk; `log` is to be flushed after each commit.
    pub(crate) fn new(
        db: Connection,
        clock: StoreClock,
        topics: Arc<Topics>,
        log: Option<&FlushedLog>,
        committed: Arc<AtomicU64>,
        durability: &Durability,
    ) -> Result<Self> {
        let flushing = log.map(|log| Flushing::start(log, durability, &topics)).transpose()?;
        let mut desk = Self {
            db,
            clock,
            topics,
            flushing,
            committed,
            news: Vec::new(),
            has_written: false,
            seen_version: None,
            last_event: None,
            rare: HashMap::default(),
            rare_lists: HashMap::default(),
            kinds: HashMap::default(),
            events: Vec::new(),
            recent: HashMap::default(),
        };
        // Whatever others write from now on is news.
        desk.look_for_others()?;
        Ok(desk)
    }

    /// Opens the group's transaction.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let Some(flushing) = &self.flushing {
            flushing.durability.check()?;
        }
        self.execute("BEGIN IMMEDIATE")?;
        // One that stayed open would keep every later one from beginning.
        self.look_for_others().inspect_err(|_| self.roll_back())
    }

    /// Commits the group; it is durable when it is flushed.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.has_written |= !self.events.is_empty();
        tables::event::append(&self.db, &self.events).map_err(explain)?;
        self.events.clear();
        // Counted before it can be seen, so that a reader who sees it waits for its flush.
        self.committed.fetch_add(1, Ordering::AcqRel);
        self.execute("COMMIT").inspect_err(|_| self.give_up_number())
    }

    /// Has a committed group flushed, then its news told and its callers answered.
    pub(super) fn make_durable(&mut self, group: Vec<Box<dyn Work>>) {
        let committed = self.hand_over(group);
        match &self.flushing {
            Some(flushing) => flushing.flusher.take_over(committed),
            None => publish(committed, &self.topics, &Ok(())),
        }
    }

    /// A commit failed that was counted already: nobody is to wait for its flush.
    fn give_up_number(&mut self) {
        self.news.clear();
        self.has_written = false;
        self.make_durable(Vec::new());
    }

    fn hand_over(&mut self, group: Vec<Box<dyn Work>>) -> Committed {
        Committed {
            number: self.committed.load(Ordering::Acquire),
            has_written: std::mem::take(&mut self.has_written),
            group,
            news: std::mem::take(&mut self.news),
        }
    }

    /// What is to be done between two groups.
    pub(super) fn tidy(&self) {
        if let Some(flushing) = &self.flushing {
            flushing.checkpointer.finish(&self.db);
        }
    }

    /// Undoes the group.
    pub(super) fn roll_back(&mut self) {
        self.news.clear();
        self.has_written = false;
        self.events.clear();
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
                self.has_written = true;
                let committed = self.hand_over(Vec::new());
                let outcome = self.flushing.as_mut().map_or(Ok(()), |flushing| flushing.flush(committed.number));
                publish(committed, &self.topics, &outcome);
                outcome.map(|()| out)
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
        self.kinds.clear();
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
            return match Place::of(index) {
                Place::Rows(list) if !self.has_lists_like(&list)? => Ok(Vec::new()),
                _ => tables::list(&self.db, index, bounds),
            };
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

    /// Whether there is any list of the same kind: many kinds are in use here and there only, and asked for everywhere.
    fn has_lists_like(&mut self, list: &[u8]) -> Result<bool> {
        let kind = kind_of(list);
        if let Some(has_any) = self.kinds.get(&kind) {
            return Ok(*has_any);
        }
        let prefix = if kind[1] == 0 { &kind[..1] } else { &kind[..] };
        let has_any = tables::entry::has_any(&self.db, prefix)?;
        self.kinds.insert(kind, has_any);
        Ok(has_any)
    }

    /// An entry was added to a list.
    pub(super) fn listed(&mut self, list: &[u8]) {
        self.kinds.insert(kind_of(list), true);
    }

    /// A record has changed.
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
        self.events.push(Appended { sequence: last + 1, at: event.at, body: encode_event(event)? });
        self.last_event = Some(last + 1);
        Ok(())
    }

    /// Something was written.
    pub(super) const fn wrote(&mut self) {
        self.has_written = true;
    }

    pub(super) fn announce(&mut self, topic: Topic) {
        if !self.news.contains(&topic) {
            self.news.push(topic);
        }
    }
}

/// The kind of a list: its code, and for due work what comes due.
fn kind_of(list: &[u8]) -> [u8; 2] {
    match list {
        [code, kind] => [*code, *kind],
        [code, ..] => [*code, 0],
        [] => [0, 0],
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
