//! An execution is called off.

use ff_core::backend::attempts::{CancelExecutionArgs, CancelExecutionResult};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ReleaseReason};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, FenceTriple};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, OwnershipState, PublicState, StreamCloseReason, TerminalOutcome};

use super::owner::{
    Act, Form, Owner, act, cancel, cancellation, closed, fail, field, info, own, own_with, reclaim_request, retrying,
    revoke, run_out, watch,
};
use crate::cases;
use crate::expect::{invalid, state};
use crate::world::World;

cases!["attempts":
    a_cancelled_execution_is_terminal,
    a_cancellation_remembers_why_and_by_whom,
    anybody_may_cancel_what_nobody_owns,
    a_cancellation_of_owned_work_needs_its_lease,
    a_cancellation_may_leave_the_attempt_out_of_its_fence,
    an_operator_cancels_owned_work_whatever_became_of_its_lease,
    a_stale_cancellation_is_reported_before_a_lost_lease,
    a_cancellation_closes_the_stream,
    a_cancellation_tells_its_watchers_once,
    a_cancellation_of_waiting_work_has_no_lease_to_release,
    a_cancellation_takes_the_grant_with_it,
    a_cancelled_execution_is_never_woken,
    a_long_or_unprintable_reason_is_refused,
    an_empty_reason_is_fine,
];

const FORMS: [Form; 2] = [Form::Handle, Form::Fence];

fn by(id: ExecutionId, source: &str) -> CancelExecutionArgs {
    CancelExecutionArgs {
        execution_id: id,
        reason: "called off".to_owned(),
        source: CancelSource::from(source),
        fence: FenceTriple::NONE,
    }
}

async fn a_cancelled_execution_is_terminal(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        world.advance(3);

        cancel(&world, form, &owner).await.unwrap();

        let info = info(&world, owner.id).await;
        assert_eq!(info.state_vector.terminal_outcome, TerminalOutcome::Cancelled);
        assert_eq!(info.state_vector.attempt_state, AttemptState::AttemptTerminal);
        assert_eq!(info.state_vector.ownership_state, OwnershipState::Unowned);
        assert_eq!((info.public_state, info.completed_at), (PublicState::Cancelled, Some(world.now())));
    }
    let owner = own(&world).await;
    let answer = world.backend.cancel_execution(cancellation(&owner)).await.unwrap();
    let public_state = PublicState::Cancelled;
    assert_eq!(answer, CancelExecutionResult::Cancelled { execution_id: owner.id, public_state });
}

async fn a_cancellation_remembers_why_and_by_whom(world: World) {
    let owner = own(&world).await;
    cancel(&world, Form::Handle, &owner).await.unwrap();
    assert_eq!(field(&world, owner.id, "cancellation_reason").await.as_deref(), Some("not needed"));
    assert_eq!(field(&world, owner.id, "cancelled_by").await.as_deref(), Some("worker-a"));

    for source in ["operator_override", "flow_cascade", "system_timeout", "Somebody Else"] {
        let id = world.create().await;
        world.backend.cancel_execution(by(id, source)).await.unwrap();
        assert_eq!(field(&world, id, "cancellation_reason").await.as_deref(), Some("called off"));
        assert_eq!(field(&world, id, "cancelled_by").await.as_deref(), Some(source));
    }
}

async fn anybody_may_cancel_what_nobody_owns(world: World) {
    let waiting = world.create().await;
    let later = Some(world.now().plus(60_000));
    let delayed = world.submit(CreateExecutionArgs { delay_until: later, ..world.submission() }).await;
    let retried = own_with(&world, &retrying(3)).await;
    fail(&world, Form::Handle, &retried, FailureClass::Transient).await.unwrap();
    let parked = own(&world).await;
    act(&world, Act::Delay, Form::Handle, &parked).await.unwrap();

    for id in [waiting, delayed, retried.id, parked.id] {
        world.backend.cancel_execution(by(id, "somebody")).await.unwrap();
        assert_eq!(world.state(id).await, PublicState::Cancelled);
    }
    assert_eq!(info(&world, waiting).await.state_vector.attempt_state, AttemptState::PendingFirstAttempt);
    assert_eq!(info(&world, parked.id).await.state_vector.attempt_state, AttemptState::AttemptTerminal);
}

async fn a_cancellation_of_owned_work_needs_its_lease(world: World) {
    let owner = own(&world).await;
    let full = owner.fence;
    for fence in [
        FenceTriple::NONE,
        FenceTriple { lease_id: None, ..full },
        FenceTriple { lease_epoch: None, ..full },
        FenceTriple { attempt_id: full.attempt_id, ..FenceTriple::NONE },
    ] {
        for source in ["lease_holder", "flow_cascade", "somebody"].map(CancelSource::from) {
            let args = CancelExecutionArgs { fence, source, ..cancellation(&owner) };
            let answer = world.backend.cancel_execution(args).await;
            assert_eq!(invalid(answer, ValidationKind::InvalidInput), "fence_required");
        }
    }
    assert_eq!(world.state(owner.id).await, PublicState::Active);
}

async fn a_cancellation_may_leave_the_attempt_out_of_its_fence(world: World) {
    let owner = own(&world).await;
    let fence = FenceTriple { attempt_id: None, ..owner.fence };
    let args = CancelExecutionArgs { fence, ..cancellation(&owner) };
    world.backend.cancel_execution(args).await.unwrap();
}

