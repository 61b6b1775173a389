//! What a submission becomes, and what is refused.

use ff_core::backend::budgets::CreateBudgetArgs;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionOutcome, CreateExecutionResult};
use ff_core::backend::inspection::{ExecutionInfo, LaneKey};
use ff_core::backend::quotas::CreateQuotaPolicyArgs;
use ff_core::capability::CapabilitySet;
use ff_core::error::ValidationKind;
use ff_core::ids::{BudgetId, ExecutionId, LaneId, Namespace, QuotaPolicyId};
use ff_core::partition::PartitionCounts;
use ff_core::policy::{ExecutionPolicy, PolicyDocument, TimeoutPolicy};
use ff_core::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState};
use ff_core::{Blob, TimestampMs};
use serde_json::json;

use crate::cases;
use crate::expect::invalid;
use crate::harness::Damage;
use crate::world::World;

cases!["ingress":
    a_new_execution_waits_for_a_worker,
    a_new_execution_keeps_its_input_byte_for_byte,
    a_submission_without_an_id_gets_one_from_the_engine,
    minted_ids_spread_over_partitions,
    a_start_in_the_future_delays,
    a_start_that_is_not_in_the_future_means_now,
    a_delayed_execution_is_not_claimable_before_its_time,
    a_damaged_execution_does_not_keep_others_from_waking,
    priority_is_clamped,
    a_deadline_in_the_past_is_accepted_and_expires,
    a_relative_deadline_counts_from_creation,
    an_absolute_deadline_overrides_the_relative_one,
    creation_registers_the_lane,
    an_id_outside_the_deployment_is_refused_first,
    a_malformed_policy_is_refused_before_its_capabilities,
    routing_requirements_that_are_no_object_are_a_malformed_policy,
    bad_required_capabilities_are_refused_before_tags,
    a_bad_tag_key_is_refused_before_the_payload,
    a_tag_value_is_bounded,
    free_strings_are_bounded,
    a_payload_over_the_limit_is_refused,
    a_payload_at_the_limit_is_accepted,
    budgets_and_quotas_that_do_not_exist_are_refused,
    budgets_and_quotas_of_another_tenant_look_absent,
    a_refused_submission_leaves_no_trace,
    a_batch_answers_each_submission_by_itself,
    an_empty_batch_has_no_answers,
];

async fn info(world: &World, id: ExecutionId) -> ExecutionInfo {
    world.backend.read_execution_info(id).await.unwrap().expect("the execution exists")
}

fn with_policy(world: &World, policy: serde_json::Value) -> CreateExecutionArgs {
    CreateExecutionArgs { policy: Some(PolicyDocument(policy)), ..world.submission() }
}

async fn a_new_execution_waits_for_a_worker(world: World) {
    let args = world.submission();
    let id = args.execution_id.unwrap();

    let answer = world.backend.create_execution(args).await.unwrap();

    assert_eq!(answer, CreateExecutionResult::Created { execution_id: id, public_state: PublicState::Waiting });
    let info = info(&world, id).await;
    let state = info.state_vector;
    assert_eq!(state.lifecycle_phase, LifecyclePhase::Runnable);
    assert_eq!(state.ownership_state, OwnershipState::Unowned);
    assert_eq!(state.eligibility_state, EligibilityState::EligibleNow);
    assert_eq!(state.blocking_reason, BlockingReason::WaitingForWorker);
    assert_eq!(state.attempt_state, AttemptState::PendingFirstAttempt);
    assert_eq!(info.public_state, PublicState::Waiting);
    assert_eq!((info.created_at, info.started_at, info.completed_at), (world.now(), None, None));
    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 0);
}

async fn a_new_execution_keeps_its_input_byte_for_byte(world: World) {
    let bytes: Vec<u8> = (0..=255).collect();
    let args = CreateExecutionArgs {
        input_payload: Blob::from(bytes.clone()),
        payload_encoding: Some("raw".to_owned()),
        tags: [("acme.run".to_owned(), "7".to_owned())].into(),
        ..world.submission()
    };
    let id = world.submit(args).await;

    let context = world.backend.read_execution_context(id).await.unwrap();

    assert_eq!(&*context.input_payload, bytes.as_slice());
    assert_eq!(context.payload_encoding.as_deref(), Some("raw"));
    assert_eq!(context.execution_kind, "task");
    assert_eq!(world.backend.get_execution_tag(id, "acme.run").await.unwrap().as_deref(), Some("7"));
}

