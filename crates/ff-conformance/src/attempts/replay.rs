//! A caller whose reply was lost asks again.

use ff_core::Blob;
use ff_core::backend::attempts::{FailExecutionResult, FailOutcome};
use ff_core::backend::subscriptions::CompletionOutcome;
use ff_core::error::StateKind;
use ff_core::ids::AttemptIndex;
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::{LifecyclePhase, PublicState};

use super::owner::{
    Act, Form, Owner, UNTIL, act, cancel, cancellation, complete, fail, failure, lose, not_active, own, own_with,
    resume_as, retrying, take_as, watch,
};
use crate::cases;
use crate::expect::state;
use crate::world::World;

cases!["attempts":
    a_repeated_completion_succeeds_and_the_first_result_stays,
    a_repeated_completion_is_recognised_in_the_other_form,
    a_completion_is_not_repeated_after_another_end,
    a_repeated_completion_of_a_replayed_execution_is_refused,
    a_repeated_cancellation_succeeds,
    anybody_may_repeat_a_cancellation,
    a_cancellation_after_another_end_is_refused,
    a_repeated_terminal_failure_is_told_again,
    a_repeated_failure_gets_the_stored_retry_time,
    a_repeated_failure_gets_the_stored_retry_time_after_the_delay,
    a_failure_is_not_recognised_once_the_retry_was_claimed,
    a_failure_is_not_recognised_in_an_execution_that_is_merely_delayed,
    a_failure_of_another_attempt_is_not_recognised,
    a_repeated_delay_to_the_same_time_succeeds,
    a_repeated_delay_to_a_past_time_succeeds,
    a_repeated_delay_succeeds_after_the_delay,
    a_delay_to_another_time_is_another_call,
    a_repeated_wait_for_children_succeeds,
    a_parked_call_is_not_recognised_once_the_attempt_goes_on,
    another_attempt_is_never_recognised,
    a_repeated_call_emits_nothing,
];

const FORMS: [Form; 2] = [Form::Handle, Form::Fence];

async fn a_repeated_completion_succeeds_and_the_first_result_stays(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, Some(Blob::from("first"))).await.unwrap();

        complete(&world, form, &owner, Some(Blob::from("second"))).await.unwrap();
        let huge = Blob::from(vec![0; (1 << 20) + 1]);
        complete(&world, form, &owner, Some(huge)).await.unwrap();

        assert_eq!(world.backend.get_execution_result(owner.id).await.unwrap(), Some(Blob::from("first")));
    }
}

async fn a_repeated_completion_is_recognised_in_the_other_form(world: World) {
    let owner = own(&world).await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
    complete(&world, Form::Fence, &owner, None).await.unwrap();
}

async fn a_completion_is_not_repeated_after_another_end(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        cancel(&world, form, &owner).await.unwrap();
        not_active(complete(&world, form, &owner, None).await);
    }
}

async fn a_repeated_completion_of_a_replayed_execution_is_refused(world: World) {
    use ff_core::backend::ingress::ReplayExecutionArgs;
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, None).await.unwrap();
        let args = ReplayExecutionArgs {
            execution_id: owner.id,
            reason: "again".to_owned(),
            requested_by: "tester".to_owned(),
        };
        world.backend.replay_execution(args).await.unwrap();

        let detail = not_active(complete(&world, form, &owner, None).await);

        assert_eq!(detail.lifecycle_phase, LifecyclePhase::Runnable);
        let second = take_as(&world, owner.id, 1, "worker-a").await;
        state(complete(&world, form, &owner, None).await, StateKind::StaleLease);
        complete(&world, form, &second, None).await.unwrap();
    }
}

async fn a_repeated_cancellation_succeeds(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        cancel(&world, form, &owner).await.unwrap();
        cancel(&world, form, &owner).await.unwrap();
    }
}

async fn anybody_may_repeat_a_cancellation(world: World) {
    let owner = own(&world).await;
    cancel(&world, Form::Handle, &owner).await.unwrap();

    for imposter in owner.imposters(&world) {
        cancel(&world, Form::Fence, &imposter).await.unwrap();
    }
    for source in ["operator_override", "flow_cascade", "system_timeout", "somebody"].map(CancelSource::from) {
        let mut args = cancellation(&owner);
        args.fence = ff_core::ids::FenceTriple::NONE;
        args.source = source;
        world.backend.cancel_execution(args).await.unwrap();
    }
}

async fn a_cancellation_after_another_end_is_refused(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        complete(&world, form, &owner, None).await.unwrap();

        not_active(cancel(&world, form, &owner).await);
        let mut args = cancellation(&owner);
        args.source = CancelSource::OperatorOverride;
        not_active(world.backend.cancel_execution(args).await);
        assert_eq!(world.state(owner.id).await, PublicState::Completed);
    }
}

async fn a_repeated_terminal_failure_is_told_again(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        let first = fail(&world, form, &owner, FailureClass::Permanent).await.unwrap();
        let second = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        assert_eq!((first, second), (FailOutcome::TerminalFailed, FailOutcome::TerminalFailed));
    }
}

async fn a_repeated_failure_gets_the_stored_retry_time(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        let first = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        world.advance(300);

        let second = fail(&world, form, &owner, FailureClass::Permanent).await.unwrap();

        assert_eq!(first, second);
        let answer = world.backend.fail_execution(failure(&owner, "transient")).await.unwrap();
        let FailExecutionResult::RetryScheduled { next_attempt_index, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(next_attempt_index, AttemptIndex(1));
    }
}

