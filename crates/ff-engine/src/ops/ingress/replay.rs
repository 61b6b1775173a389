//! Opening a terminal execution again.

mod earlier_life;

use std::collections::BTreeSet;

use ff_core::backend::ingress::{ReplayExecutionArgs, ReplayExecutionResult};
use ff_core::backend::subscriptions::{LeaseChange, ReplayType};
use ff_core::error::{Entity, StateKind};
use ff_core::ids::{ExecutionId, FlowId, check_free_string};
use ff_core::partition::Partition;
use ff_core::policy::DEFAULT_MAX_REPLAY_COUNT;
use ff_core::rules::edge_groups::{GroupCounts, verdict};
use ff_core::state::{EdgeGroupState, EdgeState, TerminalOutcome};
use ff_core::{EngineError, Result};
use uuid::Uuid;

use super::lanes::register_class;
use crate::engine::Engine;
use crate::event::EventBody;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::graph::{child_edge_id, current_group, member, pass_data};
use crate::lifecycle::{Subject, dependencies};
use crate::records::{Continuation, ContinuationWork, Definition, Edge, EdgeGroup, Execution, Flow};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Inbound edges loaded at a time.
const EDGES_PAGE: usize = 500;

pub(super) async fn replay<S: Store>(engine: &Engine<S>, args: ReplayExecutionArgs) -> Result<ReplayExecutionResult> {
    engine.check_partition(args.execution_id)?;
    check_free_string("reason", &args.reason)?;
    check_free_string("requested_by", &args.requested_by)?;
    // Its class may be forgotten since it ended, and it may end between this read and the commit.
    let stored: Option<Execution> = read_one(&engine.store, Key::execution(args.execution_id)).await?;
    if let Some(it) = stored {
        register_class(engine, &it.namespace, &it.lane, &it.class).await?;
    }
    let continuation = engine.mint().await?;
    engine.run(Replay { args, continuation }).await
}

struct Replay {
    args: ReplayExecutionArgs,
    /// The first id of work it leaves behind; further ones count up.
    continuation: Uuid,
}

