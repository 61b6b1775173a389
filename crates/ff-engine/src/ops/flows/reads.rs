//! Flows as they are shown.

use ff_core::backend::dependencies::EdgeGroupSnapshot;
use ff_core::backend::flows::{
    FlowProjection as ProjectionAnswer, FlowSnapshot, FlowStatus, FlowSummary, ListFlowsPage,
};
use ff_core::ids::FlowId;
use ff_core::partition::{PartitionFamily, PartitionKey};
use ff_core::{EngineError, Result, TimestampMs};

use super::tags;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::{Key, Name};
use crate::records::{EdgeGroup, Flow, FlowProjection};
use crate::store::Store;
use crate::verbs::read_one;

/// Most flows of one page.
const PAGE_MAX: usize = 1_000;

/// Edge groups read at once, and shown at most.
const GROUPS_PAGE: usize = 500;
const GROUPS_MAX: usize = 10_000;

pub(super) async fn describe<S: Store>(engine: &Engine<S>, id: FlowId) -> Result<Option<FlowSnapshot>> {
    let home = engine.flow_home(id);
    let Some(flow) = read_one::<Flow, S>(&engine.store, Key::flow(home, id)).await? else { return Ok(None) };
    let projection: Option<FlowProjection> = read_one(&engine.store, Key::flow_projection(home, id)).await?;
    let public_flow_state = flow.state();
    let (cancelled_at, cancel_reason, cancellation_policy) = match flow.cancellation.clone() {
        Some(cancellation) => (Some(cancellation.at), Some(cancellation.reason), Some(cancellation.policy)),
        None => (None, None, None),
    };
    Ok(Some(FlowSnapshot {
        flow_id: id,
        public_flow_state,
        graph_revision: flow.graph_revision,
        node_count: flow.node_count,
        edge_count: flow.edge_count,
        created_at: flow.created_at,
        last_mutation_at: flow.last_mutation_at,
        cancelled_at,
        cancel_reason,
        cancellation_policy,
        tags: tags::read(engine, id).await?,
        edge_groups: groups(engine, &flow).await?,
        summary: projection.map(summary),
        flow_kind: flow.kind,
        namespace: flow.namespace,
    }))
}

fn summary(projection: FlowProjection) -> ProjectionAnswer {
    ProjectionAnswer {
        flow_id: projection.flow,
        total: projection.total,
        sampled: projection.sampled,
        counts: projection.counts,
        derived_state: projection.derived_state,
        projected_at: projection.projected_at,
    }
}

async fn groups<S: Store>(engine: &Engine<S>, flow: &Flow) -> Result<Vec<EdgeGroupSnapshot>> {
    let index = [Index::GroupsOf(flow.home, flow.id)];
    let mut found: Vec<EdgeGroupSnapshot> = Vec::new();
    let mut after: Option<Position> = None;
    while found.len() < GROUPS_MAX {
        let page = engine.store.list(&index, &Bounds::first(GROUPS_PAGE).after(after)).await?;
        let whole = page.len() < GROUPS_PAGE;
        after = page.last().map(|listed| listed.position.clone());
        let groups = page.into_iter().filter_map(|listed| EdgeGroup::try_from(listed.record).ok());
        found.extend(groups.map(|group| group_snapshot(&group)));
        if whole {
            break;
        }
    }
    Ok(found)
}

fn group_snapshot(group: &EdgeGroup) -> EdgeGroupSnapshot {
    EdgeGroupSnapshot {
        downstream_execution_id: group.downstream,
        generation: group.generation,
        policy: group.policy,
        total_deps: group.applied,
        satisfied_count: group.counts.succeeded,
        failed_count: group.counts.failed,
        skipped_count: group.counts.skipped,
        running_count: group.running(),
        group_state: group.state,
    }
}

pub(super) async fn list<S: Store>(
    engine: &Engine<S>,
    partition: &PartitionKey,
    cursor: Option<FlowId>,
    limit: u32,
) -> Result<ListFlowsPage> {
    let home = partition.parse().map_err(EngineError::invalid)?;
    engine.check_known(home)?;
    if home.family() != PartitionFamily::Flow {
        return Err(EngineError::invalid(format_args!("partition {home} holds no flows")));
    }
    let limit = usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX);
    if limit == 0 {
        return Ok(ListFlowsPage::default());
    }
    let after = cursor.map(|flow| Position::by(*flow.uuid().as_bytes()));
    let keys = engine.store.keys(&Index::FlowsIn(home), &Bounds::first(limit + 1).after(after)).await?;
    let more = keys.len() > limit;
    let mut flows = Vec::with_capacity(limit.min(keys.len()));
    let mut last = None;
    for (_, key) in keys.into_iter().take(limit) {
        if let Name::Flow(id) = key.name {
            flows.extend(row(engine, key, id).await?);
            last = Some(id);
        }
    }
    Ok(ListFlowsPage { flows, next_cursor: last.filter(|_| more) })
}

/// One flow of a listing. One that does not decode is shown as unknown, so that it hides no other.
async fn row<S: Store>(engine: &Engine<S>, key: Key, id: FlowId) -> Result<Option<FlowSummary>> {
    let projection = Key::flow_projection(key.partition, id);
    let flow = match read_one::<Flow, S>(&engine.store, key).await {
        Ok(Some(flow)) => flow,
        Ok(None) => return Ok(None),
        Err(EngineError::Validation { .. }) => {
            return Ok(Some(FlowSummary { flow_id: id, created_at: TimestampMs::ZERO, status: FlowStatus::Unknown }));
        }
        Err(error) => return Err(error),
    };
    let status = if flow.is_open() {
        let projection: Option<FlowProjection> = read_one(&engine.store, projection).await?;
        projection.map_or(flow.state(), |projection| projection.derived_state)
    } else {
        flow.state()
    };
    Ok(Some(FlowSummary { flow_id: id, created_at: flow.created_at, status: status.into() }))
}
