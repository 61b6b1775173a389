//! An attempt says how far it is.

use ff_core::error::{StateKind, ValidationKind};
use ff_core::state::PublicState;

use super::owner::{Act, Form, act, field, info, lose, own, revoke};
use crate::cases;
use crate::expect::{invalid, state};
use crate::world::World;

cases!["attempts":
    the_last_progress_wins,
    what_progress_leaves_out_stays,
    more_than_a_hundred_percent_is_refused_before_the_handle_is_read,
    a_long_or_unprintable_progress_message_is_refused,
    progress_changes_no_state,
    a_lost_owner_reports_no_progress,
];

async fn seen(world: &World, id: ff_core::ids::ExecutionId) -> (Option<String>, Option<String>) {
    (field(world, id, "progress_percent").await, field(world, id, "progress_message").await)
}

async fn the_last_progress_wins(world: World) {
    let owner = own(&world).await;
    world.backend.progress(&owner.handle, Some(10), Some("begun")).await.unwrap();
    world.backend.progress(&owner.handle, Some(100), Some("done")).await.unwrap();
    world.backend.progress(&owner.handle, Some(0), Some("")).await.unwrap();
    assert_eq!(seen(&world, owner.id).await, (Some("0".to_owned()), Some(String::new())));
}

async fn what_progress_leaves_out_stays(world: World) {
    let owner = own(&world).await;
    world.backend.progress(&owner.handle, None, None).await.unwrap();
    assert_eq!(seen(&world, owner.id).await, (None, None));
    world.backend.progress(&owner.handle, Some(40), None).await.unwrap();
    world.backend.progress(&owner.handle, None, Some("slow")).await.unwrap();
    assert_eq!(seen(&world, owner.id).await, (Some("40".to_owned()), Some("slow".to_owned())));
}

async fn more_than_a_hundred_percent_is_refused_before_the_handle_is_read(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    let answer = world.backend.progress(&owner.handle, Some(101), None).await;
    invalid(answer, ValidationKind::InvalidInput);
    state(world.backend.progress(&owner.handle, Some(100), None).await, StateKind::LeaseRevoked);
}

async fn a_long_or_unprintable_progress_message_is_refused(world: World) {
    let owner = own(&world).await;
    for bad in ["x".repeat(257), "line\nbreak".to_owned()] {
        let answer = world.backend.progress(&owner.handle, None, Some(&bad)).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    world.backend.progress(&owner.handle, None, Some(&"x".repeat(256))).await.unwrap();
}

async fn progress_changes_no_state(world: World) {
    let owner = own(&world).await;
    let before = info(&world, owner.id).await;
    world.advance(5);
    world.backend.progress(&owner.handle, Some(1), None).await.unwrap();
    assert_eq!(info(&world, owner.id).await, before);
    let updated = field(&world, owner.id, "progress_updated_at").await;
    assert_eq!(updated, Some(world.now().to_string()));
    assert_eq!(world.state(owner.id).await, PublicState::Active);
}

async fn a_lost_owner_reports_no_progress(world: World) {
    let first = own(&world).await;
    let second = lose(&world, &first).await;
    world.backend.progress(&second.handle, Some(5), None).await.unwrap();
    state(act(&world, Act::Progress, Form::Handle, &first).await, StateKind::StaleLease);
    assert_eq!(field(&world, first.id, "progress_percent").await.as_deref(), Some("5"));
}
