//! Tags.

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::ExecutionId;

use crate::cases;
use crate::expect::{invalid, not_found};
use crate::world::World;

cases!["inspection::tags":
    an_execution_has_at_most_so_many_tags,
    a_tag_is_set_read_and_replaced,
    a_repeated_tag_changes_nothing,
    a_tag_can_hold_any_text,
    a_bad_key_is_refused_before_the_execution_is_looked_for,
    a_value_that_is_too_long_is_refused,
    a_missing_execution_cannot_be_tagged,
    a_tag_counts_as_a_change,
    a_finished_execution_can_be_tagged,
];

async fn a_tag_is_set_read_and_replaced(world: World) {
    let id = world.create().await;
    assert_eq!(world.backend.get_execution_tag(id, "app.team").await.unwrap(), None);
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    world.backend.set_execution_tag(id, "app.run", "1").await.unwrap();
    world.backend.set_execution_tag(id, "app.team", "red").await.unwrap();
    assert_eq!(world.backend.get_execution_tag(id, "app.team").await.unwrap().as_deref(), Some("red"));
    let tags = world.backend.describe_execution(id).await.unwrap().expect("described").tags;
    assert_eq!(
        tags.into_iter().collect::<Vec<_>>(),
        [("app.run".into(), "1".into()), ("app.team".into(), "red".into())]
    );
}

async fn a_repeated_tag_changes_nothing(world: World) {
    let id = world.create().await;
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    let before = world.backend.describe_execution(id).await.unwrap();
    world.advance(1000);
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    assert_eq!(world.backend.describe_execution(id).await.unwrap(), before);
}

async fn a_tag_can_hold_any_text(world: World) {
    let id = world.create().await;
    for value in ["", "ünïcode ✓", "line\nbreak", &"x".repeat(4096)] {
        world.backend.set_execution_tag(id, "app.note", value).await.unwrap();
        assert_eq!(world.backend.get_execution_tag(id, "app.note").await.unwrap().as_deref(), Some(value));
    }
}

async fn a_bad_key_is_refused_before_the_execution_is_looked_for(world: World) {
    let missing = world.execution_id();
    let long = format!("app.{}", "x".repeat(300));
    for key in ["", "team", "App.team", "1app.team", "app.", ".team", "app.Team", "app team.x", "app..x", &long] {
        let detail = invalid(world.backend.set_execution_tag(missing, key, "x").await, ValidationKind::InvalidInput);
        assert!(detail.starts_with("invalid tag key"), "{detail}");
        invalid(world.backend.get_execution_tag(missing, key).await, ValidationKind::InvalidInput);
    }
}

async fn a_value_that_is_too_long_is_refused(world: World) {
    let id = world.create().await;
    let long = "x".repeat(4097);
    invalid(world.backend.set_execution_tag(id, "app.note", &long).await, ValidationKind::InvalidInput);
    assert_eq!(world.backend.get_execution_tag(id, "app.note").await.unwrap(), None);
}

async fn a_missing_execution_cannot_be_tagged(world: World) {
    not_found(world.backend.set_execution_tag(world.execution_id(), "app.team", "x").await, Entity::Execution);
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    invalid(world.backend.set_execution_tag(nowhere, "app.team", "x").await, ValidationKind::InvalidInput);
}

async fn a_tag_counts_as_a_change(world: World) {
    let tags = [("app.team".to_owned(), "blue".to_owned())].into();
    let id = world.submit(CreateExecutionArgs { tags, ..world.submission() }).await;
    world.advance(1000);
    world.backend.set_execution_tag(id, "app.team", "red").await.unwrap();
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    assert_eq!(snapshot.last_mutation_at, world.now());
}

async fn a_finished_execution_can_be_tagged(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    assert_eq!(world.backend.get_execution_tag(id, "app.team").await.unwrap().as_deref(), Some("blue"));
}

async fn an_execution_has_at_most_so_many_tags(world: World) {
    let tags = |count: usize| (0..count).map(|n| (format!("app.t{n}"), String::new())).collect();
    let too_many = CreateExecutionArgs { tags: tags(257), ..world.submission() };
    invalid(world.backend.create_execution(too_many).await, ValidationKind::InvalidInput);
    let id = world.submit(CreateExecutionArgs { tags: tags(255), ..world.submission() }).await;
    world.backend.set_execution_tag(id, "app.last", "1").await.unwrap();
    invalid(world.backend.set_execution_tag(id, "app.one_more", "1").await, ValidationKind::InvalidInput);
    world.backend.set_execution_tag(id, "app.last", "2").await.unwrap();
    assert_eq!(world.backend.get_execution_tag(id, "app.one_more").await.unwrap(), None);
}
