//! Ids of partitions that do not exist, half fences, and records that do not belong together.

use ff_core::backend::leases::ExpirePhase;
use ff_core::backend::suspension::{ResumeCondition, SuspendArgs, SuspensionReasonCode, WaitpointBinding};
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, FenceTriple, LeaseEpoch, SuspensionId, WaitpointId};
use serde_json::json;

use super::{code, picture};
use crate::cases;
use crate::expect::invalid;
use crate::stage::args;
use crate::world::World;

cases!["hostile::ids":
    an_id_of_a_partition_that_does_not_exist_is_refused,
    half_a_fence_is_refused,
    a_fence_of_zeroes_proves_nothing,
    unreadable_ids_do_not_parse,
];

async fn an_id_of_a_partition_that_does_not_exist_is_refused(world: World) {
    let here = world.create().await;
    let before = picture(&world, here).await;
    let backend = &world.backend;
    let now = world.now();
    for index in [256, u16::MAX] {
        let id = ExecutionId::new(index, world.uuid());
        let (worker, lane) = ("worker-a", "default");
        let create = json!({"execution_id": id, "namespace": "acme", "lane_id": lane, "execution_kind": "task"});
        let priority = json!({"execution_id": id, "new_priority": 1});
        let by_id = json!({"execution_id": id});
        let by_reason = json!({"execution_id": id, "reason": "no"});
        let done = json!({"execution_id": id, "attempt_index": 0});
        let grant = json!({"execution_id": id, "lane_id": lane, "worker_id": worker, "worker_instance_id": "w-1",
            "grant_ttl_ms": 1000});
        let take = json!({"execution_id": id, "lane_id": lane, "lease_duration_ms": 1000});
        let claim = json!({"execution_id": id, "lane_id": lane, "worker_id": worker, "worker_instance_id": "w-1",
            "lease_id": world.uuid(), "lease_ttl_ms": 1000, "attempt_id": world.uuid(), "expected_attempt_index": 0});
        let told = [
            ("create_execution", code("create_execution", backend.create_execution(args(create)).await)),
            ("change_priority", code("change_priority", backend.change_priority(args(priority)).await)),
            ("replay_execution", code("replay_execution", backend.replay_execution(args(by_id)).await)),
            ("cancel_execution", code("cancel_execution", backend.cancel_execution(args(by_reason.clone())).await)),
            ("revoke_lease", code("revoke_lease", backend.revoke_lease(args(by_reason)).await)),
            ("complete_execution", code("complete_execution", backend.complete_execution(args(done)).await)),
            ("issue_claim_grant", code("issue_claim_grant", backend.issue_claim_grant(args(grant.clone())).await)),
            ("issue_reclaim_grant", code("issue_reclaim_grant", backend.issue_reclaim_grant(args(grant)).await)),
            ("issue_grant_and_claim", code("issue_grant_and_claim", backend.issue_grant_and_claim(args(take)).await)),
            ("claim_execution", code("claim_execution", backend.claim_execution(args(claim)).await)),
            ("set_execution_tag", code("set_execution_tag", backend.set_execution_tag(id, "app.team", "x").await)),
            ("promote_delayed", code("promote_delayed", backend.promote_delayed(id, now).await)),
            ("mark_lease_expired", code("mark_lease_expired", backend.mark_lease_expired_if_due(id).await)),
            (
                "expire_execution",
                code("expire_execution", backend.expire_execution(id, ExpirePhase::ExecutionDeadline, now).await),
            ),
            ("expire_suspension", code("expire_suspension", backend.expire_suspension(id, now).await)),
            (
                "unblock_execution",
                code("unblock_execution", backend.unblock_execution(id, "waiting_for_budget", now).await),
            ),
        ];
        for (op, code) in told {
            assert_eq!(code, "invalid_input", "{op} of {id}");
        }
    }
    assert_eq!(picture(&world, here).await, before);
}

