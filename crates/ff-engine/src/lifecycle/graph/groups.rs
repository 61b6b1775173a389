//! What one settled edge means to its group, and a decided group to its downstream.

use std::collections::BTreeSet;

use ff_core::backend::flows::CancelFlowPolicy;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::ExecutionId;
use ff_core::rules::edge_groups::{EdgeFate, decide, sibling_cancel, verdict};
use ff_core::rules::fence::CancelSource;
use ff_core::state::{EdgeGroupState, EdgeState, EligibilityState};
use ff_core::{EngineError, Result};

use crate::draft::Draft;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::{Ending, Subject, end};
use crate::records::{Edge, EdgeGroup, Execution, Flow, Outcome, Payload, Record};
use crate::store::Tx;

/// Inbound edges read at once.
const PAGE: usize = 500;

/// The group that newly staged edges of an execution join, if there is one yet: the first that is not decided.
///
/// A group decided while its downstream was over did not close its generation, so decided ones are passed over.
pub(crate) async fn current_group(tx: &mut dyn Tx, execution: &Execution) -> Result<(u32, Option<EdgeGroup>)> {
    let mut generation = execution.dependency_generation;
    loop {
        match tx.get::<EdgeGroup>(Key::edge_group(execution.id, generation)).await? {
            Some(group) if !group.is_pending() => generation += 1,
            found => return Ok((generation, found)),
        }
    }
}

/// The downstream end of an edge and its group, loaded before anything is written: a record that does not decode changes nothing.
pub(super) struct Ends {
    downstream: Option<Subject>,
    /// The group as it will be, with the edge counted, and what its counts amount to.
    group: Option<(EdgeGroup, EdgeGroupState)>,
}

impl Ends {
    pub(super) async fn load(tx: &mut dyn Tx, edge: &Edge, fate: EdgeFate) -> Result<Self> {
        let group = match tx.get::<EdgeGroup>(Key::edge_group(edge.downstream, edge.generation)).await? {
            Some(mut group) => {
                group.settle(edge, fate);
                let verdict = decide(group.state, group.policy, group.counts)?;
                Some((group, verdict))
            }
            None => None,
        };
        Ok(Self { downstream: Subject::find(tx, edge.downstream).await?, group })
    }

    /// Settles the edge. When that decides the group the downstream is released or ended; it is returned if it ended.
    pub(super) async fn settle(
        self,
        tx: &mut dyn Tx,
        flow: &Flow,
        mut edge: Edge,
        fate: EdgeFate,
    ) -> Result<Option<Draft<Execution>>> {
        edge.state = fate.edge_state();
        tx.put(edge);
        let Some((group, verdict)) = self.group else { return Ok(None) };
        let again = group.state != EdgeGroupState::Pending && is_on(Fault::GroupFiresAgain);
        if (group.state == verdict && !again) || !may_fire(&group, self.downstream.as_ref()) {
            if let Some(subject) = self.downstream {
                release_from_others(tx, &group, subject).await?;
            }
            tx.put(group);
            return Ok(None);
        }
        fire(tx, flow, group, verdict, self.downstream).await
    }
}

/// A group opened before the first run decides in every state of its downstream. A later one belongs to a wait for children: it decides
/// only while the downstream waits, otherwise the wait itself looks at it.
fn may_fire(group: &EdgeGroup, downstream: Option<&Subject>) -> bool {
    group.generation == 0 || downstream.is_some_and(|subject| waits(&subject.execution))
}

fn waits(execution: &Execution) -> bool {
    execution.state().eligibility_state == EligibilityState::BlockedByDependencies
}

async fn fire(
    tx: &mut dyn Tx,
    flow: &Flow,
    mut group: EdgeGroup,
    verdict: EdgeGroupState,
    downstream: Option<Subject>,
) -> Result<Option<Draft<Execution>>> {
    let now = tx.now();
    group.decide(verdict, now);
    if let Some(reason) = sibling_cancel(group.policy, verdict) {
        let siblings = live_upstreams(tx, &group).await?;
        group.owe_cancellations(reason.as_str(), siblings, now);
    }
    let ended = match downstream.filter(|subject| !subject.execution.is_terminal()) {
        Some(subject) if verdict == EdgeGroupState::Satisfied => {
            release(tx, &group, subject).await?;
            None
        }
        Some(subject) => {
            let ending = ending(flow, &subject.execution);
            Some(end(tx, subject, ending).await?)
        }
        None => None,
    };
    tx.put(group);
    Ok(ended)
}

/// The downstream may go on, with the results that were meant for it.
async fn release(tx: &mut dyn Tx, group: &EdgeGroup, mut subject: Subject) -> Result<()> {
    pass_data(tx, group).await?;
    let held = is_held_by_another(tx, group, &subject.execution).await?;
    subject.execution.close_generation(group.generation);
    if waits(&subject.execution) && !held {
        subject.execution.dependencies_satisfied(tx.now());
    }
    subject.save(tx);
    Ok(())
}

