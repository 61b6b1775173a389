//! A pending waitpoint runs out.

use ff_core::ids::WaitpointId;
use ff_core::partition::Partition;
use ff_core::state::CloseReason;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::Waitpoint;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

struct RunOut {
    home: Partition,
    waitpoint: WaitpointId,
    now: TimestampMs,
}

#[async_trait::async_trait]
impl Op for RunOut {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = self.now.min(tx.now());
        let found = tx.get::<Waitpoint>(Key::waitpoint(self.home, self.waitpoint)).await?;
        if let Some(mut waitpoint) = found.filter(|waitpoint| waitpoint.has_run_out(now)) {
            waitpoint.close(CloseReason::NeverCommitted, tx.now());
            tx.put(waitpoint);
        }
        Ok(())
    }
}

/// Closes the waitpoint, if no suspension has bound it meanwhile.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Waitpoint, now: TimestampMs) -> Result<bool> {
    let (home, waitpoint) = (record.home, record.id);
    changes(engine, Key::waitpoint(home, waitpoint), RunOut { home, waitpoint, now }).await
}
