//! Streams of frames, one per attempt.

use ff_core::backend::streams::StreamFrame;
use ff_core::cursor::FrameId;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::policy::StreamPolicy;
use ff_core::rules::streams::{StreamRetention, may_close};
use ff_core::state::StreamCloseReason;
use ff_core::{Blob, TimestampMs};
use serde::{Deserialize, Serialize};

use super::Stored;
use super::sparse::sparse;
use crate::index::{DueKind, Entry, Index, Position, Topic};
use crate::key::Key;

/// Everything about a stream but its frames.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct StreamHead {
    pub execution: ExecutionId,
    pub index: AttemptIndex,
    pub created_at: TimestampMs,
    pub last_id: FrameId,
    /// Appends over the whole life; never decreases.
    pub frame_count: u64,
    /// Frames still kept.
    pub retained: u64,
    pub total_bytes: u64,
    /// What decides how much stays and for how long.
    pub retention: StreamRetention,
    /// The execution's policy, copied with the first frame so that appends need not read it again.
    pub policy: Option<StreamPolicy>,
    pub summary_version: u64,
    /// Frames up to this one expired before the next was appended; readers do not see them, swept or not.
    pub expired_to: FrameId,
    pub closed: Option<(TimestampMs, StreamCloseReason)>,
}

sparse!(StreamHead {
    known: [execution: ExecutionId, index: AttemptIndex],
    always: [created_at],
    or_default: [
        closed,
        last_id,
        frame_count,
        retained,
        total_bytes,
        retention,
        policy,
        summary_version,
        expired_to,
    ],
});

impl StreamHead {
    /// An open stream without frames.
    #[must_use]
    pub const fn open(execution: ExecutionId, index: AttemptIndex, now: TimestampMs) -> Self {
        Self {
            execution,
            index,
            created_at: now,
            last_id: FrameId::ZERO,
            frame_count: 0,
            retained: 0,
            total_bytes: 0,
            retention: StreamRetention { has_durable: false, expires_at: None, rate: None },
            policy: None,
            summary_version: 0,
            expired_to: FrameId::ZERO,
            closed: None,
        }
    }

    /// Closes it; an earlier closure stands unless the rules let this reason replace it.
    pub fn close(&mut self, reason: StreamCloseReason, now: TimestampMs) {
        if may_close(self.closed.map(|(_, earlier)| earlier), reason) {
            self.closed = Some((now, reason));
        }
    }

    /// When its frames go: live ones when nobody adds to them, those of a closed stream when the policy says so.
    #[must_use]
    pub fn expires_at(&self) -> Option<TimestampMs> {
        if self.retained == 0 {
            return None;
        }
        let kept_closed = self.policy.and_then(|policy| policy.retention_ttl_ms);
        let after_closure = self.closed.zip(kept_closed).map(|((at, _), ttl_ms)| at.plus(ttl_ms));
        self.retention.expires_at.into_iter().chain(after_closure).min()
    }

    /// Whether its frames have gone, or are about to.
    #[must_use]
    pub fn is_expired(&self, now: TimestampMs) -> bool {
        self.expires_at().is_some_and(|at| at.is_due(now))
    }
}

impl Stored for StreamHead {
    fn key(&self) -> Key {
        Key::stream_head(self.execution, self.index)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        if let Some(at) = self.expires_at() {
            let mut tie = self.execution.to_bytes().to_vec();
            tie.extend_from_slice(&self.index.0.to_be_bytes());
            out.push(Entry::new(Index::Due(DueKind::StreamExpiry), Position::at(at, tie)));
        }
    }

    fn topics(&self, out: &mut Vec<Topic>) {
        out.push(Topic::Stream(self.execution));
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Frame {
    pub execution: ExecutionId,
    pub index: AttemptIndex,
    pub frame: StreamFrame,
}

impl Stored for Frame {
    fn key(&self) -> Key {
        Key::frame(self.execution, self.index, self.frame.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::FramesOf(self.execution, self.index), frame_position(self.frame.id)));
    }
}

/// Where a frame stands in its stream.
#[must_use]
pub(crate) fn frame_position(id: FrameId) -> Position {
    Position::new(i64::try_from(id.ms).unwrap_or(i64::MAX), id.seq.to_be_bytes())
}

/// The document that summary frames build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub execution: ExecutionId,
    pub index: AttemptIndex,
    pub document_json: Blob,
    pub version: u64,
    pub first_applied_at: TimestampMs,
    pub last_updated_at: TimestampMs,
}

impl Stored for Summary {
    fn key(&self) -> Key {
        Key::summary(self.execution, self.index)
    }
}
