//! Workers that wait for something: suspensions of every kind, and waitpoints made beforehand.

use std::time::Duration;

use ff_core::backend::suspension::{
    CountKind, ResumeCondition, ResumePolicy, SignalMatcher, SuspendArgs, SuspendOutcome, SuspensionReasonCode,
    WaitpointBinding,
};
use ff_core::ids::{SuspensionId, WaitpointId};
use ff_core::policy::TimeoutBehavior;

use super::actions;
use super::handles::opened;
use super::worker::{fenced, some_held};
use crate::memory::{Held, WaitpointNote, remember};
use crate::world::World;

actions![16 suspend, 6 prepare_waitpoint, 3 observe, 3 suspend_late];

/// Names of signals that somebody may wait for.
pub(super) const SIGNALS: [&str; 2] = ["approved", "paid"];

fn fresh(id: WaitpointId, key: &str) -> WaitpointBinding {
    WaitpointBinding::Fresh { waitpoint_id: id, waitpoint_key: key.to_owned() }
}

fn single(key: &str, matcher: SignalMatcher) -> ResumeCondition {
    ResumeCondition::Single { waitpoint_key: key.to_owned(), matcher }
}

fn count(n: u32, count_kind: CountKind, name: Option<&str>, keys: &[&str]) -> ResumeCondition {
    ResumeCondition::Count {
        n,
        count_kind,
        matcher: name.map(SignalMatcher::by_name),
        waitpoints: keys.iter().map(|key| (*key).to_owned()).collect(),
    }
}

/// What to wait for, and at which waitpoints.
fn condition(world: &World) -> (ResumeCondition, Vec<WaitpointBinding>) {
    let rng = world.rng();
    let ids: Vec<WaitpointId> = (0..3).map(|_| WaitpointId::from_uuid(rng.uuid())).collect();
    let one = vec![fresh(ids[0], "a")];
    let three = vec![fresh(ids[0], "a"), fresh(ids[1], "b"), fresh(ids[2], "c")];
    let named = rng.one_of(SIGNALS);
    match rng.below(8) {
        0 => (single("a", SignalMatcher::Wildcard {}), one),
        1 => (single("a", SignalMatcher::by_name(named)), one),
        2 => (ResumeCondition::OperatorOnly {}, one),
        3 => (count(2, CountKind::DistinctSources, Some(named), &["a"]), one),
        4 => (count(2, CountKind::DistinctSignals, None, &["a"]), one),
        5 => (count(2, CountKind::DistinctWaitpoints, None, &["a", "b", "c"]), three),
        6 => {
            // Two nodes of one kind over the same waitpoints: their counts must not feed each other.
            let members = vec![
                count(2, CountKind::DistinctSignals, Some(SIGNALS[0]), &["a", "b"]),
                count(2, CountKind::DistinctSignals, Some(SIGNALS[1]), &["b", "c"]),
            ];
            (ResumeCondition::AllOf { members }, three)
        }
        _ => {
            let members = vec![
                single("a", SignalMatcher::by_name(SIGNALS[0])),
                count(1, CountKind::DistinctWaitpoints, None, &["b", "c"]),
            ];
            (ResumeCondition::AllOf { members }, three)
        }
    }
}

fn suspension(world: &World) -> SuspendArgs {
    let (resume_condition, waitpoints) = condition(world);
    let now = world.now();
    let rng = world.rng();
    let mut args = SuspendArgs::new(
        SuspensionId::from_uuid(rng.uuid()),
        waitpoints[0].clone(),
        resume_condition,
        rng.one_of([SuspensionReasonCode::WaitingForSignal, SuspensionReasonCode::WaitingForApproval]),
    );
    args.waitpoints = waitpoints;
    args.resume_policy = ResumePolicy { resume_delay_ms: rng.chance(20).then_some(1_000) };
    if rng.chance(50) {
        args.timeout_at = Some(now.plus(rng.between(1_000, 60_000)));
        args.timeout_behavior = *rng.pick(TimeoutBehavior::ALL).unwrap_or(&TimeoutBehavior::Fail);
    }
    if rng.chance(15) {
        args.resume_condition = ResumeCondition::TimeoutOnly {};
        args.waitpoints.truncate(1);
        args.timeout_at = Some(now.plus(rng.between(1_000, 20_000)));
    }
    if rng.chance(20) {
        args.idempotency_key = Some("pause-1".to_owned());
    }
    args
}

async fn suspend(world: &World) {
    if let Some(held) = some_held(world) {
        let args = suspension(world);
        suspend_with(world, &held, args).await;
    }
}

async fn suspend_with(world: &World, held: &Held, args: SuspendArgs) {
    let detail = format!("{:?} key={:?} timeout={:?}", args.resume_condition, args.idempotency_key, args.timeout_at);
    let engine = world.engine();
    let reply = if world.rng().chance(85) {
        world.call(fenced("suspend", held, &detail), engine.suspend(&held.handle, args)).await
    } else {
        let fence = ff_core::ids::FenceTriple {
            lease_id: Some(held.fence.lease_id),
            lease_epoch: Some(held.fence.lease_epoch),
            attempt_id: Some(held.fence.attempt_id),
        };
        let call = fenced("suspend_by_triple", held, &detail);
        world.call(call, engine.suspend_by_triple(held.execution, fence, args)).await
    };
    let Some(outcome) = reply.done() else { return };
    let details = outcome.details();
    let mut notes = vec![(details.waitpoint_id, details.waitpoint_token.clone())];
    notes.extend(details.additional_waitpoints.iter().map(|more| (more.waitpoint_id, more.waitpoint_token.clone())));
    for (id, token) in notes {
        remember(&mut world.memory().waitpoints, WaitpointNote { execution: held.execution, id, token });
    }
    if let SuspendOutcome::Suspended { handle, .. } = &outcome {
        opened(world, handle);
        world.memory().retire(held);
    }
}

/// A waitpoint before there is a suspension; half of the time it is then waited on.
async fn prepare_waitpoint(world: &World) {
    let Some(held) = some_held(world) else { return };
    let key = format!("early-{}", world.rng().below(50));
    let expires_in = Duration::from_millis(world.rng().between(1_000, 60_000));
    let engine = world.engine();
    let call = fenced("create_waitpoint", &held, &key);
    let Some(made) = world.call(call, engine.create_waitpoint(&held.handle, &key, expires_in)).await.done() else {
        return;
    };
    let note = WaitpointNote { execution: held.execution, id: made.waitpoint_id, token: made.waitpoint_token };
    remember(&mut world.memory().waitpoints, note.clone());
    // Early signals are buffered.
    for _ in 0..world.rng().below(3) {
        super::signaller::send_to(world, &note).await;
    }
    if world.rng().chance(50) {
        return;
    }
    let mut args = suspension(world);
    args.waitpoints = vec![WaitpointBinding::UsePending { waitpoint_id: note.id }];
    args.resume_condition = if world.rng().chance(50) {
        single(&key, SignalMatcher::by_name(SIGNALS[0]))
    } else {
        count(2, CountKind::DistinctSignals, None, &[&key])
    };
    suspend_with(world, &held, args).await;
}

async fn observe(world: &World) {
    let held = some_held(world);
    let Some(held) = held else { return };
    let engine = world.engine();
    let mut call = fenced("observe_signals", &held, "");
    call.fence = None;
    world.call(call, engine.observe_signals(&held.handle)).await;
}

async fn suspend_late(world: &World) {
    let late = world.rng().pick(&world.memory().old).cloned();
    if let Some(held) = late {
        let args = SuspendArgs { idempotency_key: None, ..suspension(world) };
        suspend_with(world, &held, args).await;
    }
}
