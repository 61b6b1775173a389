//! Submissions that were written by somebody else, taken in on the model store, in its general form and in its short one.

use std::sync::Arc;

use ff_core::EngineError;
use ff_core::TimestampMs;
use ff_core::backend::attempts::{CancelExecutionArgs, CancelExecutionResult};
use ff_core::backend::ingress::{CreateExecutionResult, SetLaneStateArgs};
use ff_core::backend::{Attempts, Flows, Ingress, Inspection};
use ff_core::error::{Entity, StateKind};
use ff_core::ids::{BudgetId, FenceTriple, FlowId, LaneId, Namespace};
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use ff_core::rules::fence::CancelSource;
use ff_core::state::{LaneState, PublicState};
use uuid::Uuid;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::engine::{Limits, Settings};
use crate::memory::MemoryStore;
use crate::records::{Execution, Record};
use crate::timers::DueReport;
use crate::verbs::read_one;

const START: TimestampMs = TimestampMs(1_000_000);

struct World {
    clock: ManualClock,
    engine: Engine<MemoryStore>,
}

async fn worlds() -> [World; 2] {
    [world(false).await, world(true).await]
}

async fn world(spans_partitions: bool) -> World {
    let clock = ManualClock::at(START);
    let store = MemoryStore::new(Arc::new(clock.clone()));
    let store = if spans_partitions { store.spanning_partitions() } else { store };
    World { clock, engine: Engine::open(store, Settings::default()).await.unwrap() }
}

fn namespace() -> Namespace {
    Namespace::new("acme").unwrap()
}

fn lane() -> LaneId {
    LaneId::new("default").unwrap()
}

fn task() -> CreateExecutionArgs {
    CreateExecutionArgs::new(None, namespace(), lane(), "task")
}

fn keyed() -> CreateExecutionArgs {
    CreateExecutionArgs { idempotency_key: Some("order-7".to_owned()), ..task() }
}

/// What the transaction of a caller does.
struct Note(Intake);

#[async_trait::async_trait]
impl Op for Note {
    type Out = ();

    fn home(&self) -> Partition {
        self.0.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.put(self.0.clone());
        Ok(())
    }
}

impl World {
    async fn note(&self, args: CreateExecutionArgs) -> (ExecutionId, Intake) {
        let (id, intake) = self.engine.admit_execution(args).await.unwrap();
        self.engine.run(Note(intake.clone())).await.unwrap();
        (id, intake)
    }

    async fn run_due(&self) -> DueReport {
        self.engine.run_due(self.clock.now(), 100).await.unwrap()
    }

    async fn execution(&self, id: ExecutionId) -> Option<Execution> {
        read_one(&self.engine.store, Key::execution(id)).await.unwrap()
    }

    fn count(&self, is_meant: impl Fn(&Record) -> bool) -> usize {
        self.engine.store().records().iter().filter(|record| is_meant(record)).count()
    }

    fn executions(&self) -> usize {
        self.count(|record| matches!(record, Record::Execution(_)))
    }

    fn notes(&self) -> usize {
        self.count(|record| matches!(record, Record::Intake(_)))
    }

