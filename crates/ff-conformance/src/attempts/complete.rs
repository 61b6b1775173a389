//! An attempt succeeds.

use ff_core::Blob;
use ff_core::backend::attempts::{CompleteExecutionResult, CompleteManyItem, CompleteManyOutcome};
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ReleaseReason};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::handle::{Handle, HandleOpaque};
use ff_core::state::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, StateVector,
    StreamCloseReason, TerminalOutcome,
};

use super::owner::{Form, closed, complete, completion, info, own, own_with, retrying, revoke, run_out, timed, watch};
use crate::cases;
use crate::expect::{invalid, state};
use crate::world::World;

cases!["attempts":
    a_completed_execution_is_terminal,
    a_completion_answers_with_the_public_state,
    a_result_is_kept_byte_for_byte,
    a_completion_without_a_payload_has_no_result,
    an_empty_result_is_a_result,
    a_result_over_the_limit_is_refused_and_the_attempt_goes_on,
    a_lost_lease_is_reported_before_a_result_over_the_limit,
    a_completion_closes_the_stream,
    a_completion_tells_its_watchers_once,
    a_completed_execution_never_times_out,
    several_completions_have_an_outcome_each,
    completing_nothing_answers_nothing,
];

const FORMS: [Form; 2] = [Form::Handle, Form::Fence];

async fn a_completed_execution_is_terminal(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        world.advance(7);

        complete(&world, form, &owner, None).await.unwrap();

        let info = info(&world, owner.id).await;
        let expected = StateVector {
            lifecycle_phase: LifecyclePhase::Terminal,
            ownership_state: OwnershipState::Unowned,
            eligibility_state: EligibilityState::NotApplicable,
            blocking_reason: BlockingReason::None,
            terminal_outcome: TerminalOutcome::Success,
            attempt_state: AttemptState::AttemptTerminal,
        };
        assert_eq!((info.state_vector, info.public_state), (expected, PublicState::Completed));
        assert_eq!(info.completed_at, Some(world.now()));
        let seen = world.backend.describe_execution(owner.id).await.unwrap().unwrap();
        assert_eq!(seen.current_lease, None);
        assert_eq!(seen.current_attempt.unwrap().attempt_id, owner.attempt_id());
        assert!(world.claim().await.is_none());
    }
}

async fn a_completion_answers_with_the_public_state(world: World) {
    let owner = own(&world).await;
    let answer = world.backend.complete_execution(completion(&owner)).await.unwrap();
    let public_state = PublicState::Completed;
    assert_eq!(answer, CompleteExecutionResult::Completed { execution_id: owner.id, public_state });
}

async fn a_result_is_kept_byte_for_byte(world: World) {
    let bytes: Vec<u8> = (0..=255).collect();
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, Some(Blob::from(bytes.clone()))).await.unwrap();
        let result = world.backend.get_execution_result(owner.id).await.unwrap();
        assert_eq!(result, Some(Blob::from(bytes.clone())));
    }
}

async fn a_completion_without_a_payload_has_no_result(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, None).await.unwrap();
        assert_eq!(world.backend.get_execution_result(owner.id).await.unwrap(), None);
    }
}

async fn an_empty_result_is_a_result(world: World) {
    let owner = own(&world).await;
    complete(&world, Form::Handle, &owner, Some(Blob::empty())).await.unwrap();
    assert_eq!(world.backend.get_execution_result(owner.id).await.unwrap(), Some(Blob::empty()));
}

async fn a_result_over_the_limit_is_refused_and_the_attempt_goes_on(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        let over = Blob::from(vec![1; (1 << 20) + 1]);

        invalid(complete(&world, form, &owner, Some(over)).await, ValidationKind::PayloadTooLarge);

        assert_eq!(world.state(owner.id).await, PublicState::Active);
        complete(&world, form, &owner, Some(Blob::from(vec![1; 1 << 20]))).await.unwrap();
    }
}

async fn a_lost_lease_is_reported_before_a_result_over_the_limit(world: World) {
    let over = Blob::from(vec![1; (1 << 20) + 1]);
    for form in FORMS {
        let owner = own(&world).await;
        revoke(&world, &owner).await;
        state(complete(&world, form, &owner, Some(over.clone())).await, StateKind::LeaseRevoked);
        let owner = own(&world).await;
        run_out(&world, &owner);
        state(complete(&world, form, &owner, Some(over.clone())).await, StateKind::LeaseExpired);
    }
}

async fn a_completion_closes_the_stream(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, None).await.unwrap();
        assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::AttemptSuccess));
    }
}

async fn a_completion_tells_its_watchers_once(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        let watched = watch(&world).await;

        complete(&world, form, &owner, None).await.unwrap();

        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, [(owner.id, CompletionOutcome::Success)]);
        let change = LeaseChange::Released {
            lease_id: owner.lease_id(),
            lease_epoch: owner.epoch(),
            reason: ReleaseReason::Completed,
        };
        assert_eq!(seen.leases, [(owner.id, change)]);
    }
}

async fn a_completed_execution_never_times_out(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(3))).await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
    world.pass(60_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Completed);
}

async fn several_completions_have_an_outcome_each(world: World) {
    let (first, lost, last) = (own(&world).await, own(&world).await, own(&world).await);
    revoke(&world, &lost).await;
    let broken = Handle { opaque: HandleOpaque::new(vec![1, 2, 3]), ..first.handle.clone() };
    let item = |handle: &Handle, text: &str| CompleteManyItem {
        handle: handle.clone(),
        result_payload: Some(Blob::from(text)),
    };

    let items = vec![
        item(&first.handle, "one"),
        item(&lost.handle, "two"),
        item(&broken, "three"),
        item(&last.handle, "four"),
        item(&first.handle, "again"),
    ];
    let outcomes = world.backend.complete_many(items).await.unwrap();

    let codes: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            CompleteManyOutcome::Completed => "completed",
            CompleteManyOutcome::Refused { error } => error.code.as_str(),
        })
        .collect();
    assert_eq!(codes, ["completed", "lease_revoked", "invalid_input", "completed", "completed"]);
    let result = async |id| world.backend.get_execution_result(id).await.unwrap();
    assert_eq!(result(last.id).await, Some(Blob::from("four")));
    assert_eq!(result(lost.id).await, None);
}

async fn completing_nothing_answers_nothing(world: World) {
    assert_eq!(world.backend.complete_many(Vec::new()).await.unwrap(), []);
}
