//! People with authority: they cancel, revoke, resume, take over, pause lanes and park work.

use ff_core::backend::attempts::{CancelExecutionArgs, CompleteExecutionArgs, FailExecutionArgs};
use ff_core::backend::claims::{
    BlockExecutionForAdmissionArgs, BlockRouteArgs, Grant, GrantKind, IssueClaimGrantArgs, IssueGrantAndClaimArgs,
};
use ff_core::backend::ingress::SetLaneStateArgs;
use ff_core::backend::leases::{IssueReclaimGrantArgs, IssueReclaimGrantOutcome, RevokeLeaseArgs};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::ids::{ExecutionId, FenceTriple, LaneId};
use ff_core::rules::fence::CancelSource;
use ff_core::state::LaneState;

use super::actions;
use super::handles::take;
use super::worker::consume;
use crate::call::Call;
use crate::memory::{GrantNote, LANES, NAMESPACES, WorkerNote, name, remember};
use crate::world::World;

actions![
    5 cancel, 3 cancel_without_right, 5 revoke, 4 resume, 4 take_over, 5 grant_reclaim, 5 grant_claim, 2 complete_for, 2 fail_for,
    3 block, 4 unblock, 2 block_route, 2 change_lane, 3 tag,
];

fn some_execution(world: &World) -> Option<(ExecutionId, LaneId)> {
    let id = world.rng().pick_recent(&world.memory().executions).copied()?;
    let lane = world.seen().mirror().execution(id).map(|execution| execution.lane.clone());
    Some((id, lane.unwrap_or_else(|| name(LANES[0]))))
}

async fn cancel(world: &World) {
    let Some((execution_id, _)) = some_execution(world) else { return };
    let args = CancelExecutionArgs {
        execution_id,
        reason: "enough".to_owned(),
        source: CancelSource::OperatorOverride,
        fence: FenceTriple::default(),
    };
    let engine = world.engine();
    let call = Call::new("cancel_execution", execution_id.to_string()).of(execution_id);
    world.call(call, engine.cancel_execution(args)).await;
}

/// Somebody who is neither operator nor owner shows the fence of an earlier owner.
async fn cancel_without_right(world: &World) {
    let late = world.rng().pick(&world.memory().old).cloned();
    let Some(held) = late else { return };
    let args = CancelExecutionArgs {
        execution_id: held.execution,
        reason: "mine".to_owned(),
        source: CancelSource::LeaseHolder,
        fence: FenceTriple {
            lease_id: Some(held.fence.lease_id),
            lease_epoch: Some(held.fence.lease_epoch),
            attempt_id: Some(held.fence.attempt_id),
        },
    };
    let engine = world.engine();
    let call = super::worker::fenced("cancel_execution", &held, "as lease holder");
    world.call(call, engine.cancel_execution(args)).await;
}

async fn revoke(world: &World) {
    let held = super::worker::some_held(world);
    let Some(held) = held else { return };
    let args = RevokeLeaseArgs {
        execution_id: held.execution,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "stuck".to_owned(),
    };
    let engine = world.engine();
    let call = Call::new("revoke_lease", held.execution.to_string()).of(held.execution);
    world.call(call, engine.revoke_lease(args)).await;
}

async fn resume(world: &World) {
    let Some((execution_id, _)) = some_execution(world) else { return };
    let mut args = ResumeExecutionArgs::new(execution_id, ResumeTrigger::Operator);
    args.resume_delay_ms = world.rng().one_of([0, 0, 500]);
    let engine = world.engine();
    let call = Call::new("resume_execution", format!("{execution_id} delay {}", args.resume_delay_ms)).of(execution_id);
    world.call(call, engine.resume_execution(args)).await;
}

async fn take_over(world: &World) {
    let Some((execution_id, lane_id)) = some_execution(world) else { return };
    let args = IssueGrantAndClaimArgs { execution_id, lane_id, lease_duration_ms: 3_000 };
    let engine = world.engine();
    let call = Call::new("issue_grant_and_claim", execution_id.to_string()).of(execution_id);
    if let Some(outcome) = world.call(call, engine.issue_grant_and_claim(args)).await.done() {
        take(world, &outcome.handle, 0);
    }
}

async fn grant_reclaim(world: &World) {
    let lost = {
        let seen = world.seen();
        let all = world.memory().executions.clone();
        let lost: Vec<_> = all
            .into_iter()
            .filter_map(|id| seen.mirror().execution(id))
            .filter(|execution| execution.is_lost())
            .map(|execution| (execution.id, execution.lane.clone()))
            .collect();
        world.rng().pick(&lost).cloned()
    };
    let Some((execution_id, lane_id)) = lost else { return };
    let number = world.rng().below(4);
    let worker = world.memory().workers[number].clone();
    let args = IssueReclaimGrantArgs {
        execution_id,
        worker_id: worker.id.clone(),
        worker_instance_id: worker.instance(),
        lane_id,
        grant_ttl_ms: 4_000,
        worker_capabilities: worker.capabilities.clone(),
    };
    let engine = world.engine();
    let call = Call::new("issue_reclaim_grant", format!("{execution_id} to {}", worker.instance())).of(execution_id);
    if let Some(IssueReclaimGrantOutcome::Granted(grant)) =
        world.call(call, engine.issue_reclaim_grant(args)).await.done()
    {
        let note = GrantNote { grant, worker: worker.id.clone(), instance: worker.instance(), by: number };
        remember(&mut world.memory().grants, note.clone());
        if world.rng().chance(60) {
            consume(world, note).await;
        }
    }
}

