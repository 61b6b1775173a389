//! Flows, edges and the groups in which edges are decided.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::dependencies::{EdgeDependencyPolicy, OnSatisfied};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::{EdgeGroupState, EdgeState, EligibilityState, TerminalOutcome};
use ff_engine::records::{Edge, EdgeGroup, Execution, Flow};

use super::ownership::granted;
use super::{Findings, Mirror, Step};
use crate::call::Presents;
use crate::invariants::Invariant;

pub(super) fn commit(step: &Step<'_>, findings: &mut Findings) {
    for (before, after) in step.changed::<Flow>() {
        if let Some(after) = after {
            revision(step, before, after, findings);
        }
    }
    for (before, after) in step.changed::<Edge>() {
        if let Some(after) = after {
            edge(step, before, after, findings);
        }
    }
    for (before, after) in step.changed::<EdgeGroup>() {
        if let Some(after) = after {
            group(step, before, after, findings);
        }
    }
    for (before, after) in step.changed::<Execution>() {
        if let Some(after) = after {
            member(step, before, after, findings);
        }
    }
}

fn revision(step: &Step<'_>, before: Option<&Flow>, after: &Flow, findings: &mut Findings) {
    let (nodes, edges, revision) = before.map_or((0, 0, 0), |f| (f.node_count, f.edge_count, f.graph_revision));
    let grown = u64::from(after.node_count - nodes.min(after.node_count))
        + u64::from(after.edge_count - edges.min(after.edge_count));
    // A whole graph that comes in one call is one or many changes; it has no author who could know a revision.
    let whole = before.is_none();
    findings.check(whole || after.graph_revision == revision + grown, Invariant::RevisionCounts, || {
        format!("flow {}: revision {revision} became {} with {grown} changes", after.id, after.graph_revision)
    });
    if let Some(Presents::Graph { flow, revision: known }) = step.call.map(|pending| &pending.call.presents)
        && *flow == after.id
        && grown > 0
        && step.op() == "stage_dependency_edge"
    {
        findings.check(*known == revision, Invariant::RevisionCounts, || {
            format!("flow {}: an edge for revision {known} was written at {revision}", after.id)
        });
    }
    let closed = before.is_some_and(|before| !before.is_open());
    findings.check(!closed || grown == 0, Invariant::CancelledFlowIsClosed, || {
        format!("flow {} is cancelled and grew by {grown}", after.id)
    });
    let reopened = closed && after.is_open();
    findings.check(!reopened, Invariant::CancelledFlowIsClosed, || format!("flow {} was re-opened", after.id));
}

fn edge(step: &Step<'_>, before: Option<&Edge>, after: &Edge, findings: &mut Findings) {
    if before.is_none() {
        let cycle = reaches(step.mirror, after.flow, after.downstream, after.upstream);
        findings.check(!cycle, Invariant::GraphIsAcyclic, || {
            format!("flow {}: {} already reaches {}", after.flow, after.downstream, after.upstream)
        });
    }
    let applied = before.is_some_and(|before| before.state == EdgeState::Staged) && after.state != EdgeState::Staged;
    let open = step.mirror.flow(after.flow).is_some_and(Flow::is_open);
    findings.check(!applied || open, Invariant::CancelledFlowIsClosed, || {
        format!("flow {} is cancelled and edge {} was applied", after.flow, after.id)
    });
    let settled = |state: EdgeState| matches!(state, EdgeState::Satisfied | EdgeState::Impossible);
    let moved = before.is_some_and(|before| settled(before.state) && before.state != after.state);
    findings.check(!moved || step.op() == "replay_execution", Invariant::GroupDecidesOnce, || {
        format!("edge {} was {:?} and is {}", after.id, before.map(|before| before.state), after.state)
    });
}

/// Whether one member can be reached from another along the edges of a flow.
fn reaches(mirror: &Mirror, flow: FlowId, from: ExecutionId, to: ExecutionId) -> bool {
    let mut next: BTreeMap<ExecutionId, Vec<ExecutionId>> = BTreeMap::new();
    for edge in mirror.edges(flow) {
        next.entry(edge.upstream).or_default().push(edge.downstream);
    }
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(node) = open.pop() {
        if node == to {
            return true;
        }
        if seen.insert(node) {
            open.extend(next.get(&node).into_iter().flatten().copied());
        }
    }
    false
}

fn settled_of_total(group: &EdgeGroup, findings: &mut Findings) {
    let counts = group.counts;
    let settled = counts.succeeded + counts.failed + counts.skipped;
    findings.check(settled <= counts.total, Invariant::GroupDecidesOnce, || {
        format!("{} generation {}: {counts:?}", group.downstream, group.generation)
    });
}

