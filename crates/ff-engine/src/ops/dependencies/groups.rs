//! Groups of inbound edges: how they combine, when an edge joins in, what they say about an execution.

use async_trait::async_trait;
use ff_core::backend::dependencies::{
    ApplyDependencyToChildArgs, ApplyDependencyToChildResult, EdgeDependencyPolicy, FlowEligibility,
    SetEdgeGroupPolicyResult,
};
use ff_core::error::{ConflictKind, Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::rules::edge_groups::{check_policy, edge_fate, eligibility, verdict};
use ff_core::state::{EdgeGroupState, EdgeState, EligibilityState, TerminalOutcome};
use ff_core::{EngineError, Result};

use super::edges::member;
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::lifecycle::graph::{Cascade, current_group};
use crate::records::{Edge, EdgeGroup, Execution, Flow};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

pub(super) async fn set_policy<S: Store>(
    engine: &Engine<S>,
    flow: FlowId,
    downstream: ExecutionId,
    policy: EdgeDependencyPolicy,
) -> Result<SetEdgeGroupPolicyResult> {
    check_policy(policy)?;
    engine.run(SetPolicy { home: engine.flow_home(flow), flow, downstream, policy }).await
}

struct SetPolicy {
    home: Partition,
    flow: FlowId,
    downstream: ExecutionId,
    policy: EdgeDependencyPolicy,
}

#[async_trait]
impl Op for SetPolicy {
    type Out = SetEdgeGroupPolicyResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.flow)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<SetEdgeGroupPolicyResult> {
        let flow = tx.flow(self.home, self.flow).await?;
        let downstream = member(tx, &flow, self.downstream).await?;
        let (generation, group) = current_group(tx, &downstream).await?;
        if let Some(group) = group {
            if group.counts.total > 0 {
                return Err(EngineError::invalid("edge_group_policy_already_fixed"));
            }
            if group.policy == self.policy {
                return Ok(SetEdgeGroupPolicyResult::AlreadySet);
            }
        }
        tx.put(EdgeGroup::empty(&flow, self.downstream, generation, self.policy));
        Ok(SetEdgeGroupPolicyResult::Set)
    }
}

pub(super) async fn apply<S: Store>(
    engine: &Engine<S>,
    args: ApplyDependencyToChildArgs,
) -> Result<ApplyDependencyToChildResult> {
    engine.check_partition(args.downstream_execution_id)?;
    let home = engine.flow_home(args.flow_id);
    if args.downstream_execution_id.partition() != home {
        return Err(refuse_foreign(engine, args.downstream_execution_id).await?);
    }
    engine.run(ApplyEdge { home, args }).await
}

/// Why no edge of a flow can lead to an execution of another partition.
async fn refuse_foreign<S: Store>(engine: &Engine<S>, child: ExecutionId) -> Result<EngineError> {
    let child: Option<Execution> = read_one(&engine.store, Key::execution(child)).await?;
    Ok(match child {
        None => EngineError::not_found(Entity::Execution),
        Some(Execution { flow_id: Some(_), .. }) => ConflictKind::ExecutionAlreadyInFlow.into(),
        Some(_) => invalid_dependency("the execution is not in the flow"),
    })
}

pub(super) fn invalid_dependency(detail: &str) -> EngineError {
    EngineError::validation(ValidationKind::InvalidDependency, detail)
}

struct ApplyEdge {
    home: Partition,
    args: ApplyDependencyToChildArgs,
}

