//! Handles: what they hold, and who keeps them.

use ff_core::handle::{Handle, HandlePayload};
use ff_engine::key::Key;
use ff_engine::records::KeyringRecord;

use crate::memory::{Held, remember};
use crate::world::World;

/// Opens a handle, as only the store that made it can.
pub(super) fn opened(world: &World, handle: &Handle) -> Option<HandlePayload> {
    let key = world.seen().mirror().get::<KeyringRecord>(&Key::keyring())?.ring.handle_key.clone()?;
    let payload = handle.open(world.deployment().tag(), &key);
    // The sealed bytes differ from store to store; what they hold does not.
    world.tell("a handle".to_owned(), format!("{payload:?}"));
    payload.ok()
}

/// Reads what a handle proves.
pub(crate) fn held(world: &World, handle: &Handle, worker: usize) -> Option<Held> {
    let payload = opened(world, handle)?;
    Some(Held {
        handle: handle.clone(),
        execution: payload.execution_id,
        fence: payload.fence(),
        index: payload.attempt_index,
        worker,
    })
}

pub(super) fn take(world: &World, handle: &Handle, worker: usize) {
    if let Some(held) = held(world, handle, worker) {
        remember(&mut world.memory().held, held);
    }
}
