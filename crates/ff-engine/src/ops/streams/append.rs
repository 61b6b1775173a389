//! Appending a frame: ownership by the light fence, so that neither renewals nor progress make an append conflict.

use async_trait::async_trait;
use ff_core::backend::streams::{AppendFrameOutcome, Frame, FrameEncoding, FrameSource, StreamFrame, StreamMode};
use ff_core::error::StateKind;
use ff_core::handle::HandlePayload;
use ff_core::partition::Partition;
use ff_core::policy::StreamPolicy;
use ff_core::rules::fence::check_light;
use ff_core::rules::streams::{merge_patch, next_frame_id};
use ff_core::{Blob, Result};

use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::records::{Definition, Frame as FrameRecord, StreamHead, Summary};
use crate::store::{Op, Tx};

/// Old frames one append may drop. More than one, so that a stream whose length shrinks catches up; few, so that an append stays
/// small.
const TRIMMED_MAX: u64 = 64;

/// Appends one frame for the owner of an attempt.
pub(super) struct AppendFrame {
    pub(super) payload: HandlePayload,
    pub(super) frame: Frame,
}

#[async_trait]
impl Op for AppendFrame {
    type Out = AppendFrameOutcome;

    fn home(&self) -> Partition {
        self.payload.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let (id, index) = (self.payload.execution_id, self.payload.attempt_index);
        let mut keys = vec![Key::fence(id), Key::stream_head(id, index)];
        if matches!(self.frame.mode, StreamMode::Summary { .. }) {
            keys.push(Key::summary(id, index));
        }
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<AppendFrameOutcome> {
        let now = tx.now();
        let id = self.payload.execution_id;
        let index = self.payload.attempt_index;
        let fence = tx.fence(id).await?;
        check_light(&stored_ownership(&fence), self.payload.fence(), Some(index), now)
            .map_err(|refusal| refusal.for_append())?;
        let mut head = tx
            .get::<StreamHead>(Key::stream_head(id, index))
            .await?
            .unwrap_or_else(|| StreamHead::open(id, index, now));
        if head.closed.is_some() {
            return Err(StateKind::StreamClosed.into());
        }
        if head.is_expired(now) {
            head.expired_to = head.last_id;
        }
        let policy = self.policy(tx, &head).await?;
        let summary_version = self.patch_summary(tx, &mut head).await?;
        let (retention, keep) = head.retention.append(&self.frame.mode, policy.retention_maxlen, now);
        let frame_id = next_frame_id(head.last_id, now);
        head.policy = Some(policy);
        head.retention = retention;
        head.last_id = frame_id;
        head.frame_count += 1;
        head.retained += 1;
        head.total_bytes += self.frame.payload.len() as u64;
        let frame = StreamFrame {
            id: frame_id,
            frame_type: self.frame.effective_type().to_owned(),
            at: now,
            encoding: FrameEncoding::of(&self.frame.payload),
            payload: self.frame.payload.clone(),
            source: FrameSource::Worker,
            mode: self.frame.mode.word(),
            correlation_id: self.frame.correlation_id.clone(),
            summary_version,
        };
        tx.put(FrameRecord { execution: id, index, frame });
        trim(tx, &mut head, keep).await?;
        let frame_count = head.frame_count;
        tx.put(head);
        Ok(AppendFrameOutcome { stream_id: frame_id, frame_count, summary_version })
    }
}

impl AppendFrame {
    async fn policy(&self, tx: &mut dyn Tx, head: &StreamHead) -> Result<StreamPolicy> {
        if let Some(policy) = head.policy {
            return Ok(policy);
        }
        let definition = tx.get::<Definition>(Key::definition(self.payload.execution_id)).await?;
        Ok(definition
            .and_then(|definition| definition.policy)
            .and_then(|policy| policy.stream_policy)
            .unwrap_or_default())
    }

    /// Applies the payload to the summary document when the frame asks for that; gives the new version.
    async fn patch_summary(&self, tx: &mut dyn Tx, head: &mut StreamHead) -> Result<Option<u64>> {
        if !matches!(self.frame.mode, StreamMode::Summary { .. }) {
            return Ok(None);
        }
        let now = tx.now();
        let (execution, index) = (head.execution, head.index);
        let stored = tx.get::<Summary>(Key::summary(execution, index)).await?;
        let merged = merge_patch(stored.as_ref().map(|summary| &*summary.document_json), &self.frame.payload)?;
        let version = stored.as_ref().map_or(0, |summary| summary.version) + 1;
        tx.put(Summary {
            execution,
            index,
            document_json: Blob::from(merged),
            version,
            first_applied_at: stored.map_or(now, |summary| summary.first_applied_at),
            last_updated_at: now,
        });
        head.summary_version = version;
        Ok(Some(version))
    }
}

/// Drops the oldest frames beyond `keep`, a few at a time.
async fn trim(tx: &mut dyn Tx, head: &mut StreamHead, keep: u64) -> Result<()> {
    let excess = head.retained.saturating_sub(keep).min(TRIMMED_MAX);
    if excess == 0 {
        return Ok(());
    }
    let oldest = Bounds::first(usize::try_from(excess).unwrap_or(usize::MAX));
    for frame in tx.range_of::<FrameRecord>(Index::FramesOf(head.execution, head.index), oldest).await? {
        tx.delete(Key::frame(frame.execution, frame.index, frame.frame.id));
        head.retained = head.retained.saturating_sub(1);
    }
    Ok(())
}
