//! Numbers that are out of range.

use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::ValidationKind;
use serde_json::json;

use super::{code, picture};
use crate::cases;
use crate::expect::invalid;
use crate::stage::args;
use crate::world::World;

cases!["hostile::numbers":
    leases_and_grants_need_a_sensible_time_to_live,
    progress_is_a_percentage,
    sizes_are_limited,
    the_ends_of_time_are_survived,
    amounts_beyond_what_is_stored_are_refused,
];

const OUT_OF_RANGE: [u64; 2] = [0, u64::MAX];

async fn leases_and_grants_need_a_sensible_time_to_live(world: World) {
    let id = world.create().await;
    let before = picture(&world, id).await;
    let backend = &world.backend;
    for ttl in OUT_OF_RANGE {
        invalid(world.claim_as("worker-a", ttl).await, ValidationKind::InvalidInput);
        let grant = json!({"execution_id": id, "lane_id": "default", "worker_id": "w", "worker_instance_id": "w-1",
            "grant_ttl_ms": ttl});
        let hunt = json!({"lane_id": "default", "worker_id": "w", "worker_instance_id": "w-1", "grant_ttl_ms": ttl});
        let take = json!({"execution_id": id, "lane_id": "default", "lease_duration_ms": ttl});
        let told = [
            ("issue_claim_grant", code("issue_claim_grant", backend.issue_claim_grant(args(grant.clone())).await)),
            ("issue_reclaim_grant", code("issue_reclaim_grant", backend.issue_reclaim_grant(args(grant)).await)),
            ("claim_for_worker", code("claim_for_worker", backend.claim_for_worker(args(hunt)).await)),
            ("issue_grant_and_claim", code("issue_grant_and_claim", backend.issue_grant_and_claim(args(take)).await)),
        ];
        for (op, code) in told {
            assert_eq!(code, "invalid_input", "{op} with {ttl}");
        }
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn progress_is_a_percentage(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    for percent in [101, 255] {
        invalid(world.backend.progress(&handle, Some(percent), None).await, ValidationKind::InvalidInput);
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn sizes_are_limited(world: World) {
    let id = world.create().await;
    let before = picture(&world, id).await;
    let input_payload = vec![0; (1 << 20) + 1].into();
    let large = CreateExecutionArgs { input_payload, ..world.submission() };
    invalid(world.backend.create_execution(large).await, ValidationKind::PayloadTooLarge);
    assert_eq!(picture(&world, id).await, before);
    let handle = world.claim().await.expect("claimable");
    let result = vec![0; (1 << 20) + 1].into();
    invalid(world.backend.complete(&handle, Some(result)).await, ValidationKind::PayloadTooLarge);
    world.backend.complete(&handle, Some(vec![0; 1 << 20].into())).await.unwrap();
}

async fn the_ends_of_time_are_survived(world: World) {
    let far = CreateExecutionArgs {
        delay_until: Some(TimestampMs(i64::MIN)),
        execution_deadline_at: Some(TimestampMs(i64::MAX)),
        ..world.submission()
    };
    let id = world.submit(far).await;
    world.run_due().await;
    let handle = world.claim().await.expect("a delay in the past is none");
    // What a store cannot hold may be refused; it must not be mistaken for now.
    let parked = world.backend.delay(&handle, TimestampMs(i64::MAX)).await;
    world.run_due().await;
    assert!(world.claim().await.is_none(), "{parked:?}");
    assert!(!world.state(id).await.is_terminal());
}

async fn amounts_beyond_what_is_stored_are_refused(world: World) {
    let id = world.create().await;
    let budget_id = world.uuid();
    let budget = json!({"budget_id": budget_id, "namespace": "acme", "dimensions": ["tokens"],
        "hard_limits": [0], "soft_limits": [0]});
    world.backend.create_budget(args(budget)).await.unwrap();
    let budget_id = ff_core::ids::BudgetId::from_uuid(budget_id);
    let report = json!({"dimensions": ["tokens"], "deltas": [u64::MAX]});
    let told = code("report_usage_admin", world.backend.report_usage_admin(budget_id, args(report)).await);
    assert_eq!(told, "invalid_input");
    let spend = json!({"budget_id": budget_id, "execution_id": id, "deltas": {"tokens": u64::MAX}});
    assert_eq!(code("record_spend", world.backend.record_spend(args(spend)).await), "invalid_input");
    assert!(world.backend.get_budget_status(budget_id).await.unwrap().usage.values().all(|used| *used == 0));
    let handle = world.claim().await.expect("claimable");
    let answer = world.backend.create_waitpoint(&handle, "key", Duration::MAX).await;
    assert_eq!(code("create_waitpoint", answer), "invalid_input");
}
