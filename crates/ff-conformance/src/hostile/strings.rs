//! Free strings that are too long or hold control characters.

use ff_core::backend::EngineBackend;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use serde_json::{Value, json};

use super::{code, picture};
use crate::cases;
use crate::stage::args;
use crate::world::World;

cases!["hostile::strings":
    free_strings_of_submissions_are_checked,
    reasons_and_labels_are_checked,
    free_strings_of_flows_are_checked,
    free_strings_of_signals_are_checked,
    free_strings_of_budgets_and_quotas_are_checked,
    names_are_checked_where_they_enter,
];

/// Over-long, with control characters, or both.
fn hostile() -> Vec<String> {
    vec!["x".repeat(257), "é".repeat(129), "a\nb".into(), "\0".into(), "tab\t".into(), "\u{7f}".into(), "\u{85}".into()]
}

/// An object with one field replaced.
fn with(mut object: Value, field: &str, text: &str) -> Value {
    object[field] = text.into();
    object
}

async fn free_strings_of_submissions_are_checked(world: World) {
    let id = world.create().await;
    let before = picture(&world, id).await;
    let good = json!({"namespace": "acme", "lane_id": "fresh-lane", "execution_kind": "task"});
    for text in hostile() {
        for field in ["execution_kind", "creator_identity", "payload_encoding", "idempotency_key"] {
            let answer = world.backend.create_execution(args(with(good.clone(), field, &text))).await;
            assert_eq!(code(field, answer), "invalid_input", "{field} {text:?}");
        }
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn refuse_reason(backend: &dyn EngineBackend, id: ExecutionId, handle: &Handle, text: &str) {
    let cancel = json!({"execution_id": id, "reason": text, "source": "operator_override"});
    let revoke = json!({"execution_id": id, "reason": text});
    let replay = json!({"execution_id": id, "reason": text});
    let requested = json!({"execution_id": id, "requested_by": text});
    let lane = json!({"namespace": "acme", "lane_id": "default", "state": "paused", "reason": text});
    let dead = json!({"worker_instance_id": "w-1", "namespace": "acme", "reason": text});
    let route = json!({"execution_id": id, "lane_id": "default", "reason_code": "waiting_for_capable_worker",
        "reason_detail": text});
    let block =
        json!({"execution_id": id, "lane_id": "default", "reason": "waiting_for_budget", "reason_detail": text});
    let failed = json!({"execution_id": id, "attempt_index": 0, "failure_reason": "no", "failure_category": text,
        "source": "operator_override"});
    let told = [
        ("cancel", code("cancel", backend.cancel(handle, text).await)),
        ("cancel_execution", code("cancel_execution", backend.cancel_execution(args(cancel)).await)),
        ("revoke_lease", code("revoke_lease", backend.revoke_lease(args(revoke)).await)),
        ("replay_execution", code("replay_execution", backend.replay_execution(args(replay)).await)),
        ("requested_by", code("requested_by", backend.replay_execution(args(requested)).await)),
        ("set_lane_state", code("set_lane_state", backend.set_lane_state(args(lane)).await)),
        ("mark_worker_dead", code("mark_worker_dead", backend.mark_worker_dead(args(dead)).await)),
        ("block_route", code("block_route", backend.block_route(args(route)).await)),
        ("block", code("block", backend.block_execution_for_admission(args(block)).await)),
        ("fail_execution", code("fail_execution", backend.fail_execution(args(failed)).await)),
    ];
    for (op, code) in told {
        assert_eq!(code, "invalid_input", "{op} {text:?}");
    }
}

async fn reasons_and_labels_are_checked(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    for text in hostile() {
        refuse_reason(&*world.backend, id, &handle, &text).await;
    }
    assert_eq!(picture(&world, id).await, before);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn free_strings_of_flows_are_checked(world: World) {
    let id = world.create().await;
    let before = picture(&world, id).await;
    for text in hostile() {
        let flow = json!({"flow_id": world.uuid(), "flow_kind": text, "namespace": "acme"});
        assert_eq!(code("create_flow", world.backend.create_flow(args(flow)).await), "invalid_input", "{text:?}");
        let header = json!({"flow_id": world.uuid(), "reason": text, "cancellation_policy": "cancel_all"});
        let told = code("cancel_flow_header", world.backend.cancel_flow_header(args(header)).await);
        assert_eq!(told, "invalid_input", "{text:?}");
        let node = json!({"name": text, "lane_id": "default", "execution_kind": "task"});
        let submit = json!({"flow_kind": "graph", "namespace": "acme", "nodes": [node]});
        assert_eq!(code("submit_flow", world.backend.submit_flow(args(submit)).await), "invalid_input", "{text:?}");
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn free_strings_of_signals_are_checked(world: World) {
    let (id, handle) = world.claim_one().await;
    let details = crate::stage::suspend(&world, &handle).await.details().clone();
    let before = picture(&world, id).await;
    let good = json!({"execution_id": id, "waitpoint_id": details.waitpoint_id, "signal_name": "go",
        "waitpoint_token": details.waitpoint_token});
    let fields =
        ["signal_name", "signal_category", "source_type", "source_identity", "correlation_id", "idempotency_key"];
    for text in hostile() {
        for field in fields {
            let answer = world.backend.deliver_signal(args(with(good.clone(), field, &text))).await;
            assert_eq!(code(field, answer), "invalid_input", "{field} {text:?}");
        }
    }
    let token = details.waitpoint_token.expose();
    let forged = ["", "nonsense", "k1:", &token[1..], &token[..token.len() - 1], &token.replace("k1", "k2")];
    for text in forged {
        let answer = world.backend.deliver_signal(args(with(good.clone(), "waitpoint_token", text))).await;
        assert_eq!(code("deliver_signal", answer), "invalid_token", "{text:?}");
    }
    assert_eq!(picture(&world, id).await.described, before.described);
    world.backend.deliver_signal(args(good)).await.unwrap();
}

async fn free_strings_of_budgets_and_quotas_are_checked(world: World) {
    let id = world.create().await;
    for text in hostile() {
        let budget = json!({"budget_id": world.uuid(), "namespace": "acme", "dimensions": [text],
            "hard_limits": [1], "soft_limits": [0]});
        assert_eq!(code("create_budget", world.backend.create_budget(args(budget)).await), "invalid_input", "{text:?}");
        let spend = json!({"budget_id": world.uuid(), "execution_id": id, "deltas": {"tokens": 1},
            "idempotency_key": text});
        assert_eq!(code("record_spend", world.backend.record_spend(args(spend)).await), "invalid_input", "{text:?}");
        let admission = json!({"execution_id": id, "window_seconds": 1, "rate_limit": 1, "concurrency_cap": 0});
        let quota = ff_core::ids::QuotaPolicyId::from_uuid(world.uuid());
        let answer = world.backend.check_admission(quota, &text, args(admission)).await;
        assert_eq!(code("check_admission", answer), "invalid_input", "{text:?}");
    }
}

async fn names_are_checked_where_they_enter(_world: World) {
    for text in hostile().iter().map(String::as_str).chain([""]) {
        assert!(Namespace::new(text).is_err(), "{text:?}");
        assert!(WorkerId::new(text).is_err(), "{text:?}");
        assert!(WorkerInstanceId::new(text).is_err(), "{text:?}");
        assert!(LaneId::new(text).is_err(), "{text:?}");
        assert!(serde_json::from_value::<Namespace>(json!(text)).is_err(), "{text:?}");
    }
    for lane in ["x".repeat(65), "ünïcode".to_owned()] {
        assert!(LaneId::new(&lane).is_err(), "{lane:?}");
    }
}
