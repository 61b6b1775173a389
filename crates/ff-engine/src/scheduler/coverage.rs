//! Which work the live workers of a lane can do, and what they lack for the rest.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::{LaneId, Namespace};
use ff_core::kinds::handles;
use ff_core::{Result, TimestampMs};

use super::classes::Rounds;
use super::sweep::Sweeps;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::records::{LaneClass, Route, Worker};
use crate::store::Store;
use crate::verbs::list_of;

/// Workers looked at in one page.
const WORKERS_PAGE: usize = 200;

/// For so long at most nobody looks again whether somebody serves a route.
const KNOWN_FOR_MS: u64 = 1_000;

/// Parts of what is remembered. Who learns while others look copies the parts that change, not all.
const SHARDS: usize = 64;

/// Routes remembered at most in one part.
const SHARD_MAX: usize = 128;

/// What the live workers of a namespace and lane are to one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Somebody serves it, and counts as live until then.
    Served { until: TimestampMs },
    /// Nobody does.
    Lacking(Lack),
}

/// Why nobody serves a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Nobody handles its kind.
    Kind,
    /// Nobody who handles its kind has all it requires; these are the tokens that none of them has.
    Capabilities { missing: BTreeSet<String> },
    /// There is nobody at all.
    Anybody,
}

impl Lack {
    /// The lack in words.
    pub(crate) fn detail(&self, lane: &LaneId, route: &Route) -> String {
        if matches!(self, Self::Kind) || route.requirement.is_empty() {
            format!("no live worker of lane {lane} handles kind {}", route.kind)
        } else {
            let required = route.requirement.as_str().replace(',', ", ");
            format!("no live worker of lane {lane} offers all of: {required}")
        }
    }
}

/// What was seen so far of the workers that could serve one route.
struct Survey<'a> {
    route: &'a Route,
    until: Option<TimestampMs>,
    anybody: bool,
    handled: bool,
    missing: BTreeSet<String>,
}

impl<'a> Survey<'a> {
    fn of(route: &'a Route) -> Self {
        let missing = route.requirement.tokens().map(str::to_owned).collect();
        Self { route, until: None, anybody: false, handled: false, missing }
    }

    fn see(&mut self, worker: &Worker) {
        self.anybody = true;
        if worker.serves(self.route) {
            self.until = self.until.max(Some(worker.expires_at()));
        }
        if handles(worker.kinds.as_ref(), self.route.kind.as_str()) {
            self.handled = true;
            self.missing.retain(|token| !worker.capabilities.contains(token));
        }
    }

    fn coverage(self) -> Coverage {
        match self.until {
            Some(until) => Coverage::Served { until },
            None if !self.anybody => Coverage::Lacking(Lack::Anybody),
            None if !self.handled => Coverage::Lacking(Lack::Kind),
            None => Coverage::Lacking(Lack::Capabilities { missing: self.missing }),
        }
    }
}

/// What the live workers of a namespace and lane are to each of some routes.
pub(crate) async fn survey<S: Store>(
    engine: &Engine<S>,
    namespace: &Namespace,
    lane: &LaneId,
    routes: &[Route],
) -> Result<Vec<Coverage>> {
    let now = engine.store.now().await?;
    let mut surveys: Vec<Survey<'_>> = routes.iter().map(Survey::of).collect();
    let mut after: Option<Position> = None;
    loop {
        let index = Index::WorkersOf(namespace.clone(), lane.clone());
        let page: Vec<Worker> = list_of(&engine.store, index, Bounds::first(WORKERS_PAGE).after(after)).await?;
        for worker in page.iter().filter(|worker| worker.is_live(now)) {
            surveys.iter_mut().for_each(|survey| survey.see(worker));
        }
        match page.last() {
            Some(last) if page.len() == WORKERS_PAGE => after = Some(Position::by(last.instance.as_str().as_bytes())),
            _ => return Ok(surveys.into_iter().map(Survey::coverage).collect()),
        }
    }
}

