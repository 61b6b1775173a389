//! Why nothing happens.

use ff_core::backend::claims::{BlockExecutionForAdmissionArgs, IssueClaimGrantArgs};
use ff_core::backend::dependencies::EdgeDependencyPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, SetLaneStateArgs};
use ff_core::backend::inspection::Reason;
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::backend::suspension::SuspensionReasonCode;
use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::ids::{BudgetId, ExecutionId, QuotaPolicyId};
use ff_core::policy::{ExecutionPolicy, PolicyDocument, RoutingRequirements};
use ff_core::state::{BlockingReason, LaneState, PublicState, TerminalOutcome};
use serde_json::json;

use crate::cases;
use crate::stage::{args, chain, register, registration, suspend};
use crate::world::{LEASE_MS, World, worker};

cases!["inspection::explain":
    a_ready_execution_with_a_live_worker_is_claimable,
    a_ready_execution_without_workers_lacks_one,
    a_requirement_that_nobody_meets_is_named,
    a_kind_that_nobody_handles_is_named,
    a_delay_tells_when_it_ends,
    a_member_tells_for_whom_it_waits,
    an_exhausted_budget_is_named,
    a_full_window_tells_when_there_is_room,
    a_full_quota_tells_how_many_run,
    a_paused_lane_is_told,
    a_hold_tells_who_holds,
    a_suspension_tells_what_it_waits_for,
    an_owner_is_named,
    a_lost_lease_tells_when_it_can_be_taken_over,
    a_lost_lease_tells_for_whom_it_is_reserved,
    a_revoked_lease_needs_a_grant,
    a_reservation_is_told,
    a_cancelled_flow_is_told,
    an_end_is_told,
];

async fn reasons(world: &World, id: ExecutionId) -> Vec<Reason> {
    let explanation = world.backend.explain(id).await.unwrap().expect("explained");
    assert_eq!(explanation.execution_id, id);
    assert_eq!(explanation.public_state, world.state(id).await);
    assert!(!explanation.reasons.is_empty());
    explanation.reasons
}

async fn a_ready_execution_with_a_live_worker_is_claimable(world: World) {
    let id = world.create().await;
    register(&world, "worker-a", &[]).await;
    assert_eq!(reasons(&world, id).await, [Reason::Claimable]);
}

async fn a_ready_execution_without_workers_lacks_one(world: World) {
    let id = world.create().await;
    let lacking = [Reason::NoLiveWorkerCovers { required: [].into(), missing_capabilities: [].into() }];
    assert_eq!(reasons(&world, id).await, lacking);
    register(&world, "worker-a", &[]).await;
    world.advance(60_000);
    assert_eq!(reasons(&world, id).await, lacking, "a lapsed worker does not count");
}

async fn a_requirement_that_nobody_meets_is_named(world: World) {
    let required_capabilities = ["gpu", "cuda"].map(str::to_owned).into();
    let policy = ExecutionPolicy {
        routing_requirements: Some(RoutingRequirements { required_capabilities }),
        ..ExecutionPolicy::default()
    };
    let id = world.create_with(&policy).await;
    let lacking = |missing: &[&str]| Reason::NoLiveWorkerCovers {
        required: ["cuda", "gpu"].map(str::to_owned).into(),
        missing_capabilities: missing.iter().map(|token| (*token).to_owned()).collect(),
    };
    assert_eq!(reasons(&world, id).await, [lacking(&["cuda", "gpu"])]);
    register(&world, "worker-a", &["gpu"]).await;
    assert_eq!(reasons(&world, id).await, [lacking(&["cuda"])]);
    register(&world, "worker-b", &["cuda"]).await;
    assert_eq!(reasons(&world, id).await, [lacking(&[])], "each lacks something else");
    register(&world, "worker-c", &["cuda", "gpu"]).await;
    assert_eq!(reasons(&world, id).await, [Reason::Claimable]);
}

async fn a_kind_that_nobody_handles_is_named(world: World) {
    let policy = ExecutionPolicy {
        routing_requirements: Some(RoutingRequirements { required_capabilities: ["gpu".to_owned()].into() }),
        ..ExecutionPolicy::default()
    };
    let id = world.create_with(&policy).await;
    let register = async |name, kind: &str, capabilities: &[&str]| {
        let kinds = Some([kind.to_owned()].into());
        let args = RegisterWorkerArgs { kinds, ..registration(&world, name, capabilities) };
        world.backend.register_worker(args).await.unwrap();
    };
    register("worker-a", "mail", &["gpu"]).await;
    assert_eq!(reasons(&world, id).await, [Reason::NoLiveWorkerHandles { kind: "task".into() }]);
    register("worker-b", "task", &["ssd"]).await;
    let (required, missing_capabilities) = (["gpu".to_owned()].into(), ["gpu".to_owned()].into());
    let lacking = [Reason::NoLiveWorkerCovers { required, missing_capabilities }];
    assert_eq!(reasons(&world, id).await, lacking, "who has it does not handle the kind");
    register("worker-c", "task", &["gpu"]).await;
    assert_eq!(reasons(&world, id).await, [Reason::Claimable]);
}