/// Children may keep a group undecided whose other edges are settled; a downstream that does not wait for children goes on.
async fn release_from_others(tx: &mut dyn Tx, group: &EdgeGroup, mut subject: Subject) -> Result<()> {
    let freed = group.is_pending() && group.children > 0 && group.holding(&subject.execution) == 0;
    if freed && waits(&subject.execution) && !is_held_by_another(tx, group, &subject.execution).await? {
        subject.execution.dependencies_satisfied(tx.now());
        subject.save(tx);
    }
    Ok(())
}

/// Whether a group beside this one holds the downstream: a replay re-opens groups while a later one may be open already.
async fn is_held_by_another(tx: &mut dyn Tx, group: &EdgeGroup, downstream: &Execution) -> Result<bool> {
    let others = BTreeSet::from([downstream.dependency_generation, group.generation + 1]);
    for generation in others.into_iter().filter(|generation| *generation != group.generation) {
        let other = tx.get::<EdgeGroup>(Key::edge_group(group.downstream, generation)).await?;
        let open = |other: EdgeGroup| {
            other.holding(downstream) > 0 && verdict(other.policy, other.counts) == EdgeGroupState::Pending
        };
        if other.filter(EdgeGroup::is_pending).is_some_and(open) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How a downstream ends that can never run: skipped, unless its cancelled flow owes it a cancellation anyway.
fn ending(flow: &Flow, downstream: &Execution) -> Ending {
    match &flow.cancellation {
        Some(cancellation) if owes_cancellation(cancellation.policy, downstream) => {
            Ending::cancelled(cancellation.reason.clone(), CancelSource::FlowCascade.as_str())
        }
        _ => Ending::skipped(),
    }
}

/// Whether a flow that is cancelled under a policy owes a member its cancellation.
pub(crate) const fn owes_cancellation(policy: CancelFlowPolicy, member: &Execution) -> bool {
    use ff_core::state::LifecyclePhase::{Active, Terminal};
    match policy {
        CancelFlowPolicy::FlowOnly => false,
        CancelFlowPolicy::CancelAll => !matches!(member.state().lifecycle_phase, Terminal),
        CancelFlowPolicy::CancelPending => !matches!(member.state().lifecycle_phase, Terminal | Active),
    }
}

/// Hands the results of satisfied upstreams to the downstream, each under the name of its edge; the result of the only edge of a group
/// that passes data becomes the payload as well, unless the downstream spawned it.
pub(crate) async fn pass_data(tx: &mut dyn Tx, group: &EdgeGroup) -> Result<()> {
    if group.data_edges == 0 {
        return Ok(());
    }
    let mut edges = inbound(tx, group).await?;
    edges.retain(|edge| edge.state == EdgeState::Satisfied && edge.passes_data());
    let keys: Vec<Key> = edges.iter().map(|edge| Key::outcome(edge.upstream)).collect();
    let results = tx.load(&keys).await?;
    let key = Key::payload(group.downstream);
    let empty = || Payload { execution: group.downstream, payload: ff_core::Blob::empty(), inputs: Default::default() };
    let mut payload = tx.get::<Payload>(key).await?.unwrap_or_else(empty);
    let mut changed = false;
    for (edge, result) in edges.into_iter().zip(results) {
        let (Some(Record::Outcome(outcome)), Some(name)) = (result, edge.data_passing_ref) else { continue };
        let Outcome { result, .. } = &*outcome;
        if group.data_edges == 1 && !group.keeps_payload {
            payload.payload = result.clone();
        }
        payload.inputs.insert(name, result.clone());
        changed = true;
    }
    if changed {
        tx.put(payload);
    }
    Ok(())
}

/// The upstreams of a group that are not over, each once. One that does not decode is taken for live.
pub(crate) async fn live_upstreams(tx: &mut dyn Tx, group: &EdgeGroup) -> Result<Vec<ExecutionId>> {
    let ids: BTreeSet<ExecutionId> = inbound(tx, group).await?.iter().map(|edge| edge.upstream).collect();
    let keys: Vec<Key> = ids.iter().copied().map(Key::execution).collect();
    if let Ok(found) = tx.load(&keys).await {
        let live = |record: &Option<Record>| matches!(record, Some(Record::Execution(it)) if !it.is_terminal());
        return Ok(ids.into_iter().zip(found).filter(|(_, record)| live(record)).map(|(id, _)| id).collect());
    }
    let mut live = Vec::new();
    for id in ids {
        match tx.get::<Execution>(Key::execution(id)).await {
            Ok(found) if found.as_ref().is_none_or(Execution::is_terminal) => {}
            Ok(_) | Err(EngineError::Validation { .. }) => live.push(id),
            Err(error) => return Err(error),
        }
    }
    Ok(live)
}

/// The edges of a group: as many as its downstream was given, read page by page.
async fn inbound(tx: &mut dyn Tx, group: &EdgeGroup) -> Result<Vec<Edge>> {
    let mut found = Vec::new();
    let mut after: Option<Position> = None;
    loop {
        let index = Index::EdgesInto(group.home, group.flow, group.downstream);
        let page = tx.range_of::<Edge>(index, Bounds::first(PAGE).after(after.take())).await?;
        let whole = page.len() < PAGE;
        after = page.last().map(Edge::position);
        found.extend(page.into_iter().filter(|edge| edge.generation == group.generation));
        if whole {
            return Ok(found);
        }
    }
}