async fn a_submission_without_an_id_gets_one_from_the_engine(world: World) {
    let args = CreateExecutionArgs { execution_id: None, ..world.submission() };
    let first = world.submit(args.clone()).await;
    let second = world.submit(args).await;
    assert_ne!(first, second);
    assert_eq!(world.state(first).await, PublicState::Waiting);
}

async fn minted_ids_spread_over_partitions(world: World) {
    let args = CreateExecutionArgs { execution_id: None, ..world.submission() };
    let counts = PartitionCounts::default();
    let mut partitions = std::collections::BTreeSet::new();
    // Those that come one after another may live together; in the long run they are everywhere.
    for created in world.backend.create_executions(vec![args.clone(); 2_000]).await.unwrap() {
        let CreateExecutionOutcome::Created { execution_id: id, .. } = created else { panic!("{created:?}") };
        assert_eq!(id.partition().index(), counts.solo_index(&world.namespace(), None, id.uuid()));
        partitions.insert(id.partition());
    }
    assert!(partitions.len() > 8, "{} partitions for 2,000 executions", partitions.len());

    let keyed = CreateExecutionArgs { idempotency_key: Some("order-7".to_owned()), ..args };
    let id = world.submit(keyed).await;
    let expected = counts.solo_index(&world.namespace(), Some("order-7"), id.uuid());
    assert_eq!(id.partition().index(), expected);
}

async fn a_start_in_the_future_delays(world: World) {
    let args = CreateExecutionArgs { delay_until: Some(world.now().plus(1)), ..world.submission() };
    let id = args.execution_id.unwrap();

    let answer = world.backend.create_execution(args).await.unwrap();

    assert_eq!(answer, CreateExecutionResult::Created { execution_id: id, public_state: PublicState::Delayed });
    let state = info(&world, id).await.state_vector;
    assert_eq!(state.eligibility_state, EligibilityState::NotEligibleUntilTime);
    assert_eq!(state.blocking_reason, BlockingReason::WaitingForDelay);
    assert_eq!(state.attempt_state, AttemptState::PendingFirstAttempt);
}

async fn a_start_that_is_not_in_the_future_means_now(world: World) {
    for until in [world.now(), TimestampMs(world.now().0 - 1), TimestampMs(0), TimestampMs(-5)] {
        let id = world.submit(CreateExecutionArgs { delay_until: Some(until), ..world.submission() }).await;
        assert_eq!(world.state(id).await, PublicState::Waiting);
        world.run_due().await;
        assert!(world.claim().await.is_some(), "an execution with a start at {until} is claimable");
        assert_eq!(world.state(id).await, PublicState::Active);
    }
}

async fn a_delayed_execution_is_not_claimable_before_its_time(world: World) {
    let args = CreateExecutionArgs { delay_until: Some(world.now().plus(1000)), ..world.submission() };
    let id = world.submit(args).await;

    assert!(world.claim().await.is_none());
    world.pass(999).await;
    assert!(world.claim().await.is_none());
    world.pass(1).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
    assert!(world.claim().await.is_some());
}

async fn priority_is_clamped(world: World) {
    for (given, stored) in [(-1, 0), (i32::MIN, 0), (0, 0), (9000, 9000), (9001, 9000), (i32::MAX, 9000)] {
        let id = world.submit(CreateExecutionArgs { priority: given, ..world.submission() }).await;
        assert_eq!(info(&world, id).await.priority, stored);
    }
}

