//! Young executions: the newest ones of a process that owns the journal. They live in its memory and in the journal, and come to their table later.
//!
//! Most executions are claimed and completed soon after they were created. In the table each step writes a row anew and enters it into half a dozen
//! indexes; in the journal it is a few bytes of a line that is written once for the whole commit. Executions settle in the order of their birth, many
//! at a time, and each comes to the table once, as it is by then: those born up to the mark that stands beside the journal are in the table, later ones
//! are young, and none is both.
//!
//! The server cannot compare the versions of rows that it does not have. So a commit *reserves* the young executions that it depends on, here, until it
//! is known what became of it; of two desks that want the same one, the second decides again. Nobody else can change them as long as this process owns
//! the journal, and every commit makes sure that it does, see [`standing`](crate::standing).

mod lines;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Index, Position};
use tokio::sync::Notify;

use crate::address::Stored;
use crate::tables::record::new_version;
pub(crate) use lines::{Line, Tale};
use rows::Rows;

/// Lines of the journal for each execution that may wait there, at most.
const LINES_PER_EXECUTION: usize = 16;

/// The number of an execution in the order of births of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Birth(pub(crate) u64);

/// A commit on its way.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Executions that it bears are born after this one.
    after: Birth,
    may_bear: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Under which number this process owns the journal, if it does.
    owner: Option<i64>,
    rows: Rows,
    /// Those whose fate is being decided on the server.
    reserved: HashSet<ExecutionId>,
    /// Commits on their way, by the number of their lines.
    ways: BTreeMap<u64, Way>,
    /// The line that was numbered last, and the last one that is no longer needed.
    line: u64,
    dropped: u64,
    /// The execution that was born last.
    born: Birth,
    /// How many want everything to be in the tables.
    plain: usize,
    /// How often executions have settled.
    settlings: u64,
}

impl State {
    /// What executions are now, if they are young; none as long as the fate of one of them is open.
    fn look(&self, ids: &HashSet<ExecutionId>) -> Option<Looked> {
        let is_open = ids.iter().any(|id| self.reserved.contains(id));
        let found = ids.iter().filter_map(|id| Some((*id, Arc::clone(self.rows.get(*id)?)))).collect();
        (!is_open).then_some(Looked { found, settlings: self.settlings })
    }

    fn are_free(&self, ids: &[ExecutionId]) -> bool {
        !ids.iter().any(|id| self.reserved.contains(id))
    }

    /// Lines that whoever takes over would read.
    const fn lines(&self) -> u64 {
        self.line - self.dropped
    }
}

/// The young executions of a process.
#[derive(Debug)]
pub(crate) struct Young {
    /// With more of them than this, some settle.
    enough: usize,
    state: Mutex<State>,
    /// Something was let go.
    released: Notify,
    /// Some are to settle.
    pub(crate) crowded: Notify,
    /// One settles them at a time.
    pub(crate) settling: tokio::sync::Mutex<()>,
}

impl Young {
    /// None yet; with more of them than `enough`, some settle.
    pub(crate) fn new(enough: usize) -> Self {
        Self {
            enough,
            state: Mutex::default(),
            released: Notify::new(),
            crowded: Notify::new(),
            settling: tokio::sync::Mutex::default(),
        }
    }

    /// How many settle at a time: they share pages of the indexes, and the price of a commit.
    const fn settled_at_once(&self) -> usize {
        self.enough.div_ceil(2)
    }

    /// With so many of them nobody is born young any more, until some have settled.
    const fn too_many(&self) -> usize {
        self.enough.saturating_mul(4)
    }

