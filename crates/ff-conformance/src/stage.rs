//! Scenes that cases of several facets start from.

use ff_core::backend::flows::CreateFlowArgs;
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs};
use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
use ff_core::backend::suspension::{
    ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, SuspensionReasonCode, WaitpointBinding,
};
use ff_core::backend::workers::{RegisterWorkerArgs, RegisterWorkerOutcome};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, SuspensionId, WaitpointId};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::world::{World, worker};

/// Arguments written as JSON, so that a case names only what matters to it.
pub(crate) fn args<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// Suspends an attempt until any signal comes.
pub(crate) async fn suspend(world: &World, handle: &Handle) -> SuspendOutcome {
    let secret = SeedWaitpointHmacSecretArgs { kid: "k1".into(), secret_hex: "ab".repeat(32).into() };
    world.backend.seed_waitpoint_hmac_secret(secret).await.unwrap();
    let binding = WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid()));
    let condition = ResumeCondition::Single {
        waitpoint_key: binding.key().unwrap().to_owned(),
        matcher: SignalMatcher::Wildcard {},
    };
    let suspension = SuspensionId::from_uuid(world.uuid());
    let args = SuspendArgs::new(suspension, binding, condition, SuspensionReasonCode::WaitingForSignal);
    world.backend.suspend(handle, args).await.unwrap()
}

/// Opens a terminal execution again.
pub(crate) async fn replay(world: &World, execution_id: ExecutionId) {
    let (reason, requested_by) = ("again".to_owned(), "tester".to_owned());
    let replay = ReplayExecutionArgs { execution_id, reason, requested_by };
    world.backend.replay_execution(replay).await.unwrap();
}

/// Registers a worker of the usual namespace and lane that lives for a minute.
pub(crate) async fn register(world: &World, name: &str, capabilities: &[&str]) -> RegisterWorkerOutcome {
    world.backend.register_worker(registration(world, name, capabilities)).await.unwrap()
}

/// What [`register`] asks for.
pub(crate) fn registration(world: &World, name: &str, capabilities: &[&str]) -> RegisterWorkerArgs {
    let (worker_id, worker_instance_id) = worker(name);
    RegisterWorkerArgs {
        worker_id,
        worker_instance_id,
        namespace: world.namespace(),
        lanes: [world.lane()].into(),
        capabilities: capabilities.iter().map(|token| (*token).to_owned()).collect(),
        kinds: None,
        liveness_ttl_ms: 60_000,
    }
}

/// A flow with one member per name, in order, each waiting for the one before.
pub(crate) async fn chain(world: &World, length: usize) -> (FlowId, Vec<ExecutionId>) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let flow = CreateFlowArgs { flow_id, flow_kind: "chain".into(), namespace: world.namespace() };
    world.backend.create_flow(flow).await.unwrap();
    let mut members = Vec::new();
    for _ in 0..length {
        let execution_id = world.member_id(flow_id);
        world.submit(CreateExecutionArgs { execution_id: Some(execution_id), ..world.submission() }).await;
        let member = serde_json::json!({"flow_id": flow_id, "execution_id": execution_id});
        world.backend.add_execution_to_flow(args(member)).await.unwrap();
        members.push(execution_id);
    }
    for (nth, pair) in members.windows(2).enumerate() {
        let edge_id = world.uuid();
        let edge = serde_json::json!({
            "flow_id": flow_id, "edge_id": edge_id, "upstream_execution_id": pair[0],
            "downstream_execution_id": pair[1], "expected_graph_revision": length + nth,
        });
        world.backend.stage_dependency_edge(args(edge)).await.unwrap();
        let applied = serde_json::json!({
            "flow_id": flow_id, "edge_id": edge_id, "upstream_execution_id": pair[0],
            "downstream_execution_id": pair[1],
        });
        world.backend.apply_dependency_to_child(args(applied)).await.unwrap();
    }
    (flow_id, members)
}