async fn a_delay_tells_when_it_ends(world: World) {
    let at = world.now().plus(5000);
    let id = world.submit(CreateExecutionArgs { delay_until: Some(at), ..world.submission() }).await;
    let delayed = Reason::DelayedUntil { at, blocking_reason: BlockingReason::WaitingForDelay };
    assert_eq!(reasons(&world, id).await, [delayed]);
}

async fn a_member_tells_for_whom_it_waits(world: World) {
    let (_, members) = chain(&world, 2).await;
    let told = reasons(&world, members[1]).await;
    let [group, waits] = &told[..] else { panic!("a group and an upstream expected, got {told:?}") };
    let policy = EdgeDependencyPolicy::AllOf {};
    assert_eq!(*group, Reason::Group { policy, needed: 1, satisfied: 0, impossible: 0, outstanding: 1 });
    match waits {
        Reason::DependencyWaits { upstream_execution_id, upstream_state: PublicState::Waiting, .. } => {
            assert_eq!(*upstream_execution_id, members[0]);
        }
        other => panic!("expected the upstream, got {other:?}"),
    }
}

fn attached(budget: Option<BudgetId>, quota: Option<QuotaPolicyId>) -> ExecutionPolicy {
    ExecutionPolicy {
        budget_ids: budget.into_iter().collect(),
        quota_policy_ids: quota.into_iter().collect(),
        ..ExecutionPolicy::default()
    }
}

async fn an_exhausted_budget_is_named(world: World) {
    let budget_id = BudgetId::from_uuid(world.uuid());
    let create = json!({"budget_id": budget_id, "namespace": "acme", "dimensions": ["tokens"],
        "hard_limits": [10], "soft_limits": [0], "reset_interval_ms": 60_000});
    world.backend.create_budget(args(create)).await.unwrap();
    let report = json!({"dimensions": ["tokens"], "deltas": [10]});
    world.backend.report_usage_admin(budget_id, args(report)).await.unwrap();
    register(&world, "worker-a", &[]).await;
    let id = world.create_with(&attached(Some(budget_id), None)).await;
    let exhausted = Reason::BudgetExhausted {
        budget_id,
        dimension: "tokens".into(),
        usage: 10,
        limit: 10,
        next_reset_at: Some(world.now().plus(60_000)),
    };
    let told = reasons(&world, id).await;
    assert_eq!(told, [exhausted]);
    assert!(world.claim().await.is_none());
    assert_eq!(world.state(id).await, PublicState::RateLimited);
    assert_eq!(reasons(&world, id).await, told, "parking does not change the reason");
}

async fn quota(world: &World, window: u64, rate: u64, cap: u64) -> QuotaPolicyId {
    let quota_policy_id = QuotaPolicyId::from_uuid(world.uuid());
    let create = json!({"quota_policy_id": quota_policy_id, "namespace": "acme", "window_seconds": window,
        "max_requests_per_window": rate, "max_concurrent": cap});
    world.backend.create_quota_policy(args(create)).await.unwrap();
    quota_policy_id
}

async fn a_full_window_tells_when_there_is_room(world: World) {
    let quota_policy_id = quota(&world, 60, 1, 0).await;
    register(&world, "worker-a", &[]).await;
    let policy = attached(None, Some(quota_policy_id));
    let frees_at = world.now().plus(60_000);
    world.claim_one_with(&policy).await;
    world.advance(1000);
    let id = world.create_with(&policy).await;
    assert_eq!(reasons(&world, id).await, [Reason::QuotaRate { quota_policy_id, frees_at }]);
    assert!(world.claim().await.is_none());
    assert_eq!(reasons(&world, id).await, [Reason::QuotaRate { quota_policy_id, frees_at }]);
}

async fn a_full_quota_tells_how_many_run(world: World) {
    let quota_policy_id = quota(&world, 0, 0, 1).await;
    register(&world, "worker-a", &[]).await;
    let policy = attached(None, Some(quota_policy_id));
    world.claim_one_with(&policy).await;
    let id = world.create_with(&policy).await;
    let full = Reason::QuotaConcurrency { quota_policy_id, holders: 1, cap: 1 };
    let told = reasons(&world, id).await;
    assert_eq!(told, [full]);
    assert!(world.claim().await.is_none());
    assert_eq!(reasons(&world, id).await, told);
}

async fn a_paused_lane_is_told(world: World) {
    let id = world.create().await;
    register(&world, "worker-a", &[]).await;
    let pause: SetLaneStateArgs = args(json!({"namespace": "acme", "lane_id": "default", "state": "paused"}));
    world.backend.set_lane_state(pause).await.unwrap();
    assert_eq!(reasons(&world, id).await, [Reason::LanePaused { state: LaneState::Paused }]);
}

