//! The beginning and the end of a history: first keys and policies, then rest.

use std::collections::BTreeMap;

use ff_core::backend::attempts::CancelExecutionArgs;
use ff_core::backend::claims::{ClaimPolicy, GrantKind};
use ff_core::backend::dependencies::ApplyDependencyToChildArgs;
use ff_core::backend::ingress::SetLaneStateArgs;
use ff_core::backend::leases::{IssueReclaimGrantArgs, IssueReclaimGrantOutcome};
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{ExecutionId, FenceTriple};
use ff_core::partition::Partition;
use ff_core::rules::fence::CancelSource;
use ff_core::state::{EdgeState, EligibilityState, LaneState, OwnershipState};
use ff_engine::clock::Clock;
use ff_engine::event::{Event, EventBody};
use ff_engine::index::{DueKind, Index};
use ff_engine::records::{Budget, Edge, Execution, Lane};
use futures_util::StreamExt;

use crate::actors::{self, open_handle};
use crate::call::{Call, Presents, WorkerShown};
use crate::invariants::Invariant;
use crate::memory::{CAPABILITIES, LANES, NAMESPACES, name};
use crate::stored;
use crate::world::World;

/// Signing keys, and the first budgets and quotas.
pub(crate) async fn prepare(world: &World) {
    actors::first_secret(world).await;
    for _ in 0..2 {
        actors::new_budget(world).await;
        actors::new_quota(world).await;
    }
}

/// Rounds in which everything must have ended.
const ROUNDS: usize = 600;

/// How far the clock moves from round to round: just beyond the window of a quota.
const ROUND_MS: u64 = 11_000;

/// Ends all trouble, lets workers finish everything, and checks what must hold then.
pub(crate) async fn come_to_rest(world: &World) {
    world.trouble().calm_down();
    world.history().note("trouble ends; everything comes to rest".to_owned());
    let ahead = world.now().0 - world.clock.now().0;
    world.clock.advance(u64::try_from(ahead).unwrap_or(0));
    world.restart_all().await;
    open_lanes(world).await;
    for _ in 0..ROUNDS {
        register(world).await;
        reopen(world).await;
        run_all_due(world).await;
        world.checker().nothing_overdue();
        serve(world).await;
        run_all_due(world).await;
        serve(world).await;
        world.clock.advance(ROUND_MS);
        run_all_due(world).await;
        if world.seen().violation().is_some() {
            return;
        }
        let busy = world.seen().mirror().all::<Execution>().any(|execution| !execution.is_terminal());
        if !busy {
            break;
        }
    }
    world.clock.advance(120_000);
    // A process leaves alone for a while what it could not handle several times; one that starts does not.
    world.restart_all().await;
    run_all_due(world).await;
    world.checker().quiescent();
    indexes_agree(world).await;
    leases_add_up(world).await;
    timers_are_idempotent(world).await;
    cursors_resume(world).await;
    stored::is_as_committed(world).await;
}

async fn run_all_due(world: &World) {
    for _ in 0..200 {
        if actors::run_due_with(world, 500).await == 0 {
            return;
        }
    }
    world.checker().report(Invariant::TimersAreIdempotent, "due work never ends".to_owned());
}

async fn open_lanes(world: &World) {
    let lanes: Vec<Lane> = world.seen().mirror().all::<Lane>().cloned().collect();
    let engine = world.engine();
    for lane in lanes.into_iter().filter(|lane| lane.state != LaneState::Active) {
        let args = SetLaneStateArgs {
            namespace: lane.namespace,
            lane_id: lane.lane,
            state: LaneState::Active,
            reason: "end".to_owned(),
        };
        world.call(Call::new("set_lane_state", "active"), engine.set_lane_state(args)).await;
    }
}

async fn register(world: &World) {
    let engine = world.engine();
    for namespace in NAMESPACES {
        let args = RegisterWorkerArgs {
            worker_id: name("closer"),
            worker_instance_id: name("closer.1"),
            namespace: name(namespace),
            lanes: LANES.iter().map(|lane| name(lane)).collect(),
            capabilities: CAPABILITIES.iter().map(|token| (*token).to_owned()).collect(),
            kinds: None,
            liveness_ttl_ms: 600_000,
        };
        world.call(Call::new("register_worker", namespace), engine.register_worker(args)).await;
    }
}

