//! What the operations of one commit know together, and what those that are done have decided.
//!
//! Operations run side by side. Whoever needs to read says so and waits; when all of them wait, everything that is wanted is read in one
//! round trip.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::index::{Bounds, Index, Position};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use tokio::sync::oneshot;

use super::cache::Cache;
use super::changes;
use crate::address::{Address, Stored};
use crate::error::{Trouble, explain};
use crate::session::{Frame, Session};
use crate::tables::{self, Entered, Facts};

/// Heads that are read at once for all who look for work, unless one of them wants more.
const HEADS_MAX: usize = 256;

/// A part of an index: behind one position, up to another.
type Stretch = (Index, Option<Position>, Option<Position>);

/// A page of an index that somebody waits for.
type Page = Result<Vec<Entered>>;

#[derive(Default)]
struct Wanted {
    rows: Vec<Address>,
    row_readers: Vec<oneshot::Sender<()>>,
    pages: Vec<(Index, Bounds, oneshot::Sender<Page>)>,
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct Accepted {
    pub(super) overlay: Overlay,
    /// The indexes with an owner that were entered or left.
    pub(super) touched: HashSet<Index>,
    /// The rows that the decisions depend on.
    pub(super) read: HashSet<Address>,
}

#[derive(Default)]
struct State {
    facts: Facts,
    wanted: Wanted,
    accepted: Accepted,
    /// Heads of queues that were read for this commit, by what they lie between, and whether there may be more.
    heads: HashMap<Stretch, (Vec<Entered>, bool)>,
}

/// Everything about one attempt at a commit.
pub(super) struct Batch {
    pub(super) now: TimestampMs,
    state: Mutex<State>,
    cache: Option<Arc<Cache>>,
    /// The partitions that nobody else can change.
    taken: HashSet<Partition>,
    newborn: HashSet<ExecutionId>,
    /// How many operations look for work.
    seekers: usize,
    /// Whether a decision depends on something that no version tells of.
    is_guess: AtomicBool,
}

/// What one operation has read and wants to write.
#[derive(Default)]
pub(super) struct Decision {
    pub(super) overlay: Overlay,
    pub(super) keys: HashSet<Key>,
    pub(super) ranges: HashSet<Index>,
}

impl Batch {
    /// A batch that trusts the cache, if there is one: what turns out to be old is noticed at the commit.
    pub(super) fn new(
        now: TimestampMs,
        cache: Option<Arc<Cache>>,
        taken: HashSet<Partition>,
        newborn: HashSet<ExecutionId>,
        seekers: usize,
    ) -> Self {
        Self { now, state: Mutex::default(), cache, taken, newborn, seekers, is_guess: AtomicBool::new(false) }
    }

