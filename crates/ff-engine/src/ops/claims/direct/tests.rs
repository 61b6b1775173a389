//! How often waiting claims hunt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::layer::BoxFuture;
use ff_core::backend::quotas::CreateQuotaPolicyArgs;
use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::backend::{Claims, Ingress, Quotas, Workers};
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::ids::{ExecutionKind, Namespace, QuotaPolicyId, WorkerId, WorkerInstanceId};
use ff_core::partition::Partition;
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use uuid::Uuid;

use super::*;
use crate::alarms::DueNews;
use crate::clock::ManualClock;
use crate::engine::Settings;
use crate::event::EventPage;
use crate::index::{Bounds, Index, Listed};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::records::{QueueClass, Record};
use crate::store::Op;

/// A store that counts hunts: each looks once which classes its lane has.
struct Counting {
    store: MemoryStore,
    hunts: AtomicUsize,
}

impl Store for Counting {
    const TAG: BackendTag = MemoryStore::TAG;

    fn transact<O: Op>(&self, op: Arc<O>) -> impl Future<Output = Result<O::Out>> + Send + '_ {
        self.store.transact(op)
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        self.store.read(keys).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        if indexes.iter().any(|index| matches!(index, Index::ClassesOfLane(_))) {
            self.hunts.fetch_add(1, Ordering::Relaxed);
        }
        self.store.list(indexes, bounds).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        self.store.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        self.store.events(after, limit).await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        self.store.trim_events(before, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        self.store.reindex(partition).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.store.listen(topic)
    }

    fn listen_due(&self) -> DueNews {
        self.store.listen_due()
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.store.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        self.store.now().await
    }
}

struct Scene {
    engine: Engine<Counting>,
    clock: ManualClock,
    lane: LaneId,
    nothing: CapabilitySet,
}

type Waiting<'a> = BoxFuture<'a, Result<Option<Handle>>>;

impl Scene {
    /// A lane without workers.
    async fn deserted() -> Self {
        let clock = ManualClock::at(TimestampMs(1_700_000_000_000));
        let store = Counting { store: MemoryStore::new(Arc::new(clock.clone())), hunts: AtomicUsize::new(0) };
        let engine = Engine::open(store, Settings::default()).await.unwrap();
        Self { engine, clock, lane: LaneId::new("default").unwrap(), nothing: CapabilitySet::default() }
    }

    /// A lane with a worker that takes whatever nobody here asks for, so that nothing is parked.
    async fn open() -> Self {
        let scene = Self::deserted().await;
        let worker = RegisterWorkerArgs {
            worker_id: WorkerId::new("other").unwrap(),
            worker_instance_id: WorkerInstanceId::new("other-1").unwrap(),
            namespace: namespace(),
            lanes: [scene.lane.clone()].into(),
            capabilities: [].into(),
            kinds: None,
            liveness_ttl_ms: 1_000_000,
        };
        scene.engine.register_worker(worker).await.unwrap();
        // A registration looks, too.
        scene.hunts();
        scene
    }

    fn claim(&self, max_wait_ms: u64) -> Waiting<'_> {
        self.claim_kind("mail", max_wait_ms)
    }

    fn claim_kind(&self, kind: &str, max_wait_ms: u64) -> Waiting<'_> {
        let (worker, instance) = (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap());
        let policy = ClaimPolicy {
            max_wait_ms: Some(max_wait_ms),
            kinds: Some([kind.to_owned()].into()),
            ..ClaimPolicy::new(worker, instance, 30_000)
        };
        self.engine.claim(&self.lane, &self.nothing, policy)
    }

    /// Work behind a quota that lets one run at a time.
    async fn submit_behind_a_quota(&self, kind: &str, count: usize) {
        let quota = QuotaPolicyId::from_uuid(Uuid::from_u128(1));
        let args = CreateQuotaPolicyArgs {
            quota_policy_id: quota,
            namespace: namespace(),
            scope_type: "policy".into(),
            scope_id: String::new(),
            window_seconds: 0,
            max_requests_per_window: 0,
            max_concurrent: 1,
            jitter_ms: 0,
        };
        self.engine.create_quota_policy(args).await.unwrap();
        let policy = ExecutionPolicy { quota_policy_ids: vec![quota], ..ExecutionPolicy::default() };
        for _ in 0..count {
            let args = CreateExecutionArgs::new(None, namespace(), self.lane.clone(), kind);
            let policy = Some(PolicyDocument::from(policy.clone()));
            self.engine.create_execution(CreateExecutionArgs { policy, ..args }).await.unwrap();
        }
    }

    /// Work of a kind that is parked for want of a worker.
    async fn parked(&self, kind: &str) -> usize {
        let route = QueueClass::plain(ExecutionKind::new(kind).unwrap()).route();
        let index = Index::RouteParked(namespace(), self.lane.clone(), route);
        self.engine.store.list(&[index], &Bounds::first(10)).await.unwrap().len()
    }

    async fn submit(&self, kind: &str) {
        let args = CreateExecutionArgs::new(None, namespace(), self.lane.clone(), kind);
        self.engine.create_execution(args).await.unwrap();
    }

    /// Hunts since the last time.
    fn hunts(&self) -> usize {
        self.engine.store.hunts.swap(0, Ordering::Relaxed)
    }
}

