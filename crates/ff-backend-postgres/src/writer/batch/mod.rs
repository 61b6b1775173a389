//! What the operations of one commit know together, and what those that are done have decided.
//!
//! Operations run side by side. Whoever needs to read says so and waits; when all of them wait, everything that is wanted is read in one
//! round trip.

mod search;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use tokio::sync::oneshot;

use super::Memory;
use super::cache::Row;
use super::changes::Accepted;
use super::foresight::Looked;
use super::hand::Hand;
use super::heads::Heads;
use super::locks::Hold;
use super::mirror::Part;
use super::mirrors::{Mirrors, Reading, is_queue};
use crate::address::{Address, Satellite, Stored};
use crate::error::{Trouble, explain};
use crate::indexes::Place;
use crate::session::{Frame, Session};
use crate::tables::{self, Along, Bring, Entered, Facts};
use crate::young::Young;
use search::Stretch;

/// A page of an index that somebody waits for.
type Page = Result<Vec<Entered>>;

/// Who wants a page.
enum Reader {
    /// Somebody who waits for it.
    One(oneshot::Sender<Page>),
    /// Everybody who will look there for work; this is where their look begins.
    All(Stretch),
}

#[derive(Default)]
struct Wanted {
    rows: Vec<Address>,
    row_readers: Vec<oneshot::Sender<()>>,
    pages: Vec<(Index, Bounds, Reader)>,
}

#[derive(Default)]
struct State {
    facts: Facts,
    wanted: Wanted,
    accepted: Accepted,
    /// Heads of lists that were read for this commit, by what they lie between.
    heads: HashMap<Stretch, Heads>,
    looked: Looked,
}

impl State {
    /// What a key holds as it is stored, by what is known.
    fn stored(&self, key: &Key, mut is_missing: impl FnMut(Address)) -> Result<Option<Record>> {
        let mut row = |address: Address| {
            let row = self.facts.get(&address);
            if row.is_none() {
                is_missing(address);
            }
            row.map(Option::as_deref)
        };
        let record = |row: Option<&Stored>| row.map(|row| row.record.clone()).transpose();
        let Some((id, satellite)) = Satellite::of(key) else { return record(row(Address::of(key)).flatten()) };
        let Some(execution) = row(Address::Execution(id)) else { return Ok(None) };
        match tables::beside(execution, satellite) {
            tables::Beside::Nothing => Ok(None),
            tables::Beside::Held(held) => held.record(key).map(Some),
            tables::Beside::OwnRow => record(row(Address::Record(key.clone())).flatten()),
        }
    }
}

/// Everything about one attempt at a commit.
pub(super) struct Batch {
    pub(super) now: TimestampMs,
    state: Mutex<State>,
    memory: Option<Arc<Memory>>,
    /// What is young, in a process that owns the journal.
    young: Option<Arc<Young>>,
    /// What nobody else can change.
    hold: Hold,
    newborn: HashSet<ExecutionId>,
    /// How many operations look for work.
    seekers: usize,
    hand: Hand,
    /// Whether rows come along with queues.
    brings_rows: bool,
    /// Whether a decision depends on something that no version tells of.
    is_guess: AtomicBool,
    /// Whether a decision that was accepted has to do with heads that came out of mirrors.
    is_mirrored: AtomicBool,
    /// Whether mirrors are no longer looked into.
    is_for_real: AtomicBool,
}

/// What is known before anything is read.
pub(super) struct Known {
    /// What may be old; none where that will not do.
    pub(super) memory: Option<Arc<Memory>>,
    /// What is young, in a process that owns the journal.
    pub(super) young: Option<Arc<Young>>,
}

/// What one operation has read and wants to write.
#[derive(Default)]
pub(super) struct Decision {
    pub(super) overlay: Overlay,
    pub(super) keys: Vec<Key>,
    pub(super) ranges: HashSet<Index>,
    /// Whether it was shown anything that is only known, not read.
    pub(super) saw_mirror: bool,
}

impl Batch {
    /// A batch that trusts the cache, if there is one: what turns out to be old is noticed at the commit.
    pub(super) fn new(
        now: TimestampMs,
        Known { memory, young }: Known,
        hold: Hold,
        newborn: HashSet<ExecutionId>,
        seekers: usize,
        hand: Hand,
        brings_rows: bool,
    ) -> Self {
        let (state, is_guess, is_mirrored, is_for_real) = Default::default();
        Self {
            now,
            state,
            memory,
            young,
            hold,
            newborn,
            seekers,
            hand,
            brings_rows,
            is_guess,
            is_mirrored,
            is_for_real,
        }
    }