    /// Whether some should settle: few of them that change again and again have a long journal, too.
    fn is_crowded(&self, state: &State) -> bool {
        let lines_max = self.enough.saturating_mul(LINES_PER_EXECUTION) as u64;
        state.rows.len() > self.enough || (state.lines() > lines_max && state.rows.len() > 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process owns the journal from now on, under this number; there is nothing in it.
    pub(crate) fn open(&self, owner: i64) {
        let mut state = self.lock();
        let plain = state.plain;
        *state = State { owner: Some(owner), plain, ..State::default() };
        drop(state);
        self.released.notify_waiters();
    }

    /// This process does not own the journal under this number any more, or does not know: whoever takes it over finds everything there.
    pub(crate) fn close(&self, owner: i64) {
        let mut state = self.lock();
        if state.owner == Some(owner) {
            let plain = state.plain;
            *state = State { plain, ..State::default() };
        }
        drop(state);
        self.released.notify_waiters();
    }

    /// This process does not own the journal.
    pub(crate) fn close_any(&self) {
        let owner = self.lock().owner;
        owner.into_iter().for_each(|owner| self.close(owner));
    }

    /// Whether this process owns the journal under this number, as far as it knows.
    pub(crate) fn is_open(&self, owner: i64) -> bool {
        self.lock().owner == Some(owner)
    }

    /// A young execution.
    pub(crate) fn get(&self, id: ExecutionId) -> Option<Arc<Stored>> {
        self.lock().rows.get(id).cloned()
    }

    /// Where young ones stand in an index of columns.
    pub(crate) fn list(&self, index: &Index, bounds: &Bounds) -> Vec<(Position, ExecutionId)> {
        self.lock().rows.list(index, bounds)
    }

    /// Lets a commit through that may depend on young executions and bear new ones; none if this process does not own the journal under this number.
    pub(crate) fn pass(self: &Arc<Self>, owner: i64) -> Option<Pass> {
        let mut state = self.lock();
        if state.owner != Some(owner) {
            return None;
        }
        let may_bear = state.plain == 0 && state.rows.len() < self.too_many();
        state.line += 1;
        let (line, after) = (state.line, state.born);
        state.ways.insert(line, Way { after, may_bear });
        Some(Pass {
            young: Arc::clone(self),
            owner,
            line,
            may_bear,
            reserved: Vec::new(),
            touched: Vec::new(),
            is_over: false,
        })
    }

    /// What executions are now, if they are young, as soon as the fate of none of them is open.
    pub(crate) async fn looked(&self, ids: &HashSet<ExecutionId>) -> Looked {
        loop {
            let released = self.released.notified();
            if let Some(looked) = self.lock().look(ids) {
                return looked;
            }
            released.await;
        }
    }

    /// Whether executions are still what they were when they were looked at, and none of `others`, which were not, is or was young.
    pub(crate) fn is_still(&self, ids: &HashSet<ExecutionId>, looked: &Looked, others: &HashSet<ExecutionId>) -> bool {
        if ids.is_empty() && others.is_empty() {
            return true;
        }
        let state = self.lock();
        // Between two looks one can be born and settle.
        if state.settlings != looked.settlings {
            return false;
        }
        let (Some(now), Some(others)) = (state.look(ids), state.look(others)) else { return false };
        let is_same = |id: &ExecutionId| match (now.found.get(id), looked.found.get(id)) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (None, None) => true,
            _ => false,
        };
        others.found.is_empty() && ids.iter().all(is_same)
    }

    /// Waits until nobody decides about any of these.
    pub(crate) async fn until_free(&self, ids: &[ExecutionId]) {
        loop {
            let released = self.released.notified();
            if self.lock().are_free(ids) {
                return;
            }
            released.await;
        }
    }

    /// From now on executions are born in the table, until this is dropped; those that are young by then may settle.
    pub(crate) async fn keep_plain(self: &Arc<Self>) -> Plain {
        self.lock().plain += 1;
        let plain = Plain { young: Arc::clone(self) };
        loop {
            let released = self.released.notified();
            if !self.lock().ways.values().any(|way| way.may_bear) {
                return plain;
            }
            released.await;
        }
    }

    /// Waits until something has changed, or nothing is young. To be called with `settling` held.
    pub(crate) async fn next_to_settle(self: &Arc<Self>, wants_all: bool) -> Option<Settling> {
        loop {
            let released = self.released.notified();
            if let Some(settling) = self.begin_settling(wants_all) {
                return Some(settling);
            }
            if !wants_all || self.lock().rows.len() == 0 {
                return None;
            }
            released.await;
        }
    }

    /// Whether there is anything to settle, or enough of it.
    pub(crate) fn has_to_settle(&self, wants_all: bool) -> bool {
        let state = self.lock();
        self.is_crowded(&state) || (wants_all && state.rows.len() > 0)
    }

    /// Reserves the oldest, so that they can settle.
    fn begin_settling(self: &Arc<Self>, wants_all: bool) -> Option<Settling> {
        let mut state = self.lock();
        let owner = state.owner?;
        if !wants_all && !self.is_crowded(&state) {
            return None;
        }
        // What is born by a commit on its way comes before whatever is born later.
        let before = state.ways.values().map(|way| way.after).min().unwrap_or(Birth(u64::MAX));
        let State { rows, reserved, .. } = &mut *state;
        let oldest = rows.oldest(before, self.settled_at_once(), |id| !reserved.contains(&id));
        let mark = oldest.last().and_then(|(_, stored)| stored.birth)?;
        reserved.extend(oldest.iter().map(|(id, _)| *id));
        let needed_from = rows.first_line_after(mark).into_iter().chain(state.ways.keys().next().copied()).min();
        let dropped = needed_from.unwrap_or(state.line + 1) - 1;
        Some(Settling {
            young: Arc::clone(self),
            owner,
            rows: oldest,
            mark,
            lines: (state.dropped, dropped),
            is_over: false,
        })
    }
}

/// What young executions were at a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) found: HashMap<ExecutionId, Arc<Stored>>,
    settlings: u64,
}

