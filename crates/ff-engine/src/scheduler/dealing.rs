//! Claims that come at the same time share one look at the queues, on a store whose transactions cannot look at all partitions.
//!
//! Whoever is first looks for all who stand in line by then, and deals what it sees: to each its own, so that nobody tries what another one
//! is about to take. Those who come later see what is there when they look. As in the short way, whatever calls for more than the order of
//! queues is left to the general way.
//!
//! Whoever looks may be a future that nobody polls. So nobody waits for it for long: those who have lost patience look anew, together.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::error::EngineError;
use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::classes::walked;
use super::grants::Holder;
use super::hunt::{Catch, Prize, Secure};
use super::parking::{eligible_index, parked_routes};
use super::queue::{Queues, Seeker, lane_keys, reserved};
use super::shortcut::Taken;
use super::turnstile::Group;
use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::records::Execution;
use crate::store::Store;
use crate::verbs::list_all;

/// Executions that one look shows at most.
const SHOWN_MAX: usize = 512;

/// Executions beyond those that are wanted, because others may be faster.
const SPARE: usize = 4;

/// How often a claim whose executions others took, or are about to take, looks for new ones before it tries the general way.
const DEALS_MAX: usize = 8;

/// For how long a claim waits for the look of another one.
const PATIENCE: Duration = Duration::from_millis(250);

/// What lies behind the executions of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Behind {
    /// Nobody has looked.
    #[default]
    More,
    /// Nothing, here or elsewhere.
    Nothing,
    /// Nothing but what other claims are about to take, and may leave after all.
    InHand,
    /// Something that the order of queues does not decide about.
    Other,
}

/// What one look has shown.
#[derive(Debug, Default)]
struct Deck {
    shown: VecDeque<Execution>,
    behind: Behind,
    /// Whether classes were passed over.
    is_partial: bool,
    /// Those who arrived with a lower number came before the look.
    came_before: u64,
}

/// Those who look for the same.
#[derive(Debug, Default)]
struct Table {
    arrivals: AtomicU64,
    /// Executions that those in line want.
    wanted: AtomicUsize,
    deck: tokio::sync::Mutex<Deck>,
}

/// Where claims of this process share what they see.
#[derive(Debug, Default)]
pub(crate) struct Dealer {
    tables: Mutex<HashMap<Group, Arc<Table>>>,
    /// Executions that claims are about to take.
    in_hand: Mutex<HashSet<ExecutionId>>,
    /// Tells when a claim has taken them, or left them.
    released: Notify,
}

type DeckGuard<'a> = tokio::sync::MutexGuard<'a, Deck>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dealer {
    fn sit_down(&self, seeker: Seeker<'_>, wanted: usize) -> Seat<'_> {
        let group = Group::of(seeker);
        let table = Arc::clone(lock(&self.tables).entry(group.clone()).or_default());
        table.wanted.fetch_add(wanted, Ordering::Relaxed);
        let arrival = table.arrivals.fetch_add(1, Ordering::SeqCst);
        Seat { dealer: self, group, arrival, wanted, table: Some(table) }
    }

    /// Takes executions into the hand of one claim.
    fn take(&self, shown: &mut VecDeque<Execution>, count: usize) -> Hand<'_> {
        let cards: Vec<Execution> = shown.drain(..count.min(shown.len())).collect();
        lock(&self.in_hand).extend(cards.iter().map(|card| card.id));
        Hand { dealer: self, cards }
    }
}

/// The place of one claim at a table; given up with the value, at any time.
struct Seat<'a> {
    dealer: &'a Dealer,
    group: Group,
    arrival: u64,
    wanted: usize,
    /// There until it is given up.
    table: Option<Arc<Table>>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut tables = lock(&self.dealer.tables);
        if let Some(table) = self.table.take() {
            table.wanted.fetch_sub(self.wanted, Ordering::Relaxed);
            let is_known = tables.get(&self.group).is_some_and(|known| Arc::ptr_eq(known, &table));
            // The map has it, and nobody else.
            if is_known && Arc::strong_count(&table) == 2 {
                tables.remove(&self.group);
            }
        }
    }
}

