//! An attempt fails: a retry follows, or the end.

use ff_core::Blob;
use ff_core::backend::attempts::{FailExecutionArgs, FailExecutionResult, FailOutcome, FailureReason};
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ReleaseReason};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::{AttemptIndex, FenceTriple};
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, RetryPolicy};
use ff_core::rules::retry::FailureClass;
use ff_core::state::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, StateVector,
    StreamCloseReason, TerminalOutcome,
};

use super::owner::{
    Form, closed, complete, fail, failure, field, info, own, own_with, retrying, revoke, take_as, watch,
};
use crate::cases;
use crate::expect::{invalid, state};
use crate::harness::Damage;
use crate::world::World;

cases!["attempts":
    a_failure_without_a_policy_is_final,
    a_failure_with_retries_left_is_retried_later,
    a_retry_is_a_new_attempt,
    permanent_and_cancelled_failures_are_never_retried,
    retries_run_out,
    a_policy_without_a_retry_part_retries_nothing,
    only_admitted_categories_are_retried,
    a_category_of_the_callers_own_can_be_retried,
    the_pause_between_retries_doubles,
    jitter_shortens_a_pause_by_at_most_half,
    a_given_policy_takes_the_place_of_the_stored_one,
    a_malformed_policy_is_refused_after_the_fence_presence_and_before_the_lease,
    an_unreadable_policy_counts_as_none,
    a_final_failure_keeps_its_reason_and_category,
    a_failure_closes_the_stream,
    a_retried_failure_is_no_end,
    a_final_failure_tells_its_watchers_once,
    a_failure_detail_over_the_limit_is_refused,
    long_or_unprintable_failure_words_are_refused,
    a_retry_outlives_the_attempt_timeout_of_the_failed_attempt,
];

const FORMS: [Form; 2] = [Form::Handle, Form::Fence];

fn with(retry: RetryPolicy) -> ExecutionPolicy {
    ExecutionPolicy { retry_policy: Some(retry), ..ExecutionPolicy::default() }
}

async fn a_failure_without_a_policy_is_final(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        world.advance(3);

        let outcome = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();

        assert_eq!(outcome, FailOutcome::TerminalFailed);
        let info = info(&world, owner.id).await;
        assert_eq!(info.state_vector.terminal_outcome, TerminalOutcome::Failed);
        assert_eq!(info.state_vector.attempt_state, AttemptState::AttemptTerminal);
        assert_eq!((info.public_state, info.completed_at), (PublicState::Failed, Some(world.now())));
    }
}

async fn a_failure_with_retries_left_is_retried_later(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;

        let outcome = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();

        assert_eq!(outcome, FailOutcome::RetryScheduled { delay_until: world.now().plus(1_000) });
        let expected = StateVector {
            lifecycle_phase: LifecyclePhase::Runnable,
            ownership_state: OwnershipState::Unowned,
            eligibility_state: EligibilityState::NotEligibleUntilTime,
            blocking_reason: BlockingReason::WaitingForRetryBackoff,
            terminal_outcome: TerminalOutcome::None,
            attempt_state: AttemptState::PendingRetryAttempt,
        };
        let info = info(&world, owner.id).await;
        assert_eq!((info.state_vector, info.public_state), (expected, PublicState::Delayed));
        let seen = world.backend.describe_execution(owner.id).await.unwrap().unwrap();
        assert_eq!((seen.current_attempt, seen.current_lease), (None, None));
        assert!(world.claim().await.is_none(), "not before its time");
        world.pass(999).await;
        assert_eq!(world.state(owner.id).await, PublicState::Delayed);
        world.pass(1).await;
        assert_eq!(world.state(owner.id).await, PublicState::Waiting);
        take_as(&world, owner.id, 1, "worker-b").await;
    }
}

async fn a_retry_is_a_new_attempt(world: World) {
    let owner = own_with(&world, &retrying(3)).await;
    let answer = world.backend.fail_execution(failure(&owner, "transient")).await.unwrap();
    let FailExecutionResult::RetryScheduled { next_attempt_index, .. } = answer else { panic!("{answer:?}") };
    world.pass(1_000).await;

    let second = take_as(&world, owner.id, 1, "worker-b").await;

    assert_eq!((second.index, next_attempt_index), (AttemptIndex(1), AttemptIndex(1)));
    assert_eq!(second.epoch(), owner.epoch().next());
    assert_eq!(world.backend.read_total_attempt_count(owner.id).await.unwrap(), 2);
    assert_eq!(field(&world, owner.id, "retry_count").await.as_deref(), Some("1"));
}

async fn permanent_and_cancelled_failures_are_never_retried(world: World) {
    for form in FORMS {
        for class in FailureClass::ALL.iter().copied() {
            let owner = own_with(&world, &retrying(3)).await;
            let outcome = fail(&world, form, &owner, class).await.unwrap();
            let retried = matches!(outcome, FailOutcome::RetryScheduled { .. });
            let expected = !matches!(class, FailureClass::Permanent | FailureClass::Cancelled);
            assert_eq!(retried, expected, "{class}");
        }
    }
}