    /// A range was read whose owner is not there: nothing tells whether it changes, unless its partition is taken.
    pub(super) fn read_unowned(&self, partition: Partition) {
        if !self.hold.covers(partition) {
            self.is_guess.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a decision is worth nothing unless partitions are taken first.
    pub(super) fn is_guess(&self) -> bool {
        self.is_guess.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing of this can be stored yet.
    pub(super) fn is_newborn(&self, address: &Address) -> bool {
        address.execution().is_some_and(|id| self.newborn.contains(&id))
    }

    /// Whether nothing can be stored under a key yet.
    pub(super) fn is_of_newborn(&self, key: &Key) -> bool {
        key.execution_id().is_some_and(|id| self.newborn.contains(&id))
    }

    /// What a key holds as it was decided, or else as it is stored. What would have to be read for that is added to `missing`.
    pub(super) fn look(&self, key: &Key, missing: &mut Vec<Address>) -> Result<Option<Record>> {
        if let Name::Fence(id) = key.name {
            return Ok(self.look(&Key::execution(id), missing)?.map(Record::ownership));
        }
        let state = self.lock();
        if let Some(decided) = state.accepted.changes.get(key) {
            return Ok(decided.new.clone());
        }
        state.stored(key, |address| {
            if !self.is_newborn(&address) {
                missing.push(address);
            }
        })
    }

    /// What a key holds as it is stored; only for what is known.
    pub(super) fn stored(&self, key: &Key) -> Result<Option<Record>> {
        self.lock().stored(key, drop)
    }

    /// The rows of their own that keys have beside those of their executions, as the latter say.
    pub(super) fn own_rows<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Vec<Address> {
        let state = self.lock();
        let own_row = |key: &Key| {
            let (id, satellite) = Satellite::of(key)?;
            let row = state.facts.get(&Address::Execution(id)).and_then(Option::as_deref);
            matches!(tables::beside(row, satellite), tables::Beside::OwnRow).then(|| Address::Record(key.clone()))
        };
        keys.filter_map(own_row).collect()
    }

    /// Takes part in what was decided.
    pub(super) fn with_accepted<T>(&self, look: impl FnOnce(&Accepted) -> T) -> T {
        look(&self.lock().accepted)
    }

    /// What a row holds; only for what is known.
    pub(super) fn fact(&self, address: &Address) -> Option<Arc<Stored>> {
        self.lock().facts.get(address).cloned().flatten()
    }

    /// Learns what rows hold; what is remembered will do, because the commit makes sure of it.
    pub(super) async fn know(&self, addresses: impl IntoIterator<Item = Address>) -> Result<()> {
        wait(self.ask(addresses, |address| self.remembered(address))).await
    }

    /// Learns what rows hold that are listed. What is remembered will do, but not that one is not there: the list says otherwise.
    pub(super) async fn know_listed(&self, addresses: impl IntoIterator<Item = Address>) -> Result<()> {
        wait(self.ask(addresses, |address| self.remembered(address).filter(Option::is_some))).await
    }

    /// What is young is nowhere else.
    fn young(&self, address: &Address) -> Option<Row> {
        match address {
            Address::Execution(id) => self.young.as_ref()?.get(*id).map(Some),
            Address::Record(_) => None,
        }
    }

    fn remembered(&self, address: &Address) -> Option<Row> {
        self.memory.as_ref()?.rows.get(address)
    }

    fn mirrors(&self) -> Option<&Mirrors> {
        self.memory.as_deref().map(|memory| &memory.mirrors)
    }

    /// Learns what rows hold now.
    pub(super) async fn know_anew(&self, addresses: impl IntoIterator<Item = Address>) -> Result<()> {
        wait(self.ask(addresses, |_| None)).await
    }

    /// Asks for rows, unless all of them are known or remembered.
    fn ask(
        &self,
        addresses: impl IntoIterator<Item = Address>,
        remembered: impl Fn(&Address) -> Option<Row>,
    ) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        let mut unknown = Vec::new();
        for address in addresses {
            if state.facts.contains_key(&address) || self.is_newborn(&address) {
                continue;
            }
            match self.young(&address).or_else(|| remembered(&address)) {
                Some(stored) => drop(state.facts.insert(address, stored)),
                None => unknown.push(address),
            }
        }
        if unknown.is_empty() {
            return None;
        }
        let (reader, read) = oneshot::channel();
        state.looked.rows.extend(unknown.iter().filter(|address| address.execution().is_none()).cloned());
        state.wanted.rows.extend(unknown);
        state.wanted.row_readers.push(reader);
        Some(read)
    }

    /// A page of an index as it is stored.
    pub(super) async fn page(&self, index: &Index, bounds: &Bounds) -> Page {
        let (reader, read) = oneshot::channel();
        self.lock().wanted.pages.push((index.clone(), bounds.clone(), Reader::One(reader)));
        read.await.unwrap_or_else(|_| Err(Trouble::Closed.into()))
    }

    /// Whether anybody waits for a read.
    pub(super) fn wants(&self) -> bool {
        let state = self.lock();
        !state.wanted.row_readers.is_empty() || !state.wanted.pages.is_empty()
    }

    /// Reads what is wanted, in one round trip, and wakes those who wait.
    pub(super) async fn read(&self, session: &Session) -> Result<()> {
        let wanted = std::mem::take(&mut self.lock().wanted);
        let rows: Vec<Address> = wanted.rows.into_iter().collect::<HashSet<_>>().into_iter().collect();
        let has_queues = wanted.pages.iter().any(|(index, ..)| is_queue(index));
        let reading = self.mirrors().filter(|_| has_queues).and_then(Mirrors::begin_read);
        // Before the tables are read: who settles meanwhile is seen here, there, or twice.
        let young: Vec<Vec<Entered>> =
            wanted.pages.iter().map(|(index, bounds, _)| self.young_in(index, bounds)).collect();
        let parts: Vec<Vec<Part>> =
            wanted.pages.iter().map(|(index, bounds, _)| parts(reading.as_ref(), index, bounds)).collect();
        let mut steps = Vec::with_capacity(parts.len());
        for ((index, bounds, _), parts) in wanted.pages.iter().zip(&parts) {
            for (after, until) in parts {
                let bounds = Bounds { after: after.clone(), until: until.clone(), ..bounds.clone() };
                steps.push(tables::list(index, &bounds, self.bring(index)));
            }
        }
        let load = async { if rows.is_empty() { Ok(Facts::default()) } else { tables::load(session, &rows).await } };
        let list = async {
            if steps.is_empty() { Ok(Vec::new()) } else { session.run(Frame::None, &steps).await.map_err(explain) }
        };
        let (facts, listed) = futures_util::future::try_join(load, list).await?;
        {
            let mut state = self.lock();
            for (address, fact) in facts {
                self.remember(&address, fact.as_ref());
                state.facts.entry(address).or_insert(fact);
            }
        }
        let mut listed = listed.into_iter();
        for (((index, bounds, reader), parts), young) in wanted.pages.into_iter().zip(parts).zip(young) {
            let rows = joined(&mut listed, parts.len(), bounds.limit);
            let page = tables::listed(&index, &rows, self.bring(&index));
            let page = page.map(|page| merged(page, young, &bounds));
            if let Ok(page) = &page {
                self.learn(page);
                if let (Some(reading), Bounds { until: None, reverse: false, .. }) = (&reading, &bounds)
                    && is_queue(&index)
                {
                    reading.keep(&index, &bounds, page, parts.len() == 1);
                }
            }
            match (reader, page) {
                // Nobody waits for an answer that it no longer wants.
                (Reader::One(reader), page) => drop(reader.send(page)),
                (Reader::All(from), Ok(page)) => {
                    self.lock().heads.entry(from).or_default().extend(page, bounds.limit);
                }
                // Who really needs it will see.
                (Reader::All(_), Err(_)) => {}
            }
        }
        for reader in wanted.row_readers {
            let _ = reader.send(());
        }
        Ok(())
    }

    /// Young executions of an index. Their rows do not come along: they may have settled when somebody looks at them again.
    fn young_in(&self, index: &Index, bounds: &Bounds) -> Vec<Entered> {
        let Some(young) = self.young.as_ref().filter(|_| Place::is_columns(index)) else { return Vec::new() };
        let entered = |(position, id)| Entered { position, key: Key::execution(id), along: Along::Nothing };
        young.list(index, bounds).into_iter().map(entered).collect()
    }

    fn remember(&self, address: &Address, fact: Option<&Arc<Stored>>) {
        if let Some(memory) = &self.memory {
            memory.rows.put(address.clone(), fact.cloned());
        }
    }

    /// What is to come along with a list: of queues only versions, if the rows are likely to be remembered.
    const fn bring(&self, index: &Index) -> Bring {
        match index {
            Index::Eligible(..) if self.memory.is_some() && !self.brings_rows => Bring::Versions,
            _ => Bring::Rows,
        }
    }

    /// Rows that came along with a list, or are remembered in the version that did.
    fn learn(&self, page: &[Entered]) {
        let mut state = self.lock();
        for entered in page {
            let address = Address::of(&entered.key);
            let remembered = |version: i64| {
                let stored = self.remembered(&address)??;
                (stored.version == version).then_some(stored)
            };
            let stored = match &entered.along {
                Along::Nothing => None,
                Along::Version(version) => {
                    let stored = remembered(*version);
                    *state.looked.hits_and_misses(stored.is_some()) += 1;
                    stored
                }
                Along::Row(stored) => {
                    if matches!(address, Address::Execution(_)) {
                        *state.looked.hits_and_misses(remembered(stored.version).is_some()) += 1;
                    }
                    Some(Arc::clone(stored))
                }
            };
            if let Some(stored) = stored {
                state.facts.entry(address).or_insert(Some(stored));
            }
        }
    }

    /// Whether a decision still holds after those that were accepted.
    pub(super) fn is_fresh(&self, decision: &Decision) -> bool {
        let state = self.lock();
        let accepted = &state.accepted;
        let is_changed = |key: &Key| accepted.changes.get(key).is_some();
        !decision.keys.iter().any(is_changed) && !decision.ranges.iter().any(|index| accepted.touched.contains(index))
    }

    /// Takes a decision over. Everything it depends on is known by then.
    pub(super) fn accept(&self, decision: Decision, is_refused: bool) {
        let mut state = self.lock();
        let State { facts, accepted, .. } = &mut *state;
        let Decision { overlay, keys, ranges, saw_mirror } = decision;
        if !is_refused {
            self.is_mirrored.fetch_or(saw_mirror, Ordering::Relaxed);
            for (key, change) in overlay.changes {
                if let Name::Execution(id) = key.name {
                    self.hand.choose(id);
                }
                accepted.change(facts, key, change);
            }
            accepted.events.extend(overlay.events);
        }
        for key in keys.into_iter().chain(owners(&ranges)).filter(|key| !self.is_of_newborn(key)) {
            accepted.depend(facts, &key);
        }
    }

    /// Ends the batch.
    pub(super) fn finish(self) -> (Facts, Accepted, HashSet<ExecutionId>, Hand) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state.facts, state.accepted, self.newborn, self.hand)
    }
}

