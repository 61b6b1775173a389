//! The outside world: signals with good tokens, wrong tokens, and the same signal twice.

use ff_core::backend::signals::{
    DeliverApprovalSignalArgs, DeliverSignalArgs, RotateWaitpointHmacSecretAllArgs, SecretText,
    SeedWaitpointHmacSecretArgs,
};
use ff_core::ids::{SignalId, WaitpointId};
use ff_core::token::WaitpointToken;

use super::actions;
use super::suspender::SIGNALS;
use crate::call::{Call, Presents, SignalShown};
use crate::memory::{WaitpointNote, remember};
use crate::world::World;

actions![22 send, 6 send_again, 5 forge, 5 approve, 1 rotate_secret, 1 seed_secret];

fn shown(args: &DeliverSignalArgs, genuine: bool) -> Presents {
    Presents::Signal(Box::new(SignalShown {
        waitpoint: args.waitpoint_id,
        key: args.idempotency_key.clone().filter(|key| !key.is_empty()),
        dedup_ttl_ms: args.dedup_ttl_ms(),
        token: args.waitpoint_token.clone(),
        genuine,
    }))
}

fn signal(world: &World, note: &WaitpointNote) -> DeliverSignalArgs {
    let rng = world.rng();
    let mut args = DeliverSignalArgs::new(note.execution, note.id, rng.one_of(SIGNALS), note.token.clone());
    args.signal_id = rng.chance(60).then(|| SignalId::from_uuid(rng.uuid()));
    args.source_type = "user".to_owned();
    args.source_identity = rng.one_of(["ann", "bob"]).to_owned();
    if rng.chance(40) {
        args.idempotency_key = Some(rng.one_of(["once", "twice"]).to_owned());
        args.dedup_ttl_ms = rng.chance(30).then_some(5_000);
    }
    args.resume_delay_ms = rng.chance(15).then_some(700);
    args
}

async fn deliver(world: &World, args: DeliverSignalArgs, genuine: bool) {
    let detail = format!(
        "{} at {} {} id={:?} key={:?} from {} genuine={genuine}",
        args.execution_id,
        args.waitpoint_id,
        args.signal_name,
        args.signal_id,
        args.idempotency_key,
        args.source_identity
    );
    let engine = world.engine();
    let call = Call::new("deliver_signal", detail).of(args.execution_id).with(shown(&args, genuine));
    world.call(call, engine.deliver_signal(args)).await;
}

/// A signal with a good token.
pub(super) async fn send_to(world: &World, note: &WaitpointNote) {
    let args = signal(world, note);
    remember(&mut world.memory().signals, args.clone());
    deliver(world, args, true).await;
}

async fn send(world: &World) {
    let note = world.rng().pick_recent(&world.memory().waitpoints).cloned();
    if let Some(note) = note {
        send_to(world, &note).await;
    }
}

/// The very same signal, as a sender does whose reply was lost.
async fn send_again(world: &World) {
    let args = world.rng().pick_recent(&world.memory().signals).cloned();
    if let Some(args) = args {
        deliver(world, args, true).await;
    }
}

/// A signal that must be refused: an altered token, no such waitpoint, the waitpoint of another execution.
async fn forge(world: &World) {
    let (note, other) = {
        let rng = world.rng();
        let memory = world.memory();
        (rng.pick_recent(&memory.waitpoints).cloned(), rng.pick(&memory.executions).copied())
    };
    let Some(note) = note else { return };
    let mut args = DeliverSignalArgs { idempotency_key: None, ..signal(world, &note) };
    match world.rng().below(3) {
        0 => {
            let text = note.token.expose();
            let last = if text.ends_with('0') { '1' } else { '0' };
            args.waitpoint_token = WaitpointToken::new(format!("{}{last}", &text[..text.len().saturating_sub(1)]));
        }
        1 => args.waitpoint_id = WaitpointId::from_uuid(world.rng().uuid()),
        _ => match other.filter(|other| *other != note.execution) {
            Some(other) => args.execution_id = other,
            None => return,
        },
    }
    deliver(world, args, false).await;
}

async fn approve(world: &World) {
    let note = world.rng().pick_recent(&world.memory().waitpoints).cloned();
    let Some(note) = note else { return };
    let lane = world.seen().mirror().execution(note.execution).map(|execution| execution.lane.clone());
    let Some(lane_id) = lane else { return };
    let args = DeliverApprovalSignalArgs {
        execution_id: note.execution,
        lane_id,
        waitpoint_id: note.id,
        signal_name: SIGNALS[0].to_owned(),
        approver: world.rng().one_of(["eve", "joe"]).to_owned(),
        idempotency_suffix: "1".to_owned(),
        signal_dedup_ttl_ms: 60_000,
        maxlen: None,
        max_signals_per_execution: None,
    };
    let presents = Presents::Signal(Box::new(SignalShown {
        waitpoint: args.waitpoint_id,
        key: Some(format!("approval {} {}", args.approver, args.idempotency_suffix)),
        dedup_ttl_ms: args.signal_dedup_ttl_ms,
        token: note.token.clone(),
        genuine: true,
    }));
    let engine = world.engine();
    let detail = format!("{} at {} by {}", note.execution, note.id, args.approver);
    let call = Call::new("deliver_approval_signal", detail).of(note.execution).with(presents);
    world.call(call, engine.deliver_approval_signal(args)).await;
}

async fn rotate_secret(world: &World) {
    let (kid, grace_ms) = {
        let rng = world.rng();
        (format!("k{}", rng.between(2, 9)), rng.between(0, 120_000))
    };
    let secret = format!("{:02x}", kid.as_bytes()[1]).repeat(32);
    let args =
        RotateWaitpointHmacSecretAllArgs { new_kid: kid.clone(), new_secret_hex: SecretText::from(secret), grace_ms };
    let engine = world.engine();
    // The checker reads the grace from here.
    let call = Call::new("rotate_waitpoint_hmac_secret_all", format!("to {kid} grace={grace_ms}"));
    world.call(call, engine.rotate_waitpoint_hmac_secret_all(args)).await;
}

/// The first signing key; later calls find it there.
pub(crate) async fn seed_secret(world: &World) {
    let args = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex: SecretText::from("31".repeat(32)) };
    let engine = world.engine();
    let call = Call::new("seed_waitpoint_hmac_secret", "k1");
    world.call(call, engine.seed_waitpoint_hmac_secret(args)).await;
}