async fn an_operator_cancels_owned_work_whatever_became_of_its_lease(world: World) {
    let held = own(&world).await;
    let overdue = own(&world).await;
    let revoked = own(&world).await;
    revoke(&world, &revoked).await;
    world.backend.cancel_execution(by(held.id, "operator_override")).await.unwrap();
    run_out(&world, &overdue);
    world.backend.cancel_execution(by(overdue.id, "operator_override")).await.unwrap();
    world.backend.cancel_execution(by(revoked.id, "operator_override")).await.unwrap();

    for owner in [held, overdue, revoked] {
        assert_eq!(world.state(owner.id).await, PublicState::Cancelled);
        act(&world, Act::Renew, Form::Handle, &owner).await.unwrap_err();
    }
}

async fn a_stale_cancellation_is_reported_before_a_lost_lease(world: World) {
    let owner = own(&world).await;
    let imposters: Vec<Owner> = owner.imposters(&world).into_iter().filter(|i| i.fence != owner.fence).collect();
    revoke(&world, &owner).await;
    for imposter in &imposters {
        state(cancel(&world, Form::Fence, imposter).await, StateKind::StaleLease);
    }
    state(cancel(&world, Form::Fence, &owner).await, StateKind::LeaseRevoked);

    let owner = own(&world).await;
    let imposters: Vec<Owner> = owner.imposters(&world).into_iter().filter(|i| i.fence != owner.fence).collect();
    run_out(&world, &owner);
    for imposter in &imposters {
        state(cancel(&world, Form::Fence, imposter).await, StateKind::StaleLease);
    }
    state(cancel(&world, Form::Fence, &owner).await, StateKind::LeaseExpired);
}

async fn a_cancellation_closes_the_stream(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        cancel(&world, form, &owner).await.unwrap();
        assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::AttemptCancelled));
    }
    let owner = own(&world).await;
    act(&world, Act::Delay, Form::Handle, &owner).await.unwrap();
    assert_eq!(closed(&world, owner.id, 0).await, None, "a parked attempt goes on");
    world.backend.cancel_execution(by(owner.id, "operator_override")).await.unwrap();
    assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::AttemptCancelled));
}

async fn a_cancellation_tells_its_watchers_once(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        let watched = watch(&world).await;

        cancel(&world, form, &owner).await.unwrap();

        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, [(owner.id, CompletionOutcome::Cancelled)]);
        let change = LeaseChange::Released {
            lease_id: owner.lease_id(),
            lease_epoch: owner.epoch(),
            reason: ReleaseReason::Cancelled,
        };
        assert_eq!(seen.leases, [(owner.id, change)]);
    }
}

async fn a_cancellation_of_waiting_work_has_no_lease_to_release(world: World) {
    for source in ["operator_override", "flow_cascade"] {
        let id = world.create().await;
        let watched = watch(&world).await;
        world.backend.cancel_execution(by(id, source)).await.unwrap();
        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, [(id, CompletionOutcome::Cancelled)], "{source}");
        assert_eq!(seen.leases, []);
    }
}

async fn a_cancellation_takes_the_grant_with_it(world: World) {
    use ff_core::backend::ingress::ReplayExecutionArgs;
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    world.backend.issue_reclaim_grant(reclaim_request(&world, &owner, "worker-b")).await.unwrap();
    world.backend.cancel_execution(by(owner.id, "operator_override")).await.unwrap();
    let reason = "again".to_owned();
    let replay = ReplayExecutionArgs { execution_id: owner.id, reason, requested_by: "tester".to_owned() };
    world.backend.replay_execution(replay).await.unwrap();

    super::owner::take_as(&world, owner.id, 1, "worker-c").await;
}

async fn a_cancelled_execution_is_never_woken(world: World) {
    let delayed = own(&world).await;
    world.backend.delay(&delayed.handle, world.now().plus(1_000)).await.unwrap();
    let lost = own(&world).await;
    run_out(&world, &lost);
    world.backend.mark_lease_expired_if_due(lost.id).await.unwrap();
    for id in [delayed.id, lost.id] {
        world.backend.cancel_execution(by(id, "operator_override")).await.unwrap();
    }

    world.pass(120_000).await;

    for id in [delayed.id, lost.id] {
        assert_eq!(world.state(id).await, PublicState::Cancelled);
    }
    assert!(world.claim().await.is_none());
}

async fn a_long_or_unprintable_reason_is_refused(world: World) {
    let owner = own(&world).await;
    for bad in ["x".repeat(257), "line\nbreak".to_owned()] {
        invalid(world.backend.cancel(&owner.handle, &bad).await, ValidationKind::InvalidInput);
        let args = CancelExecutionArgs { reason: bad.clone(), ..cancellation(&owner) };
        invalid(world.backend.cancel_execution(args).await, ValidationKind::InvalidInput);
        let answer = world.backend.cancel_execution(by(owner.id, &bad)).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    assert_eq!(world.state(owner.id).await, PublicState::Active);
}

async fn an_empty_reason_is_fine(world: World) {
    let owner = own(&world).await;
    world.backend.cancel(&owner.handle, "").await.unwrap();
    assert_eq!(field(&world, owner.id, "cancellation_reason").await.as_deref(), Some(""));
}
