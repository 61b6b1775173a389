//! Seeding and rotating the secrets that sign tokens.

use ff_core::Result;
use ff_core::backend::signals::{
    RotateWaitpointHmacSecretAllArgs, RotateWaitpointHmacSecretOutcome, SeedOutcome, SeedWaitpointHmacSecretArgs,
};
use ff_core::error::ValidationKind;
use ff_core::token::GRACE_MS_MAX;

use crate::expect::invalid;
use crate::suspension::fixtures::*;
use crate::{World, cases};

cases!["signals":
    the_first_secret_is_seeded_once,
    a_seed_never_replaces_a_secret,
    a_bad_seed_is_refused,
    a_rotation_makes_a_new_secret_sign,
    a_repeated_rotation_changes_nothing,
    a_rotation_to_a_known_name_with_another_secret_is_refused,
    a_retired_secret_may_return,
    a_rotation_drops_secrets_past_their_grace,
    a_bad_rotation_is_refused_in_order,
    a_rotation_may_install_the_first_secret,
];

async fn seed_as(world: &World, kid: &str, secret: &str) -> Result<SeedOutcome> {
    let args = SeedWaitpointHmacSecretArgs { kid: kid.into(), secret_hex: secret.into() };
    world.backend.seed_waitpoint_hmac_secret(args).await
}

async fn rotate(world: &World, kid: &str, secret: &str, grace_ms: u64) -> Result<RotateWaitpointHmacSecretOutcome> {
    let args = RotateWaitpointHmacSecretAllArgs { new_kid: kid.into(), new_secret_hex: secret.into(), grace_ms };
    let mut answer = world.backend.rotate_waitpoint_hmac_secret_all(args).await?;
    let entry = answer.entries.pop().expect("one entry");
    assert_eq!((entry.partition, answer.entries.len()), (0, 0), "there is one keyring");
    Ok(entry.result)
}

fn rotated(previous: Option<&str>, new_kid: &str, gc_count: u32) -> RotateWaitpointHmacSecretOutcome {
    let previous_kid = previous.map(str::to_owned);
    RotateWaitpointHmacSecretOutcome::Rotated { previous_kid, new_kid: new_kid.into(), gc_count }
}

async fn the_first_secret_is_seeded_once(world: World) {
    assert_eq!(seed_as(&world, "k1", SECRET).await.unwrap(), SeedOutcome::Seeded { kid: "k1".into() });
    let again = SeedOutcome::AlreadySeeded { kid: "k1".into(), same_secret: true };
    assert_eq!(seed_as(&world, "k1", SECRET).await.unwrap(), again);
}

async fn a_seed_never_replaces_a_secret(world: World) {
    seed(&world).await;
    let other = SeedOutcome::AlreadySeeded { kid: "k1".into(), same_secret: false };
    assert_eq!(seed_as(&world, "k1", OTHER_SECRET).await.unwrap(), other);
    let detail = invalid(seed_as(&world, "k2", OTHER_SECRET).await, ValidationKind::InvalidInput);
    assert!(detail.contains("use rotate"), "{detail}");
    let parked = parked(&world, ask(&world)).await;
    assert_eq!(parked.details.waitpoint_token.kid(), "k1");
    deliver(&world, parked.signal("go")).await;
}

async fn a_bad_seed_is_refused(world: World) {
    for (kid, secret) in [("", SECRET), ("a:b", SECRET), ("k1", ""), ("k1", &SECRET[1..]), ("k1", &"zz".repeat(32))] {
        invalid(seed_as(&world, kid, secret).await, ValidationKind::InvalidInput);
    }
    assert_eq!(seed_as(&world, "k1", SECRET).await.unwrap(), SeedOutcome::Seeded { kid: "k1".into() });
}

async fn a_rotation_makes_a_new_secret_sign(world: World) {
    seed(&world).await;
    assert_eq!(rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap(), rotated(Some("k1"), "k2", 0));
    let parked = parked(&world, ask(&world)).await;
    assert_eq!(parked.details.waitpoint_token.kid(), "k2");
}

async fn a_repeated_rotation_changes_nothing(world: World) {
    let parked = parked(&world, ask(&world)).await;
    rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap();
    world.advance(999);
    let again = rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap();
    assert_eq!(again, RotateWaitpointHmacSecretOutcome::Noop { kid: "k2".into() });
    world.advance(2);
    let late = world.backend.deliver_signal(parked.signal("go")).await;
    assert_eq!(invalid(late, ValidationKind::InvalidToken), "token_expired", "the first grace counts");
}

async fn a_rotation_to_a_known_name_with_another_secret_is_refused(world: World) {
    seed(&world).await;
    let refused = async |kid: &str, secret: &str| match rotate(&world, kid, secret, 0).await.unwrap() {
        RotateWaitpointHmacSecretOutcome::Refused { error } => assert_eq!(error.code, "rotation_conflict"),
        other => panic!("expected a refusal, got {other:?}"),
    };
    refused("k1", OTHER_SECRET).await;
    rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap();
    refused("k1", "abcd").await;
    assert_eq!(parked(&world, ask(&world)).await.details.waitpoint_token.kid(), "k2");
}

async fn a_retired_secret_may_return(world: World) {
    let parked = parked(&world, ask(&world)).await;
    rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap();
    assert_eq!(rotate(&world, "k1", SECRET, 0).await.unwrap(), rotated(Some("k2"), "k1", 0));
    world.advance(5000);
    deliver(&world, parked.signal("go")).await;
}

async fn a_rotation_drops_secrets_past_their_grace(world: World) {
    seed(&world).await;
    rotate(&world, "k2", OTHER_SECRET, 1000).await.unwrap();
    world.advance(1000);
    assert_eq!(rotate(&world, "k3", "abcd", 0).await.unwrap(), rotated(Some("k2"), "k3", 0), "still in its grace");
    world.advance(1);
    assert_eq!(rotate(&world, "k4", "ef01", 0).await.unwrap(), rotated(Some("k3"), "k4", 2));
}

async fn a_bad_rotation_is_refused_in_order(world: World) {
    for kid in ["", "a:b"] {
        invalid(rotate(&world, kid, "", u64::MAX).await, ValidationKind::InvalidKid);
    }
    for secret in ["", "abc", "xy"] {
        invalid(rotate(&world, "k2", secret, u64::MAX).await, ValidationKind::InvalidSecretHex);
    }
    invalid(rotate(&world, "k2", "ab", GRACE_MS_MAX + 1).await, ValidationKind::InvalidGraceMs);
    rotate(&world, "k2", "ab", GRACE_MS_MAX).await.unwrap();
}

async fn a_rotation_may_install_the_first_secret(world: World) {
    assert_eq!(rotate(&world, "k1", SECRET, 0).await.unwrap(), rotated(None, "k1", 0));
    let known = SeedOutcome::AlreadySeeded { kid: "k1".into(), same_secret: true };
    assert_eq!(seed_as(&world, "k1", SECRET).await.unwrap(), known);
}
