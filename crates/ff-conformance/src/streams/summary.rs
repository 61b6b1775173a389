//! The summary document.

use ff_core::backend::streams::{FrameMode, PatchKind};
use ff_core::error::ValidationKind;
use ff_core::ids::AttemptIndex;
use serde_json::{Value, json};

use super::{FIRST, append, durable, read_all, summary_of};
use crate::cases;
use crate::expect::invalid;
use crate::world::World;

cases!["streams::summary":
    a_summary_does_not_grow_without_end,
    patches_build_a_document_and_count_its_versions,
    there_is_no_summary_before_the_first_patch,
    null_deletes_and_the_sentinel_writes_null,
    an_empty_object_makes_an_object,
    only_a_short_window_of_patches_stays,
    a_faulty_patch_changes_nothing,
    a_summary_outlives_its_attempt,
];

async fn document(world: &World, id: ff_core::ids::ExecutionId) -> Value {
    let summary = world.backend.read_summary(id, FIRST).await.unwrap().expect("a summary");
    serde_json::from_slice(&summary.document_json).unwrap()
}

async fn patches_build_a_document_and_count_its_versions(world: World) {
    let (id, handle) = world.claim_one().await;
    let started = world.now();
    assert_eq!(append(&world, &handle, summary_of(r#"{"a":1,"b":{"c":2}}"#)).await.summary_version, Some(1));
    world.advance(10);
    assert_eq!(append(&world, &handle, summary_of(r#"{"b":{"d":3}}"#)).await.summary_version, Some(2));

    let summary = world.backend.read_summary(id, FIRST).await.unwrap().expect("a summary");
    assert_eq!(summary.version, 2);
    assert_eq!(summary.patch_kind, PatchKind::JsonMergePatch);
    assert_eq!((summary.first_applied_ms, summary.last_updated_ms), (started, world.now()));
    assert_eq!(document(&world, id).await, json!({"a": 1, "b": {"c": 2, "d": 3}}));

    let frames = read_all(&world, id, FIRST).await.frames;
    let versions: Vec<_> = frames.iter().map(|frame| (frame.mode, frame.summary_version)).collect();
    assert_eq!(versions, [(FrameMode::Summary, Some(1)), (FrameMode::Summary, Some(2))]);
}

async fn there_is_no_summary_before_the_first_patch(world: World) {
    let (id, handle) = world.claim_one().await;
    assert_eq!(world.backend.read_summary(world.execution_id(), FIRST).await.unwrap(), None);
    assert_eq!(append(&world, &handle, durable("x")).await.summary_version, None);
    assert_eq!(world.backend.read_summary(id, FIRST).await.unwrap(), None);
    assert_eq!(world.backend.read_summary(id, AttemptIndex(1)).await.unwrap(), None);
}

async fn null_deletes_and_the_sentinel_writes_null(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, summary_of(r#"{"gone":1,"kept":2,"list":[1]}"#)).await;
    append(&world, &handle, summary_of(r#"{"gone":null,"kept":"__ff_null__","list":["__ff_null__"]}"#)).await;
    assert_eq!(document(&world, id).await, json!({"kept": null, "list": [null]}));
}

async fn an_empty_object_makes_an_object(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, summary_of(r#"{"a":{}}"#)).await;
    assert_eq!(document(&world, id).await, json!({"a": {}}));
}

async fn only_a_short_window_of_patches_stays(world: World) {
    let (id, handle) = world.claim_one().await;
    for n in 0..100 {
        append(&world, &handle, summary_of(&format!(r#"{{"n":{n}}}"#))).await;
    }
    assert_eq!(read_all(&world, id, FIRST).await.frames.len(), 64);
    let summary = world.backend.read_summary(id, FIRST).await.unwrap().expect("a summary");
    assert_eq!(summary.version, 100);
    assert_eq!(document(&world, id).await, json!({"n": 99}));
}

async fn a_faulty_patch_changes_nothing(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, summary_of(r#"{"a":1}"#)).await;
    let deep = format!("{}1{}", r#"{"a":"#.repeat(17), "}".repeat(17));
    for (patch, detail) in
        [("{", "patch_invalid_json"), ("[]", "patch_root_not_object"), (&deep, "patch_depth_exceeded")]
    {
        let told = invalid(world.backend.append_frame(&handle, summary_of(patch)).await, ValidationKind::InvalidInput);
        assert!(told.starts_with(detail), "{told}");
    }
    assert_eq!(document(&world, id).await, json!({"a": 1}));
    let outcome = append(&world, &handle, summary_of("{}")).await;
    assert_eq!((outcome.summary_version, outcome.frame_count), (Some(2), 2));
}

async fn a_summary_outlives_its_attempt(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, summary_of(r#"{"a":1}"#)).await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(document(&world, id).await, json!({"a": 1}));
}

async fn a_summary_does_not_grow_without_end(world: World) {
    let (id, handle) = world.claim_one().await;
    let filled = |n: usize| summary_of(&format!("{{\"k{n}\":\"{}\"}}", "x".repeat(65_000)));
    for n in 0..16 {
        append(&world, &handle, filled(n)).await;
    }
    let refused = world.backend.append_frame(&handle, filled(16)).await;
    let detail = invalid(refused, ValidationKind::InvalidInput);
    assert!(detail.starts_with("summary_too_large"), "{detail}");
    append(&world, &handle, summary_of("{\"k0\":null}")).await;
    assert_eq!(append(&world, &handle, filled(16)).await.summary_version, Some(18));
    let summary = world.backend.read_summary(id, FIRST).await.unwrap().expect("a summary");
    assert_eq!(summary.version, 18);
}