impl Seat<'_> {
    /// What the latest look has shown, when it is this claim's turn to see it. Nothing if that takes too long: then nobody sits down here any more.
    async fn deck(&self) -> Option<DeckGuard<'_>> {
        let table = self.table.as_ref()?;
        if let Ok(deck) = table.deck.try_lock() {
            return Some(deck);
        }
        if let Ok(deck) = tokio::time::timeout(PATIENCE, table.deck.lock()).await {
            return Some(deck);
        }
        let mut tables = lock(&self.dealer.tables);
        if tables.get(&self.group).is_some_and(|known| Arc::ptr_eq(known, table)) {
            tables.remove(&self.group);
        }
        None
    }
}

/// Executions that one claim is about to take.
struct Hand<'a> {
    dealer: &'a Dealer,
    cards: Vec<Execution>,
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let mut in_hand = lock(&self.dealer.in_hand);
        for card in &self.cards {
            in_hand.remove(&card.id);
        }
        self.dealer.released.notify_waiters();
    }
}

/// What a claim was dealt.
enum Deal<'a> {
    Hand(Hand<'a>),
    Nothing,
    /// The general way is to be tried.
    Other,
    /// Others take too long.
    Late,
}

/// Takes up to `count` executions, as those do who come at the same time.
pub(super) async fn take_dealt<S: Store>(
    engine: &Engine<S>,
    seeker: Seeker<'_>,
    holder: &Holder,
    prize: Prize,
    count: usize,
) -> Result<Taken> {
    for _ in 0..DEALS_MAX {
        let (deal, is_partial) = match deal(engine, seeker, count).await {
            // The general way goes round what does not decode.
            Err(EngineError::Validation { .. }) => break,
            dealt => dealt?,
        };
        let hand = match deal {
            Deal::Hand(hand) => hand,
            Deal::Nothing => return Ok(Taken { is_partial, is_all_quiet: !is_partial, ..Taken::default() }),
            Deal::Other => break,
            Deal::Late => continue,
        };
        let caught = secure_all(engine, &hand, holder, prize).await?;
        if !caught.is_empty() {
            return Ok(Taken { caught, is_partial, is_all_quiet: false });
        }
    }
    Ok(Taken::default())
}

async fn deal<'e, S: Store>(engine: &'e Engine<S>, seeker: Seeker<'_>, count: usize) -> Result<(Deal<'e>, bool)> {
    let mut released = pin!(engine.dealer.released.notified());
    released.as_mut().enable();
    let seat = engine.dealer.sit_down(seeker, count);
    let (Some(table), Some(mut deck)) = (seat.table.as_deref(), seat.deck().await) else {
        return Ok((Deal::Late, false));
    };
    loop {
        let deal = match deck.behind {
            _ if seat.arrival >= deck.came_before => None,
            _ if !deck.shown.is_empty() => Some(Deal::Hand(engine.dealer.take(&mut deck.shown, count))),
            Behind::More => None,
            Behind::Nothing => Some(Deal::Nothing),
            Behind::InHand => {
                drop(deck);
                // Whoever has it in hand may be a future that nobody polls.
                let _ = tokio::time::timeout(PATIENCE, released).await;
                return Ok((Deal::Late, false));
            }
            Behind::Other => Some(Deal::Other),
        };
        if let Some(deal) = deal {
            return Ok((deal, deck.is_partial));
        }
        // Whatever comes of the look, what was seen before is of no account.
        *deck = Deck::default();
        let came_before = table.arrivals.load(Ordering::SeqCst);
        *deck = Deck { came_before, ..look(engine, seeker, table.wanted.load(Ordering::Relaxed)).await? };
    }
}

