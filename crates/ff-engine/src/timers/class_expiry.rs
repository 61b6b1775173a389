//! A class of work that nothing came into for long is forgotten, unless it is in use.
//!
//! Work in a queue of the class shows at once that it is. Otherwise a sweep over the live executions of its kind tells, for all classes of
//! the kind that are due.

use ff_core::ids::{LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{LaneClass, QueueClass, Stored};
use crate::scheduler::sweep::Verdict;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;
use crate::verbs::list_all;

/// So long a class waits for a sweep that is not over.
const PAUSE_MS: u64 = 10_000;

/// Forgets a class, or keeps it for another while. Says whether it did either.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: LaneClass, _now: TimestampMs) -> Result<bool> {
    let key = record.key();
    if has_queued(engine, &record).await? {
        return changes(engine, key, Expire { record, verdict: Verdict::Used }).await;
    }
    // One at a time: whoever waits here finds that its class was decided about, too.
    let mut sweeps = engine.hands.sweeps().lock().await;
    if engine.store.read(std::slice::from_ref(&key)).await?.pop().flatten() != Some(record.clone().into()) {
        return Ok(false);
    }
    let (verdict, others) = sweeps.judge(engine, &record).await?;
    for (record, verdict) in others {
        engine.run(Expire { record, verdict }).await?;
    }
    changes(engine, key, Expire { record, verdict }).await
}

/// Whether work stands in one of the queues of the class.
async fn has_queued<S: Store>(engine: &Engine<S>, record: &LaneClass) -> Result<bool> {
    let queue = |index: fn(Namespace, LaneId, QueueClass) -> Index| {
        index(record.namespace.clone(), record.lane.clone(), record.class.clone())
    };
    let queues = [queue(Index::Eligible), queue(Index::Reclaimable)];
    Ok(!list_all(&engine.store, &queues, &Bounds::first(1)).await?.is_empty())
}

struct Expire {
    record: LaneClass,
    verdict: Verdict,
}

