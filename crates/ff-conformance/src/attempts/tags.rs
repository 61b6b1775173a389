//! Tags that an attempt sets on the execution it owns.

use ff_core::Result;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::tag::TAGS_MAX;

use super::owner::{Owner, lose, not_active, own, purge, revoke, run_out};
use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::harness::Damage;
use crate::world::World;

cases!["attempts":
    an_attempt_tags_its_execution,
    a_tag_of_an_attempt_does_not_touch_the_lease,
    a_bad_tag_is_refused_before_the_handle_is_read,
    an_attempt_sets_no_more_tags_than_fit,
    who_lost_an_execution_sets_no_tags,
    an_attempt_cannot_tag_a_missing_execution,
    tagging_an_unreadable_execution_is_reported_as_corruption,
];

async fn tag(world: &World, owner: &Owner, key: &str, value: &str) -> Result<()> {
    world.backend.tag(&owner.handle, key, value).await
}

async fn seen(world: &World, id: ExecutionId) -> Option<String> {
    world.backend.get_execution_tag(id, "app.team").await.unwrap()
}

async fn an_attempt_tags_its_execution(world: World) {
    let owner = own(&world).await;
    for value in ["blue", "blue", "red", ""] {
        tag(&world, &owner, "app.team", value).await.unwrap();
        assert_eq!(seen(&world, owner.id).await.as_deref(), Some(value));
    }
}

async fn a_tag_of_an_attempt_does_not_touch_the_lease(world: World) {
    let owner = own(&world).await;
    world.advance(10_000);
    tag(&world, &owner, "app.team", "blue").await.unwrap();
    let snapshot = world.backend.describe_execution(owner.id).await.unwrap().unwrap();
    assert_eq!(snapshot.current_lease.map(|lease| lease.expires_at), Some(owner.expires_at));
}

async fn a_bad_tag_is_refused_before_the_handle_is_read(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    for (key, value) in [("team", "blue".to_owned()), ("app.team", "x".repeat(4097))] {
        invalid(tag(&world, &owner, key, &value).await, ValidationKind::InvalidInput);
    }
    state(tag(&world, &owner, "app.team", &"x".repeat(4096)).await, StateKind::LeaseRevoked);
}

async fn an_attempt_sets_no_more_tags_than_fit(world: World) {
    let owner = own(&world).await;
    for number in 0..TAGS_MAX {
        tag(&world, &owner, &format!("app.n{number}"), "x").await.unwrap();
    }
    invalid(tag(&world, &owner, "app.more", "x").await, ValidationKind::InvalidInput);
    tag(&world, &owner, "app.n0", "y").await.unwrap();
}

async fn who_lost_an_execution_sets_no_tags(world: World) {
    let expired = own(&world).await;
    run_out(&world, &expired);
    state(tag(&world, &expired, "app.team", "late").await, StateKind::LeaseExpired);
    lose(&world, &expired).await;
    state(tag(&world, &expired, "app.team", "late").await, StateKind::StaleLease);
    let revoked = own(&world).await;
    revoke(&world, &revoked).await;
    state(tag(&world, &revoked, "app.team", "late").await, StateKind::LeaseRevoked);
    let ended = own(&world).await;
    world.backend.complete(&ended.handle, None).await.unwrap();
    not_active(tag(&world, &ended, "app.team", "late").await);
    for id in [expired.id, revoked.id, ended.id] {
        assert_eq!(seen(&world, id).await, None);
    }
}

async fn an_attempt_cannot_tag_a_missing_execution(world: World) {
    let owner = own(&world).await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    purge(&world, owner.id).await;
    not_found(tag(&world, &owner, "app.team", "late").await, Entity::Execution);
}

async fn tagging_an_unreadable_execution_is_reported_as_corruption(world: World) {
    let owner = own(&world).await;
    world.damage(Damage::Execution(owner.id)).await;
    invalid(tag(&world, &owner, "app.team", "blue").await, ValidationKind::Corruption);
}