async fn grant_claim(world: &World) {
    let Some((execution_id, lane_id)) = some_execution(world) else { return };
    let number = world.rng().below(4);
    let worker = world.memory().workers[number].clone();
    let args = IssueClaimGrantArgs {
        execution_id,
        lane_id: lane_id.clone(),
        worker_id: worker.id.clone(),
        worker_instance_id: worker.instance(),
        worker_capabilities: worker.capabilities.clone(),
        grant_ttl_ms: 4_000,
    };
    let engine = world.engine();
    // Who asks for one specific execution says nothing of kinds.
    let presents = WorkerNote { kinds: None, ..worker.clone() }.shown();
    let call = Call::new("issue_claim_grant", format!("{execution_id} to {}", worker.instance()));
    if !world.call(call.of(execution_id).with(presents), engine.issue_claim_grant(args)).await.is_done() {
        return;
    }
    let resumes =
        world.seen().mirror().execution(execution_id).is_some_and(|execution| {
            execution.state().attempt_state == ff_core::state::AttemptState::AttemptInterrupted
        });
    let grant = Grant {
        kind: if resumes { GrantKind::Resume } else { GrantKind::Claim },
        execution_id,
        partition_key: execution_id.partition().into(),
        grant_key: String::new(),
        expires_at_ms: world.now().plus(4_000),
        lane_id,
    };
    let note = GrantNote { grant, worker: worker.id.clone(), instance: worker.instance(), by: number };
    remember(&mut world.memory().grants, note);
}

async fn complete_for(world: &World) {
    let held = super::worker::some_held(world);
    let Some(held) = held else { return };
    let args = CompleteExecutionArgs {
        execution_id: held.execution,
        fence: FenceTriple::default(),
        attempt_index: held.index,
        result_payload: None,
        source: CancelSource::OperatorOverride,
    };
    let engine = world.engine();
    let call = Call::new("complete_execution", format!("{} by override", held.execution)).of(held.execution);
    world.call(call, engine.complete_execution(args)).await;
}

async fn fail_for(world: &World) {
    let held = super::worker::some_held(world);
    let Some(held) = held else { return };
    let args = FailExecutionArgs {
        execution_id: held.execution,
        fence: FenceTriple::default(),
        attempt_index: held.index,
        failure_reason: "seen enough".to_owned(),
        failure_category: "transient".to_owned(),
        retry_policy_json: String::new(),
        source: CancelSource::OperatorOverride,
    };
    let engine = world.engine();
    let call = Call::new("fail_execution", format!("{} by override", held.execution)).of(held.execution);
    world.call(call, engine.fail_execution(args)).await;
}

async fn block(world: &World) {
    let Some((execution_id, lane_id)) = some_execution(world) else { return };
    let reason =
        world.rng().one_of(["paused_by_operator", "paused_by_policy", "waiting_for_capable_worker"]).to_owned();
    let args = BlockExecutionForAdmissionArgs { execution_id, lane_id, reason, reason_detail: None };
    let engine = world.engine();
    let call = Call::new("block_execution_for_admission", format!("{execution_id} {}", args.reason)).of(execution_id);
    world.call(call, engine.block_execution_for_admission(args)).await;
}

async fn unblock(world: &World) {
    let blocked = {
        let seen = world.seen();
        let all = world.memory().executions.clone();
        let blocked: Vec<_> = all
            .into_iter()
            .filter_map(|id| seen.mirror().execution(id))
            .filter(|execution| execution.is_runnable() && execution.blocked_at.is_some())
            .map(|execution| (execution.id, execution.state().blocking_reason))
            .collect();
        world.rng().pick(&blocked).copied()
    };
    let Some((execution_id, reason)) = blocked else { return };
    let engine = world.engine();
    let now = world.now();
    let call = Call::new("unblock_execution", format!("{execution_id} {reason}")).of(execution_id);
    world.call(call, engine.unblock_execution(execution_id, reason.as_str(), now)).await;
}

async fn block_route(world: &World) {
    let Some((execution_id, lane_id)) = some_execution(world) else { return };
    let args = BlockRouteArgs {
        execution_id,
        lane_id,
        reason_code: "waiting_for_capable_worker".to_owned(),
        reason_detail: String::new(),
    };
    let engine = world.engine();
    let call = Call::new("block_route", execution_id.to_string()).of(execution_id);
    world.call(call, engine.block_route(args)).await;
}

async fn change_lane(world: &World) {
    let state = world.rng().one_of([
        LaneState::Active,
        LaneState::Active,
        LaneState::Active,
        LaneState::Paused,
        LaneState::Draining,
        LaneState::Disabled,
    ]);
    let (namespace, lane) = (world.rng().one_of(NAMESPACES), world.rng().one_of(LANES));
    let args =
        SetLaneStateArgs { namespace: name(namespace), lane_id: name(lane), state, reason: "because".to_owned() };
    let engine = world.engine();
    let call = Call::new("set_lane_state", format!("{namespace}/{lane} {state}"));
    world.call(call, engine.set_lane_state(args)).await;
}

async fn tag(world: &World) {
    let Some((execution_id, _)) = some_execution(world) else { return };
    let engine = world.engine();
    let value = world.rng().one_of(["red", "blue"]);
    let call = Call::new("set_execution_tag", format!("{execution_id} app.team={value}")).of(execution_id);
    world.call(call, engine.set_execution_tag(execution_id, "app.team", value)).await;
}
