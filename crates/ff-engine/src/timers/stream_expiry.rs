//! Frames run out: live ones that nobody adds to, and those of a closed stream whose policy keeps them for a while only.

use async_trait::async_trait;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Frame, Stored, StreamHead};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Drops a slice of the frames; the head stays due until none is left.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: StreamHead, _now: TimestampMs) -> Result<bool> {
    changes(engine, record.key(), Expire { head: record, slice: engine.settings.slice }).await
}

struct Expire {
    head: StreamHead,
    slice: usize,
}

#[async_trait]
impl Op for Expire {
    type Out = ();

    fn home(&self) -> Partition {
        self.head.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![self.head.key()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        let Some(mut head) = tx.get::<StreamHead>(self.head.key()).await? else { return Ok(()) };
        if !head.is_expired(now) {
            return Ok(());
        }
        let index = Index::FramesOf(head.execution, head.index);
        let frames = tx.range_of::<Frame>(index, Bounds::first(self.slice)).await?;
        let all = frames.len() < self.slice;
        for frame in frames {
            tx.delete(frame.key());
            head.retained = head.retained.saturating_sub(1);
        }
        if all {
            head.retained = 0;
            head.retention.expires_at = None;
        }
        tx.put(head);
        Ok(())
    }
}
