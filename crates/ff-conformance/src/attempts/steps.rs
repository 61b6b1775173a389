//! Values that an execution remembers.

use std::collections::BTreeMap;

use ff_core::backend::attempts::{FailureReason, STEPS_BYTES_MAX, STEPS_MAX};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result};

use super::owner::{Owner, lose, not_active, own, own_with, purge, resume_as, retrying, revoke, run_out, take_as};
use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::harness::Damage;
use crate::stage::replay;
use crate::world::World;

cases!["attempts":
    a_step_is_remembered_under_its_name,
    the_first_value_of_a_step_stays,
    steps_are_byte_exact,
    steps_survive_retries_and_reclaims_and_resumes,
    steps_outlive_the_end_of_their_execution,
    a_replay_starts_without_steps,
    a_step_does_not_touch_the_lease,
    a_step_needs_a_name,
    a_step_beyond_the_limit_of_results_is_refused,
    steps_beyond_the_most_are_refused_and_known_ones_are_not,
    steps_beyond_the_most_bytes_of_a_life_are_refused,
    who_lost_an_execution_saves_no_steps,
    steps_go_with_their_execution,
    steps_of_a_missing_execution_are_not_found,
    steps_of_an_unreadable_execution_are_reported_as_corruption,
];

async fn save(world: &World, owner: &Owner, name: &str, value: &str) -> Result<Blob> {
    world.backend.save_step(&owner.handle, name, Blob::from(value)).await
}

async fn saved(world: &World, owner: &Owner, name: &str, value: &str) -> Blob {
    save(world, owner, name, value).await.unwrap()
}

async fn steps(world: &World, id: ExecutionId) -> BTreeMap<String, Blob> {
    world.backend.read_steps(id).await.unwrap()
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, Blob> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Blob::from(*value))).collect()
}

async fn a_step_is_remembered_under_its_name(world: World) {
    let (one, other) = (own(&world).await, own(&world).await);
    assert_eq!(steps(&world, one.id).await, expected(&[]));
    assert_eq!(saved(&world, &one, "b", "2").await, Blob::from("2"));
    assert_eq!(saved(&world, &one, "a", "1").await, Blob::from("1"));
    assert_eq!(saved(&world, &other, "a", "3").await, Blob::from("3"));
    assert_eq!(steps(&world, one.id).await, expected(&[("a", "1"), ("b", "2")]));
    assert_eq!(steps(&world, other.id).await, expected(&[("a", "3")]));
}

async fn the_first_value_of_a_step_stays(world: World) {
    let owner = own(&world).await;
    saved(&world, &owner, "a", "first").await;
    assert_eq!(saved(&world, &owner, "a", "second").await, Blob::from("first"));
    assert_eq!(steps(&world, owner.id).await, expected(&[("a", "first")]));
}

async fn steps_are_byte_exact(world: World) {
    let owner = own(&world).await;
    for (name, bytes) in [("empty", vec![]), ("é", vec![0, 255, 128, 10])] {
        let value = Blob::from(bytes);
        assert_eq!(world.backend.save_step(&owner.handle, name, value.clone()).await.unwrap(), value);
        assert_eq!(steps(&world, owner.id).await[name], value);
    }
}

async fn steps_survive_retries_and_reclaims_and_resumes(world: World) {
    let owner = own_with(&world, &retrying(1)).await;
    saved(&world, &owner, "a", "1").await;
    let reason = FailureReason::new("again");
    world.backend.fail(&owner.handle, reason, FailureClass::Transient).await.unwrap();
    world.pass(1_000).await;
    let retried = take_as(&world, owner.id, 1, "worker-a").await;
    assert_eq!(saved(&world, &retried, "a", "2").await, Blob::from("1"));
    saved(&world, &retried, "b", "2").await;
    let reclaimed = lose(&world, &retried).await;
    assert_eq!(saved(&world, &reclaimed, "b", "3").await, Blob::from("2"));
    world.backend.delay(&reclaimed.handle, world.now().plus(1)).await.unwrap();
    world.pass(1).await;
    let resumed = resume_as(&world, &reclaimed, "worker-c").await;
    assert_eq!(saved(&world, &resumed, "c", "3").await, Blob::from("3"));
    assert_eq!(steps(&world, owner.id).await, expected(&[("a", "1"), ("b", "2"), ("c", "3")]));
}

async fn steps_outlive_the_end_of_their_execution(world: World) {
    let owner = own(&world).await;
    saved(&world, &owner, "a", "1").await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    assert_eq!(steps(&world, owner.id).await, expected(&[("a", "1")]));
}

async fn a_replay_starts_without_steps(world: World) {
    let owner = own(&world).await;
    saved(&world, &owner, "a", "1").await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    replay(&world, owner.id).await;
    assert_eq!(steps(&world, owner.id).await, expected(&[]));
    let again = take_as(&world, owner.id, 1, "worker-a").await;
    assert_eq!(saved(&world, &again, "a", "2").await, Blob::from("2"));
    assert_eq!(steps(&world, owner.id).await, expected(&[("a", "2")]));
}

