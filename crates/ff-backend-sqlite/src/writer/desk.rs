//! What the writer has before it: its connection, its clock, and what it remembers between groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use ff_engine::clock::Clock;
use ff_engine::codec::encode_event;
use ff_engine::event::Event;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Entry, Index, Listed, Position, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::topics::Topics;
use rusqlite::Connection;

use super::checkpointer::{Checkpointer, Growth};
use super::flusher::{Committed, Durability, Flusher, Log, publish};
use super::work::Work;
use crate::error::{Trouble, explain};
use crate::indexes::Place;
use crate::options::FlushedLog;
use crate::tables;
use crate::tables::event::Appended;
use crate::tables::execution::{Change, Shadow, Stored, settled_keys, with_young_keys};
use crate::young::{Settled, View, Young};

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

/// What flushes the log: a thread beside the writer, and a handle for what the writer flushes itself.
struct Flushing {
    flusher: Flusher,
    /// Dropped before the thread that it tells, which ends when nobody can.
    growth: Growth,
    checkpointer: Checkpointer,
    durability: Durability,
    log: Log,
}

impl Flushing {
    fn start(log: &FlushedLog, durability: &Durability, topics: &Arc<Topics>) -> Result<Self> {
        let (checkpointer, growth) = Checkpointer::start(log)?;
        let flusher =
            Flusher::start(Log::new(log.path.clone()), durability.clone(), Arc::clone(topics), growth.clone())?;
        Ok(Self { flusher, growth, checkpointer, durability: durability.clone(), log: Log::new(log.path.clone()) })
    }

    /// Flushes on the writer's own thread, up to and with a group.
    fn flush(&mut self, committed: &Committed) -> Result<()> {
        self.growth.note();
        self.durability.flush(&mut self.log, committed.number, committed.has_written)
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
    news: HashSet<Topic>,
    /// When the earliest of its new entries comes due.
    due_at: Option<TimestampMs>,
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
    /// Queues with nothing in the table, as long: work is mostly claimed while it is young.
    drained: HashSet<Index>,
    /// Rows that were written lately, as long: what was claimed is likely to be completed soon.
    recent: HashMap<ExecutionId, Stored>,
    /// The executions that have no row yet, as the journal tells.
    young: Young,
    /// Whether the journal may tell more.
    is_behind: bool,
    young_max: usize,
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
        young_max: usize,
    ) -> Result<Self> {
        let flushing = log.map(|log| Flushing::start(log, durability, &topics)).transpose()?;
        let mut desk = Self {
            db,
            clock,
            topics,
            flushing,
            committed,
            news: HashSet::default(),
            due_at: None,
            has_written: false,
            seen_version: None,
            last_event: None,
            rare: HashMap::default(),
            rare_lists: HashMap::default(),
            kinds: HashMap::default(),
            drained: HashSet::default(),
            recent: HashMap::default(),
            young: Young::default(),
            is_behind: true,
            young_max,
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
        self.look_for_others().and_then(|()| self.catch_up()).inspect_err(|_| self.roll_back())
    }

    /// Learns what others told in the journal.
    fn catch_up(&mut self) -> Result<()> {
        if self.is_behind {
            self.young.catch_up(&self.db)?;
            self.is_behind = false;
        }
        Ok(())
    }

    /// What is stored now.
    pub(crate) fn view(&mut self) -> Result<View<'_>> {
        self.catch_up()?;
        Ok(self.known())
    }

