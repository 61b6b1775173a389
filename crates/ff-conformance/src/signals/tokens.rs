//! Whoever has no valid token learns nothing.

use ff_core::backend::signals::{DeliverSignalArgs, RotateWaitpointHmacSecretAllArgs, SignalEffect};
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::{ExecutionId, WaitpointId};
use ff_core::state::PublicState;
use ff_core::token::WaitpointToken;
use ff_core::{Blob, EngineError};

use crate::expect::{invalid, not_found, refusal};
use crate::suspension::fixtures::*;
use crate::{World, cases};

cases!["signals":
    a_signal_for_a_missing_execution_is_not_found,
    a_wrong_token_a_missing_and_a_foreign_waitpoint_look_the_same,
    a_token_opens_its_own_waitpoint_only,
    a_signal_cannot_reach_another_execution_through_its_own_waitpoint,
    a_token_is_checked_before_anything_else_about_the_signal,
    a_retired_secret_verifies_through_the_end_of_its_grace,
    a_rotation_without_grace_ends_old_tokens_at_once,
    the_current_secret_always_verifies,
    a_failed_authentication_leaves_no_signal,
];

async fn a_signal_for_a_missing_execution_is_not_found(world: World) {
    let waitpoint = WaitpointId::from_uuid(world.uuid());
    let signal = |id| DeliverSignalArgs::new(id, waitpoint, "go", WaitpointToken::new(""));
    not_found(world.backend.deliver_signal(signal(world.execution_id())).await, Entity::Execution);
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    invalid(world.backend.deliver_signal(signal(nowhere)).await, ValidationKind::InvalidInput);
}

fn told(error: &EngineError) -> String {
    format!("{error:?}")
}