async fn a_repeated_failure_gets_the_stored_retry_time_after_the_delay(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        let first = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        world.pass(5_000).await;
        assert_eq!(world.state(owner.id).await, PublicState::Waiting);

        let second = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();

        assert_eq!(first, second);
    }
}

async fn a_failure_is_not_recognised_once_the_retry_was_claimed(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        world.pass(1_000).await;
        let second = take_as(&world, owner.id, 1, "worker-b").await;

        state(fail(&world, form, &owner, FailureClass::Transient).await, StateKind::StaleLease);
        fail(&world, form, &second, FailureClass::Transient).await.unwrap();
        not_active(fail(&world, form, &owner, FailureClass::Transient).await);
    }
}

async fn a_failure_is_not_recognised_in_an_execution_that_is_merely_delayed(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        act(&world, Act::Delay, Form::Handle, &owner).await.unwrap();
        not_active(fail(&world, form, &owner, FailureClass::Transient).await);
    }
}

async fn a_failure_of_another_attempt_is_not_recognised(world: World) {
    let owner = own_with(&world, &retrying(3)).await;
    fail(&world, Form::Fence, &owner, FailureClass::Transient).await.unwrap();

    let other = Owner { index: AttemptIndex(7), ..owner };
    not_active(fail(&world, Form::Fence, &other, FailureClass::Transient).await);
}

async fn a_repeated_delay_to_the_same_time_succeeds(world: World) {
    let owner = own(&world).await;
    world.backend.delay(&owner.handle, UNTIL).await.unwrap();
    world.advance(10);
    world.backend.delay(&owner.handle, UNTIL).await.unwrap();
    assert_eq!(world.state(owner.id).await, PublicState::Delayed);
}

async fn a_repeated_delay_to_a_past_time_succeeds(world: World) {
    let owner = own(&world).await;
    let past = ff_core::TimestampMs(world.now().0 - 5_000);
    world.backend.delay(&owner.handle, past).await.unwrap();
    world.advance(10);
    world.backend.delay(&owner.handle, past).await.unwrap();
}

async fn a_repeated_delay_succeeds_after_the_delay(world: World) {
    let owner = own(&world).await;
    let until = world.now().plus(1_000);
    world.backend.delay(&owner.handle, until).await.unwrap();
    world.pass(2_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Waiting);

    world.backend.delay(&owner.handle, until).await.unwrap();

    assert_eq!(world.state(owner.id).await, PublicState::Waiting);
}

async fn a_delay_to_another_time_is_another_call(world: World) {
    let owner = own(&world).await;
    world.backend.delay(&owner.handle, UNTIL).await.unwrap();
    not_active(world.backend.delay(&owner.handle, UNTIL.plus(1)).await);
    not_active(world.backend.wait_children(&owner.handle).await);
}

async fn a_repeated_wait_for_children_succeeds(world: World) {
    let owner = own(&world).await;
    world.backend.wait_children(&owner.handle).await.unwrap();
    world.backend.wait_children(&owner.handle).await.unwrap();
    not_active(world.backend.delay(&owner.handle, UNTIL).await);
}

async fn a_parked_call_is_not_recognised_once_the_attempt_goes_on(world: World) {
    let owner = own(&world).await;
    world.backend.wait_children(&owner.handle).await.unwrap();
    let second = resume_as(&world, &owner, "worker-b").await;
    state(world.backend.wait_children(&owner.handle).await, StateKind::StaleLease);

    let until = world.now().plus(1_000);
    world.backend.delay(&second.handle, until).await.unwrap();
    not_active(world.backend.wait_children(&owner.handle).await);
    not_active(world.backend.delay(&owner.handle, until).await);
    world.backend.delay(&second.handle, until).await.unwrap();
}

async fn another_attempt_is_never_recognised(world: World) {
    for form in FORMS {
        let first = own(&world).await;
        let second = lose(&world, &first).await;
        complete(&world, form, &second, None).await.unwrap();
        not_active(complete(&world, form, &first, None).await);

        let first = own(&world).await;
        let second = lose(&world, &first).await;
        fail(&world, form, &second, FailureClass::Transient).await.unwrap();
        not_active(fail(&world, form, &first, FailureClass::Transient).await);
    }
}

async fn a_repeated_call_emits_nothing(world: World) {
    for form in FORMS {
        let completed = own(&world).await;
        let failed = own(&world).await;
        let retried = own_with(&world, &retrying(1)).await;
        let cancelled = own(&world).await;
        let watched = watch(&world).await;

        for _ in 0..3 {
            complete(&world, form, &completed, None).await.unwrap();
            fail(&world, form, &failed, FailureClass::Permanent).await.unwrap();
            fail(&world, form, &retried, FailureClass::Transient).await.unwrap();
            cancel(&world, form, &cancelled).await.unwrap();
        }

        let expected = [
            (completed.id, CompletionOutcome::Success),
            (failed.id, CompletionOutcome::Failed),
            (cancelled.id, CompletionOutcome::Cancelled),
        ];
        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, expected);
        assert_eq!(seen.leases.len(), 4);
    }
}
