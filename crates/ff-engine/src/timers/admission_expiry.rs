//! A provisional admission is confirmed by the claim it was for, or dropped.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Admission, Execution};
use crate::scheduler::admission::free;
use crate::scheduler::slots::{Because, Confirm};
use crate::store::Store;
use crate::timers::witness::changes;
use crate::verbs::read_one;

/// How often an admission is looked at whose execution is not attached to the quota, so that no settlement ends it.
const UNATTACHED_LOOK_MS: u64 = 60_000;

/// Keeps the admission of an execution that is owned, drops any other; its place in the rate window stays.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, admission: Admission, now: TimestampMs) -> Result<bool> {
    let Admission { home, quota, execution, epoch, .. } = admission;
    let found: Option<Execution> = read_one(&engine.store, Key::execution(execution)).await?;
    match found.filter(|found| found.is_active() && found.epoch >= epoch) {
        Some(owned) => {
            let attached = owned.quota_policy_ids.contains(&quota);
            let look_again_at = (!attached).then(|| now.plus(UNATTACHED_LOOK_MS));
            let confirm = Confirm { home, quota, execution, epoch, look_again_at };
            changes(engine, Key::admission(home, quota, execution), confirm).await
        }
        None => free(engine, quota, execution, Because::Lapsed(epoch)).await,
    }
}