fn executions(world: &World, wanted: impl Fn(&Execution) -> bool) -> Vec<Execution> {
    world.seen().mirror().all::<Execution>().filter(|execution| wanted(execution)).cloned().collect()
}

/// Takes away everything that only an operator can take away.
async fn reopen(world: &World) {
    let engine = world.engine();
    let now = world.now();
    let budgets: Vec<_> = world.seen().mirror().all::<Budget>().map(|budget| budget.id).collect();
    for budget in budgets {
        world.call(Call::new("reset_budget", budget.to_string()), engine.reset_budget(budget)).await;
    }
    let staged: Vec<Edge> =
        world.seen().mirror().all::<Edge>().filter(|e| e.state == EdgeState::Staged).cloned().collect();
    for edge in staged {
        let args = ApplyDependencyToChildArgs {
            flow_id: edge.flow,
            edge_id: edge.id,
            upstream_execution_id: edge.upstream,
            downstream_execution_id: edge.downstream,
        };
        let call = Call::new("apply_dependency_to_child", edge.id.to_string()).of(edge.downstream);
        let applied = world.call(call, engine.apply_dependency_to_child(args)).await.is_done();
        // A cancelled flow takes no application any more: whoever waits for the edge can only be cancelled.
        if !applied && world.seen().mirror().execution(edge.downstream).is_some_and(waits_for_dependencies) {
            cancel(world, edge.downstream).await;
        }
    }
    for execution in executions(world, Execution::is_suspended) {
        let args = ResumeExecutionArgs::new(execution.id, ResumeTrigger::Operator);
        let call = Call::new("resume_execution", execution.id.to_string()).of(execution.id);
        world.call(call, engine.resume_execution(args)).await;
    }
    let parked = |e: &Execution| {
        let by = e.state().eligibility_state;
        e.is_runnable() && matches!(by, EligibilityState::BlockedByOperator | EligibilityState::BlockedByLaneState)
    };
    for execution in executions(world, parked) {
        let reason = execution.state().blocking_reason;
        let call = Call::new("unblock_execution", format!("{} {reason}", execution.id)).of(execution.id);
        world.call(call, engine.unblock_execution(execution.id, reason.as_str(), now)).await;
    }
}

fn waits_for_dependencies(execution: &Execution) -> bool {
    execution.state().eligibility_state == EligibilityState::BlockedByDependencies
}

async fn cancel(world: &World, execution_id: ExecutionId) {
    let args = CancelExecutionArgs {
        execution_id,
        reason: "the end".to_owned(),
        source: CancelSource::OperatorOverride,
        fence: FenceTriple::default(),
    };
    let engine = world.engine();
    let call = Call::new("cancel_execution", execution_id.to_string()).of(execution_id);
    world.call(call, engine.cancel_execution(args)).await;
}

/// Claims and completes everything that can be claimed, and takes over what was revoked.
async fn serve(world: &World) {
    let engine = world.engine();
    let offer = CapabilitySet::new(CAPABILITIES);
    for lane in LANES {
        let lane_id = name(lane);
        for _ in 0..400 {
            let policy = ClaimPolicy::new(name("closer"), name("closer.1"), 60_000);
            let presents = Presents::Worker(Box::new(WorkerShown {
                instance: name("closer.1"),
                capabilities: offer.tokens.clone(),
                kinds: None,
            }));
            let call = Call::new("claim", format!("closer in {lane}")).with(presents);
            let claimed = world.call(call, engine.claim(&lane_id, &offer, policy)).await.done().flatten();
            let Some(handle) = claimed else { break };
            complete(world, &handle).await;
        }
    }
    for execution in executions(world, |e| e.state().ownership_state == OwnershipState::LeaseRevoked) {
        let args = IssueReclaimGrantArgs {
            execution_id: execution.id,
            worker_id: name("closer"),
            worker_instance_id: name("closer.1"),
            lane_id: execution.lane.clone(),
            grant_ttl_ms: 60_000,
            worker_capabilities: offer.tokens.clone(),
        };
        let call = Call::new("issue_reclaim_grant", execution.id.to_string()).of(execution.id);
        match world.call(call, engine.issue_reclaim_grant(args)).await.done() {
            Some(IssueReclaimGrantOutcome::Granted(grant)) if grant.kind == GrantKind::Reclaim => {
                let note =
                    crate::memory::GrantNote { grant, worker: name("closer"), instance: name("closer.1"), by: 0 };
                actors::consume_grant(world, note).await;
                let held = world.memory().held.last().cloned().filter(|held| held.execution == execution.id);
                if let Some(held) = held {
                    complete(world, &held.handle).await;
                }
            }
            _ => cancel(world, execution.id).await,
        }
    }
}