async fn a_deadline_in_the_past_is_accepted_and_expires(world: World) {
    let args = CreateExecutionArgs { execution_deadline_at: Some(TimestampMs(1)), ..world.submission() };
    let id = world.submit(args).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
    world.run_due().await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

fn deadline_of(ms: u64) -> ExecutionPolicy {
    let timeouts = TimeoutPolicy { execution_deadline_ms: Some(ms), ..TimeoutPolicy::default() };
    ExecutionPolicy { timeout_policy: Some(timeouts), ..ExecutionPolicy::default() }
}

async fn a_relative_deadline_counts_from_creation(world: World) {
    let id = world.create_with(&deadline_of(500)).await;
    world.pass(499).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
    world.pass(1).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn an_absolute_deadline_overrides_the_relative_one(world: World) {
    let args = CreateExecutionArgs {
        policy: Some(PolicyDocument::from(deadline_of(500))),
        execution_deadline_at: Some(world.now().plus(5000)),
        ..world.submission()
    };
    let id = world.submit(args).await;
    world.pass(4999).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
    world.pass(1).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn creation_registers_the_lane(world: World) {
    let lane = LaneId::new("fresh").unwrap();
    assert_eq!(world.backend.describe_lane(&world.namespace(), &lane).await.unwrap(), None);

    world.submit(CreateExecutionArgs { lane_id: lane.clone(), ..world.submission() }).await;

    assert!(world.backend.describe_lane(&world.namespace(), &lane).await.unwrap().is_some());
    let lanes = world.backend.list_lanes(None::<LaneKey>, 10).await.unwrap().lanes;
    assert_eq!(lanes.iter().filter(|known| known.lane_id == lane).count(), 1);
}

async fn an_id_outside_the_deployment_is_refused_first(world: World) {
    let outside = ExecutionId::new(256, world.uuid());
    let args = CreateExecutionArgs { execution_id: Some(outside), ..with_policy(&world, json!(7)) };
    invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
}

async fn a_malformed_policy_is_refused_before_its_capabilities(world: World) {
    for policy in [json!(null), json!([]), json!("text"), json!({"fallback_policy": 1}), json!({"retry_policy": 1})] {
        let args = with_policy(&world, policy);
        invalid(world.backend.create_execution(args).await, ValidationKind::InvalidPolicyJson);
    }
    let both = json!({"retry_policy": 1, "routing_requirements": {"required_capabilities": "gpu"}});
    invalid(world.backend.create_execution(with_policy(&world, both)).await, ValidationKind::InvalidPolicyJson);
}

async fn routing_requirements_that_are_no_object_are_a_malformed_policy(world: World) {
    let args = with_policy(&world, json!({"routing_requirements": ["gpu"]}));
    invalid(world.backend.create_execution(args).await, ValidationKind::InvalidPolicyJson);
}

async fn bad_required_capabilities_are_refused_before_tags(world: World) {
    for (list, fault) in [
        (json!("gpu"), "required:not_array"),
        (json!([7]), "required:non_string_token"),
        (json!([""]), "required:empty_token"),
        (json!(["a,b"]), "required:comma_in_token"),
        (json!(["a b"]), "required:control_or_whitespace"),
    ] {
        let mut args = with_policy(&world, json!({"routing_requirements": {"required_capabilities": list}}));
        args.tags = [("plain".to_owned(), String::new())].into();
        let detail = invalid(world.backend.create_execution(args).await, ValidationKind::InvalidCapabilities);
        assert_eq!(detail, fault);
    }
    assert!(world.claim().await.is_none(), "nothing was admitted as work for any worker");
}

async fn a_bad_tag_key_is_refused_before_the_payload(world: World) {
    for key in ["plain", "Upper.case", "a.", ".a", "a..b", ""] {
        let args = CreateExecutionArgs {
            tags: [(key.to_owned(), "v".to_owned())].into(),
            input_payload: Blob::from(vec![0; (1 << 20) + 1]),
            ..world.submission()
        };
        assert_eq!(invalid(world.backend.create_execution(args).await, ValidationKind::InvalidTagKey), key);
    }
}

async fn a_tag_value_is_bounded(world: World) {
    let tagged = |value: String| CreateExecutionArgs { tags: [("a.b".to_owned(), value)].into(), ..world.submission() };
    invalid(world.backend.create_execution(tagged("v".repeat(4097))).await, ValidationKind::InvalidInput);
    world.submit(tagged("v".repeat(4096))).await;
}

async fn free_strings_are_bounded(world: World) {
    let plain = || world.submission();
    for args in [
        CreateExecutionArgs { execution_kind: "k".repeat(257), ..plain() },
        CreateExecutionArgs { execution_kind: "a\nb".to_owned(), ..plain() },
        CreateExecutionArgs { creator_identity: "c".repeat(257), ..plain() },
        CreateExecutionArgs { payload_encoding: Some("\u{0}".to_owned()), ..plain() },
        CreateExecutionArgs { idempotency_key: Some("i".repeat(257)), ..plain() },
    ] {
        invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
    }
}

async fn a_payload_over_the_limit_is_refused(world: World) {
    let args = CreateExecutionArgs { input_payload: Blob::from(vec![0; (1 << 20) + 1]), ..world.submission() };
    invalid(world.backend.create_execution(args).await, ValidationKind::PayloadTooLarge);
}

async fn a_payload_at_the_limit_is_accepted(world: World) {
    world.submit(CreateExecutionArgs { input_payload: Blob::from(vec![0; 1 << 20]), ..world.submission() }).await;
}

async fn budgets_and_quotas_that_do_not_exist_are_refused(world: World) {
    let budget = BudgetId::from_uuid(world.uuid());
    let args = with_policy(&world, json!({"budget_ids": [budget]}));
    let detail = invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
    assert!(detail.contains(&budget.to_string()), "{detail}");

    let quota = QuotaPolicyId::from_uuid(world.uuid());
    let args = with_policy(&world, json!({"quota_policy_ids": [quota]}));
    let detail = invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
    assert!(detail.contains(&quota.to_string()), "{detail}");
}

async fn budgets_and_quotas_of_another_tenant_look_absent(world: World) {
    let other = Namespace::new("other").unwrap();
    let budget = BudgetId::from_uuid(world.uuid());
    let args: CreateBudgetArgs = serde_json::from_value(json!({
        "budget_id": budget, "namespace": other, "dimensions": ["usd"], "hard_limits": [5], "soft_limits": [0],
    }))
    .unwrap();
    world.backend.create_budget(args).await.unwrap();
    let quota = QuotaPolicyId::from_uuid(world.uuid());
    let args: CreateQuotaPolicyArgs =
        serde_json::from_value(json!({"quota_policy_id": quota, "namespace": other, "max_concurrent": 1})).unwrap();
    world.backend.create_quota_policy(args).await.unwrap();

    for policy in [json!({"budget_ids": [budget]}), json!({"quota_policy_ids": [quota]})] {
        let args = with_policy(&world, policy.clone());
        invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
        let theirs = CreateExecutionArgs { namespace: other.clone(), ..with_policy(&world, policy) };
        world.submit(theirs).await;
    }
}

async fn a_refused_submission_leaves_no_trace(world: World) {
    let lane = LaneId::new("unused").unwrap();
    let args = CreateExecutionArgs {
        lane_id: lane.clone(),
        idempotency_key: Some("once".to_owned()),
        ..with_policy(&world, json!(7))
    };
    let id = args.execution_id.unwrap();
    invalid(world.backend.create_execution(args.clone()).await, ValidationKind::InvalidPolicyJson);

    assert_eq!(world.backend.read_execution_state(id).await.unwrap(), None);
    assert_eq!(world.backend.describe_lane(&world.namespace(), &lane).await.unwrap(), None);
    let (worker_id, instance) = world.worker();
    let policy = ff_core::backend::claims::ClaimPolicy::new(worker_id, instance, 1000);
    assert_eq!(world.backend.claim(&lane, &CapabilitySet::default(), policy).await.unwrap(), None);
    world.submit(CreateExecutionArgs { policy: None, ..args }).await;
}

async fn a_batch_answers_each_submission_by_itself(world: World) {
    let first = world.submission();
    let batch = vec![
        first.clone(),
        with_policy(&world, json!(7)),
        first.clone(),
        CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() },
    ];
    let id = first.execution_id.unwrap();

    let answers = world.backend.create_executions(batch).await.unwrap();

    assert_eq!(answers[0], CreateExecutionOutcome::Created { execution_id: id, public_state: PublicState::Waiting });
    assert!(
        matches!(&answers[1], CreateExecutionOutcome::Refused { error } if error.code == "invalid_policy_json"),
        "{:?}",
        answers[1]
    );
    assert_eq!(answers[2], CreateExecutionOutcome::Duplicate { execution_id: id });
    assert!(matches!(answers[3], CreateExecutionOutcome::Created { public_state: PublicState::Delayed, .. }));
    assert_eq!(answers.len(), 4);
}

async fn an_empty_batch_has_no_answers(world: World) {
    assert_eq!(world.backend.create_executions(Vec::new()).await.unwrap(), Vec::new());
}

async fn a_damaged_execution_does_not_keep_others_from_waking(world: World) {
    let delayed = |ms| CreateExecutionArgs { delay_until: Some(world.now().plus(ms)), ..world.submission() };
    let damaged = world.submit(delayed(10)).await;
    let sound = world.submit(delayed(20)).await;
    world.damage(Damage::Execution(damaged)).await;
    for _ in 0..5 {
        world.pass(10).await;
    }
    assert_eq!(world.state(sound).await, PublicState::Waiting);
}