async fn a_step_does_not_touch_the_lease(world: World) {
    let owner = own(&world).await;
    world.advance(10_000);
    saved(&world, &owner, "a", "1").await;
    let snapshot = world.backend.describe_execution(owner.id).await.unwrap().unwrap();
    assert_eq!(snapshot.current_lease.map(|lease| lease.expires_at), Some(owner.expires_at));
}

async fn a_step_needs_a_name(world: World) {
    let owner = own(&world).await;
    for name in ["", "a\nb", &"x".repeat(257)] {
        invalid(save(&world, &owner, name, "1").await, ValidationKind::InvalidInput);
    }
    saved(&world, &owner, &"x".repeat(256), "1").await;
}

async fn a_step_beyond_the_limit_of_results_is_refused(world: World) {
    let owner = own(&world).await;
    let bytes = |len| Blob::from(vec![7; len]);
    let answer = world.backend.save_step(&owner.handle, "a", bytes((1 << 20) + 1)).await;
    invalid(answer, ValidationKind::PayloadTooLarge);
    world.backend.save_step(&owner.handle, "a", bytes(1 << 20)).await.unwrap();
    let repeated = world.backend.save_step(&owner.handle, "a", bytes((1 << 20) + 1)).await.unwrap();
    assert_eq!(repeated.len(), 1 << 20);
}

async fn steps_beyond_the_most_are_refused_and_known_ones_are_not(world: World) {
    let owner = own(&world).await;
    for number in 0..STEPS_MAX {
        saved(&world, &owner, &number.to_string(), "x").await;
    }
    let detail = invalid(save(&world, &owner, "more", "x").await, ValidationKind::InvalidInput);
    assert!(detail.contains("too_many_steps"), "{detail}");
    assert_eq!(saved(&world, &owner, "7", "y").await, Blob::from("x"));
    assert_eq!(steps(&world, owner.id).await.len(), usize::try_from(STEPS_MAX).unwrap());
}

async fn steps_beyond_the_most_bytes_of_a_life_are_refused(world: World) {
    let owner = own(&world).await;
    let large = Blob::from(vec![7; 1 << 20]);
    for number in 0..STEPS_BYTES_MAX >> 20 {
        world.backend.save_step(&owner.handle, &number.to_string(), large.clone()).await.unwrap();
    }
    let detail = invalid(save(&world, &owner, "more", "x").await, ValidationKind::PayloadTooLarge);
    assert!(detail.contains("together"), "{detail}");
    assert_eq!(saved(&world, &owner, "empty", "").await, Blob::empty());
    assert_eq!(saved(&world, &owner, "0", "x").await, large, "what is known is answered");
    world.backend.complete(&owner.handle, None).await.unwrap();
    replay(&world, owner.id).await;
    let again = take_as(&world, owner.id, 1, "worker-a").await;
    assert_eq!(saved(&world, &again, "more", "x").await, Blob::from("x"), "another life has its own");
}

async fn who_lost_an_execution_saves_no_steps(world: World) {
    let expired = own(&world).await;
    saved(&world, &expired, "a", "1").await;
    run_out(&world, &expired);
    state(save(&world, &expired, "a", "1").await, StateKind::LeaseExpired);
    lose(&world, &expired).await;
    state(save(&world, &expired, "b", "1").await, StateKind::StaleLease);
    let revoked = own(&world).await;
    revoke(&world, &revoked).await;
    state(save(&world, &revoked, "b", "1").await, StateKind::LeaseRevoked);
    let ended = own(&world).await;
    world.backend.complete(&ended.handle, None).await.unwrap();
    not_active(save(&world, &ended, "b", "1").await);
    for id in [expired.id, revoked.id, ended.id] {
        assert!(!steps(&world, id).await.contains_key("b"));
    }
}

async fn steps_go_with_their_execution(world: World) {
    let owner = own(&world).await;
    saved(&world, &owner, "a", "1").await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    replay(&world, owner.id).await;
    let again = take_as(&world, owner.id, 1, "worker-a").await;
    saved(&world, &again, "a", "2").await;
    world.backend.complete(&again.handle, None).await.unwrap();
    purge(&world, owner.id).await;
    not_found(world.backend.read_steps(owner.id).await, Entity::Execution);
    let anew = ff_core::backend::ingress::CreateExecutionArgs { execution_id: Some(owner.id), ..world.submission() };
    let id = world.submit(anew).await;
    assert_eq!(steps(&world, id).await, expected(&[]));
    take_as(&world, id, 0, "worker-a").await;
}

async fn steps_of_a_missing_execution_are_not_found(world: World) {
    not_found(world.backend.read_steps(world.execution_id()).await, Entity::Execution);
    let owner = own(&world).await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    purge(&world, owner.id).await;
    not_found(save(&world, &owner, "a", "1").await, Entity::Execution);
}

async fn steps_of_an_unreadable_execution_are_reported_as_corruption(world: World) {
    let owner = own(&world).await;
    saved(&world, &owner, "a", "1").await;
    world.damage(Damage::Execution(owner.id)).await;
    invalid(world.backend.read_steps(owner.id).await, ValidationKind::Corruption);
    invalid(save(&world, &owner, "b", "1").await, ValidationKind::Corruption);
}