/// One look at the queues, for so many.
async fn look<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>, wanted: usize) -> Result<Deck> {
    let other = Deck { behind: Behind::Other, ..Deck::default() };
    let walk = walked(engine, seeker).await?;
    let is_partial = walk.is_partial;
    let classes = walk.found();
    let lanes = engine.store.read(&lane_keys(seeker.lane, &classes)).await?;
    let queues = Queues::assorted(seeker, classes, lanes);
    let (now, known) = (engine.store.now().await?, engine.hands.known());
    let neglected = queues.uncovered.iter().filter(|class| !known.has(class, now));
    let unroutable: Vec<Index> = neglected.map(eligible_index).collect();
    if !queues.gates().is_empty() || !is_quiet(engine, &unroutable).await? {
        return Ok(other);
    }
    let in_hand = lock(&engine.dealer.in_hand).clone();
    let limit = (wanted + in_hand.len() + SPARE).min(SHOWN_MAX);
    let indexes = queues.indexes(&BTreeSet::new());
    let heads =
        if indexes.is_empty() { Vec::new() } else { list_all(&engine.store, &indexes, &Bounds::first(limit)).await? };
    let is_end = heads.len() < limit;
    let mut shown = Vec::with_capacity(heads.len());
    let mut behind = Behind::More;
    for head in heads {
        match head.record.map(Execution::try_from) {
            Some(Ok(candidate)) if !candidate.is_lost() && !candidate.needs_admission() => shown.push(candidate),
            _ => {
                behind = Behind::Other;
                break;
            }
        }
    }
    let reserved = reserved(engine, &shown).await?;
    shown.retain(|candidate| !reserved.contains(&candidate.id));
    let seen = shown.len();
    shown.retain(|candidate| !in_hand.contains(&candidate.id));
    if behind == Behind::More && is_end {
        let is_nothing = is_quiet(engine, &parked_routes(&queues.open)).await?;
        behind = match is_nothing {
            _ if shown.len() < seen => Behind::InHand,
            true => Behind::Nothing,
            false => Behind::Other,
        };
    } else if shown.is_empty() {
        // Who goes on from here must go through pages.
        behind = Behind::Other;
    }
    Ok(Deck { shown: shown.into(), behind, is_partial, came_before: 0 })
}

/// Whether nothing stands in any of these places.
async fn is_quiet<S: Store>(engine: &Engine<S>, places: &[Index]) -> Result<bool> {
    Ok(places.is_empty() || list_all(&engine.store, places, &Bounds::first(1)).await?.is_empty())
}