fn namespace() -> Namespace {
    Namespace::new("acme").unwrap()
}

/// Lets claims run until they are all waiting; the answers of those that are over.
async fn settle(claims: &mut FuturesUnordered<Waiting<'_>>) -> Vec<Option<Handle>> {
    let mut answers = Vec::new();
    for _ in 0..200 {
        while let Some(Some(answer)) = claims.next().now_or_never() {
            answers.push(answer.unwrap());
        }
        tokio::task::yield_now().await;
    }
    answers
}

#[tokio::test]
async fn fifty_idle_claims_cost_one_hunt_per_news() {
    let scene = Scene::open().await;
    let mut claims: FuturesUnordered<_> = (0..50).map(|_| scene.claim(60_000)).collect();
    assert!(settle(&mut claims).await.is_empty());
    assert_eq!(scene.hunts(), 1, "what the first one saw holds for all");
    for hunts in [2, 1, 1] {
        scene.submit("bill").await;
        assert!(settle(&mut claims).await.is_empty());
        assert_eq!(scene.hunts(), hunts, "at first the general way finds out whether anybody can do it");
    }
    scene.submit("mail").await;
    let caught = settle(&mut claims).await;
    assert_eq!((caught.len(), caught.iter().flatten().count()), (1, 1));
    assert_eq!(scene.hunts(), 2, "the one who caught it, and the next one at once");
    for _ in 0..49 {
        scene.submit("mail").await;
    }
    assert_eq!(settle(&mut claims).await.into_iter().flatten().count(), 49);
    assert_eq!(scene.engine.turnstile.groups(), 0);
}

#[tokio::test]
async fn a_hunter_that_is_dropped_passes_its_turn_on() {
    let scene = Scene::open().await;
    let mut hunter = scene.claim(60_000);
    assert!(hunter.as_mut().now_or_never().is_none());
    let mut in_line: FuturesUnordered<_> = [scene.claim(60_000)].into_iter().collect();
    assert!(settle(&mut in_line).await.is_empty());
    assert_eq!(scene.hunts(), 1);
    // It does not get to hear of this.
    scene.submit("mail").await;
    assert!(settle(&mut in_line).await.is_empty());
    assert_eq!(scene.hunts(), 0);
    drop(hunter);
    let caught = settle(&mut in_line).await;
    assert!(matches!(caught[..], [Some(_)]), "{caught:?}");
    assert_eq!(scene.hunts(), 1);
    assert_eq!(scene.engine.turnstile.groups(), 0);
}

#[tokio::test]
async fn a_hunter_that_nobody_polls_holds_up_nobody_for_long() {
    let scene = Scene::open().await;
    let mut hunter = scene.claim(60_000);
    assert!(hunter.as_mut().now_or_never().is_none());
    let mut in_line: FuturesUnordered<_> = (0..10).map(|_| scene.claim(60_000)).collect();
    assert!(settle(&mut in_line).await.is_empty());
    assert_eq!(scene.hunts(), 1);
    for _ in 0..3 {
        scene.submit("mail").await;
    }
    assert!(settle(&mut in_line).await.is_empty());
    assert_eq!(scene.hunts(), 0, "it may come yet");
    // One at a time, until there is no more.
    for caught in [1, 1, 1, 0, 0] {
        scene.clock.advance(UNHEARD_MS);
        assert_eq!(settle(&mut in_line).await.into_iter().flatten().count(), caught);
    }
    assert_eq!(scene.hunts(), 4);
    scene.submit("mail").await;
    assert!(matches!(hunter.now_or_never(), Some(Ok(Some(_)))), "it still has its turn");
    drop(in_line);
    assert_eq!(scene.engine.turnstile.groups(), 0);
}

#[tokio::test]
async fn a_turn_that_goes_to_a_claim_that_nobody_polls_holds_up_nobody_for_long() {
    let scene = Scene::open().await;
    let mut hunter: FuturesUnordered<_> = [scene.claim(60_000)].into_iter().collect();
    assert!(settle(&mut hunter).await.is_empty());
    let mut next = scene.claim(60_000);
    assert!(next.as_mut().now_or_never().is_none());
    let mut last: FuturesUnordered<_> = [scene.claim(60_000)].into_iter().collect();
    assert!(settle(&mut last).await.is_empty());
    for _ in 0..2 {
        scene.submit("mail").await;
    }
    // No news tell of the second one: whoever is next is to look at once.
    assert!(matches!(settle(&mut hunter).await[..], [Some(_)]));
    assert!(settle(&mut last).await.is_empty());
    scene.clock.advance(UNHEARD_MS);
    assert!(settle(&mut last).await.is_empty(), "from when it heard of it");
    scene.clock.advance(UNHEARD_MS);
    assert!(matches!(settle(&mut last).await[..], [Some(_)]));
    drop(next);
    assert_eq!(scene.engine.turnstile.groups(), 0);
}

