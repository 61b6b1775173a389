//! Looks without touching: reads must answer and must not write.

use ff_core::backend::dependencies::EdgeDirection;
use ff_core::backend::inspection::SearchArgs;
use ff_core::backend::leases::ListExpiredLeasesArgs;
use ff_core::backend::signals::ListPendingWaitpointsArgs;
use ff_core::backend::workers::ListWorkersArgs;
use ff_core::cursor::FrameCursor;
use ff_core::ids::AttemptIndex;
use ff_core::partition::{Partition, PartitionKey};

use super::actions;
use crate::call::Call;
use crate::world::{PARTITIONS, World};

actions![6 look_at_execution, 3 look_at_flow, 3 list, 2 look_at_stream, 1 ask_the_time];

async fn look_at_execution(world: &World) {
    let id = world.rng().pick_recent(&world.memory().executions).copied();
    let Some(id) = id else { return };
    let engine = world.engine();
    match world.rng().below(9) {
        0 => drop(world.call(Call::new("describe_execution", id.to_string()), engine.describe_execution(id)).await),
        1 => drop(world.call(Call::new("read_execution_info", id.to_string()), engine.read_execution_info(id)).await),
        2 => drop(world.call(Call::new("get_execution_result", id.to_string()), engine.get_execution_result(id)).await),
        3 => drop(world.call(Call::new("explain", id.to_string()), engine.explain(id)).await),
        4 => {
            let args = ListPendingWaitpointsArgs::new(id);
            drop(
                world
                    .call(Call::new("list_pending_waitpoints", id.to_string()), engine.list_pending_waitpoints(args))
                    .await,
            );
        }
        5 => drop(world.call(Call::new("await_outcome", id.to_string()), engine.await_outcome(id, 0)).await),
        6 => drop(world.call(Call::new("read_steps", id.to_string()), engine.read_steps(id)).await),
        7 => {
            let call = Call::new("list_resumptions", id.to_string());
            drop(world.call(call, engine.list_resumptions(id, None, 10)).await);
        }
        _ => {
            let call = Call::new("evaluate_flow_eligibility", id.to_string());
            drop(world.call(call, engine.evaluate_flow_eligibility(id)).await);
        }
    }
}

async fn look_at_flow(world: &World) {
    let (flow, member) = {
        let rng = world.rng();
        let memory = world.memory();
        (rng.pick_recent(&memory.flows).map(|(id, _)| *id), rng.pick_recent(&memory.executions).copied())
    };
    let (Some(flow), Some(member)) = (flow, member) else { return };
    let engine = world.engine();
    world.call(Call::new("describe_flow", flow.to_string()), engine.describe_flow(flow)).await;
    let direction = EdgeDirection::Incoming { to_node: member };
    world.call(Call::new("list_edges", flow.to_string()), engine.list_edges(flow, direction)).await;
}

async fn list(world: &World) {
    let engine = world.engine();
    let partition = PartitionKey::from(Partition::flow(u16::try_from(world.rng().below(PARTITIONS)).unwrap_or(0)));
    match world.rng().below(6) {
        0 => drop(world.call(Call::new("list_executions", ""), engine.list_executions(&partition, None, 20)).await),
        1 => drop(world.call(Call::new("list_suspended", ""), engine.list_suspended(&partition, None, 20)).await),
        2 => drop(world.call(Call::new("list_flows", ""), engine.list_flows(&partition, None, 20)).await),
        3 => {
            let args = SearchArgs::default();
            drop(world.call(Call::new("search_executions", ""), engine.search_executions(args)).await);
        }
        4 => drop(world.call(Call::new("list_workers", ""), engine.list_workers(ListWorkersArgs::default())).await),
        _ => {
            let args = ListExpiredLeasesArgs { as_of: world.now(), after: None, limit: None, namespace: None };
            drop(world.call(Call::new("list_expired_leases", ""), engine.list_expired_leases(args)).await);
        }
    }
}

async fn look_at_stream(world: &World) {
    let held = super::worker::some_held(world);
    let Some(held) = held else { return };
    let engine = world.engine();
    let (id, index) = (held.execution, AttemptIndex(held.index.0));
    let call = Call::new("read_stream", id.to_string());
    world.call(call, engine.read_stream(id, index, FrameCursor::Start, FrameCursor::End, 100)).await;
    world.call(Call::new("read_summary", id.to_string()), engine.read_summary(id, index)).await;
}

async fn ask_the_time(world: &World) {
    let engine = world.engine();
    world.call(Call::new("server_time_ms", ""), engine.server_time_ms()).await;
}