async fn a_hold_tells_who_holds(world: World) {
    for (reason, expected) in [
        ("paused_by_operator", Reason::HeldByOperator),
        ("paused_by_policy", Reason::HeldByPolicy),
        ("waiting_for_budget", Reason::HeldByPolicy),
    ] {
        let id = world.create().await;
        let block = BlockExecutionForAdmissionArgs {
            execution_id: id,
            lane_id: world.lane(),
            reason: reason.into(),
            reason_detail: None,
        };
        world.backend.block_execution_for_admission(block).await.unwrap();
        assert_eq!(reasons(&world, id).await, [expected]);
    }
}

async fn a_suspension_tells_what_it_waits_for(world: World) {
    let (id, handle) = world.claim_one().await;
    let suspension_id = suspend(&world, &handle).await.details().suspension_id;
    let expected = Reason::Suspended {
        suspension_id,
        waiting_for: SuspensionReasonCode::WaitingForSignal,
        timeout_at: None,
        open_waitpoints: 1,
    };
    assert_eq!(reasons(&world, id).await, [expected]);
}

async fn an_owner_is_named(world: World) {
    let (id, _) = world.claim_one().await;
    let lease_expires_at = world.now().plus(LEASE_MS);
    let running = Reason::Running { worker_instance_id: worker("worker-a").1, lease_expires_at };
    assert_eq!(reasons(&world, id).await, [running]);
}

async fn a_lost_lease_tells_when_it_can_be_taken_over(world: World) {
    register(&world, "worker-a", &[]).await;
    let (id, _) = world.claim_one().await;
    world.advance(LEASE_MS);
    let unmarked = Reason::LeaseLost { revoked: false, reclaimable_at: None };
    assert_eq!(reasons(&world, id).await, [unmarked]);
    world.run_due().await;
    let lost = Reason::LeaseLost { revoked: false, reclaimable_at: Some(world.now()) };
    assert_eq!(reasons(&world, id).await, [lost]);
}

async fn a_lost_lease_tells_for_whom_it_is_reserved(world: World) {
    let (id, _) = world.claim_one().await;
    register(&world, "worker-a", &[]).await;
    world.pass(LEASE_MS).await;
    let (worker_id, worker_instance_id) = worker("worker-b");
    let grant = json!({"execution_id": id, "worker_id": worker_id, "worker_instance_id": worker_instance_id,
        "lane_id": world.lane(), "grant_ttl_ms": 5000, "worker_capabilities": []});
    world.backend.issue_reclaim_grant(args(grant)).await.unwrap();
    let lost = Reason::LeaseLost { revoked: false, reclaimable_at: Some(world.now()) };
    let reserved = Reason::Reserved { worker_id, until: world.now().plus(5000) };
    assert_eq!(reasons(&world, id).await, [lost, reserved]);
}

async fn a_revoked_lease_needs_a_grant(world: World) {
    let (id, _) = world.claim_one().await;
    let revoke: RevokeLeaseArgs = args(json!({"execution_id": id, "reason": "test"}));
    world.backend.revoke_lease(revoke).await.unwrap();
    assert_eq!(reasons(&world, id).await, [Reason::LeaseLost { revoked: true, reclaimable_at: None }]);
}

async fn a_reservation_is_told(world: World) {
    let id = world.create().await;
    register(&world, "worker-a", &[]).await;
    let (worker_id, worker_instance_id) = worker("worker-a");
    let grant = IssueClaimGrantArgs {
        execution_id: id,
        lane_id: world.lane(),
        worker_id: worker_id.clone(),
        worker_instance_id,
        worker_capabilities: [].into(),
        grant_ttl_ms: 5000,
    };
    world.backend.issue_claim_grant(grant).await.unwrap();
    let until = world.now().plus(5000);
    assert_eq!(reasons(&world, id).await, [Reason::Reserved { worker_id, until }]);
    world.advance(5000);
    assert_eq!(reasons(&world, id).await, [Reason::Claimable], "a lapsed grant reserves nothing");
}

async fn a_cancelled_flow_is_told(world: World) {
    let (flow_id, members) = chain(&world, 1).await;
    let _active = world.claim().await.expect("the member is claimable");
    let header = json!({"flow_id": flow_id, "reason": "enough", "cancellation_policy": "cancel_pending"});
    world.backend.cancel_flow_header(args(header)).await.unwrap();
    let told = reasons(&world, members[0]).await;
    assert_eq!(told[0], Reason::FlowCancelled { flow_id });
    assert!(matches!(told[1], Reason::Running { .. }), "{told:?}");
}

async fn an_end_is_told(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(reasons(&world, id).await, [Reason::Finished { outcome: TerminalOutcome::Success }]);
    let policy = Some(PolicyDocument::from(&ExecutionPolicy::default()));
    let cancelled = world.submit(CreateExecutionArgs { policy, ..world.submission() }).await;
    let cancel = json!({"execution_id": cancelled, "reason": "no", "source": "operator_override"});
    world.backend.cancel_execution(args(cancel)).await.unwrap();
    assert_eq!(reasons(&world, cancelled).await, [Reason::Finished { outcome: TerminalOutcome::Cancelled }]);
}