#[tokio::test]
async fn those_who_wait_for_different_kinds_do_not_wake_each_other_without_end() {
    let scene = Scene::deserted().await;
    scene.submit_behind_a_quota("mail", 4).await;
    assert!(scene.claim(0).await.unwrap().is_some(), "the quota is full now");
    let mut claims: FuturesUnordered<_> = [scene.claim(60_000), scene.claim_kind("bill", 60_000)].into_iter().collect();
    assert!(settle(&mut claims).await.is_empty());
    scene.submit("call").await;
    assert!(settle(&mut claims).await.is_empty());
    scene.hunts();
    assert!(settle(&mut claims).await.is_empty());
    assert_eq!((scene.hunts(), scene.parked("mail").await, scene.parked("call").await), (0, 0, 1));
}

#[tokio::test]
async fn a_claim_frees_no_work_behind_a_closed_policy() {
    let scene = Scene::deserted().await;
    scene.submit_behind_a_quota("mail", 4).await;
    assert!(scene.claim(0).await.unwrap().is_some(), "the quota is full now");
    assert!(scene.claim_kind("bill", 0).await.unwrap().is_none());
    let parked = scene.parked("mail").await;
    assert!(parked > 0, "nobody handles it");
    assert!(scene.claim(0).await.unwrap().is_none());
    assert_eq!(scene.parked("mail").await, parked);
}

#[tokio::test]
async fn each_claim_in_line_has_a_deadline_of_its_own() {
    let scene = Scene::open().await;
    let mut claims: FuturesUnordered<_> = [scene.claim(10_000)].into_iter().collect();
    assert!(settle(&mut claims).await.is_empty());
    claims.push(scene.claim(1_000));
    claims.push(scene.claim(20_000));
    assert!(settle(&mut claims).await.is_empty());
    assert_eq!(scene.hunts(), 1);
    scene.clock.advance(1_000);
    assert_eq!(settle(&mut claims).await, [None]);
    assert_eq!(scene.hunts(), 0, "somebody else hunts for it");
    scene.clock.advance(9_000);
    assert_eq!(settle(&mut claims).await, [None]);
    assert_eq!(scene.hunts(), 0, "nothing has happened since the first look");
    scene.submit("mail").await;
    assert!(matches!(settle(&mut claims).await[..], [Some(_)]));
    assert_eq!(scene.engine.turnstile.groups(), 0);
}

#[tokio::test]
async fn a_claim_that_comes_again_and_again_looks_once_in_a_while() {
    let scene = Scene::open().await;
    let mut other: FuturesUnordered<_> = [scene.claim(10 * FRESH_MS)].into_iter().collect();
    assert!(settle(&mut other).await.is_empty());
    scene.hunts();
    for _ in 0..4 {
        let mut again: FuturesUnordered<_> = [scene.claim(FRESH_MS / 4)].into_iter().collect();
        assert!(settle(&mut again).await.is_empty());
        scene.clock.advance(FRESH_MS / 4);
        assert_eq!(settle(&mut again).await, [None]);
    }
    assert_eq!(scene.hunts(), 0);
    assert_eq!(scene.claim(1).now_or_never().map(Result::unwrap), None);
    assert_eq!(scene.hunts(), 1, "nobody has looked for a while");
}

#[tokio::test]
async fn a_claim_that_does_not_wait_never_stands_in_line() {
    let scene = Scene::open().await;
    let mut hunter = scene.claim(60_000);
    assert!(hunter.as_mut().now_or_never().is_none());
    assert_eq!(scene.claim(0).await.unwrap(), None);
    assert_eq!(scene.hunts(), 2);
    scene.submit("mail").await;
    assert!(scene.claim(60_000).await.unwrap().is_some(), "the first try takes what is there");
}

#[tokio::test]
async fn closing_refuses_every_wait() {
    let scene = Scene::open().await;
    let mut claims: FuturesUnordered<_> = (0..5).map(|_| scene.claim(60_000)).collect();
    assert!(settle(&mut claims).await.is_empty());
    scene.engine.closing.send_replace(true);
    let answers: Vec<_> = claims.collect().await;
    assert!(answers.len() == 5 && answers.iter().all(Result::is_err), "{answers:?}");
}
