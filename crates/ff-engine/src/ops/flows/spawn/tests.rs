use std::sync::Arc;

use ff_core::TimestampMs;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::flows::{AddExecutionToFlowArgs, CreateFlowArgs};
use ff_core::backend::{Claims, Flows, Ingress, Inspection};
use ff_core::capability::CapabilitySet;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use uuid::Uuid;

use super::*;
use crate::clock::ManualClock;
use crate::engine::Settings;
use crate::memory::MemoryStore;

fn namespace() -> Namespace {
    Namespace::new("acme").unwrap()
}

fn lane() -> LaneId {
    LaneId::new("default").unwrap()
}

/// A flow that exists, and a running execution beside it.
async fn scene() -> (Engine<MemoryStore>, FlowId, ExecutionId, Handle) {
    let store = MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000))));
    let engine = Engine::open(store, Settings::default()).await.unwrap();
    let flow = FlowId::from_uuid(Uuid::from_u128(7));
    engine
        .create_flow(CreateFlowArgs { flow_id: flow, flow_kind: "any".into(), namespace: namespace() })
        .await
        .unwrap();
    let parent = ExecutionId::for_flow(flow, engine.counts(), Uuid::from_u128(8));
    engine.create_execution(CreateExecutionArgs::new(parent, namespace(), lane(), "mail")).await.unwrap();
    let policy = ClaimPolicy::new(WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap(), 30_000);
    let handle = engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap().expect("work");
    (engine, flow, parent, handle)
}

#[tokio::test]
async fn a_parent_that_joins_a_flow_while_children_are_prepared_has_them_in_that_flow() {
    let (engine, flow, parent, handle) = scene().await;
    let actor = Actor::by_handle(&engine.open_handle(&handle).unwrap());
    let children = vec![SpawnChild::new("a", "step", "")];
    let early = plan(&engine, &actor, &children).await.unwrap();
    engine.add_execution_to_flow(AddExecutionToFlowArgs { flow_id: flow, execution_id: parent }).await.unwrap();
    let answer = engine.run(Spawn { actor, plan: early }).await.unwrap();
    assert_eq!(answer.unwrap(), None, "the plan is for another flow");
    let ids = engine.spawn_children(&handle, children).await.unwrap();
    assert_eq!(engine.resolve_execution_flow_id(ids[0]).await.unwrap(), Some(flow));
}

#[tokio::test]
async fn who_does_not_own_the_parent_gets_no_plan() {
    let (engine, _flow, _parent, handle) = scene().await;
    let mut lost = engine.open_handle(&handle).unwrap();
    lost.lease_epoch = lost.lease_epoch.next();
    let children = [SpawnChild::new("a", "step", "")];
    let plan = plan(&engine, &Actor::by_handle(&lost), &children).await.unwrap();
    assert!(plan.is_none());
}
