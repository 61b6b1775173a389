//! Decisions of people, delivered without handling the token.

use std::time::Duration;

use ff_core::backend::signals::{
    DeliverApprovalSignalArgs, DeliverSignalArgs, DeliverSignalResult, RotateWaitpointHmacSecretAllArgs,
    SIGNAL_DEDUP_TTL_MS, SignalEffect,
};
use ff_core::backend::suspension::{CountKind, ResumeCondition, ResumePolicy, SuspendArgs};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, LaneId, WaitpointId};
use ff_core::state::PublicState;

use crate::expect::{invalid, not_found, state};
use crate::suspension::fixtures::*;
use crate::{Damage, World, cases};

cases!["signals":
    an_approval_resumes_without_a_token,
    an_approval_is_refused_in_order,
    an_approval_counts_by_its_approver,
    a_repeated_approval_is_a_duplicate,
    a_key_of_a_sender_never_passes_for_an_approval,
    an_approval_is_buffered_for_a_pending_waitpoint,
    an_approval_tells_what_it_did,
    an_approval_for_a_closed_waitpoint_is_refused,
    an_approval_counts_towards_the_limit,
    an_approval_waits_as_long_as_the_resume_policy_says,
    an_approval_of_a_waitpoint_whose_secret_is_gone_is_refused,
    an_approval_for_a_damaged_waitpoint_is_corruption,
];

fn approval(world: &World, id: ExecutionId, waitpoint: WaitpointId, by: &str) -> DeliverApprovalSignalArgs {
    DeliverApprovalSignalArgs {
        execution_id: id,
        lane_id: world.lane(),
        waitpoint_id: waitpoint,
        signal_name: "approved".into(),
        approver: by.into(),
        idempotency_suffix: String::new(),
        signal_dedup_ttl_ms: SIGNAL_DEDUP_TTL_MS,
        maxlen: None,
        max_signals_per_execution: None,
    }
}

fn of(world: &World, parked: &Parked, by: &str) -> DeliverApprovalSignalArgs {
    approval(world, parked.id, parked.details.waitpoint_id, by)
}

async fn approve(world: &World, args: DeliverApprovalSignalArgs) -> SignalEffect {
    match world.backend.deliver_approval_signal(args).await.unwrap() {
        DeliverSignalResult::Accepted { effect, .. } => effect,
        other @ DeliverSignalResult::Duplicate { .. } => panic!("expected a new signal, got {other:?}"),
    }
}

async fn an_approval_resumes_without_a_token(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    assert_eq!(approve(&world, of(&world, &parked, "ann")).await, SignalEffect::ResumeConditionSatisfied);
    assert_eq!(world.state(parked.id).await, PublicState::Waiting);
    let seen = world.backend.observe_signals(&parked.handle).await.unwrap();
    let [signal] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((signal.signal_category.as_str(), signal.source_type.as_str()), ("approval", "operator"));
    assert_eq!((signal.source_identity.as_str(), &signal.payload), ("ann", &None));
}

async fn an_approval_is_refused_in_order(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    let (other, _) = world.claim_one().await;
    let good = of(&world, &parked, "ann");
    let bad = DeliverApprovalSignalArgs {
        execution_id: world.execution_id(),
        lane_id: LaneId::new("elsewhere").unwrap(),
        waitpoint_id: WaitpointId::from_uuid(world.uuid()),
        signal_name: String::new(),
        ..good.clone()
    };
    let send = async |args| world.backend.deliver_approval_signal(args).await;
    not_found(send(bad.clone()).await, Entity::Execution);
    let bad = DeliverApprovalSignalArgs { execution_id: parked.id, ..bad };
    let detail = invalid(send(bad.clone()).await, ValidationKind::InvalidInput);
    assert!(detail.starts_with("lane_mismatch"), "{detail}");
    let bad = DeliverApprovalSignalArgs { lane_id: world.lane(), ..bad };
    not_found(send(bad.clone()).await, Entity::Waitpoint);
    not_found(send(DeliverApprovalSignalArgs { execution_id: other, ..good.clone() }).await, Entity::Waitpoint);
    let bad = DeliverApprovalSignalArgs { waitpoint_id: good.waitpoint_id, ..bad };
    invalid(send(bad).await, ValidationKind::InvalidInput);
    let long = DeliverApprovalSignalArgs { approver: "x".repeat(257), ..good };
    invalid(send(long).await, ValidationKind::InvalidInput);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
}

