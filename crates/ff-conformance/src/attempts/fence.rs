//! Who may act, and in which order refusals come.

use ff_core::backend::signals::{SecretText, SeedWaitpointHmacSecretArgs};
use ff_core::backend::suspension::{
    ResumeCondition, SuspendArgs, SuspendOutcome, SuspensionReasonCode, WaitpointBinding,
};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::{BackendTag, Handle, HandleOpaque};
use ff_core::ids::{ExecutionId, FenceTriple, SuspensionId, WaitpointId};
use ff_core::rules::fence::CancelSource;
use ff_core::state::{LifecyclePhase, OwnershipState, TerminalOutcome};

use super::owner::{
    Act, CALLS, Form, Owner, act, cancellation, complete, completion, failure, info, lose, not_active, own, own_with,
    purge, reclaim_as, renewal, retrying, revoke, run_out,
};
use crate::cases;
use crate::expect::{invalid, not_found, refusal, state};
use crate::harness::Damage;
use crate::world::World;

cases!["attempts":
    a_missing_execution_is_not_found,
    a_purged_execution_is_not_found_by_its_handle,
    an_execution_that_is_over_says_who_owned_it_last,
    a_parked_execution_is_not_active,
    a_suspended_handle_holds_no_lease,
    a_revoked_lease_refuses_every_call,
    an_expired_lease_refuses_every_call,
    a_lease_is_over_at_its_last_millisecond,
    a_write_that_finds_an_expired_lease_marks_it,
    progress_on_an_expired_lease_marks_nothing,
    a_lost_owner_is_stale_once_another_took_over,
    a_fence_that_differs_anywhere_is_stale,
    refusals_come_in_order,
    a_partial_fence_is_refused_before_anything_is_read,
    only_an_operator_may_leave_the_fence_out,
    an_operator_needs_no_fence_but_a_live_lease,
    a_foreign_handle_is_refused,
    a_truncated_handle_is_refused,
    a_forged_handle_is_refused,
    a_partition_that_does_not_exist_is_refused,
    an_unreadable_execution_is_reported_as_corruption,
];

fn nowhere(owner: &Owner) -> Owner {
    let missing = ExecutionId::new(owner.id.partition().index(), uuid::Uuid::from_u128(404));
    Owner { id: missing, ..owner.clone() }
}

async fn a_missing_execution_is_not_found(world: World) {
    let missing = nowhere(&own(&world).await);

    for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Fence) {
        not_found(act(&world, call, form, &missing).await, Entity::Execution);
    }
}

async fn a_purged_execution_is_not_found_by_its_handle(world: World) {
    let owner = own(&world).await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
    purge(&world, owner.id).await;

    for (call, form) in CALLS {
        not_found(act(&world, call, form, &owner).await, Entity::Execution);
    }
}

async fn an_execution_that_is_over_says_who_owned_it_last(world: World) {
    for (call, form) in CALLS.into_iter().filter(|(call, _)| *call != Act::Fail) {
        let owner = own(&world).await;
        act(&world, Act::Fail, Form::Handle, &owner).await.unwrap();

        let detail = not_active(act(&world, call, form, &owner).await);

        assert_eq!(detail.lifecycle_phase, LifecyclePhase::Terminal, "{call:?}");
        assert_eq!(detail.terminal_outcome, TerminalOutcome::Failed);
        assert_eq!((detail.lease_epoch, detail.attempt_id), (owner.epoch(), owner.fence.attempt_id));
    }
}

async fn a_parked_execution_is_not_active(world: World) {
    for (call, form) in CALLS.into_iter().filter(|call| *call != (Act::Cancel, Form::Fence)) {
        let parking = if call == Act::Delay { Act::WaitChildren } else { Act::Delay };
        let owner = own(&world).await;
        act(&world, parking, Form::Handle, &owner).await.unwrap();

        let detail = not_active(act(&world, call, form, &owner).await);

        assert_eq!(detail.lifecycle_phase, LifecyclePhase::Runnable, "{call:?}");
        assert_eq!((detail.lease_epoch, detail.attempt_id), (owner.epoch(), owner.fence.attempt_id));
    }
}

async fn a_suspended_handle_holds_no_lease(world: World) {
    let secret_hex = SecretText::from("ab".repeat(32));
    let seed = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex };
    world.backend.seed_waitpoint_hmac_secret(seed).await.unwrap();
    let owner = own(&world).await;
    let binding = WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid()));
    let args = SuspendArgs::new(
        SuspensionId::from_uuid(world.uuid()),
        binding,
        ResumeCondition::OperatorOnly {},
        SuspensionReasonCode::ManualPause,
    );
    let SuspendOutcome::Suspended { handle, .. } = world.backend.suspend(&owner.handle, args).await.unwrap() else {
        panic!("nothing was buffered");
    };
    let suspended = Owner { handle, ..owner.clone() };

    for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Handle) {
        let detail = not_active(act(&world, call, form, &suspended).await);
        assert_eq!(detail.lifecycle_phase, LifecyclePhase::Suspended, "{call:?}");
    }
}

