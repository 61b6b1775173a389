//! Frames that a running attempt publishes, and the summary document they build.

mod append;
mod read;

use async_trait::async_trait;
use ff_core::backend::Streams;
use ff_core::backend::streams::{AppendFrameOutcome, Frame, PatchKind, StreamFrames, SummaryDocument, TailVisibility};
use ff_core::cursor::FrameCursor;
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::rules::streams::{check_block_ms, check_count_limit, check_frame, tail_position};
use ff_core::{EngineError, Result};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::Summary;
use crate::store::Store;
use crate::verbs::read_one;

use append::AppendFrame;
use read::Window;

/// When a refused reader may try again.
const RETRY_AFTER_MS: u32 = 250;

#[async_trait]
impl<S: Store> Streams for Engine<S> {
    async fn append_frame(&self, handle: &Handle, frame: Frame) -> Result<AppendFrameOutcome> {
        check_frame(&frame, self.settings.limits.frame_bytes)?;
        let payload = self.open_handle(handle)?;
        self.run(AppendFrame { payload, frame }).await
    }

    async fn read_stream(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        from: FrameCursor,
        to: FrameCursor,
        count_limit: u64,
    ) -> Result<StreamFrames> {
        check_count_limit(count_limit)?;
        let _permit = self.admit_stream_op()?;
        let window = Window {
            execution: execution_id,
            attempt: attempt_index,
            after: read::before(from.lower()),
            until: Some(to.upper()),
            count: usize::try_from(count_limit).unwrap_or(usize::MAX),
            visibility: TailVisibility::All,
        };
        self.look(&window).await
    }

    async fn tail_stream(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        after: FrameCursor,
        block_ms: u64,
        count_limit: u64,
        visibility: TailVisibility,
    ) -> Result<StreamFrames> {
        let after = tail_position(after)?;
        check_count_limit(count_limit)?;
        check_block_ms(block_ms)?;
        let _permit = self.admit_stream_op()?;
        let window = Window {
            execution: execution_id,
            attempt: attempt_index,
            after: Some(after),
            until: None,
            count: usize::try_from(count_limit).unwrap_or(usize::MAX),
            visibility,
        };
        self.tail(&window, block_ms).await
    }

    async fn read_summary(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
    ) -> Result<Option<SummaryDocument>> {
        let summary: Option<Summary> = read_one(&self.store, Key::summary(execution_id, attempt_index)).await?;
        Ok(summary.map(|summary| SummaryDocument {
            document_json: summary.document_json,
            version: summary.version,
            patch_kind: PatchKind::JsonMergePatch,
            last_updated_ms: summary.last_updated_at,
            first_applied_ms: summary.first_applied_at,
        }))
    }
}

impl<S: Store> Engine<S> {
    /// A place among the stream readers of this process, given back when the permit is dropped.
    fn admit_stream_op(&self) -> Result<OwnedSemaphorePermit> {
        let exhausted = |retry_after_ms| EngineError::ResourceExhausted {
            pool: "stream_ops",
            max: self.settings.stream_ops_max,
            retry_after_ms,
        };
        if *self.closing.borrow() {
            return Err(exhausted(None));
        }
        match std::sync::Arc::clone(&self.stream_ops).try_acquire_owned() {
            Ok(permit) => Ok(permit),
            Err(TryAcquireError::NoPermits) => Err(exhausted(Some(RETRY_AFTER_MS))),
            Err(TryAcquireError::Closed) => Err(exhausted(None)),
        }
    }
}
