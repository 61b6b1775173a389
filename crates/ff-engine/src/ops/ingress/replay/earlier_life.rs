//! Children of the life that a replay ends: nothing waits for them any more, and what they handed over is gone.

use std::collections::BTreeSet;

use ff_core::Result;
use ff_core::backend::dependencies::DependencyKind;
use ff_core::ids::ExecutionId;
use ff_core::state::{EdgeGroupState, EdgeState};

use crate::key::Key;
use crate::lifecycle::graph::pass_data;
use crate::records::{Edge, EdgeGroup, Execution, Payload};
use crate::store::Tx;

/// Takes the children that an execution spawned out of what it waits for; gives the other inbound edges, and the groups that have any.
pub(super) async fn leave_children(
    tx: &mut dyn Tx,
    execution: &mut Execution,
    edges: Vec<Edge>,
    groups: Vec<EdgeGroup>,
) -> Result<(Vec<Edge>, Vec<EdgeGroup>)> {
    let (children, others): (Vec<_>, Vec<_>) = edges.into_iter().partition(|edge| is_spawned(edge, execution));
    if children.is_empty() {
        return Ok((others, groups));
    }
    let mut kept = Vec::new();
    for mut group in groups {
        let is_in_group = |edge: &&Edge| edge.generation == group.generation;
        let spawned: Vec<&Edge> = children.iter().filter(is_in_group).collect();
        let is_shared = others.iter().any(|edge| is_in_group(&edge));
        if spawned.is_empty() {
            kept.push(group);
        } else if is_shared {
            take_out(tx, &mut group, spawned);
            kept.push(group);
        } else {
            close(tx, execution, group);
        }
    }
    forget_results(tx, execution.id, &children, &others, &kept).await?;
    Ok((others, kept))
}

/// Whether the upstream is a child that the downstream spawned, in whichever life: nobody else can have its id.
fn is_spawned(edge: &Edge, downstream: &Execution) -> bool {
    let Some(name) = &edge.data_passing_ref else { return false };
    let is_child = |life| ExecutionId::of_child(downstream.id, life, name) == edge.upstream;
    edge.kind == DependencyKind::Finished
        && edge.id.uuid() == edge.upstream.uuid()
        && (0..=downstream.replay_count).any(is_child)
}

/// A group of children alone is decided, whatever becomes of them; its edges need not be touched.
fn close(tx: &mut dyn Tx, execution: &mut Execution, mut group: EdgeGroup) {
    execution.close_generation(group.generation);
    if group.is_pending() {
        group.decide(EdgeGroupState::Satisfied, tx.now());
        tx.put(group);
    }
}

/// A group with other edges goes on without the children. Their edges are settled for good, so that their ends count no more.
fn take_out(tx: &mut dyn Tx, group: &mut EdgeGroup, spawned: Vec<&Edge>) {
    for edge in spawned.into_iter().filter(|edge| edge.state != EdgeState::Impossible) {
        group.unstage(edge);
        tx.put(Edge { state: EdgeState::Impossible, ..edge.clone() });
    }
    group.keeps_payload = false;
    tx.put(group.clone());
}

/// Drops what children handed over. What another upstream handed over under the same name is handed over again.
async fn forget_results(
    tx: &mut dyn Tx,
    id: ExecutionId,
    children: &[Edge],
    others: &[Edge],
    groups: &[EdgeGroup],
) -> Result<()> {
    let Some(mut payload) = tx.get::<Payload>(Key::payload(id)).await? else { return Ok(()) };
    let names: BTreeSet<&String> = children.iter().filter_map(|edge| edge.data_passing_ref.as_ref()).collect();
    let before = payload.inputs.len();
    payload.inputs.retain(|name, _| !names.contains(name));
    if payload.inputs.len() == before {
        return Ok(());
    }
    tx.put(payload);
    let has_name = |edge: &Edge| edge.data_passing_ref.as_ref().is_some_and(|name| names.contains(name));
    for group in groups.iter().filter(|group| group.state == EdgeGroupState::Satisfied) {
        if others.iter().any(|edge| edge.generation == group.generation && has_name(edge)) {
            pass_data(tx, group).await?;
        }
    }
    Ok(())
}