fn group(step: &Step<'_>, before: Option<&EdgeGroup>, after: &EdgeGroup, findings: &mut Findings) {
    settled_of_total(after, findings);
    let was = before.map_or(EdgeGroupState::Pending, |before| before.state);
    let replay = step.op() == "replay_execution";
    findings.check(was == EdgeGroupState::Pending || after.state == was || replay, Invariant::GroupDecidesOnce, || {
        format!("{} generation {}: {was} became {}", after.downstream, after.generation, after.state)
    });
    let since = before.and_then(|before| before.decided_at);
    findings.check(since.is_none() || since == after.decided_at || replay, Invariant::GroupDecidesOnce, || {
        format!("{} generation {}: decided at {since:?} and again", after.downstream, after.generation)
    });
    // A replay closes groups of children that belong to an earlier life, whatever their counts say.
    if was == EdgeGroupState::Pending && after.state != EdgeGroupState::Pending && !replay {
        verdict(after, findings);
        decided(step, after, findings);
    }
    let rearmed = before.is_some_and(|before| {
        let owed = |group: &EdgeGroup| group.sibling_cancel.as_ref().map_or(0, |cancel| cancel.siblings.len());
        before.state != EdgeGroupState::Pending && owed(after) > owed(before)
    });
    findings.check(!rearmed || replay, Invariant::SiblingsAsPromised, || {
        format!("{} generation {}: siblings were listed again", after.downstream, after.generation)
    });
}

/// The verdict over a group, stated once more.
fn verdict(group: &EdgeGroup, findings: &mut Findings) {
    let counts = group.counts;
    let needed = match group.policy {
        EdgeDependencyPolicy::AllOf {} => u64::from(counts.total),
        EdgeDependencyPolicy::AnyOf { .. } => 1,
        EdgeDependencyPolicy::Quorum { k, .. } => k,
    };
    let possible = u64::from(counts.total - counts.failed.min(counts.total)) - u64::from(counts.skipped);
    let right = match group.state {
        EdgeGroupState::Satisfied => u64::from(counts.succeeded) >= needed,
        _ => possible < needed,
    };
    findings.check(right, Invariant::DownstreamWaits, || {
        format!("{}: {:?} with {counts:?} is {}", group.downstream, group.policy, group.state)
    });
}

/// A group was decided in this commit: its downstream and its siblings follow.
fn decided(step: &Step<'_>, group: &EdgeGroup, findings: &mut Findings) {
    let downstream = step.mirror.execution(group.downstream);
    if let Some(downstream) = downstream {
        let waits = downstream.state().eligibility_state == EligibilityState::BlockedByDependencies;
        let other = step.mirror.groups(group.downstream).any(pending_in_force);
        findings.check(!waits || other, Invariant::DownstreamWaits, || {
            format!("{} waits though its group is {}", group.downstream, group.state)
        });
        let doomed = group.state == EdgeGroupState::Impossible;
        findings.check(!doomed || downstream.is_terminal(), Invariant::ImpossibleSkips, || {
            format!("{} is {} though its group is impossible", group.downstream, downstream.public_state())
        });
    }
    let policy = match group.policy {
        EdgeDependencyPolicy::AllOf {} => None,
        EdgeDependencyPolicy::AnyOf { on_satisfied } | EdgeDependencyPolicy::Quorum { on_satisfied, .. } => {
            Some(on_satisfied)
        }
    };
    let listed: BTreeSet<ExecutionId> =
        group.sibling_cancel.iter().flat_map(|cancel| cancel.siblings.iter().copied()).collect();
    let cancels = policy == Some(OnSatisfied::CancelRemaining);
    let inbound = || {
        let edges = step.mirror.edges(group.flow).filter(|_| cancels);
        edges.filter(|edge| edge.downstream == group.downstream && edge.generation == group.generation)
    };
    let upstreams: BTreeSet<ExecutionId> = inbound().map(|edge| edge.upstream).collect();
    // Who has settled its edge and was replayed since is on its own.
    let open = |edge: &&Edge| matches!(edge.state, EdgeState::Staged | EdgeState::Unsatisfied);
    let owing: BTreeSet<ExecutionId> = inbound().filter(open).map(|edge| edge.upstream).collect();
    let live = |execution: Option<&Execution>| execution.is_some_and(|execution| !execution.is_terminal());
    // Cancelling who has ended already changes nothing, so listing it does no harm.
    let fits =
        listed.is_subset(&upstreams) && owing.iter().all(|id| listed.contains(id) || !live(step.mirror.execution(*id)));
    findings.check(fits, Invariant::SiblingsAsPromised, || {
        format!("{}: {policy:?} lists {listed:?} of {upstreams:?}", group.downstream)
    });
}

/// A group that holds its downstream back.
fn pending_in_force(group: &EdgeGroup) -> bool {
    group.applied > 0 && group.state == EdgeGroupState::Pending
}

