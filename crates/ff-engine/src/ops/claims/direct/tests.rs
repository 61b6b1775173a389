//! How often waiting claims hunt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::backend::{Claims, Ingress, Workers};
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::ids::{Namespace, WorkerId, WorkerInstanceId};
use ff_core::partition::Partition;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::alarms::DueNews;
use crate::clock::ManualClock;
use crate::engine::Settings;
use crate::event::EventPage;
use crate::index::{Bounds, Index, Listed};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::records::Record;
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
    /// A lane with a worker that takes whatever nobody here asks for, so that nothing is parked.
    async fn open() -> Self {
        let clock = ManualClock::at(TimestampMs(1_700_000_000_000));
        let store = Counting { store: MemoryStore::new(Arc::new(clock.clone())), hunts: AtomicUsize::new(0) };
        let engine = Engine::open(store, Settings::default()).await.unwrap();
        let lane = LaneId::new("default").unwrap();
        let worker = RegisterWorkerArgs {
            worker_id: WorkerId::new("other").unwrap(),
            worker_instance_id: WorkerInstanceId::new("other-1").unwrap(),
            namespace: namespace(),
            lanes: [lane.clone()].into(),
            capabilities: [].into(),
            kinds: None,
            liveness_ttl_ms: 1_000_000,
        };
        engine.register_worker(worker).await.unwrap();
        let scene = Self { engine, clock, lane, nothing: CapabilitySet::default() };
        // A registration looks, too.
        scene.hunts();
        scene
    }

    fn claim(&self, max_wait_ms: u64) -> Waiting<'_> {
        let (worker, instance) = (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap());
        let policy = ClaimPolicy {
            max_wait_ms: Some(max_wait_ms),
            kinds: Some(["mail".to_owned()].into()),
            ..ClaimPolicy::new(worker, instance, 30_000)
        };
        self.engine.claim(&self.lane, &self.nothing, policy)
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
    // The first try of each, and those in line know no better than the one who hunts.
    assert_eq!(scene.hunts(), 50);
    for _ in 0..3 {
        scene.submit("bill").await;
        assert!(settle(&mut claims).await.is_empty());
        assert_eq!(scene.hunts(), 1);
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
    assert_eq!(scene.hunts(), 2);
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
async fn each_claim_in_line_has_a_deadline_of_its_own() {
    let scene = Scene::open().await;
    let mut claims: FuturesUnordered<_> = [scene.claim(10_000)].into_iter().collect();
    assert!(settle(&mut claims).await.is_empty());
    claims.push(scene.claim(1_000));
    claims.push(scene.claim(20_000));
    assert!(settle(&mut claims).await.is_empty());
    assert_eq!(scene.hunts(), 3);
    scene.clock.advance(1_000);
    assert_eq!(settle(&mut claims).await, [None]);
    assert_eq!(scene.hunts(), 0, "somebody else hunts for it");
    scene.clock.advance(9_000);
    assert_eq!(settle(&mut claims).await, [None]);
    assert_eq!(scene.hunts(), 2, "a last look, and the next one at once");
    scene.submit("mail").await;
    assert!(matches!(settle(&mut claims).await[..], [Some(_)]));
    assert_eq!(scene.engine.turnstile.groups(), 0);
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
