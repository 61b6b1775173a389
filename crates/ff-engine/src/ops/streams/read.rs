//! Looking at a stream, once or until something comes.

use ff_core::Result;
use ff_core::backend::streams::{StreamFrames, TailVisibility};
use ff_core::cursor::FrameId;
use ff_core::ids::{AttemptIndex, ExecutionId};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Topic};
use crate::key::Key;
use crate::records::{Frame, StreamHead, frame_position};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

/// Frames loaded at once while invisible ones are skipped.
const PAGE: usize = 256;

/// Which frames a reader wants.
pub(super) struct Window {
    pub(super) execution: ExecutionId,
    pub(super) attempt: AttemptIndex,
    /// Only frames after this one.
    pub(super) after: Option<FrameId>,
    /// Only frames up to this one.
    pub(super) until: Option<FrameId>,
    pub(super) count: usize,
    pub(super) visibility: TailVisibility,
}

/// The last possible id before this one; none before the first.
pub(super) const fn before(id: FrameId) -> Option<FrameId> {
    match (id.ms, id.seq) {
        (0, 0) => None,
        (ms, 0) => Some(FrameId { ms: ms - 1, seq: u64::MAX }),
        (ms, seq) => Some(FrameId { ms, seq: seq - 1 }),
    }
}

impl<S: Store> Engine<S> {
    /// The frames in a window and whether the stream is closed. The head is read first: a stream seen closed has no frame that is
    /// not listed afterwards.
    pub(super) async fn look(&self, window: &Window) -> Result<StreamFrames> {
        let key = Key::stream_head(window.execution, window.attempt);
        let Some(head) = read_one::<StreamHead, _>(&self.store, key).await? else { return Ok(StreamFrames::default()) };
        let frames = if head.is_expired(self.store.now().await?) {
            Vec::new()
        } else {
            self.frames(window, window.after.max(Some(head.expired_to))).await?
        };
        let (closed_at, closed_reason) = head.closed.unzip();
        Ok(StreamFrames { frames, closed_at, closed_reason })
    }

    async fn frames(
        &self,
        window: &Window,
        after: Option<FrameId>,
    ) -> Result<Vec<ff_core::backend::streams::StreamFrame>> {
        let mut found = Vec::new();
        let mut after = after.map(frame_position);
        loop {
            let hides_nothing = window.visibility == TailVisibility::All;
            let limit = if hides_nothing { PAGE.min(window.count - found.len()) } else { PAGE };
            let mut bounds = Bounds::first(limit).after(after);
            bounds.until = window.until.map(frame_position);
            let index = Index::FramesOf(window.execution, window.attempt);
            let page = list_of::<Frame, _>(&self.store, index, bounds).await?;
            let is_last = page.len() < limit;
            after = page.last().map(|frame| frame_position(frame.frame.id));
            found.extend(page.into_iter().map(|frame| frame.frame).filter(|frame| window.visibility.shows(frame.mode)));
            if is_last || found.len() >= window.count {
                found.truncate(window.count);
                return Ok(found);
            }
        }
    }

    /// Looks until a visible frame is there, the stream is closed, the time is over, or this process shuts down.
    pub(super) async fn tail(&self, window: &Window, block_ms: u64) -> Result<StreamFrames> {
        let deadline = self.store.now().await?.plus(block_ms);
        let mut closing = self.closing.subscribe();
        loop {
            let changed = self.store.listen(&Topic::Stream(window.execution));
            let seen = self.look(window).await?;
            let is_over = *closing.borrow_and_update() || deadline.is_due(self.store.now().await?);
            if is_over || !seen.frames.is_empty() || seen.closed_at.is_some() {
                return Ok(seen);
            }
            tokio::select! {
                () = changed => {}
                () = self.store.sleep_until(deadline) => {}
                _ = closing.changed() => {}
            }
        }
    }
}
