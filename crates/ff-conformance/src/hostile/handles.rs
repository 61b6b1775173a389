//! Handles that were not sealed by this deployment, or not quite like this.

use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::backend::attempts::{CompleteManyItem, CompleteManyOutcome, FailureReason};
use ff_core::backend::budgets::UsageDimensions;
use ff_core::backend::leases::AwaitLostLeasesArgs;
use ff_core::backend::streams::{Frame, FrameKind};
use ff_core::backend::suspension::{ResumeCondition, SuspendArgs, SuspensionReasonCode, WaitpointBinding};
use ff_core::handle::{BackendTag, Handle, HandleKind, HandleOpaque};
use ff_core::ids::{BudgetId, SuspensionId, WaitpointId};
use ff_core::rules::retry::FailureClass;

use super::{code, picture};
use crate::cases;
use crate::world::World;

cases!["hostile::handles":
    an_altered_handle_is_corruption,
    a_relabelled_handle_is_corruption,
    a_truncated_or_senseless_handle_is_invalid,
    a_handle_of_another_backend_is_recognised,
    a_handle_of_another_execution_proves_nothing,
];

/// Shows a handle to every operation that takes one.
async fn refusals(world: &World, handle: &Handle) -> Vec<(&'static str, String)> {
    let backend = &world.backend;
    let now = world.now();
    let suspend = SuspendArgs::new(
        SuspensionId::from_uuid(world.uuid()),
        WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid())),
        ResumeCondition::OperatorOnly {},
        SuspensionReasonCode::ManualPause,
    );
    let lost =
        AwaitLostLeasesArgs { worker_instance_id: world.worker().1, handles: vec![handle.clone()], max_wait_ms: 0 };
    let budget = BudgetId::from_uuid(world.uuid());
    let failure = FailureReason::new("no");
    let many = vec![CompleteManyItem { handle: handle.clone(), result_payload: None }];
    let many = match &backend.complete_many(many).await.unwrap()[..] {
        [CompleteManyOutcome::Refused { error }] => error.code.clone(),
        other => panic!("complete_many: expected a refusal, got {other:?}"),
    };
    let hour = Duration::from_secs(3600);
    let mut told: Vec<(&'static str, String)> = [
        ("renew", code("renew", backend.renew(handle).await)),
        ("await_lost_leases", code("await_lost_leases", backend.await_lost_leases(lost).await)),
        ("save_step", code("save_step", backend.save_step(handle, "step", "no".into()).await)),
        ("tag", code("tag", backend.tag(handle, "app.team", "no").await)),
        ("spawn_children", code("spawn_children", backend.spawn_children(handle, Vec::new()).await)),
        ("progress", code("progress", backend.progress(handle, Some(99), None).await)),
        ("append_frame", code("append_frame", backend.append_frame(handle, Frame::new(FrameKind::Blob, "x")).await)),
        ("complete", code("complete", backend.complete(handle, None).await)),
        ("fail", code("fail", backend.fail(handle, failure, FailureClass::Transient).await)),
        ("cancel", code("cancel", backend.cancel(handle, "no").await)),
        ("delay", code("delay", backend.delay(handle, TimestampMs(now.0 + 1000)).await)),
        ("wait_children", code("wait_children", backend.wait_children(handle).await)),
        ("suspend", code("suspend", backend.suspend(handle, suspend).await)),
        ("observe_signals", code("observe_signals", backend.observe_signals(handle).await)),
        ("create_waitpoint", code("create_waitpoint", backend.create_waitpoint(handle, "key", hour).await)),
        ("report_usage", code("report_usage", backend.report_usage(handle, budget, UsageDimensions::default()).await)),
    ]
    .map(|(op, code)| (op, code.to_owned()))
    .into();
    told.push(("complete_many", many));
    told
}

/// Every operation refuses with this code, and nothing changes.
async fn all_refuse(world: &World, handle: &Handle, expected: &str) {
    for (op, code) in refusals(world, handle).await {
        assert_eq!(code, expected, "{op} of {handle:?}");
    }
}

fn with_bytes(handle: &Handle, bytes: &[u8]) -> Handle {
    Handle { opaque: HandleOpaque::new(bytes), ..handle.clone() }
}

async fn an_altered_handle_is_corruption(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    let bytes = handle.opaque.as_bytes();
    let last = bytes.len() - 1;
    for at in [6, 20, bytes.len() / 2, last - 31, last] {
        let mut altered = bytes.to_vec();
        altered[at] ^= 1;
        all_refuse(&world, &with_bytes(&handle, &altered), "corruption").await;
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    all_refuse(&world, &with_bytes(&handle, &longer), "corruption").await;
    assert_eq!(picture(&world, id).await, before);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_relabelled_handle_is_corruption(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    for kind in HandleKind::ALL.iter().copied().filter(|kind| *kind != handle.kind) {
        all_refuse(&world, &Handle { kind, ..handle.clone() }, "corruption").await;
        let mut bytes = handle.opaque.as_bytes().to_vec();
        bytes[3] = kind as u8 + 1;
        all_refuse(&world, &Handle { kind, ..with_bytes(&handle, &bytes) }, "corruption").await;
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn a_truncated_or_senseless_handle_is_invalid(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    let bytes = handle.opaque.as_bytes();
    for length in [0, 1, 2, 3, 5, 6, 40, bytes.len() - 1] {
        all_refuse(&world, &with_bytes(&handle, &bytes[..length]), "invalid_input").await;
    }
    for senseless in [&b"nonsense"[..], &[0; 200], &[0xff; 200]] {
        all_refuse(&world, &with_bytes(&handle, senseless), "invalid_input").await;
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn a_handle_of_another_backend_is_recognised(world: World) {
    let (id, handle) = world.claim_one().await;
    let before = picture(&world, id).await;
    for backend in BackendTag::ALL.iter().copied().filter(|tag| *tag != handle.backend) {
        all_refuse(&world, &Handle { backend, ..handle.clone() }, "handle_from_other_backend").await;
        let mut bytes = handle.opaque.as_bytes().to_vec();
        bytes[2] = backend.wire_byte();
        all_refuse(&world, &with_bytes(&handle, &bytes), "handle_from_other_backend").await;
    }
    assert_eq!(picture(&world, id).await, before);
}

async fn a_handle_of_another_execution_proves_nothing(world: World) {
    let (mine, first) = world.claim_one().await;
    let (theirs, second) = world.claim_one().await;
    // The seal covers everything: parts of two good handles do not make a third.
    let (a, b) = (first.opaque.as_bytes(), second.opaque.as_bytes());
    assert_eq!(a.len(), b.len());
    let middle = a.len() / 2;
    let spliced = [&a[..middle], &b[middle..]].concat();
    all_refuse(&world, &with_bytes(&first, &spliced), "corruption").await;
    world.backend.complete(&first, None).await.unwrap();
    assert!(world.state(mine).await.is_terminal() && !world.state(theirs).await.is_terminal());
}