async fn half_a_fence_is_refused(world: World) {
    let (id, _) = world.claim_one().await;
    let before = picture(&world, id).await;
    let lease = before.described.as_ref().and_then(|it| it.current_lease.clone()).expect("a lease");
    let attempt = before.described.as_ref().and_then(|it| it.current_attempt).expect("an attempt");
    let whole = FenceTriple {
        lease_id: Some(lease.lease_id),
        lease_epoch: Some(lease.lease_epoch),
        attempt_id: Some(attempt.attempt_id),
    };
    let halves = [
        FenceTriple { lease_id: None, ..whole },
        FenceTriple { lease_epoch: None, ..whole },
        FenceTriple { attempt_id: None, ..whole },
        FenceTriple { lease_id: whole.lease_id, ..FenceTriple::NONE },
        FenceTriple { attempt_id: whole.attempt_id, ..FenceTriple::NONE },
    ];
    for fence in halves {
        for source in ["operator_override", "lease_holder"] {
            let done = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "source": source});
            let told = invalid(world.backend.complete_execution(args(done)).await, ValidationKind::InvalidInput);
            assert_eq!(told, "partial_fence_triple");
            let failed = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "source": source,
                "failure_reason": "no", "failure_category": "test"});
            let told = invalid(world.backend.fail_execution(args(failed)).await, ValidationKind::InvalidInput);
            assert_eq!(told, "partial_fence_triple");
        }
        let renew = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "lease_ttl_ms": 1000});
        let told = invalid(world.backend.renew_lease(args(renew)).await, ValidationKind::InvalidInput);
        assert_eq!(told, "partial_fence_triple");
        let told =
            invalid(world.backend.suspend_by_triple(id, fence, pause(&world)).await, ValidationKind::InvalidInput);
        assert_eq!(told, "partial_fence_triple");
    }
    for (op, told) in [
        ("renew_lease", {
            let renew = json!({"execution_id": id, "attempt_index": 0, "lease_ttl_ms": 1000});
            invalid(world.backend.renew_lease(args(renew)).await, ValidationKind::InvalidInput)
        }),
        ("suspend_by_triple", {
            let suspended = world.backend.suspend_by_triple(id, FenceTriple::NONE, pause(&world)).await;
            invalid(suspended, ValidationKind::InvalidInput)
        }),
        ("complete_execution", {
            let done = json!({"execution_id": id, "attempt_index": 0, "source": "lease_holder"});
            invalid(world.backend.complete_execution(args(done)).await, ValidationKind::InvalidInput)
        }),
    ] {
        assert_eq!(told, "fence_required", "{op}");
    }
    assert_eq!(picture(&world, id).await, before);
}

fn pause(world: &World) -> SuspendArgs {
    SuspendArgs::new(
        SuspensionId::from_uuid(world.uuid()),
        WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid())),
        ResumeCondition::OperatorOnly {},
        SuspensionReasonCode::ManualPause,
    )
}

async fn a_fence_of_zeroes_proves_nothing(world: World) {
    let (id, _) = world.claim_one().await;
    let before = picture(&world, id).await;
    let nil = "00000000-0000-0000-0000-000000000000";
    let fence = json!({"lease_id": nil, "lease_epoch": LeaseEpoch(0), "attempt_id": nil});
    let done = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "source": "lease_holder"});
    assert_eq!(code("complete", world.backend.complete_execution(args(done)).await), "stale_lease");
    let renew = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "lease_ttl_ms": 1000});
    assert_eq!(code("renew", world.backend.renew_lease(args(renew)).await), "stale_lease");
    let failed = json!({"execution_id": id, "attempt_index": 0, "fence": fence, "source": "lease_holder",
        "failure_reason": "no", "failure_category": "test"});
    assert_eq!(code("fail", world.backend.fail_execution(args(failed)).await), "stale_lease");
    assert_eq!(picture(&world, id).await, before);
}

async fn unreadable_ids_do_not_parse(_world: World) {
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let texts = [
        String::new(),
        uuid.to_owned(),
        format!("{{fp:1}}{uuid}"),
        format!("{{fp:-1}}:{uuid}"),
        format!("{{fp:65536}}:{uuid}"),
        format!("{{fp:+1}}:{uuid}"),
        format!("{{b:1}}:{uuid}"),
        "{fp:1}:nonsense".to_owned(),
        format!("{{fp: 1}}:{uuid}"),
    ];
    for text in texts {
        assert!(text.parse::<ExecutionId>().is_err(), "{text:?}");
        assert!(serde_json::from_value::<ExecutionId>(json!(text)).is_err(), "{text:?}");
    }
}