/// Takes what is in a hand, side by side; what others have taken meanwhile is left out.
async fn secure_all<S: Store>(
    engine: &Engine<S>,
    hand: &Hand<'_>,
    holder: &Holder,
    prize: Prize,
) -> Result<Vec<Catch>> {
    let now = engine.store.now().await?;
    let tries = hand.cards.iter().map(|card| engine.run(secure(engine, card, holder, prize, now)));
    let mut caught = Vec::with_capacity(hand.cards.len());
    let mut failed = None;
    for outcome in join_all(tries).await {
        match outcome {
            Ok(catch) => caught.extend(catch),
            Err(EngineError::Contention(_)) => {}
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        // What was taken is taken: the caller must learn of it.
        Some(error) if caught.is_empty() => Err(error),
        _ => Ok(caught),
    }
}

fn secure<S: Store>(engine: &Engine<S>, card: &Execution, holder: &Holder, prize: Prize, now: TimestampMs) -> Secure {
    Secure {
        execution: card.id,
        epoch: card.epoch,
        holder: holder.clone(),
        prize,
        until: now.plus(prize.patience_ms()),
        first: engine.uuid_at(now),
        second: engine.uuid_at(now),
    }
}

#[cfg(test)]
mod tests {
    use ff_core::backend::Ingress;
    use ff_core::backend::ingress::CreateExecutionArgs;
    use ff_core::ids::{LaneId, Namespace};
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;

    struct Scene {
        engine: Engine<MemoryStore>,
        lane: LaneId,
        nothing: BTreeSet<String>,
    }

    impl Scene {
        async fn open() -> Self {
            let clock = ManualClock::at(TimestampMs(1_700_000_000_000));
            let engine = Engine::open(MemoryStore::new(Arc::new(clock)), Settings::default()).await.unwrap();
            Self { engine, lane: LaneId::new("default").unwrap(), nothing: BTreeSet::new() }
        }

        fn seeker(&self) -> Seeker<'_> {
            Seeker { lane: &self.lane, capabilities: &self.nothing, namespaces: None, kinds: None }
        }

        async fn submit(&self, priority: i32) {
            let args = CreateExecutionArgs::new(None, Namespace::new("acme").unwrap(), self.lane.clone(), "mail");
            self.engine.create_execution(CreateExecutionArgs { priority, ..args }).await.unwrap();
        }

        async fn deal(&self, count: usize) -> Deal<'_> {
            deal(&self.engine, self.seeker(), count).await.unwrap().0
        }
    }

    fn priorities(deal: &Deal<'_>) -> Vec<i32> {
        match deal {
            Deal::Hand(hand) => hand.cards.iter().map(|card| card.priority).collect(),
            Deal::Nothing | Deal::Other | Deal::Late => Vec::new(),
        }
    }

    #[tokio::test]
    async fn claims_that_came_before_a_look_share_it_and_later_ones_look_again() {
        let scene = Scene::open().await;
        for priority in [1, 2, 3] {
            scene.submit(priority).await;
        }
        let seat = scene.engine.dealer.sit_down(scene.seeker(), 1);
        let held = seat.table.as_deref().unwrap().deck.lock().await;
        let (mut first, mut second) = (pin!(scene.deal(1)), pin!(scene.deal(1)));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(held);
        let first = first.await;
        scene.submit(9).await;
        let second = second.await;
        assert_eq!((priorities(&first), priorities(&second)), (vec![3], vec![2]), "one look was for both");
        assert_eq!(priorities(&scene.deal(1).await), [9]);
    }

    #[tokio::test]
    async fn what_one_claim_has_in_hand_is_shown_to_no_other() {
        let scene = Scene::open().await;
        for priority in [1, 2, 3] {
            scene.submit(priority).await;
        }
        let held = scene.deal(2).await;
        assert_eq!(priorities(&held), [3, 2]);
        let one = scene.deal(2).await;
        assert_eq!(priorities(&one), [1]);
        let mut waiting = pin!(scene.deal(2));
        assert!(waiting.as_mut().now_or_never().is_none(), "they may be left after all");
        drop((held, one));
        assert!(matches!(waiting.await, Deal::Late));
        assert_eq!(priorities(&scene.deal(9).await), [3, 2, 1]);
    }

    #[tokio::test]
    async fn a_claim_that_is_dropped_while_it_looks_holds_up_nobody() {
        let scene = Scene::open().await;
        scene.submit(1).await;
        let seat = scene.engine.dealer.sit_down(scene.seeker(), 1);
        let held = seat.table.as_deref().unwrap().deck.lock().await;
        let mut dropped = Box::pin(scene.deal(1));
        let mut other = pin!(scene.deal(1));
        assert!(dropped.as_mut().now_or_never().is_none() && other.as_mut().now_or_never().is_none());
        drop(dropped);
        drop(held);
        assert_eq!(priorities(&other.await), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_nobody_polls_holds_up_nobody_for_long() {
        let scene = Scene::open().await;
        scene.submit(1).await;
        let stuck = scene.engine.dealer.sit_down(scene.seeker(), 1);
        let _looking = stuck.table.as_deref().unwrap().deck.lock().await;
        let mut waiting = pin!(scene.deal(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(matches!(waiting.await, Deal::Late));
        assert_eq!(priorities(&scene.deal(1).await), [1], "the next ones look for themselves");
    }

    #[tokio::test]
    async fn with_the_last_claim_its_table_goes() {
        let scene = Scene::open().await;
        assert!(matches!(scene.deal(1).await, Deal::Nothing));
        scene.submit(1).await;
        assert!(matches!(scene.deal(1).await, Deal::Hand(_)));
        assert!(lock(&scene.engine.dealer.tables).is_empty() && lock(&scene.engine.dealer.in_hand).is_empty());
    }
}