#[async_trait::async_trait]
impl Op for Replay {
    type Out = ReplayExecutionResult;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.args.execution_id;
        [Key::definition(id)].into_iter().chain(Subject::keys(id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<ReplayExecutionResult> {
        let id = self.args.execution_id;
        let mut subject = Subject::load(tx, id).await?;
        check(tx, &subject.execution).await?;
        let replay_type = match subject.execution.state().terminal_outcome {
            TerminalOutcome::Skipped if subject.execution.flow_id.is_some() => ReplayType::SkippedFlowMember,
            _ => ReplayType::Normal,
        };
        let waiting = match subject.execution.flow_id {
            Some(flow) => reopen_dependencies(tx, &mut subject.execution, flow, self.continuation).await?,
            None => false,
        };
        reopen_for_parent(tx, &subject.execution).await?;
        let (reason, requested_by) = (self.args.reason.clone(), self.args.requested_by.clone());
        subject.execution.replay(reason.clone(), requested_by.clone(), waiting, tx.now());
        tx.delete(Key::outcome(id));
        subject.emit_lease(tx, LeaseChange::ReplayInitiated { replay_type });
        subject.emit(tx, EventBody::Replayed { reason, requested_by });
        subject.save(tx);
        Ok(ReplayExecutionResult::Replayed { public_state: subject.execution.public_state() })
    }
}

async fn check(tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
    if execution.purging {
        return Err(EngineError::not_found(Entity::Execution));
    }
    if !execution.is_terminal() {
        return Err(StateKind::ExecutionNotTerminal.into());
    }
    let policy = tx.get::<Definition>(Key::definition(execution.id)).await?.and_then(|definition| definition.policy);
    if execution.replay_count >= policy.map_or(DEFAULT_MAX_REPLAY_COUNT, |policy| policy.max_replay_count) {
        return Err(StateKind::MaxReplaysExhausted.into());
    }
    if let Some(flow) = execution.flow_id {
        let flow = tx.get::<Flow>(Key::flow(execution.id.partition(), flow)).await?;
        if flow.is_some_and(|flow| !flow.is_open()) {
            return Err(EngineError::State(StateKind::FlowAlreadyTerminal));
        }
    }
    Ok(())
}

/// Impossible dependencies are awaited again, and the groups they decided are open again; says whether any group holds the execution.
/// Upstreams that are over already settle their edges in a continuation, which may skip the execution once more.
///
/// An execution that ended while it waited has its dependencies still: undecided ones hold it again, and what was satisfied meanwhile
/// gives it its data now. Children that it spawned belong to the life that ends here.
async fn reopen_dependencies(tx: &mut dyn Tx, execution: &mut Execution, flow: FlowId, first_id: Uuid) -> Result<bool> {
    let id = execution.id;
    let edges = inbound(tx, id, flow).await?;
    let groups = tx.range_of::<EdgeGroup>(Index::GroupsInto(id), Bounds::first(EDGES_PAGE)).await?;
    let (edges, groups) = earlier_life::leave_children(tx, execution, edges, groups).await?;
    let mut waiting = false;
    let mut upstreams = BTreeSet::new();
    for mut group in groups {
        if group.state == EdgeGroupState::Impossible {
            let members = || edges.iter().filter(|edge| edge.generation == group.generation);
            for edge in members().filter(|edge| edge.state == EdgeState::Impossible) {
                tx.put(Edge { state: EdgeState::Unsatisfied, ..edge.clone() });
                upstreams.insert(edge.upstream);
            }
            let satisfied = members().filter(|edge| edge.state == EdgeState::Satisfied).count();
            let succeeded = u32::try_from(satisfied).unwrap_or(u32::MAX);
            group.counts = GroupCounts { total: group.counts.total, succeeded, failed: 0, skipped: 0 };
            // What cannot succeed is still awaited: the next edge that settles decides it anew.
            group.state = match verdict(group.policy, group.counts) {
                EdgeGroupState::Satisfied => EdgeGroupState::Satisfied,
                _ => EdgeGroupState::Pending,
            };
            group.decided_at = None;
            group.sibling_cancel = None;
            tx.put(group.clone());
        }
        if group.state == EdgeGroupState::Satisfied && group.generation >= execution.dependency_generation {
            pass_data(tx, &group).await?;
            execution.close_generation(group.generation);
        }
        waiting |= dependencies::holds_back(&group, execution);
    }
    settle_again(tx, id.partition(), flow, upstreams, first_id).await?;
    Ok(waiting)
}

/// A parent that is not over waits for a child that runs again: the child counts among those the parent's next wait is for, or the one it
/// is in. Children of an earlier life of the parent are nothing to it.
async fn reopen_for_parent(tx: &mut dyn Tx, child: &Execution) -> Result<()> {
    let (home, Some(flow)) = (child.id.partition(), child.flow_id) else { return Ok(()) };
    let edge = tx.get::<Edge>(Key::edge(home, flow, child_edge_id(child.id))).await?;
    let Some(mut edge) = edge.filter(|edge| edge.spawned && edge.state == EdgeState::Satisfied) else { return Ok(()) };
    let parent = member(tx, flow, edge.downstream).await?.filter(|parent| !parent.is_terminal());
    let (Some(parent), Some(name)) = (parent, &edge.data_passing_ref) else { return Ok(()) };
    let Some(flow) = tx.get::<Flow>(Key::flow(home, flow)).await? else { return Ok(()) };
    if ExecutionId::of_child(parent.id, parent.replay_count, name) != child.id {
        return Ok(());
    }
    if let Some(mut group) = tx.get::<EdgeGroup>(Key::edge_group(parent.id, edge.generation)).await? {
        group.forget(&edge);
        tx.put(group);
    }
    let (generation, group) = current_group(tx, &parent).await?;
    let mut group = group.unwrap_or_else(|| EdgeGroup::empty(&flow, parent.id, generation, Default::default()));
    edge.state = EdgeState::Unsatisfied;
    edge.generation = generation;
    group.await_child(&edge);
    tx.put(edge);
    tx.put(group);
    Ok(())
}

async fn settle_again(
    tx: &mut dyn Tx,
    home: Partition,
    flow: FlowId,
    upstreams: BTreeSet<ExecutionId>,
    first_id: Uuid,
) -> Result<()> {
    for (upstream, offset) in upstreams.into_iter().zip(0u128..) {
        if member(tx, flow, upstream).await?.is_none_or(|upstream| upstream.is_terminal()) {
            tx.put(Continuation {
                home,
                id: Uuid::from_u128(first_id.as_u128().wrapping_add(offset)),
                work: ContinuationWork::ResolveEdges { flow, upstream },
                after: None,
                due_at: tx.now(),
            });
        }
    }
    Ok(())
}

async fn inbound(tx: &mut dyn Tx, id: ExecutionId, flow: FlowId) -> Result<Vec<Edge>> {
    let mut edges: Vec<Edge> = Vec::new();
    loop {
        let after = edges.last().map(|edge| Position::by(*edge.id.uuid().as_bytes()));
        let index = Index::EdgesInto(id.partition(), flow, id);
        let page: Vec<Edge> = tx.range_of(index, Bounds::first(EDGES_PAGE).after(after)).await?;
        let full = page.len() == EDGES_PAGE;
        edges.extend(page);
        if !full {
            return Ok(edges);
        }
    }
}