    /// What is stored, as far as it is known: everything, inside of a transaction.
    fn known(&self) -> View<'_> {
        View { db: &self.db, young: &self.young }
    }

    /// Refuses to go on when SQLite has ended the transaction by itself, as it does after some errors: what is written now would not be
    /// a part of it.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.db.is_autocommit() {
            return Err(Trouble::Io("an error ended the transaction; nothing of it was written".to_owned()).into());
        }
        Ok(())
    }

    /// Commits the group; it is durable when it is flushed.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.check_open()?;
        if self.young.commit(&self.db, self.young_max)? == Settled::SomeInQueues {
            self.drained.clear();
        }
        // Counted before it can be seen, so that a reader who sees it waits for its flush.
        self.committed.fetch_add(1, Ordering::AcqRel);
        self.execute("COMMIT").inspect_err(|_| self.give_up_number())
    }

    /// Has a committed group flushed, then its news told and its callers answered: here while nobody waits for the writer, else beside it.
    pub(super) fn make_durable(&mut self, group: Vec<Box<dyn Work>>, nobody_waits: bool) {
        let committed = self.hand_over(group);
        match &mut self.flushing {
            // Without a flush of its own it has to wait for those before it.
            Some(flushing)
                if nobody_waits && (committed.has_written || flushing.durability.has_reached(committed.number - 1)) =>
            {
                let outcome = flushing.flush(&committed);
                publish(committed, &self.topics, &outcome);
            }
            Some(flushing) => flushing.flusher.take_over(committed),
            None => publish(committed, &self.topics, &Ok(())),
        }
    }

    /// A commit failed that was counted already: nobody is to wait for its flush.
    fn give_up_number(&mut self) {
        self.news.clear();
        self.due_at = None;
        self.has_written = false;
        self.make_durable(Vec::new(), false);
    }

    fn hand_over(&mut self, group: Vec<Box<dyn Work>>) -> Committed {
        Committed {
            number: self.committed.load(Ordering::Acquire),
            has_written: std::mem::take(&mut self.has_written),
            group,
            news: std::mem::take(&mut self.news),
            due_at: self.due_at.take(),
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
        self.due_at = None;
        self.has_written = false;
        self.forget();
        self.young = Young::default();
        // SQLite may have undone it by itself; then there is nothing to undo.
        let _ = self.execute("ROLLBACK");
    }

    fn execute(&self, sql: &str) -> Result<()> {
        self.db.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map(drop).map_err(explain)
    }

    /// Runs something in a transaction of its own, with every event in its table.
    pub(crate) fn alone<T>(&mut self, job: impl FnOnce(View<'_>) -> Result<T>) -> Result<T> {
        self.begin()?;
        let settled = self.young.settle_events(&self.db);
        self.end_alone(settled, job)
    }

    /// Runs something in a transaction of its own, with every event and every execution in its table.
    pub(crate) fn alone_and_settled<T>(&mut self, job: impl FnOnce(View<'_>) -> Result<T>) -> Result<T> {
        self.begin()?;
        let settled = self.young.settle_all(&self.db);
        self.end_alone(settled, job)
    }

    fn end_alone<T>(&mut self, settled: Result<()>, job: impl FnOnce(View<'_>) -> Result<T>) -> Result<T> {
        let out = settled.and_then(|()| job(self.known()));
        match out.and_then(|out| self.commit().map(|()| out)) {
            Ok(out) => {
                self.forget();
                self.has_written = true;
                let committed = self.hand_over(Vec::new());
                let outcome = self.flushing.as_mut().map_or(Ok(()), |flushing| flushing.flush(&committed));
                publish(committed, &self.topics, &outcome);
                outcome.map(|()| out)
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Leaves a file that is plain to read. The journal holds all that is left undone, so nothing depends on it; another process that
    /// writes is not waited for.
    pub(super) fn close(mut self) {
        let _ = self.db.busy_timeout(std::time::Duration::ZERO);
        let _ = self.alone_and_settled(|_| Ok(()));
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
        self.drained.clear();
        self.recent.clear();
        self.is_behind = true;
    }

    /// The row of an execution.
    pub(super) fn row(&self, id: ExecutionId) -> Result<Option<Stored>> {
        match self.young.get(id).or_else(|| self.recent.get(&id)) {
            Some(found) => Ok(Some(found.clone())),
            None => tables::execution::load_settled(&self.db, id),
        }
    }

    /// Writes what changed of an execution; `before` is what its columns hold.
    pub(super) fn save_row(&mut self, id: ExecutionId, row: Stored, change: Change, before: &[Entry]) -> Result<()> {
        if row.row == Stored::NO_ROW || self.young.get(id).is_some() {
            self.young.put(id, row, change);
            return Ok(());
        }
        let (old, new) = (Shadow::of(before), Shadow::of(&row.entries()));
        tables::execution::update(&self.db, row.row, &change, &old, &new).map_err(explain)?;
        if new.is_queued() {
            self.drained.clear();
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.clear();
        }
        self.recent.insert(id, row);
        Ok(())
    }

    /// Removes a row.
    pub(super) fn delete_row(&mut self, id: ExecutionId, row: i64) -> Result<()> {
        self.recent.remove(&id);
        if self.young.remove(id) { Ok(()) } else { tables::execution::delete(&self.db, row).map_err(explain) }
    }

    /// An execution that has no row yet.
    pub(super) fn young(&self, id: ExecutionId) -> Option<&Stored> {
        self.young.get(id)
    }

    /// Keys of executions in the order of an index; none if it is not an index of their columns.
    pub(super) fn keys(&mut self, index: &Index, bounds: &Bounds) -> Result<Option<Vec<(Position, Key)>>> {
        if self.drained.contains(index) {
            return Ok(Some(with_young_keys(Vec::new(), &self.young, index, bounds)));
        }
        let Place::Columns(columns) = Place::of(index) else { return Ok(None) };
        let settled = settled_keys(&self.db, &columns, bounds)?;
        let asked_for_any = bounds.after.is_none() && bounds.until.is_none() && bounds.limit > 0;
        if settled.is_empty() && asked_for_any && matches!(index, Index::Eligible(..)) {
            if self.drained.len() >= RARE_MAX {
                self.drained.clear();
            }
            self.drained.insert(index.clone());
        }
        Ok(Some(with_young_keys(settled, &self.young, index, bounds)))
    }

    /// Records that stand in an index; lists of rare ones are remembered.
    pub(super) fn list(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
        if !matches!(index, Index::ClassesOfLane(_)) {
            return match Place::of(index) {
                Place::Rows(list) if !self.has_lists_like(&list)? => Ok(Vec::new()),
                _ => tables::list(self.known(), index, bounds),
            };
        }
        let asked = (index.clone(), bounds.clone());
        if let Some(listed) = self.rare_lists.get(&asked) {
            return Ok(listed.clone());
        }
        let listed = tables::list(self.known(), index, bounds)?;
        if self.rare_lists.len() >= RARE_MAX {
            self.rare_lists.clear();
        }
        self.rare_lists.insert(asked, listed.clone());
        Ok(listed)
    }

    /// A stored record; rare ones are remembered.
    pub(super) fn load(&mut self, key: &Key) -> Result<Option<Record>> {
        if !is_rare(key) {
            return tables::load(self.known(), key);
        }
        if let Some(found) = self.rare.get(key) {
            return Ok(found.clone());
        }
        let found = tables::load(self.known(), key)?;
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
            None => tables::event::extent(self.known())?.last,
        };
        self.young.append(Appended { sequence: last + 1, at: event.at, body: encode_event(event)? });
        self.has_written = true;
        self.last_event = Some(last + 1);
        Ok(())
    }

    /// Something was written.
    pub(super) const fn wrote(&mut self) {
        self.has_written = true;
    }

    /// An entry comes due.
    pub(super) fn announce_due(&mut self, at: TimestampMs) {
        self.due_at = Some(self.due_at.map_or(at, |earliest| earliest.min(at)));
    }

    pub(super) fn announce(&mut self, topic: Topic) {
        self.news.insert(topic);
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