async fn a_revoked_lease_refuses_every_call(world: World) {
    for (call, form) in CALLS {
        let owner = own(&world).await;
        revoke(&world, &owner).await;

        state(act(&world, call, form, &owner).await, StateKind::LeaseRevoked);
        assert_eq!(info(&world, owner.id).await.state_vector.ownership_state, OwnershipState::LeaseRevoked);
    }
}

async fn an_expired_lease_refuses_every_call(world: World) {
    for (call, form) in CALLS {
        let owner = own(&world).await;
        run_out(&world, &owner);

        state(act(&world, call, form, &owner).await, StateKind::LeaseExpired);
        state(act(&world, call, form, &owner).await, StateKind::LeaseExpired);
    }
}

async fn a_lease_is_over_at_its_last_millisecond(world: World) {
    let owner = own(&world).await;
    world.advance(owner.expires_at.since(world.now()) - 1);
    act(&world, Act::Progress, Form::Handle, &owner).await.unwrap();

    world.advance(1);

    state(act(&world, Act::Progress, Form::Handle, &owner).await, StateKind::LeaseExpired);
    state(act(&world, Act::Complete, Form::Handle, &owner).await, StateKind::LeaseExpired);
}

async fn a_write_that_finds_an_expired_lease_marks_it(world: World) {
    for (call, form) in CALLS.into_iter().filter(|(call, _)| *call != Act::Progress) {
        let owner = own(&world).await;
        run_out(&world, &owner);

        refusal(act(&world, call, form, &owner).await);

        let stored = info(&world, owner.id).await.state_vector;
        assert_eq!(stored.ownership_state, OwnershipState::LeaseExpiredReclaimable, "{call:?} {form:?}");
    }
}

async fn progress_on_an_expired_lease_marks_nothing(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);

    state(act(&world, Act::Progress, Form::Handle, &owner).await, StateKind::LeaseExpired);

    assert_eq!(info(&world, owner.id).await.state_vector.ownership_state, OwnershipState::Leased);
}

async fn a_lost_owner_is_stale_once_another_took_over(world: World) {
    for (call, form) in CALLS {
        let first = own(&world).await;
        let second = lose(&world, &first).await;

        state(act(&world, call, form, &first).await, StateKind::StaleLease);
        complete(&world, Form::Handle, &second, None).await.unwrap();
    }
}

async fn a_fence_that_differs_anywhere_is_stale(world: World) {
    let owner = own(&world).await;

    for imposter in owner.imposters(&world) {
        for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Fence) {
            if call == Act::Cancel && imposter.fence == owner.fence {
                continue; // a cancellation names no attempt index
            }
            state(act(&world, call, form, &imposter).await, StateKind::StaleLease);
        }
    }
    complete(&world, Form::Fence, &owner, None).await.unwrap();
}

async fn refusals_come_in_order(world: World) {
    for (call, form) in CALLS.into_iter().filter(|call| *call != (Act::Cancel, Form::Fence)) {
        let stale = own(&world).await;
        let owner = lose(&world, &stale).await;
        run_out(&world, &owner);
        state(act(&world, call, form, &stale).await, StateKind::LeaseExpired);

        let owner = reclaim_as(&world, &owner, "worker-c").await;
        revoke(&world, &owner).await;
        run_out(&world, &owner);
        state(act(&world, call, form, &stale).await, StateKind::LeaseRevoked);

        let owner = reclaim_as(&world, &owner, "worker-d").await;
        complete(&world, Form::Handle, &owner, None).await.unwrap();
        not_active(act(&world, call, form, &stale).await);
    }
}

async fn a_partial_fence_is_refused_before_anything_is_read(world: World) {
    let owner = nowhere(&own(&world).await);
    let full = owner.fence;
    let parts = [
        FenceTriple { lease_id: None, ..full },
        FenceTriple { lease_epoch: None, ..full },
        FenceTriple { attempt_id: None, ..full },
        FenceTriple { lease_id: full.lease_id, ..FenceTriple::NONE },
    ];
    for fence in parts {
        let partial = Owner { fence, ..owner.clone() };
        for (call, form) in [(Act::Renew, Form::Fence), (Act::Complete, Form::Fence), (Act::Fail, Form::Fence)] {
            let detail = invalid(act(&world, call, form, &partial).await, ValidationKind::InvalidInput);
            assert_eq!(detail, "partial_fence_triple", "{call:?}");
        }
    }
}