async fn retries_run_out(world: World) {
    for form in FORMS {
        let mut owner = own_with(&world, &retrying(2)).await;
        for attempts in 1..=2 {
            let outcome = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
            assert!(matches!(outcome, FailOutcome::RetryScheduled { .. }));
            world.pass(1_000).await;
            owner = take_as(&world, owner.id, attempts, "worker-a").await;
        }
        let outcome = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        assert_eq!(outcome, FailOutcome::TerminalFailed);
        assert_eq!(world.backend.read_total_attempt_count(owner.id).await.unwrap(), 3);
    }
}

async fn a_policy_without_a_retry_part_retries_nothing(world: World) {
    for policy in [ExecutionPolicy::default(), retrying(0)] {
        let owner = own_with(&world, &policy).await;
        let outcome = fail(&world, Form::Handle, &owner, FailureClass::Transient).await.unwrap();
        assert_eq!(outcome, FailOutcome::TerminalFailed);
    }
}

async fn only_admitted_categories_are_retried(world: World) {
    let retry = RetryPolicy { retryable_categories: vec!["timeout".to_owned()], ..RetryPolicy::default() };
    for form in FORMS {
        for (class, retried) in [(FailureClass::Timeout, true), (FailureClass::Transient, false)] {
            let owner = own_with(&world, &with(retry.clone())).await;
            let outcome = fail(&world, form, &owner, class).await.unwrap();
            assert_eq!(matches!(outcome, FailOutcome::RetryScheduled { .. }), retried, "{class}");
        }
    }
}

async fn a_category_of_the_callers_own_can_be_retried(world: World) {
    let retry = RetryPolicy { retryable_categories: vec!["rate_limited".to_owned()], ..RetryPolicy::default() };
    let owner = own_with(&world, &with(retry)).await;
    let answer = world.backend.fail_execution(failure(&owner, "rate_limited")).await.unwrap();
    assert!(matches!(answer, FailExecutionResult::RetryScheduled { .. }), "{answer:?}");
}

async fn the_pause_between_retries_doubles(world: World) {
    let mut owner = own_with(&world, &with(RetryPolicy::default())).await;
    for (attempts, pause) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        let outcome = fail(&world, Form::Handle, &owner, FailureClass::Transient).await.unwrap();
        assert_eq!(outcome, FailOutcome::RetryScheduled { delay_until: world.now().plus(pause) });
        world.pass(pause).await;
        owner = take_as(&world, owner.id, attempts, "worker-a").await;
    }
}

async fn jitter_shortens_a_pause_by_at_most_half(world: World) {
    let backoff =
        BackoffStrategy::Exponential { initial_delay_ms: 10_000, max_delay_ms: 60_000, multiplier: 2.0, jitter: true };
    for _ in 0..20 {
        let owner = own_with(&world, &with(RetryPolicy { backoff: backoff.clone(), ..RetryPolicy::default() })).await;
        let outcome = fail(&world, Form::Handle, &owner, FailureClass::Transient).await.unwrap();
        let FailOutcome::RetryScheduled { delay_until } = outcome else { panic!("{outcome:?}") };
        assert!((5_000..=10_000).contains(&delay_until.since(world.now())), "{delay_until}");
    }
}