async fn a_wrong_token_a_missing_and_a_foreign_waitpoint_look_the_same(world: World) {
    let mine = parked(&world, ask(&world)).await;
    let (other_id, other_handle) = world.claim_one().await;
    let other = park_with(&world, other_id, other_handle, ask(&world)).await;
    let good = mine.details.waitpoint_token.expose();
    let mut altered = good.to_owned();
    altered.replace_range(good.len() - 1.., if good.ends_with('0') { "1" } else { "0" });
    let mut attempts = vec![
        DeliverSignalArgs { waitpoint_id: WaitpointId::from_uuid(world.uuid()), ..mine.signal("go") },
        DeliverSignalArgs { waitpoint_id: other.details.waitpoint_id, ..mine.signal("go") },
        DeliverSignalArgs { execution_id: mine.id, ..other.signal("go") },
    ];
    for token in ["", "k1", "k1:", "nonsense", &altered, &good.to_uppercase(), &good.replacen("k1", "k9", 1)] {
        attempts.push(DeliverSignalArgs { waitpoint_token: WaitpointToken::new(token), ..mine.signal("go") });
    }
    let mut answers = Vec::new();
    for attempt in attempts {
        answers.push(told(&refusal(world.backend.deliver_signal(attempt).await)));
    }
    assert!(answers[0].contains("InvalidToken"), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    for id in [mine.id, other.id] {
        assert_eq!(world.state(id).await, PublicState::Suspended);
    }
}

async fn a_token_opens_its_own_waitpoint_only(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    let (_, token) = parked.waitpoint("b");
    let crossed = DeliverSignalArgs { waitpoint_token: token, ..parked.signal_at("a", "x") };
    invalid(world.backend.deliver_signal(crossed).await, ValidationKind::InvalidToken);
    assert_eq!(deliver(&world, parked.signal_at("a", "x")).await, SignalEffect::AppendedToWaitpoint);
}

async fn a_signal_cannot_reach_another_execution_through_its_own_waitpoint(world: World) {
    let mine = parked(&world, ask(&world)).await;
    let (victim_id, handle) = world.claim_one().await;
    let victim = park_with(&world, victim_id, handle, ask(&world)).await;
    let crossed = DeliverSignalArgs { execution_id: victim.id, ..mine.signal("go") };
    invalid(world.backend.deliver_signal(crossed).await, ValidationKind::InvalidToken);
    assert_eq!(world.state(victim.id).await, PublicState::Suspended);
    assert_eq!(world.state(mine.id).await, PublicState::Suspended);
}

async fn a_token_is_checked_before_anything_else_about_the_signal(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let mut bad = parked.signal("");
    bad.payload = Some(Blob::from(vec![0; 65_537]));
    bad.waitpoint_token = WaitpointToken::new("k1:00");
    invalid(world.backend.deliver_signal(bad.clone()).await, ValidationKind::InvalidToken);
    deliver(&world, parked.signal("go")).await;
    let handle = world.claim().await.expect("resumed");
    world.backend.complete(&handle, None).await.unwrap();
    invalid(world.backend.deliver_signal(bad).await, ValidationKind::InvalidToken);
}

async fn rotate(world: &World, kid: &str, secret: &str, grace_ms: u64) {
    let args = RotateWaitpointHmacSecretAllArgs { new_kid: kid.into(), new_secret_hex: secret.into(), grace_ms };
    world.backend.rotate_waitpoint_hmac_secret_all(args).await.unwrap();
}

async fn a_retired_secret_verifies_through_the_end_of_its_grace(world: World) {
    let parked = parked(&world, ask(&world)).await;
    rotate(&world, "k2", OTHER_SECRET, 1000).await;
    world.pass(1000).await;
    assert_eq!(deliver(&world, parked.signal("other")).await, SignalEffect::NoOp);
    world.pass(1).await;
    let detail = invalid(world.backend.deliver_signal(parked.signal("go")).await, ValidationKind::InvalidToken);
    assert_eq!(detail, "token_expired");
    let mut forged = parked.signal("go");
    forged.waitpoint_token = WaitpointToken::new(format!("k1:{SECRET}"));
    let detail = invalid(world.backend.deliver_signal(forged).await, ValidationKind::InvalidToken);
    assert_ne!(detail, "token_expired", "only a genuine token is told so");
}

async fn a_rotation_without_grace_ends_old_tokens_at_once(world: World) {
    let parked = parked(&world, ask(&world)).await;
    rotate(&world, "k2", OTHER_SECRET, 0).await;
    world.advance(1);
    invalid(world.backend.deliver_signal(parked.signal("go")).await, ValidationKind::InvalidToken);
    rotate(&world, "k3", SECRET, 0).await;
    let detail = invalid(world.backend.deliver_signal(parked.signal("go")).await, ValidationKind::InvalidToken);
    assert_ne!(detail, "token_expired", "the key is forgotten, though its secret came back under another name");
}

async fn the_current_secret_always_verifies(world: World) {
    let parked = parked(&world, ask(&world)).await;
    world.pass(365 * 24 * 60 * 60 * 1000).await;
    assert_eq!(deliver(&world, parked.signal("go")).await, SignalEffect::ResumeConditionSatisfied);
    let handle = world.claim().await.expect("resumed");
    rotate(&world, "k2", OTHER_SECRET, 0).await;
    let next = park_with(&world, parked.id, handle, ask(&world)).await;
    assert_eq!(next.details.waitpoint_token.kid(), "k2");
    world.pass(1).await;
    assert_eq!(deliver(&world, next.signal("go")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn a_failed_authentication_leaves_no_signal(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let mut args = parked.signal("go");
    args.idempotency_key = Some("once".into());
    args.max_signals_per_execution = Some(1);
    let mut forged = args.clone();
    forged.waitpoint_token = WaitpointToken::new("nonsense");
    invalid(world.backend.deliver_signal(forged).await, ValidationKind::InvalidToken);
    assert_eq!(deliver(&world, args).await, SignalEffect::ResumeConditionSatisfied);
}