async fn complete(world: &World, handle: &ff_core::handle::Handle) {
    let Some(held) = open_handle(world, handle, 0) else { return };
    let engine = world.engine();
    let call = Call::new("complete", held.execution.to_string()).of(held.execution).fenced(held.fence, held.index);
    world.call(call, engine.complete(&held.handle, None)).await;
}

/// The store's indexes are those its records imply.
async fn indexes_agree(world: &World) {
    let touched: Vec<_> = world.seen().touched().collect();
    for partition in touched {
        if let Ok(repaired) = world.deployment().reindex(partition).await {
            world.checker().expect(repaired == 0, Invariant::PublicStateIsDerived, || {
                format!("{partition}: {repaired} index entries differ from the records")
            });
        }
    }
}

async fn leases_add_up(world: &World) {
    let held = world.deployment().count(&Index::Due(DueKind::LeaseExpiry)).await.unwrap_or(0);
    let leased = executions(world, Execution::is_leased).len() as u64;
    world.checker().expect(held == leased, Invariant::LeasesAddUp, || format!("{held} leases, {leased} leased"));
}

/// Running what is due once more, and every hook on everything, changes nothing.
async fn timers_are_idempotent(world: &World) {
    let engine = world.engine();
    let before = world.trouble().writes();
    let now = world.now();
    actors::run_due_with(world, 500).await;
    for execution in executions(world, |_| true) {
        let id = execution.id;
        let about = |op: &'static str| Call::new(op, id.to_string()).of(id);
        world.call(about("mark_lease_expired_if_due"), engine.mark_lease_expired_if_due(id)).await;
        world.call(about("expire_suspension"), engine.expire_suspension(id, now)).await;
        world.call(about("cascade_completion"), engine.cascade_completion(id)).await;
    }
    let after = world.trouble().writes();
    world.checker().expect(before == after, Invariant::TimersAreIdempotent, || {
        format!("{} commits though nothing was due", after - before)
    });
}

/// Every subscription, begun anywhere, delivers what follows and nothing else.
async fn cursors_resume(world: &World) {
    let mut cursors = Vec::new();
    let mut told = Vec::new();
    let mut after = world.beginning().clone();
    while let Ok(page) = world.deployment().events(&after, 256).await {
        if page.events.is_empty() {
            break;
        }
        after = page.next;
        for (cursor, event) in page.events {
            cursors.push(cursor);
            told.push(event);
        }
    }
    let emitted = world.seen().events().to_vec();
    world.checker().expect(by_partition(&told) == by_partition(&emitted), Invariant::CursorsResume, || {
        format!("{} events were emitted, {} are told", emitted.len(), told.len())
    });
    if cursors.is_empty() {
        return;
    }
    let at = world.rng().below(cursors.len());
    let wanted: Vec<ExecutionId> = told[at + 1..]
        .iter()
        .filter(|event| matches!(event.body, EventBody::Completion { .. }))
        .filter_map(|event| event.execution_id)
        .collect();
    let engine = world.engine();
    let filter = ScannerFilter::default();
    let Ok(subscription) = engine.subscribe_completion(cursors[at].clone(), &filter).await else {
        world.checker().report(Invariant::CursorsResume, "a cursor was refused".to_owned());
        return;
    };
    let mut got = Vec::new();
    let mut subscription = subscription;
    while got.len() < wanted.len() {
        match world.soon(subscription.next()).await {
            Some(Some(Ok(event))) => got.push(event.execution_id),
            _ => break,
        }
    }
    world.checker().expect(got == wanted, Invariant::CursorsResume, || {
        format!("{} completions follow the cursor, {} were delivered", wanted.len(), got.len())
    });
}

/// The order of events is that of their partitions, each by itself.
fn by_partition(events: &[Event]) -> BTreeMap<Partition, Vec<&Event>> {
    let mut logs: BTreeMap<Partition, Vec<&Event>> = BTreeMap::new();
    for event in events {
        logs.entry(event.partition).or_default().push(event);
    }
    logs
}
