//! What the operations of one commit know together, and what those that are done have decided.
//!
//! Operations run side by side. Whoever needs to read says so and waits; when all of them wait, everything that is wanted is read in one
//! round trip.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use ff_engine::event::Event;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Entry, Index, Position};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use tokio::sync::oneshot;

use super::cache::{Cache, Row};
use super::heads::Heads;
use crate::address::{Layout, Shard, beside, stored_key};
use crate::connection::Link;
use crate::error::Trouble;
use crate::indexes;
use crate::tables::record::Entries;
use crate::tables::{Bring, Entered, Look, Page};

/// Heads that are read at once for all who look for work, unless one of them wants more.
const HEADS_MAX: usize = 256;

/// What keys hold, as far as it is known.
pub(super) type Facts = HashMap<Key, Row>;

/// A part of an index: behind one position, up to another.
type Stretch = (Index, Option<Position>, Option<Position>);

#[derive(Default)]
struct Wanted {
    keys: Vec<Key>,
    key_readers: Vec<oneshot::Sender<()>>,
    pages: Vec<(Index, Bounds, Bring, oneshot::Sender<Arc<Page>>)>,
}

#[derive(Default)]
struct State {
    facts: Facts,
    wanted: Wanted,
    accepted: Accepted,
    /// Parts of lists with an owner that were read for this commit.
    ranges: HashMap<(Index, Bounds), Arc<Page>>,
    /// Heads of lists that were read for this commit, by what they lie between.
    heads: HashMap<Stretch, Heads>,
    /// How many looks it took.
    looks: usize,
    /// Whether anything is only remembered.
    is_remembered: bool,
}