async fn an_approval_counts_by_its_approver(world: World) {
    let parked = parked_on(&world, &["a"], count(2, CountKind::DistinctSources, &["a"])).await;
    assert_eq!(approve(&world, of(&world, &parked, "ann")).await, SignalEffect::AppendedToWaitpoint);
    let twice = DeliverApprovalSignalArgs { idempotency_suffix: "2".into(), ..of(&world, &parked, "ann") };
    assert_eq!(approve(&world, twice).await, SignalEffect::AppendedToWaitpointDuplicate);
    assert_eq!(approve(&world, of(&world, &parked, "bob")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn a_repeated_approval_is_a_duplicate(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    let args = of(&world, &parked, "ann");
    let first = world.backend.deliver_approval_signal(args.clone()).await.unwrap();
    let DeliverSignalResult::Accepted { signal_id, .. } = first else { panic!("{first:?}") };
    let again = world.backend.deliver_approval_signal(args.clone()).await.unwrap();
    assert_eq!(again, DeliverSignalResult::Duplicate { existing_signal_id: signal_id });
    let forgetful = DeliverApprovalSignalArgs { signal_dedup_ttl_ms: 0, ..args.clone() };
    state(world.backend.deliver_approval_signal(forgetful).await, StateKind::WaitpointClosed);
    let other = DeliverApprovalSignalArgs { approver: "bob".into(), ..args };
    state(world.backend.deliver_approval_signal(other).await, StateKind::WaitpointClosed);
}

async fn a_key_of_a_sender_never_passes_for_an_approval(world: World) {
    let parked = parked_on(&world, &["a"], count(2, CountKind::DistinctSources, &["a"])).await;
    let vote = of(&world, &parked, "ann");
    for forged in [vote.dedup_key().unwrap(), "approval:approved:".to_owned(), "approval:approved:ann".to_owned()] {
        let args = DeliverSignalArgs { idempotency_key: Some(forged), ..parked.signal("noise") };
        deliver(&world, args).await;
    }
    assert_eq!(approve(&world, vote).await, SignalEffect::ResumeConditionSatisfied);
}

async fn an_approval_is_buffered_for_a_pending_waitpoint(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(10)).await.unwrap();
    let args = approval(&world, id, waitpoint.waitpoint_id, "ann");
    assert_eq!(approve(&world, args).await, SignalEffect::BufferedForPendingWaitpoint);
}

async fn an_approval_tells_what_it_did(world: World) {
    let rejected = |args| DeliverApprovalSignalArgs { signal_name: "rejected".into(), ..args };
    let single_one = parked_on(&world, &["a"], single("a", "approved")).await;
    assert_eq!(approve(&world, rejected(of(&world, &single_one, "ann"))).await, SignalEffect::NoOp);
    let composite = parked_on(&world, &["a"], all([single("a", "approved")])).await;
    let effect = approve(&world, rejected(of(&world, &composite, "ann"))).await;
    assert_eq!(effect, SignalEffect::SignalIgnoredMatcherFailed);
    let elsewhere = parked_on(&world, &["a"], all([any("b"), ResumeCondition::OperatorOnly {}])).await;
    assert_eq!(approve(&world, of(&world, &elsewhere, "ann")).await, SignalEffect::SignalIgnoredNotInCondition);
}

async fn an_approval_for_a_closed_waitpoint_is_refused(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    world.backend.close_waitpoint(parked.id, parked.details.waitpoint_id, world.now()).await.unwrap();
    state(world.backend.deliver_approval_signal(of(&world, &parked, "ann")).await, StateKind::WaitpointClosed);
    let cancel = ff_core::backend::attempts::CancelExecutionArgs {
        execution_id: parked.id,
        reason: String::new(),
        source: ff_core::rules::fence::CancelSource::OperatorOverride,
        fence: ff_core::ids::FenceTriple::NONE,
    };
    world.backend.cancel_execution(cancel).await.unwrap();
    state(world.backend.deliver_approval_signal(of(&world, &parked, "ann")).await, StateKind::TargetNotSignalable);
}

async fn an_approval_counts_towards_the_limit(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    deliver(&world, parked.signal("noise")).await;
    let args = DeliverApprovalSignalArgs { max_signals_per_execution: Some(1), ..of(&world, &parked, "ann") };
    invalid(world.backend.deliver_approval_signal(args).await, ValidationKind::SignalLimitExceeded);
}

async fn an_approval_waits_as_long_as_the_resume_policy_says(world: World) {
    let resume_policy = ResumePolicy { resume_delay_ms: Some(1000) };
    let args = asking(&world, vec![fresh(&world, "a")], single("a", "approved"));
    let parked = parked(&world, SuspendArgs { resume_policy, ..args }).await;
    approve(&world, of(&world, &parked, "ann")).await;
    assert_eq!(world.state(parked.id).await, PublicState::Delayed);
}

async fn an_approval_of_a_waitpoint_whose_secret_is_gone_is_refused(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    let rotate =
        RotateWaitpointHmacSecretAllArgs { new_kid: "k2".into(), new_secret_hex: OTHER_SECRET.into(), grace_ms: 10 };
    world.backend.rotate_waitpoint_hmac_secret_all(rotate).await.unwrap();
    world.advance(11);
    let refused = world.backend.deliver_approval_signal(of(&world, &parked, "ann")).await;
    assert_eq!(invalid(refused, ValidationKind::InvalidToken), "token_expired");
}

async fn an_approval_for_a_damaged_waitpoint_is_corruption(world: World) {
    let parked = parked_on(&world, &["a"], single("a", "approved")).await;
    world.damage(Damage::Waitpoint(parked.id, parked.details.waitpoint_id)).await;
    invalid(world.backend.deliver_approval_signal(of(&world, &parked, "ann")).await, ValidationKind::Corruption);
}