    /// A range was read whose owner is not there: nothing tells whether it changes, unless its partition is taken.
    pub(super) fn read_unowned(&self, partition: Partition) {
        if !self.taken.contains(&partition) {
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

    /// What was decided about a key, if anything.
    pub(super) fn decided(&self, key: &Key) -> Option<Option<ff_engine::records::Record>> {
        self.lock().accepted.overlay.changes.get(key).cloned()
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
    pub(super) async fn know(&self, addresses: Vec<Address>) -> Result<()> {
        self.learn_rows(addresses, self.cache.as_deref()).await
    }

    /// Learns what rows hold now.
    pub(super) async fn know_anew(&self, addresses: Vec<Address>) -> Result<()> {
        self.learn_rows(addresses, None).await
    }

    async fn learn_rows(&self, addresses: Vec<Address>, cache: Option<&Cache>) -> Result<()> {
        let read = {
            let mut state = self.lock();
            let mut unknown = Vec::new();
            for address in addresses {
                if state.facts.contains_key(&address) || self.is_newborn(&address) {
                    continue;
                }
                match cache.and_then(|cache| cache.get(&address)) {
                    Some(stored) => {
                        state.facts.insert(address, Some(stored));
                    }
                    None => unknown.push(address),
                }
            }
            if unknown.is_empty() {
                return Ok(());
            }
            let (reader, read) = oneshot::channel();
            state.wanted.rows.extend(unknown);
            state.wanted.row_readers.push(reader);
            read
        };
        read.await.map_err(|_| Trouble::Closed.into())
    }

    /// A page of an index as it is stored.
    pub(super) async fn page(&self, index: &Index, bounds: &Bounds) -> Page {
        let (reader, read) = oneshot::channel();
        self.lock().wanted.pages.push((index.clone(), bounds.clone(), reader));
        read.await.unwrap_or_else(|_| Err(Trouble::Closed.into()))
    }

    /// The first entries of an index behind a position that nobody in this batch has taken, and enough of them to be shared by all who look.
    pub(super) async fn heads(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Entered>> {
        if bounds.reverse {
            return self.page(index, bounds).await;
        }
        let from = (index.clone(), bounds.after.clone(), bounds.until.clone());
        loop {
            let (after, known) = {
                let state = self.lock();
                let known = state.heads.get(&from).cloned();
                let after = known.as_ref().and_then(|(heads, _)| heads.last().map(|head| head.position.clone()));
                (after.or_else(|| bounds.after.clone()), known)
            };
            if let Some((heads, has_more)) = &known {
                let left: Vec<Entered> = self.with_accepted(|accepted| {
                    let is_left = |head: &&Entered| match accepted.overlay.changes.get(&head.key) {
                        None => true,
                        Some(change) => change.iter().any(|record| changes::stands_in(record, index)),
                    };
                    heads.iter().filter(is_left).take(bounds.limit).cloned().collect()
                });
                if left.len() == bounds.limit || !has_more {
                    return Ok(left);
                }
            }
            let limit = bounds.limit.saturating_mul(self.seekers.max(1)).min(bounds.limit.max(HEADS_MAX));
            let page = self.page(index, &Bounds { after, limit, ..bounds.clone() }).await?;
            let mut state = self.lock();
            let (heads, has_more) = state.heads.entry(from.clone()).or_default();
            *has_more = page.len() == limit;
            heads.extend(page);
        }
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
        let steps: Vec<_> = wanted.pages.iter().map(|(index, bounds, _)| tables::list(index, bounds, true)).collect();
        let load = async { if rows.is_empty() { Ok(Facts::default()) } else { tables::load(session, &rows).await } };
        let list = async {
            if steps.is_empty() { Ok(Vec::new()) } else { session.run(Frame::None, &steps).await.map_err(explain) }
        };
        let (facts, pages) = futures_util::future::try_join(load, list).await?;
        {
            let mut state = self.lock();
            for (address, fact) in facts {
                self.remember(&address, fact.as_ref());
                state.facts.entry(address).or_insert(fact);
            }
        }
        for ((index, _, reader), rows) in wanted.pages.into_iter().zip(pages) {
            let page = tables::listed(&index, &rows, true);
            if let Ok(page) = &page {
                self.learn(page);
            }
            // Nobody waits for an answer that it no longer wants.
            let _ = reader.send(page);
        }
        for reader in wanted.row_readers {
            let _ = reader.send(());
        }
        Ok(())
    }

    fn remember(&self, address: &Address, fact: Option<&Arc<Stored>>) {
        if let (Some(cache), Some(stored)) = (&self.cache, fact) {
            cache.put(address.clone(), Arc::clone(stored));
        }
    }

    /// Rows that came along with a list.
    fn learn(&self, page: &[Entered]) {
        let mut state = self.lock();
        for entered in page {
            if let Some(stored) = &entered.row {
                let address = match entered.key.name {
                    Name::Execution(id) => Address::Execution(id),
                    _ => Address::Record(entered.key.clone()),
                };
                state.facts.entry(address).or_insert_with(|| Some(Arc::clone(stored)));
            }
        }
    }

    /// Whether a decision still holds after those that were accepted.
    pub(super) fn is_fresh(&self, decision: &Decision) -> bool {
        let state = self.lock();
        let accepted = &state.accepted;
        let is_changed = |key: &Key| accepted.overlay.changes.contains_key(stored_key(key).as_ref().unwrap_or(key));
        !decision.keys.iter().any(is_changed) && !decision.ranges.iter().any(|index| accepted.touched.contains(index))
    }

    /// Takes a decision over. Everything it depends on is known by then.
    pub(super) fn accept(&self, decision: Decision, is_refused: bool) {
        let mut state = self.lock();
        let State { facts, accepted, .. } = &mut *state;
        for key in decision.keys.iter().chain(&owners(&decision.ranges)) {
            let address = Address::of(key);
            if let (Address::Execution(_), Some((_, satellite))) = (&address, crate::address::Satellite::of(key)) {
                let row = facts.get(&address).and_then(Option::as_deref);
                if matches!(tables::beside(row, satellite), tables::Beside::OwnRow) {
                    accepted.read.insert(Address::Record(key.clone()));
                }
            }
            accepted.read.insert(address);
        }
        if is_refused {
            return;
        }
        for (key, change) in decision.overlay.changes {
            let before = changes::before(facts, &accepted.overlay, &key);
            accepted.touched.extend(changes::touched(&key, before.as_ref(), change.as_ref()));
            accepted.overlay.changes.insert(key, change);
        }
        accepted.overlay.events.extend(decision.overlay.events);
    }

    /// Ends the batch.
    pub(super) fn finish(self) -> (Facts, Accepted, HashSet<ExecutionId>) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state.facts, state.accepted, self.newborn)
    }
}

/// The records whose ranges were read.
fn owners(ranges: &HashSet<Index>) -> Vec<Key> {
    ranges.iter().filter_map(Index::owner).collect()
}

/// The record that a key is a part of.
pub(super) fn stored_key(key: &Key) -> Option<Key> {
    match key.name {
        Name::Fence(id) => Some(Key::execution(id)),
        _ => None,
    }
}