/// What becomes of a record.
#[derive(Debug)]
pub(super) struct Change {
    /// What its key is to hold.
    pub(super) new: Option<Record>,
    /// Where it stands as it is stored.
    pub(super) before: Entries,
    /// Where it will stand.
    pub(super) after: Entries,
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct Accepted {
    pub(super) changes: HashMap<Key, Change>,
    pub(super) events: Vec<Event>,
    /// What the decisions depend on; ownership apart from its execution.
    pub(super) read: HashSet<Key>,
    /// Parts of lists that they depend on.
    pub(super) ranges: HashSet<(Index, Bounds)>,
    /// The indexes that were entered or left.
    touched: HashSet<Index>,
}

/// What one operation has read and wants to write.
#[derive(Default)]
pub(super) struct Decision {
    pub(super) overlay: Overlay,
    pub(super) keys: Vec<Key>,
    pub(super) ranges: Vec<(Index, Bounds)>,
}

/// Everything about one attempt at a commit.
pub(super) struct Batch {
    pub(super) now: TimestampMs,
    shard: Shard,
    /// What may be old; none where that will not do.
    memory: Option<Arc<Cache>>,
    newborn: HashSet<ExecutionId>,
    /// How many operations look for work.
    seekers: usize,
    state: Mutex<State>,
}

/// What a batch came to.
pub(super) struct Outcome {
    pub(super) facts: Facts,
    pub(super) accepted: Accepted,
    pub(super) pages: HashMap<(Index, Bounds), Arc<Page>>,
    pub(super) newborn: HashSet<ExecutionId>,
    /// Whether everything was read at one moment.
    pub(super) is_of_one_moment: bool,
}

impl Batch {
    pub(super) fn new(
        now: TimestampMs,
        shard: Shard,
        memory: Option<Arc<Cache>>,
        newborn: HashSet<ExecutionId>,
        seekers: usize,
    ) -> Self {
        Self { now, shard, memory, newborn, seekers, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing can be stored under a key yet.
    pub(super) fn is_of_newborn(&self, key: &Key) -> bool {
        key.execution_id().is_some_and(|id| self.newborn.contains(&id))
    }

    /// What keys hold as it was decided, or else as it is stored; only for what is known or newborn.
    pub(super) fn look(&self, key: &Key) -> Result<Option<Record>> {
        if let Name::Fence(id) = key.name {
            return Ok(self.look(&Key::execution(id))?.map(Record::ownership));
        }
        let state = self.lock();
        match state.accepted.changes.get(key) {
            Some(decided) => Ok(decided.new.clone()),
            None => stored(&state.facts, key),
        }
    }

    /// What a key holds as it is stored; only for what is known.
    pub(super) fn stored(&self, key: &Key) -> Result<Option<Record>> {
        stored(&self.lock().facts, key)
    }

    /// What was decided, laid over what is stored.
    pub(super) fn decided(&self) -> Overlay {
        let state = self.lock();
        let changes = state.accepted.changes.iter().map(|(key, change)| (key.clone(), change.new.clone())).collect();
        Overlay { changes, events: Vec::new() }
    }

    /// Learns what keys hold; what is remembered will do, because the commit makes sure of it.
    pub(super) async fn know(&self, keys: impl IntoIterator<Item = Key>) -> Result<()> {
        let Some(read) = self.ask(keys) else { return Ok(()) };
        read.await.map_err(|_| Trouble::Closed.into())
    }

    /// Asks for keys, unless all of them are known or remembered.
    fn ask(&self, keys: impl IntoIterator<Item = Key>) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        let mut unknown = Vec::new();
        for key in keys {
            if state.facts.contains_key(&key) || self.is_of_newborn(&key) {
                continue;
            }
            match self.memory.as_ref().and_then(|memory| memory.get(&key)) {
                Some(row) => {
                    state.is_remembered = true;
                    state.facts.insert(key, row);
                }
                None => unknown.push(key),
            }
        }
        if unknown.is_empty() {
            return None;
        }
        let (reader, read) = oneshot::channel();
        state.wanted.keys.extend(unknown);
        state.wanted.key_readers.push(reader);
        Some(read)
    }

    /// A part of an index as it is stored, with its records.
    async fn page(&self, index: &Index, bounds: &Bounds, bring: Bring) -> Result<Arc<Page>> {
        let (reader, read) = oneshot::channel();
        self.lock().wanted.pages.push((index.clone(), bounds.clone(), bring, reader));
        read.await.map_err(|_| Trouble::Closed.into())
    }

    /// A part of a list with an owner, which the commit makes sure of.
    pub(super) async fn range(&self, index: &Index, bounds: &Bounds) -> Result<Arc<Page>> {
        let part = (index.clone(), bounds.clone());
        if let Some(page) = self.lock().ranges.get(&part) {
            return Ok(Arc::clone(page));
        }
        let mut page = self.page(index, bounds, Bring::Records).await?;
        if let Some((position, key)) = indexes::unlisted(index) {
            self.know([key.clone()]).await?;
            if self.lock().facts.get(&key).is_some_and(Option::is_some) {
                Arc::make_mut(&mut page).add_unlisted(Entered { position, key }, bounds);
            }
        }
        Ok(Arc::clone(self.lock().ranges.entry(part).or_insert(page)))
    }

    /// The classes of a lane. They hardly ever change, so what is remembered will do, because the commit makes sure of it.
    async fn classes(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Entered>> {
        let part = (index.clone(), bounds.clone());
        let Some(memory) = &self.memory else { return Ok(self.range(index, bounds).await?.entered.clone()) };
        let remembered = memory.page(&part);
        let page = match remembered {
            Some(page) => page,
            None => {
                let page = self.page(index, bounds, Bring::Records).await?;
                memory.put_page(part.clone(), Arc::clone(&page));
                page
            }
        };
        self.know(page.entered.iter().map(|entered| entered.key.clone())).await?;
        let mut state = self.lock();
        state.is_remembered = true;
        state.accepted.ranges.insert(part.clone());
        state.ranges.insert(part, Arc::clone(&page));
        Ok(page.entered.clone())
    }

    /// The first entries of an index behind a position that nobody in this batch has taken, and enough of them to be shared by all who look.
    pub(super) async fn heads(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Entered>> {
        if matches!(index, Index::ClassesOfLane(_)) {
            return self.classes(index, bounds).await;
        }
        let bring = self.brought_with(index);
        if bounds.reverse {
            return Ok(self.page(index, bounds, Bring::Records).await?.entered.clone());
        }
        let from = (index.clone(), bounds.after.clone(), bounds.until.clone());
        loop {
            let after = {
                let mut state = self.lock();
                let State { heads, accepted, .. } = &mut *state;
                match heads.get_mut(&from) {
                    None => bounds.after.clone(),
                    Some(heads) => {
                        let left = heads.first(bounds.limit, index, accepted);
                        if left.len() == bounds.limit || heads.more_after.is_none() {
                            return Ok(left);
                        }
                        heads.more_after.clone()
                    }
                }
            };
            let limit = bounds.limit.saturating_mul(self.seekers.max(1)).min(bounds.limit.max(HEADS_MAX));
            let wider = Bounds { after, limit, ..bounds.clone() };
            let page = self.page(index, &wider, bring).await?;
            if bring == Bring::Nothing {
                self.recall(&page.entered).await?;
            }
            let State { heads, facts, .. } = &mut *self.lock();
            let is_there = |key: &Key| facts.get(key).is_some_and(Option::is_some);
            heads.entry(from.clone()).or_default().extend(&page.entered, limit, is_there);
        }
    }

    /// What comes along with the head of a list. Executions that wait are mostly known to the process that created them.
    fn brought_with(&self, index: &Index) -> Bring {
        match (&self.memory, index) {
            (Some(memory), Index::Eligible(..)) if !memory.expects_strangers() => Bring::Nothing,
            (_, Index::Eligible(..)) => Bring::Beside,
            _ => Bring::Records,
        }
    }

    /// Remembers executions and what stands beside them; reads what is not known.
    async fn recall(&self, entered: &[Entered]) -> Result<()> {
        let ids: Vec<ExecutionId> = entered.iter().filter_map(|entered| entered.key.execution_id()).collect();
        if let Some(memory) = &self.memory {
            let strangers = ids.iter().filter(|id| memory.get(&Key::execution(**id)).is_none()).count();
            memory.note_strangers(strangers, ids.len());
        }
        self.know(ids.into_iter().flat_map(|id| [Key::execution(id)].into_iter().chain(beside(id)))).await
    }

    /// Whether anybody waits for a read.
    pub(super) fn wants(&self) -> bool {
        let state = self.lock();
        !state.wanted.key_readers.is_empty() || !state.wanted.pages.is_empty()
    }

    /// Reads what is wanted, in one round trip, and wakes those who wait; says what time it is.
    pub(super) async fn read(&self, link: &Link, layout: &Layout) -> Result<TimestampMs> {
        let Wanted { keys, key_readers, pages } = std::mem::take(&mut self.lock().wanted);
        let keys: Vec<Key> = keys.into_iter().collect::<HashSet<_>>().into_iter().collect();
        let (parts, page_readers): (Vec<_>, Vec<_>) =
            pages.into_iter().map(|(index, bounds, bring, reader)| ((index, bounds, bring), reader)).unzip();
        let look = Look { keys, pages: parts };
        let answer = link.ask(&look.command_at(layout, self.shard)).await?;
        let seen = look.read(answer)?;
        let mut state = self.lock();
        state.looks += 1;
        let read = look.keys.into_iter().zip(seen.records.into_iter().map(|stored| stored.map(Arc::new)));
        for (key, row) in read {
            self.learn(&mut state, key, row);
        }
        for (mut page, reader) in seen.pages.into_iter().zip(page_readers) {
            for (key, stored) in std::mem::take(&mut page.records) {
                self.learn(&mut state, key, stored.map(Arc::new));
            }
            // Nobody waits for an answer that it no longer wants.
            let _ = reader.send(Arc::new(page));
        }
        drop(state);
        for reader in key_readers {
            let _ = reader.send(());
        }
        Ok(seen.time)
    }

    /// What was known first counts: nobody must see two states of one record.
    fn learn(&self, state: &mut State, key: Key, row: Row) {
        if let Some(memory) = &self.memory {
            memory.put(key.clone(), row.clone());
        }
        state.facts.entry(key).or_insert(row);
    }

    /// Whether a decision still holds after those that were accepted.
    pub(super) fn is_fresh(&self, decision: &Decision) -> bool {
        let state = self.lock();
        let accepted = &state.accepted;
        !decision.keys.iter().any(|key| accepted.changes.contains_key(&stored_key(key)))
            && !decision.ranges.iter().any(|(index, _)| accepted.touched.contains(index))
    }

    /// Takes a decision over. Everything it depends on is known by then.
    pub(super) fn accept(&self, decision: Decision, is_refused: bool) {
        let mut state = self.lock();
        let State { facts, accepted, .. } = &mut *state;
        let Decision { overlay, keys, ranges } = decision;
        if !is_refused {
            for (key, new) in overlay.changes {
                accepted.change(facts, key, new);
            }
            accepted.events.extend(overlay.events);
        }
        accepted.read.extend(keys.into_iter().filter(|key| !self.is_of_newborn(key)));
        accepted.ranges.extend(ranges);
    }

    /// Ends the batch.
    pub(super) fn finish(self) -> Outcome {
        let State { facts, accepted, ranges, looks, is_remembered, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_of_one_moment = looks <= 1 && !is_remembered;
        Outcome { facts, accepted, pages: ranges, newborn: self.newborn, is_of_one_moment }
    }
}

impl Accepted {
    /// Takes over what a key is to hold.
    fn change(&mut self, facts: &Facts, key: Key, new: Option<Record>) {
        let listed = new.as_ref().filter(|_| !indexes::is_unlisted(&key));
        let after: Entries = listed.map(Record::entries).unwrap_or_default().into();
        let (before, left) = match self.changes.get(&key) {
            Some(earlier) => (Arc::clone(&earlier.before), Arc::clone(&earlier.after)),
            None => {
                let stored = stored_entries(facts, &key, new.is_none());
                if new.is_none() && facts.get(&key).is_some_and(Option::is_none) {
                    // It is not there, which the commit makes sure of.
                    self.read.insert(key);
                    return;
                }
                (Arc::clone(&stored), stored)
            }
        };
        let moved = left
            .iter()
            .filter(|entry| !after.contains(entry))
            .chain(after.iter().filter(|entry| !left.contains(entry)));
        self.touched.extend(moved.map(|entry| entry.index.clone()));
        self.changes.insert(key, Change { new, before, after });
    }
}

/// Where the stored record of a key stands. One that follows its key stands where it says, if at all.
fn stored_entries(facts: &Facts, key: &Key, is_end: bool) -> Entries {
    if key.may_be_listed() {
        return facts.get(key).and_then(Option::as_ref).map(|stored| Arc::clone(stored.entries())).unwrap_or_default();
    }
    let is_known = facts.get(key).is_some_and(Option::is_some);
    indexes::followed(key).filter(|_| is_end || is_known).into_iter().collect::<Vec<Entry>>().into()
}

fn stored(facts: &Facts, key: &Key) -> Result<Option<Record>> {
    facts.get(key).and_then(Option::as_ref).map(|stored| stored.record.clone()).transpose()
}