async fn only_an_operator_may_leave_the_fence_out(world: World) {
    let owner = own(&world).await;
    let bare = Owner { fence: FenceTriple::NONE, ..owner.clone() };

    for source in ["lease_holder", "flow_cascade", "system_timeout", "somebody"].map(CancelSource::from) {
        let mut args = completion(&bare);
        args.source = source.clone();
        let answer = world.backend.complete_execution(args).await;
        assert_eq!(invalid(answer, ValidationKind::InvalidInput), "fence_required");
        let mut args = failure(&bare, "transient");
        args.source = source;
        let answer = world.backend.fail_execution(args).await;
        assert_eq!(invalid(answer, ValidationKind::InvalidInput), "fence_required");
    }
    let answer = world.backend.renew_lease(renewal(&bare)).await;
    assert_eq!(invalid(answer, ValidationKind::InvalidInput), "fence_required");

    let mut args = completion(&bare);
    args.source = CancelSource::OperatorOverride;
    world.backend.complete_execution(args).await.unwrap();
}

async fn an_operator_needs_no_fence_but_a_live_lease(world: World) {
    let complete = async |owner: &Owner| {
        let mut args = completion(&Owner { fence: FenceTriple::NONE, ..owner.clone() });
        args.source = CancelSource::OperatorOverride;
        world.backend.complete_execution(args).await
    };
    let fail = async |owner: &Owner| {
        let mut args = failure(&Owner { fence: FenceTriple::NONE, ..owner.clone() }, "transient");
        args.source = CancelSource::OperatorOverride;
        world.backend.fail_execution(args).await
    };
    let waiting = world.create().await;
    let owner = own(&world).await;
    not_active(complete(&Owner { id: waiting, ..owner.clone() }).await);
    not_found(complete(&nowhere(&owner)).await, Entity::Execution);

    revoke(&world, &owner).await;
    state(complete(&owner).await, StateKind::LeaseRevoked);
    state(fail(&owner).await, StateKind::LeaseRevoked);
    let owner = own(&world).await;
    run_out(&world, &owner);
    state(fail(&owner).await, StateKind::LeaseExpired);
    state(complete(&owner).await, StateKind::LeaseExpired);
    let owner = own(&world).await;
    fail(&owner).await.unwrap();
    not_active(fail(&owner).await);
}

async fn a_foreign_handle_is_refused(world: World) {
    let owner = own(&world).await;
    let other = BackendTag::ALL.iter().copied().find(|tag| *tag != owner.handle.backend).unwrap();
    let foreign = Owner { handle: Handle { backend: other, ..owner.handle.clone() }, ..owner.clone() };

    for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Handle) {
        let detail = invalid(act(&world, call, form, &foreign).await, ValidationKind::HandleFromOtherBackend);
        assert!(detail.contains(&format!("actual={other}")), "{detail}");
    }
}

async fn a_truncated_handle_is_refused(world: World) {
    let owner = own(&world).await;
    let bytes = owner.handle.opaque.as_bytes();
    for part in [&bytes[..0], &bytes[..3], &bytes[..bytes.len() - 1]] {
        let handle = Handle { opaque: HandleOpaque::new(part), ..owner.handle.clone() };
        let short = Owner { handle, ..owner.clone() };
        for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Handle) {
            invalid(act(&world, call, form, &short).await, ValidationKind::InvalidInput);
        }
    }
}

async fn a_forged_handle_is_refused(world: World) {
    let owner = own(&world).await;
    let mut bytes = owner.handle.opaque.as_bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let handle = Handle { opaque: HandleOpaque::new(bytes), ..owner.handle.clone() };
    let forged = Owner { handle, ..owner.clone() };

    for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Handle) {
        invalid(act(&world, call, form, &forged).await, ValidationKind::Corruption);
    }
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

async fn a_partition_that_does_not_exist_is_refused(world: World) {
    let owner = own(&world).await;
    let id: ExecutionId = format!("{{fp:65535}}:{}", owner.id.uuid()).parse().unwrap();
    let lost = Owner { id, ..owner };

    for (call, form) in CALLS.into_iter().filter(|(_, form)| *form == Form::Fence) {
        invalid(act(&world, call, form, &lost).await, ValidationKind::InvalidInput);
    }
    let answer = world.backend.cancel_execution(cancellation(&lost)).await;
    invalid(answer, ValidationKind::InvalidInput);
}

async fn an_unreadable_execution_is_reported_as_corruption(world: World) {
    let owner = own_with(&world, &retrying(3)).await;
    world.damage(Damage::Execution(owner.id)).await;

    for (call, form) in CALLS {
        invalid(act(&world, call, form, &owner).await, ValidationKind::Corruption);
    }
}