/// Where work waits, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    namespace: Namespace,
    lane: LaneId,
    route: Route,
}

impl Place {
    fn of(class: &LaneClass) -> Self {
        Self { namespace: class.namespace.clone(), lane: class.lane.clone(), route: class.class.route() }
    }
}

/// Places that hash alike, and until when each is in good hands.
type Shard = HashMap<Place, TimestampMs>;

/// Work that is known to be in good hands: those who cannot take it need not look at it.
///
/// What is known is never wrong for longer than [`KNOWN_FOR_MS`], and then it only delays that work is parked.
#[derive(Clone, Debug, Default)]
pub(crate) struct InGoodHands {
    /// None, or [`SHARDS`] of them.
    shards: Arc<Vec<Arc<Shard>>>,
}

impl InGoodHands {
    /// Whether somebody else serves a class.
    pub(super) fn has(&self, class: &LaneClass, now: TimestampMs) -> bool {
        if self.shards.is_empty() {
            return false;
        }
        let place = Place::of(class);
        self.shards[shard_of(&place)].get(&place).is_some_and(|until| !until.is_due(now))
    }

    /// Remembers a place. Where there are too many, those that are over go, and then the one that is over first.
    fn add(&mut self, place: Place, until: TimestampMs, now: TimestampMs) {
        let shards = Arc::make_mut(&mut self.shards);
        shards.resize_with(SHARDS, Arc::default);
        let shard = Arc::make_mut(&mut shards[shard_of(&place)]);
        if shard.len() >= SHARD_MAX && !shard.contains_key(&place) {
            shard.retain(|_, until| !until.is_due(now));
            if shard.len() >= SHARD_MAX
                && let Some(first) = shard.iter().min_by_key(|(_, until)| **until).map(|(place, _)| place.clone())
            {
                shard.remove(&first);
            }
        }
        shard.insert(place, until);
    }
}

fn shard_of(place: &Place) -> usize {
    // Without a seed: the same history forgets the same.
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
}

/// What this process knows about work that others do: which is in good hands, where to look next, and what nobody needs any more.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    known: Mutex<InGoodHands>,
    rounds: Rounds,
    sweeps: tokio::sync::Mutex<Sweeps>,
}

impl Hands {
    fn lock(&self) -> MutexGuard<'_, InGoodHands> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to look next.
    pub(super) const fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// Which classes nobody needs any more.
    pub(crate) const fn sweeps(&self) -> &tokio::sync::Mutex<Sweeps> {
        &self.sweeps
    }

    /// What is known now.
    pub(super) fn known(&self) -> InGoodHands {
        self.lock().clone()
    }

    /// These classes are served, each by somebody who is live until then.
    pub(super) fn learn(&self, served: Vec<(LaneClass, TimestampMs)>, now: TimestampMs) {
        let soon = now.plus(KNOWN_FOR_MS);
        let mut known = self.lock();
        for (class, live) in served {
            known.add(Place::of(&class), live.min(soon), now);
        }
    }

    /// A worker changed or went: what is known may be wrong.
    pub(crate) fn forget(&self) {
        *self.lock() = InGoodHands::default();
    }
}

#[cfg(test)]
mod tests {
    use ff_core::capability::RequirementClass;
    use ff_core::ids::{ExecutionKind, WorkerId, WorkerInstanceId};

    use super::*;
    use crate::records::QueueClass;

    fn lane() -> LaneId {
        LaneId::new("fast").unwrap()
    }

    fn route(kind: &str, requirement: &str) -> Route {
        Route { kind: ExecutionKind::new(kind).unwrap(), requirement: RequirementClass::parse(requirement).unwrap() }
    }

    fn worker(kinds: Option<&[&str]>, capabilities: &[&str]) -> Worker {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Worker {
            namespace: Namespace::new("acme").unwrap(),
            instance: WorkerInstanceId::new("w-1").unwrap(),
            worker_id: WorkerId::new("w").unwrap(),
            lanes: [lane()].into(),
            capabilities: set(capabilities),
            kinds: kinds.map(set),
            liveness_ttl_ms: 500,
            registered_at: TimestampMs(1_000),
            last_heartbeat_at: TimestampMs(1_000),
        }
    }

