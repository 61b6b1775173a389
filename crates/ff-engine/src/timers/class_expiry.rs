//! A class of work that nothing came into for long is forgotten, unless it is in use.

use ff_core::partition::Partition;
use ff_core::state::PublicState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, LaneClass, Stored};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Live executions of the same kind looked at. Where there are more, the class is not worth the search.
const LOOKED_AT_MAX: usize = 200;

/// Forgets a class, or keeps it for another while. Says whether it did either.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: LaneClass, _now: TimestampMs) -> Result<bool> {
    let in_use = is_in_use(engine, &record).await?;
    changes(engine, record.key(), Expire { record, in_use }).await
}

/// Whether an execution that is not over belongs to the class: sooner or later it stands in its queue. One list shows it in whatever state
/// it is. What is over comes back only after it has made the class known again, and so does whatever is new.
async fn is_in_use<S: Store>(engine: &Engine<S>, record: &LaneClass) -> Result<bool> {
    let live = PublicState::ALL.iter().copied().filter(|state| !state.is_terminal());
    let indexes: Vec<Index> = live.map(|state| Index::KindState(record.class.kind.clone(), state)).collect();
    let found = engine.store.list(&indexes, &Bounds::first(LOOKED_AT_MAX)).await?;
    let belongs = |execution: &Execution| {
        execution.namespace == record.namespace && execution.lane == record.lane && execution.class == record.class
    };
    let is_full = found.len() == LOOKED_AT_MAX;
    Ok(is_full || found.into_iter().any(|listed| Execution::try_from(listed.record).is_ok_and(|it| belongs(&it))))
}

struct Expire {
    record: LaneClass,
    in_use: bool,
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
        // Whoever came in since has said so.
        let stored = tx.get::<LaneClass>(self.record.key()).await?.filter(|stored| *stored == self.record);
        let Some(stored) = stored.filter(|stored| stored.expires_at().is_due(now)) else { return Ok(()) };
        if self.in_use {
            tx.put(LaneClass { used_at: now, ..stored });
        } else {
            tx.delete(stored.key());
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
    use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;
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
        scene.engine.run(Expire { record: found, in_use: false }).await.unwrap();
        assert_eq!(scene.classes().await[0].used_at, START.plus(DAY_MS));
        scene.finish().await;
    }
}