#[async_trait::async_trait]
impl Op for Expire {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![self.record.key()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        let Some(stored) = tx.get::<LaneClass>(self.record.key()).await? else { return Ok(()) };
        // Whoever came in since has made it fresh, and it stays so for longer than a sweep lasts.
        if stored.is_fresh(now) {
            return Ok(());
        }
        match self.verdict {
            Verdict::Used => tx.put(LaneClass { used_at: now, ..stored }),
            Verdict::Unused => tx.delete(stored.key()),
            Verdict::Unknown => tx.put(stored.due_at(now.plus(PAUSE_MS))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::EngineError;
    use ff_core::backend::claims::ClaimPolicy;
    use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult, ReplayExecutionArgs};
    use ff_core::backend::{Attempts, Claims, Ingress};
    use ff_core::capability::CapabilitySet;
    use ff_core::error::StateKind;
    use ff_core::ids::{ExecutionId, LaneId, Namespace, QuotaPolicyId, WorkerId, WorkerInstanceId};
    use uuid::Uuid;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;
    use crate::records::Gate;
    use crate::scheduler::sweep::{PAGE, PAGES, SWEEP_MAX_MS};
    use crate::verbs::list_of;

    const START: TimestampMs = TimestampMs(1_700_000_000_000);
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    struct Scene {
        engine: Engine<MemoryStore>,
        clock: ManualClock,
    }

    impl Scene {
        async fn open(spans: bool) -> Self {
            let clock = ManualClock::at(START);
            let store = MemoryStore::new(Arc::new(clock.clone()));
            let store = if spans { store.spanning_partitions() } else { store };
            Self { engine: Engine::open(store, Settings::default()).await.unwrap(), clock }
        }

        async fn submit(&self, delay_until: Option<TimestampMs>) -> ExecutionId {
            let args = CreateExecutionArgs::new(None, Namespace::new("acme").unwrap(), lane(), "mail");
            match self.engine.create_execution(CreateExecutionArgs { delay_until, ..args }).await.unwrap() {
                CreateExecutionResult::Created { execution_id, .. } => execution_id,
                known => panic!("{known:?}"),
            }
        }

        async fn finish(&self) {
            let (worker, instance) = (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap());
            let policy = ClaimPolicy::new(worker, instance, 30_000);
            let handle = self.engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap().expect("work");
            self.engine.complete(&handle, None).await.unwrap();
        }

        async fn pass(&self, ms: u64) {
            self.clock.advance(ms);
            self.engine.run_due(self.engine.store.now().await.unwrap(), 100).await.unwrap();
        }

        async fn classes(&self) -> Vec<LaneClass> {
            list_of(&self.engine.store, Index::ClassesOfLane(lane()), Bounds::first(10)).await.unwrap()
        }
    }

    fn lane() -> LaneId {
        LaneId::new("default").unwrap()
    }

    #[tokio::test]
    async fn a_class_that_nothing_comes_into_for_a_day_is_forgotten_until_something_does() {
        for spans in [false, true] {
            let scene = Scene::open(spans).await;
            for _ in 0..2 {
                scene.submit(None).await;
                scene.finish().await;
                scene.pass(DAY_MS - 1).await;
                assert_eq!(scene.classes().await.len(), 1);
                scene.pass(1).await;
                assert_eq!(scene.classes().await, []);
            }
        }
    }

    #[tokio::test]
    async fn what_comes_in_now_and_then_keeps_its_class_known_without_a_write_each_time() {
        for spans in [false, true] {
            let scene = Scene::open(spans).await;
            scene.submit(None).await;
            scene.pass(DAY_MS / 2 - 1).await;
            scene.submit(None).await;
            assert_eq!(scene.classes().await[0].used_at, START, "still fresh");
            scene.pass(1).await;
            scene.submit(None).await;
            assert_eq!(scene.classes().await[0].used_at, START.plus(DAY_MS / 2));
            for _ in 0..3 {
                scene.finish().await;
            }
            scene.pass(DAY_MS / 2).await;
            assert_eq!(scene.classes().await.len(), 1);
        }
    }

    #[tokio::test]
    async fn a_class_is_kept_for_work_that_is_not_in_its_queue() {
        let scene = Scene::open(false).await;
        scene.submit(Some(START.plus(2 * DAY_MS + 1))).await;
        for days in 1..=2 {
            scene.pass(DAY_MS).await;
            assert_eq!(scene.classes().await[0].used_at, START.plus(days * DAY_MS));
        }
        scene.pass(1).await;
        scene.finish().await;
    }

    #[tokio::test]
    async fn a_replay_keeps_the_class_of_what_may_end_before_its_commit() {
        let scene = Scene::open(false).await;
        let execution_id = scene.submit(None).await;
        scene.clock.advance(DAY_MS / 2);
        let args = ReplayExecutionArgs { execution_id, reason: String::new(), requested_by: String::new() };
        let refused = scene.engine.replay_execution(args).await;
        assert!(matches!(refused, Err(EngineError::State(StateKind::ExecutionNotTerminal))), "{refused:?}");
        assert_eq!(scene.classes().await[0].used_at, START.plus(DAY_MS / 2));
    }

    #[tokio::test]
    async fn whoever_comes_in_while_a_class_expires_keeps_it() {
        let scene = Scene::open(false).await;
        scene.submit(None).await;
        scene.finish().await;
        scene.clock.advance(DAY_MS);
        let found = scene.classes().await.remove(0);
        // It was found unused, and then this comes.
        scene.submit(None).await;
        scene.engine.run(Expire { record: found, verdict: Verdict::Unused }).await.unwrap();
        assert_eq!(scene.classes().await[0].used_at, START.plus(DAY_MS));
        scene.finish().await;
    }

    /// Executions of one kind, all delayed, and classes of the same kind that nothing is in.
    async fn busy_kind(scene: &Scene, live: usize, classes: u128) {
        for _ in 0..live {
            scene.submit(Some(START.plus(90 * DAY_MS))).await;
        }
        for n in 1..=classes {
            let gates = vec![Gate::Quota(QuotaPolicyId::from_uuid(Uuid::from_u128(n)))];
            let mail = scene.classes().await.remove(0);
            let class = LaneClass { class: QueueClass { gates, ..mail.class }, ..mail };
            scene.engine.run(Put(class)).await.unwrap();
        }
    }

    struct Put(LaneClass);

    #[async_trait::async_trait]
    impl Op for Put {
        type Out = ();

        fn home(&self) -> Partition {
            Partition::GLOBAL
        }

        async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
            tx.put(self.0.clone());
            Ok(())
        }
    }

    #[tokio::test]
    async fn classes_of_a_busy_kind_are_forgotten_and_those_in_use_are_kept() {
        for spans in [false, true] {
            let scene = Scene::open(spans).await;
            busy_kind(&scene, 300, 5).await;
            assert_eq!(scene.classes().await.len(), 6);
            scene.pass(DAY_MS).await;
            let kept = scene.classes().await;
            assert_eq!((kept.len(), kept[0].class.gates.len(), kept[0].used_at), (1, 0, START.plus(DAY_MS)));
        }
    }

    #[tokio::test]
    async fn a_sweep_that_is_not_over_goes_on_with_the_next_class_and_decides_about_all() {
        let scene = Scene::open(false).await;
        busy_kind(&scene, 2 * PAGE * PAGES, 2).await;
        // The class in use is found at once; the next one comes to no end, and the last one does for both.
        scene.pass(DAY_MS).await;
        let kept = scene.classes().await;
        assert_eq!((kept.len(), kept[0].class.gates.len()), (1, 0));
        busy_kind(&scene, 0, 1).await;
        scene.pass(DAY_MS).await;
        let unknown = scene.classes().await;
        assert_eq!((unknown.len(), unknown[1].expires_at()), (2, START.plus(2 * DAY_MS + PAUSE_MS)));
        scene.pass(PAUSE_MS).await;
        assert_eq!(scene.classes().await.len(), 1);
    }

    #[tokio::test]
    async fn what_comes_in_while_a_sweep_goes_on_keeps_its_class() {
        let scene = Scene::open(false).await;
        busy_kind(&scene, 10, 1).await;
        scene.clock.advance(DAY_MS);
        let unused = scene.classes().await.remove(1);
        let (verdict, others) = scene.engine.hands.sweeps().lock().await.judge(&scene.engine, &unused).await.unwrap();
        assert_eq!((verdict, others.len()), (Verdict::Unused, 1));
        let now = START.plus(DAY_MS);
        scene.engine.run(Put(LaneClass { used_at: now, ..unused.clone() })).await.unwrap();
        scene.clock.advance(SWEEP_MAX_MS - 1);
        scene.engine.run(Expire { record: unused, verdict: Verdict::Unused }).await.unwrap();
        assert_eq!(scene.classes().await[1].used_at, now);
    }
}