/// A commit that is let through. Dropped without a word, nobody knows what became of it: if it depends on anything young, the process gives the
/// journal up, and finds out what is there when it takes it over again.
#[derive(Debug)]
pub(crate) struct Pass {
    young: Arc<Young>,
    owner: i64,
    line: u64,
    may_bear: bool,
    reserved: Vec<ExecutionId>,
    /// Those of them that get another version and nothing else.
    touched: Vec<ExecutionId>,
    is_over: bool,
}

/// Why executions could not be reserved.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// Somebody else has one of these, and is about to let it go.
    ForNow(Vec<ExecutionId>),
    /// One of them is not what it was, or the journal belongs to somebody else.
    ForGood,
}

impl Pass {
    /// The number of its line.
    pub(crate) const fn line(&self) -> u64 {
        self.line
    }

    /// The birth of a new execution, if that is to be young.
    pub(crate) fn bear(&self) -> Option<Birth> {
        self.may_bear.then(|| {
            let mut state = self.young.lock();
            state.born.0 += 1;
            state.born
        })
    }

    /// Reserves executions that must have these versions, 0 for one that must not be young, and those of others that are young.
    pub(crate) fn reserve(
        &mut self,
        seen: impl Iterator<Item = (ExecutionId, i64)>,
        touched: impl Iterator<Item = ExecutionId>,
    ) -> Result<(), Taken> {
        let mut state = self.young.lock();
        let is_there = |id: &ExecutionId| state.rows.get(*id).is_some();
        let (seen, touched): (Vec<_>, Vec<_>) = (seen.collect(), touched.filter(is_there).collect());
        let reserved: Vec<ExecutionId> = seen.iter().map(|(id, _)| *id).chain(touched.iter().copied()).collect();
        if state.owner == Some(self.owner) && !state.are_free(&reserved) {
            return Err(Taken::ForNow(reserved));
        }
        let version = |id: ExecutionId| state.rows.get(id).map_or(Stored::NO_VERSION, |stored| stored.version);
        if state.owner != Some(self.owner) || seen.iter().any(|(id, seen)| version(*id) != *seen) {
            return Err(Taken::ForGood);
        }
        state.reserved.extend(reserved.iter().copied());
        drop(state);
        (self.reserved, self.touched) = (reserved, touched);
        Ok(())
    }

    /// It was committed, and these executions are so from now on; none for those that are gone.
    pub(crate) fn succeed(mut self, changed: Vec<(ExecutionId, Option<Arc<Stored>>)>) {
        let mut state = self.young.lock();
        if state.owner == Some(self.owner) {
            for id in &self.touched {
                state.rows.touch(*id, new_version());
            }
            for (id, stored) in changed {
                state.rows.put(id, stored, self.line);
            }
        }
        drop(state);
        self.release();
    }

    /// Nothing was committed.
    pub(crate) fn fail(mut self) {
        self.release();
    }

    fn release(&mut self) {
        self.is_over = true;
        let reserved = std::mem::take(&mut self.reserved);
        let mut state = self.young.lock();
        if state.owner == Some(self.owner) {
            state.ways.remove(&self.line);
            for id in reserved {
                state.reserved.remove(&id);
            }
        }
        let is_crowded = self.young.is_crowded(&state);
        drop(state);
        self.young.released.notify_waiters();
        if is_crowded {
            self.young.crowded.notify_one();
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.reserved.is_empty() {
            self.release();
        } else {
            self.young.close(self.owner);
        }
    }
}

/// Executions that are on their way to the table. Dropped without a word, nobody knows whether they arrived.
#[derive(Debug)]
pub(crate) struct Settling {
    young: Arc<Young>,
    pub(crate) owner: i64,
    pub(crate) rows: Vec<(ExecutionId, Arc<Stored>)>,
    /// The last one that settles.
    pub(crate) mark: Birth,
    /// Lines after the first and up to the second are no longer needed.
    pub(crate) lines: (u64, u64),
    is_over: bool,
}

impl Settling {
    /// They are in the table.
    pub(crate) fn succeed(mut self) {
        self.end(true);
    }

    /// They are not.
    pub(crate) fn fail(mut self) {
        self.end(false);
    }

    fn end(&mut self, is_settled: bool) {
        self.is_over = true;
        let mut state = self.young.lock();
        if state.owner == Some(self.owner) {
            for (id, _) in &self.rows {
                state.reserved.remove(id);
                if is_settled {
                    state.rows.put(*id, None, 0);
                }
            }
            if is_settled {
                state.dropped = self.lines.1;
                state.settlings += 1;
            }
        }
        drop(state);
        self.young.released.notify_waiters();
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if !self.is_over {
            self.young.close(self.owner);
        }
    }
}

/// As long as this is held, executions are born in the table.
#[derive(Debug)]
pub(crate) struct Plain {
    young: Arc<Young>,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.young.lock().plain -= 1;
    }
}