    fn told(route: &Route, workers: &[Worker]) -> (Coverage, String) {
        let mut survey = Survey::of(route);
        workers.iter().for_each(|worker| survey.see(worker));
        let coverage = survey.coverage();
        let detail = match &coverage {
            Coverage::Lacking(lack) => lack.detail(&lane(), route),
            Coverage::Served { .. } => String::new(),
        };
        (coverage, detail)
    }

    #[test]
    fn a_lack_tells_whether_it_is_the_kind_or_a_capability() {
        let gpu_mail = route("mail", "gpu,eu");
        let all = || worker(None, &["gpu", "eu"]);
        assert_eq!(told(&gpu_mail, &[all()]).0, Coverage::Served { until: TimestampMs(1_500) });
        let (lack, detail) = told(&gpu_mail, &[worker(Some(&["bill"]), &["gpu", "eu"])]);
        assert_eq!(lack, Coverage::Lacking(Lack::Kind));
        assert_eq!(detail, "no live worker of lane fast handles kind mail");
        let (lack, detail) = told(&gpu_mail, &[worker(Some(&["bill"]), &["gpu"]), worker(Some(&["mail"]), &["eu"])]);
        assert_eq!(lack, Coverage::Lacking(Lack::Capabilities { missing: ["gpu".to_owned()].into() }));
        assert_eq!(detail, "no live worker of lane fast offers all of: eu, gpu");
    }

    #[test]
    fn where_nobody_lives_the_kind_is_lacking_only_if_nothing_else_is_required() {
        assert_eq!(told(&route("mail", ""), &[]).1, "no live worker of lane fast handles kind mail");
        assert_eq!(told(&route("mail", "gpu"), &[]).1, "no live worker of lane fast offers all of: gpu");
    }

    fn class(kind: &str) -> LaneClass {
        LaneClass {
            namespace: Namespace::new("acme").unwrap(),
            lane: lane(),
            class: QueueClass::plain(ExecutionKind::new(kind).unwrap()),
            used_at: TimestampMs(0),
        }
    }

    #[test]
    fn what_is_known_lasts_no_longer_than_the_worker_and_never_long() {
        let hands = Hands::default();
        let now = TimestampMs(1_000);
        hands.learn(vec![(class("mail"), TimestampMs(1_500)), (class("bill"), TimestampMs(90_000))], now);
        let known = hands.known();
        assert!(known.has(&class("mail"), TimestampMs(1_499)) && !known.has(&class("mail"), TimestampMs(1_500)));
        assert!(known.has(&class("bill"), TimestampMs(1_999)) && !known.has(&class("bill"), TimestampMs(2_000)));
        assert!(!known.has(&class("call"), now));
        hands.forget();
        assert!(!hands.known().has(&class("bill"), now));
    }

    #[test]
    fn one_more_than_can_be_remembered_costs_one_that_is_remembered_and_not_all() {
        let hands = Hands::default();
        let now = TimestampMs(1_000);
        let classes: Vec<LaneClass> = (0..SHARDS * SHARD_MAX * 2).map(|n| class(&n.to_string())).collect();
        let until = |n: usize| now.plus(1 + n as u64 % 900);
        hands.learn(classes.iter().cloned().enumerate().map(|(n, class)| (class, until(n))).collect(), now);
        let remembered = |known: &InGoodHands| classes.iter().filter(|class| known.has(class, now)).count();
        let known = hands.known();
        assert_eq!(remembered(&known), SHARDS * SHARD_MAX);
        hands.learn(vec![(class("one more"), TimestampMs(90_000))], now);
        assert!(hands.known().has(&class("one more"), now));
        assert_eq!(remembered(&hands.known()), SHARDS * SHARD_MAX - 1);
        assert_eq!(remembered(&known), SHARDS * SHARD_MAX, "whoever looks sees what was known when it began");
    }
}