    async fn close_lane(&self) {
        let args = SetLaneStateArgs {
            namespace: namespace(),
            lane_id: lane(),
            state: LaneState::Disabled,
            reason: String::new(),
        };
        self.engine.set_lane_state(args).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_noted_is_created_when_it_is_taken_in() {
    for world in worlds().await {
        let tags = [("team.name".to_owned(), "search".to_owned())].into();
        let (id, _) = world.note(CreateExecutionArgs { priority: 7, tags, ..task() }).await;
        assert!(world.execution(id).await.is_none());
        world.clock.advance(5_000);
        assert_eq!(world.run_due().await.handled, 1);
        let execution = world.execution(id).await.unwrap();
        assert_eq!((execution.created_at, execution.priority), (START.plus(5_000), 7));
        assert!(execution.is_eligible());
        assert!(world.engine.describe_lane(&namespace(), &lane()).await.unwrap().is_some());
        assert_eq!((world.notes(), world.run_due().await), (0, DueReport::default()));
    }
}

#[tokio::test]
async fn a_lane_that_is_closed_after_the_submission_refuses_it_no_more() {
    for world in worlds().await {
        let (id, _) = world.note(task()).await;
        world.close_lane().await;
        assert_eq!(world.run_due().await.failed, 0);
        assert!(world.execution(id).await.is_some());
    }
}

#[tokio::test]
async fn a_budget_that_is_gone_after_the_submission_refuses_it_no_more() {
    for world in worlds().await {
        let (id, mut intake) = world.note(task()).await;
        let budget = BudgetId::from_uuid(Uuid::from_u128(9));
        let policy = ExecutionPolicy { budget_ids: vec![budget], ..ExecutionPolicy::default() };
        let IntakeWork::Execution { args, .. } = &mut intake.work else { panic!("{intake:?}") };
        Arc::make_mut(args).policy = Some(PolicyDocument::from(policy));
        world.engine.run(Note(intake)).await.unwrap();
        assert_eq!(world.run_due().await.handled, 1);
        assert_eq!(world.execution(id).await.unwrap().budget_ids, [budget]);
    }
}

#[tokio::test]
async fn an_execution_with_the_same_key_stands_and_no_other_comes_to_be() {
    for world in worlds().await {
        let created = world.engine.create_execution(keyed()).await.unwrap();
        let CreateExecutionResult::Created { execution_id, .. } = created else { panic!("{created:?}") };
        world.note(keyed()).await;
        world.note(CreateExecutionArgs { execution_id: Some(execution_id), ..task() }).await;
        assert_eq!(world.run_due().await.handled, 2);
        assert_eq!((world.executions(), world.notes()), (1, 0));
    }
}

#[tokio::test]
async fn of_two_submissions_with_one_key_one_is_created() {
    for world in worlds().await {
        world.note(keyed()).await;
        world.note(keyed()).await;
        assert_eq!(world.run_due().await.handled, 2);
        assert_eq!((world.executions(), world.notes()), (1, 0));
    }
}

#[tokio::test]
async fn a_submission_is_taken_in_once_even_if_its_execution_is_over_and_gone() {
    for world in worlds().await {
        let (id, intake) = world.note(task()).await;
        let (one, other) = tokio::join!(take_in(&world.engine, intake.clone()), take_in(&world.engine, intake.clone()));
        assert_eq!([one.unwrap(), other.unwrap()].into_iter().filter(|changed| *changed).count(), 1);
        let cancelled = world.engine.cancel_execution(CancelExecutionArgs {
            execution_id: id,
            reason: "over".to_owned(),
            source: CancelSource::OperatorOverride,
            fence: FenceTriple::default(),
        });
        assert!(matches!(cancelled.await.unwrap(), CancelExecutionResult::Cancelled { .. }));
        world.clock.advance(world.engine.settings.retention_ms + 1);
        world.run_due().await;
        assert!(world.execution(id).await.is_none(), "it was kept long enough");
        assert!(!take_in(&world.engine, intake).await.unwrap());
        assert!(world.execution(id).await.is_none());
    }
}

#[tokio::test]
async fn a_submission_is_refused_as_a_direct_one_is() {
    for world in worlds().await {
        let budget_ids = vec![BudgetId::from_uuid(Uuid::from_u128(9))];
        let policy = ExecutionPolicy { budget_ids, ..ExecutionPolicy::default() };
        let too_much = vec![0; Limits::default().payload_bytes + 1];
        let refused = [
            CreateExecutionArgs { policy: Some(policy.into()), ..task() },
            CreateExecutionArgs { policy: Some(PolicyDocument(7.into())), ..task() },
            CreateExecutionArgs { input_payload: too_much.into(), ..task() },
            CreateExecutionArgs { execution_id: Some(ExecutionId::new(9_999, Uuid::from_u128(1))), ..task() },
        ];
        for args in refused {
            let direct = world.engine.create_execution(args.clone()).await.unwrap_err();
            assert_eq!(world.engine.admit_execution(args).await.unwrap_err().to_string(), direct.to_string());
        }
        world.close_lane().await;
        let refusal = world.engine.admit_execution(task()).await.unwrap_err();
        assert!(matches!(refusal, EngineError::State(StateKind::LaneClosed)), "{refusal}");
        let flow = CreateFlowArgs {
            flow_id: FlowId::from_uuid(Uuid::from_u128(3)),
            flow_kind: String::new(),
            namespace: namespace(),
        };
        let direct = world.engine.create_flow(flow.clone()).await.unwrap_err();
        assert_eq!(world.engine.admit_flow(flow).await.unwrap_err().to_string(), direct.to_string());
        assert_eq!(world.executions(), 0);
    }
}

#[tokio::test]
async fn a_flow_is_taken_in_and_one_that_is_there_stays_as_it_is() {
    for world in worlds().await {
        let flow_id = FlowId::from_uuid(Uuid::from_u128(3));
        for kind in ["first", "second"] {
            let args = CreateFlowArgs { flow_id, flow_kind: kind.to_owned(), namespace: namespace() };
            let intake = world.engine.admit_flow(args).await.unwrap();
            world.engine.run(Note(intake)).await.unwrap();
            assert_eq!(world.run_due().await.handled, 1);
        }
        let flow = world.engine.describe_flow(flow_id).await.unwrap().unwrap();
        assert_eq!((&*flow.flow_kind, world.notes()), ("first", 0));
    }
}

#[tokio::test]
async fn who_waits_for_an_execution_that_is_on_its_way_waits_for_its_end() {
    for world in worlds().await {
        let (id, _) = world.engine.admit_execution(task()).await.unwrap();
        let missing = world.engine.await_outcome(id, 0).await.unwrap_err();
        assert!(matches!(missing, EngineError::NotFound { entity: Entity::Execution }), "{missing}");
        let (id, _) = world.note(task()).await;
        assert_eq!(world.engine.await_outcome(id, 0).await.unwrap(), None);
        let until_over = async {
            world.run_due().await;
            let args = CancelExecutionArgs {
                execution_id: id,
                reason: "over".to_owned(),
                source: CancelSource::OperatorOverride,
                fence: FenceTriple::default(),
            };
            world.engine.cancel_execution(args).await.unwrap();
            world.clock.advance(ON_ITS_WAY_MS);
        };
        let (outcome, ()) = tokio::join!(world.engine.await_outcome(id, 20_000), until_over);
        assert_eq!(outcome.unwrap().unwrap().public_state, PublicState::Cancelled);
    }
}

/// More than those who wait for something on its way let pass between two looks.
const ON_ITS_WAY_MS: u64 = 1_000;