/// What to read for a page: all of it, but of a queue only what is worth reading.
fn parts(reading: Option<&Reading<'_>>, index: &Index, bounds: &Bounds) -> Vec<Part> {
    match (reading, bounds) {
        (Some(reading), Bounds { after, until: None, reverse: false, .. }) if is_queue(index) => {
            reading.parts(index, after.as_ref())
        }
        _ => vec![(bounds.after.clone(), bounds.until.clone())],
    }
}

/// The first rows of so many parts; all of them are taken, whatever is wanted of them.
fn joined<R>(answers: &mut impl Iterator<Item = Vec<R>>, parts: usize, limit: usize) -> Vec<R> {
    let mut rows: Vec<R> = answers.take(parts).flatten().collect();
    rows.truncate(limit);
    rows
}

/// One page out of two that overlap.
fn merged(mut page: Vec<Entered>, young: Vec<Entered>, bounds: &Bounds) -> Vec<Entered> {
    if young.is_empty() {
        return page;
    }
    let known: HashSet<Key> = young.iter().map(|entered| entered.key.clone()).collect();
    page.retain(|entered| !known.contains(&entered.key));
    page.extend(young);
    page.sort_by(|one, other| one.position.cmp(&other.position));
    if bounds.reverse {
        page.reverse();
    }
    page.truncate(bounds.limit);
    page
}

/// Waits for a read, if there is one to wait for.
async fn wait(read: Option<oneshot::Receiver<()>>) -> Result<()> {
    match read {
        Some(read) => read.await.map_err(|_| Trouble::Closed.into()),
        None => Ok(()),
    }
}

/// The records whose ranges were read.
fn owners(ranges: &HashSet<Index>) -> impl Iterator<Item = Key> {
    ranges.iter().filter_map(Index::owner)
}

/// The record that a key is a part of.
pub(super) fn stored_key(key: &Key) -> Option<Key> {
    match key.name {
        Name::Fence(id) => Some(Key::execution(id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn a_page_that_is_full_early_leaves_nothing_to_the_next_one() {
        let mut answers = [vec![1, 2], vec![3], vec![4], vec![5]].into_iter();
        assert_eq!(joined(&mut answers, 3, 2), [1, 2]);
        assert_eq!(joined(&mut answers, 1, 9), [5]);
    }
}