fn member(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let joined = before.is_none_or(|before| before.flow_id != after.flow_id);
    if let (true, Some(flow)) = (joined, after.flow_id) {
        let moved = before.is_some_and(|before| before.flow_id.is_some());
        findings.check(!moved, Invariant::MembershipIsMutual, || format!("{} moved to flow {flow}", after.id));
    }
    let fresh = before.is_some_and(|before| before.attempt_count == 0);
    if let (Some(after), true) = (granted(before, Some(after)), fresh) {
        let own = |group: &&EdgeGroup| group.generation == 0 && group.applied > 0 && Some(group.flow) == after.flow_id;
        let held = step.mirror.groups(after.id).find(own);
        // A replay goes ahead when nothing is left to wait for, however it turned out.
        let replayed = |group: &EdgeGroup| after.replay_count > 0 && group.running() == 0;
        let free = held.is_none_or(|group| group.state == EdgeGroupState::Satisfied || replayed(group));
        findings.check(free, Invariant::DownstreamWaits, || {
            format!("{} started though its group is {:?}", after.id, held.map(|group| group.state))
        });
    }
    let skipped = after.state().terminal_outcome == TerminalOutcome::Skipped;
    if skipped && before.is_some_and(|before| !before.is_terminal()) {
        let doomed = step.mirror.groups(after.id).any(|group| group.state == EdgeGroupState::Impossible);
        findings.check(doomed, Invariant::ImpossibleSkips, || format!("{} was skipped without a reason", after.id));
    }
    sibling_was_listed(step, before, after, findings);
}

/// Whoever is cancelled for the sake of a decided group was listed by it.
fn sibling_was_listed(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let Some(reason) = after.cancellation.as_ref().map(|cancellation| cancellation.reason.as_str()) else { return };
    if before.is_some_and(Execution::is_terminal) || !reason.starts_with("sibling_quorum_") {
        return;
    }
    let Some(flow) = after.flow_id else { return };
    let listed = step.mirror.edges(flow).filter(|edge| edge.upstream == after.id).any(|edge| {
        step.mirror.groups(edge.downstream).any(|group| {
            group.generation == edge.generation
                && group.state != EdgeGroupState::Pending
                && !matches!(group.policy, EdgeDependencyPolicy::AllOf {})
        })
    });
    findings.check(listed, Invariant::SiblingsAsPromised, || format!("{} was cancelled as {reason}", after.id));
}

/// What graphs are at any moment.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    counts_equal_sets(mirror, findings);
    for flow in mirror.all::<Flow>() {
        let stuck = circle(mirror, flow.id);
        findings.check(stuck.is_empty(), Invariant::GraphIsAcyclic, || {
            format!("flow {}: in or behind a circle are {stuck:?}", flow.id)
        });
    }
    mirror.all::<EdgeGroup>().for_each(|group| settled_of_total(group, findings));
    for execution in mirror.all::<Execution>() {
        let waits = execution.state().eligibility_state == EligibilityState::BlockedByDependencies;
        let undecided = mirror.groups(execution.id).any(EdgeGroup::is_pending);
        findings.check(!waits || execution.is_terminal() || undecided, Invariant::DownstreamWaits, || {
            let groups: Vec<_> = mirror.groups(execution.id).map(|group| (group.generation, group.state)).collect();
            format!("{} waits though its groups are {groups:?}", execution.id)
        });
    }
}

/// Members that cannot be put in an order in which every edge leads forward.
fn circle(mirror: &Mirror, flow: FlowId) -> BTreeSet<ExecutionId> {
    let mut inbound: BTreeMap<ExecutionId, usize> = BTreeMap::new();
    let mut next: BTreeMap<ExecutionId, Vec<ExecutionId>> = BTreeMap::new();
    for edge in mirror.edges(flow) {
        inbound.entry(edge.upstream).or_default();
        *inbound.entry(edge.downstream).or_default() += 1;
        next.entry(edge.upstream).or_default().push(edge.downstream);
    }
    let mut free: Vec<ExecutionId> = inbound.iter().filter(|(_, edges)| **edges == 0).map(|(id, _)| *id).collect();
    while let Some(member) = free.pop() {
        inbound.remove(&member);
        for follower in next.remove(&member).into_iter().flatten() {
            let left = inbound.entry(follower).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                free.push(follower);
            }
        }
    }
    inbound.into_keys().collect()
}

/// Member and edge counts equal the sets.
fn counts_equal_sets(mirror: &Mirror, findings: &mut Findings) {
    let mut members: BTreeMap<FlowId, u32> = BTreeMap::new();
    for execution in mirror.all::<Execution>() {
        if let Some(flow) = execution.flow_id {
            *members.entry(flow).or_default() += 1;
        }
    }
    for flow in mirror.all::<Flow>() {
        let purged: u32 = flow.purged.values().sum();
        let counted = members.remove(&flow.id).unwrap_or(0) + purged;
        findings.check(counted == flow.node_count, Invariant::MembershipIsMutual, || {
            format!("flow {}: {counted} members, {} counted", flow.id, flow.node_count)
        });
        let edges = u32::try_from(mirror.edges(flow.id).count()).unwrap_or(u32::MAX);
        let fits = if purged == 0 { edges == flow.edge_count } else { edges <= flow.edge_count };
        findings.check(fits, Invariant::MembershipIsMutual, || {
            format!("flow {}: {edges} edges, {} counted", flow.id, flow.edge_count)
        });
    }
    findings.check(members.is_empty(), Invariant::MembershipIsMutual, || format!("members of no flow: {members:?}"));
}