#[async_trait]
impl Op for ApplyEdge {
    type Out = ApplyDependencyToChildResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![
            Key::flow(self.home, self.args.flow_id),
            Key::edge(self.home, self.args.flow_id, self.args.edge_id),
            Key::execution(self.args.downstream_execution_id),
        ]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<ApplyDependencyToChildResult> {
        let args = &self.args;
        let flow = tx.get::<Flow>(Key::flow(self.home, args.flow_id)).await?;
        let subject = Subject::load(tx, args.downstream_execution_id).await?;
        if subject.execution.flow_id.is_some_and(|current| current != args.flow_id) {
            return Err(ConflictKind::ExecutionAlreadyInFlow.into());
        }
        let Some(flow) = flow else { return Err(invalid_dependency("unknown flow")) };
        if !flow.is_open() {
            return Err(StateKind::FlowAlreadyTerminal.into());
        }
        let edge = self.edge(tx).await?;
        if edge.state != EdgeState::Staged {
            return Ok(ApplyDependencyToChildResult::AlreadyApplied);
        }
        let group_key = Key::edge_group(edge.downstream, edge.generation);
        self.put_in_force(tx, edge, subject, group_key.clone(), flow).await?;
        let group = tx.get::<EdgeGroup>(group_key).await?;
        let waiting = group.filter(EdgeGroup::is_pending).map_or(0, |group| group.running());
        Ok(ApplyDependencyToChildResult::Applied { unsatisfied_count: waiting })
    }
}

impl ApplyEdge {
    async fn edge(&self, tx: &mut dyn Tx) -> Result<Edge> {
        let args = &self.args;
        let edge = tx.get::<Edge>(Key::edge(self.home, args.flow_id, args.edge_id)).await?;
        let same_ends = |edge: &Edge| {
            edge.upstream == args.upstream_execution_id && edge.downstream == args.downstream_execution_id
        };
        edge.filter(same_ends).ok_or_else(|| invalid_dependency("the edge is unknown or its ends differ"))
    }

    /// Holds the downstream back, and settles the edge at once when its upstream is over.
    async fn put_in_force(
        &self,
        tx: &mut dyn Tx,
        mut edge: Edge,
        mut subject: Subject,
        group_key: Key,
        flow: Flow,
    ) -> Result<()> {
        let upstream = tx.get::<Execution>(Key::execution(edge.upstream)).await?;
        let group = tx.get::<EdgeGroup>(group_key).await?;
        let mut group =
            group.unwrap_or_else(|| EdgeGroup::empty(&flow, edge.downstream, edge.generation, Default::default()));
        edge.state = EdgeState::Unsatisfied;
        group.applied += 1;
        if group.is_pending() && can_wait(&subject.execution) {
            subject.execution.wait_for_dependencies(tx.now());
            subject.save(tx);
        }
        tx.put(group);
        tx.put(edge.clone());
        // An upstream that is gone ended and was purged; nobody knows how, so nobody may build upon its success.
        let outcome = upstream.map_or(TerminalOutcome::Failed, |upstream| upstream.state().terminal_outcome);
        if let Some(fate) = edge_fate(edge.kind, outcome) {
            let mut cascade = Cascade::of(flow);
            cascade.settle(tx, edge, fate).await?;
            cascade.run(tx).await?;
        }
        Ok(())
    }
}

/// A runnable execution waits from now on; one that runs or is suspended does so when it next becomes runnable.
fn can_wait(execution: &Execution) -> bool {
    execution.is_runnable() && execution.state().eligibility_state != EligibilityState::BlockedByDependencies
}

pub(super) async fn evaluate<S: Store>(engine: &Engine<S>, id: ExecutionId) -> Result<FlowEligibility> {
    let execution: Option<Execution> = read_one(&engine.store, Key::execution(id)).await?;
    let Some(execution) = execution else { return Ok(FlowEligibility::NotFound) };
    let group: Option<EdgeGroup> =
        read_one(&engine.store, Key::edge_group(id, execution.dependency_generation)).await?;
    let idle = |group: &EdgeGroup| group.children > 0 && group.holding(&execution) == 0;
    let state = group.filter(|group| group.applied > 0).map(|group| match group.state {
        // Nobody decides it while its downstream does not wait, so its counts speak.
        EdgeGroupState::Pending => match verdict(group.policy, group.counts) {
            EdgeGroupState::Pending if idle(&group) => EdgeGroupState::Satisfied,
            judged => judged,
        },
        decided => decided,
    });
    Ok(eligibility(&execution.state(), state))
}