async fn a_given_policy_takes_the_place_of_the_stored_one(world: World) {
    let given =
        |owner, json: &str| FailExecutionArgs { retry_policy_json: json.to_owned(), ..failure(owner, "transient") };
    let owner = own(&world).await;
    let json = r#"{"max_retries":1,"backoff":{"type":"fixed","delay_ms":250}}"#;
    let answer = world.backend.fail_execution(given(&owner, json)).await.unwrap();
    let delay_until = world.now().plus(250);
    let next_attempt_index = AttemptIndex(1);
    assert_eq!(answer, FailExecutionResult::RetryScheduled { delay_until, next_attempt_index });

    let owner = own_with(&world, &retrying(3)).await;
    let answer = world.backend.fail_execution(given(&owner, r#"{"max_retries":0}"#)).await.unwrap();
    assert_eq!(answer, FailExecutionResult::TerminalFailed);
}

async fn a_malformed_policy_is_refused_after_the_fence_presence_and_before_the_lease(world: World) {
    let owner = own_with(&world, &retrying(3)).await;
    for json in ["{", "[]", "null", r#"{"max_retries":-1}"#, r#"{"backoff":{"type":"random"}}"#] {
        let args = FailExecutionArgs { retry_policy_json: json.to_owned(), ..failure(&owner, "transient") };
        let bare = FailExecutionArgs { fence: FenceTriple::NONE, ..args.clone() };
        invalid(world.backend.fail_execution(bare).await, ValidationKind::InvalidInput);
        invalid(world.backend.fail_execution(args).await, ValidationKind::InvalidPolicyJson);
    }
    assert_eq!(world.state(owner.id).await, PublicState::Active);

    revoke(&world, &owner).await;
    let args = FailExecutionArgs { retry_policy_json: "{".to_owned(), ..failure(&owner, "transient") };
    invalid(world.backend.fail_execution(args).await, ValidationKind::InvalidPolicyJson);
    let answer = world.backend.fail_execution(failure(&owner, "transient")).await;
    state(answer, StateKind::LeaseRevoked);
}

async fn an_unreadable_policy_counts_as_none(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        world.damage(Damage::Definition(owner.id)).await;
        let outcome = fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
        assert_eq!(outcome, FailOutcome::TerminalFailed);
    }
}

async fn a_final_failure_keeps_its_reason_and_category(world: World) {
    let owner = own(&world).await;
    let reason = FailureReason { message: "no disk".to_owned(), detail: Some(Blob::from(vec![0xff, 0, 1])) };
    world.backend.fail(&owner.handle, reason, FailureClass::InfraCrash).await.unwrap();
    assert_eq!(field(&world, owner.id, "failure_reason").await.as_deref(), Some("no disk"));
    assert_eq!(field(&world, owner.id, "failure_category").await.as_deref(), Some("infra_crash"));

    let owner = own(&world).await;
    world.backend.fail_execution(failure(&owner, "rate_limited")).await.unwrap();
    assert_eq!(field(&world, owner.id, "failure_reason").await.as_deref(), Some("broken"));
    assert_eq!(field(&world, owner.id, "failure_category").await.as_deref(), Some("rate_limited"));
}

async fn a_failure_closes_the_stream(world: World) {
    for form in FORMS {
        for policy in [retrying(0), retrying(1)] {
            let owner = own_with(&world, &policy).await;
            fail(&world, form, &owner, FailureClass::Transient).await.unwrap();
            assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::AttemptFailure));
        }
    }
}

fn released(owner: &super::owner::Owner, reason: ReleaseReason) -> LeaseChange {
    LeaseChange::Released { lease_id: owner.lease_id(), lease_epoch: owner.epoch(), reason }
}

async fn a_retried_failure_is_no_end(world: World) {
    for form in FORMS {
        let owner = own_with(&world, &retrying(3)).await;
        let watched = watch(&world).await;

        fail(&world, form, &owner, FailureClass::Transient).await.unwrap();

        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, []);
        assert_eq!(seen.leases, [(owner.id, released(&owner, ReleaseReason::FailedRetryScheduled))]);
    }
}

async fn a_final_failure_tells_its_watchers_once(world: World) {
    for form in FORMS {
        let owner = own(&world).await;
        let watched = watch(&world).await;

        fail(&world, form, &owner, FailureClass::Transient).await.unwrap();

        let seen = watched.seen(&world).await;
        assert_eq!(seen.ends, [(owner.id, CompletionOutcome::Failed)]);
        assert_eq!(seen.leases, [(owner.id, released(&owner, ReleaseReason::FailedTerminal))]);
    }
}

async fn a_failure_detail_over_the_limit_is_refused(world: World) {
    let owner = own(&world).await;
    let over = |bytes| FailureReason { message: "big".to_owned(), detail: Some(Blob::from(vec![0; bytes])) };
    let answer = world.backend.fail(&owner.handle, over((1 << 20) + 1), FailureClass::Transient).await;
    invalid(answer, ValidationKind::PayloadTooLarge);
    assert_eq!(world.state(owner.id).await, PublicState::Active);
    world.backend.fail(&owner.handle, over(1 << 20), FailureClass::Transient).await.unwrap();
}

async fn long_or_unprintable_failure_words_are_refused(world: World) {
    let owner = own(&world).await;
    for bad in ["x".repeat(257), "bell\u{7}".to_owned()] {
        let answer = world.backend.fail(&owner.handle, FailureReason::new(bad.clone()), FailureClass::Transient).await;
        invalid(answer, ValidationKind::InvalidInput);
        let args = FailExecutionArgs { failure_reason: bad.clone(), ..failure(&owner, "transient") };
        invalid(world.backend.fail_execution(args).await, ValidationKind::InvalidInput);
        invalid(world.backend.fail_execution(failure(&owner, &bad)).await, ValidationKind::InvalidInput);
    }
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

async fn a_retry_outlives_the_attempt_timeout_of_the_failed_attempt(world: World) {
    let owner = own_with(&world, &super::owner::timed(5_000, retrying(3))).await;
    fail(&world, Form::Handle, &owner, FailureClass::Transient).await.unwrap();

    world.pass(60_000).await;

    assert_eq!(world.state(owner.id).await, PublicState::Waiting);
    assert_eq!(field(&world, owner.id, "retry_count").await.as_deref(), Some("1"));
}
