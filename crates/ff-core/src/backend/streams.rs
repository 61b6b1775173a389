//! Frames that a running attempt publishes, and the summary document they build.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backend::layer::forward;
use crate::blob::Blob;
use crate::cursor::{FrameCursor, FrameId};
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{AttemptIndex, ExecutionId};
use crate::state::StreamCloseReason;
use crate::time::TimestampMs;
use crate::words::words;

words! {
    /// What a frame holds.
    pub enum FrameKind {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
        /// A structured event.
        Event = "event",
        /// Anything else.
        Blob = "blob",
    }
}

words! {
    /// How a summary frame changes the summary document.
    #[derive(Default)]
    pub enum PatchKind {
        /// JSON Merge Patch, RFC 7396.
        #[default]
        JsonMergePatch = "json_merge_patch",
    }
}

words! {
    /// How a stored frame was appended.
    pub enum FrameMode {
        /// Kept up to the durable length.
        Durable = "durable",
        /// A patch of the summary document.
        Summary = "summary",
        /// Kept while it is fresh.
        BestEffort = "best_effort",
    }
}

words! {
    /// Whether a payload reads as text. Payloads are byte-exact either way.
    pub enum FrameEncoding {
        /// Valid UTF-8.
        Utf8 = "utf8",
        /// Anything else.
        Binary = "binary",
    }
}

impl FrameEncoding {
    /// The encoding of these bytes.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        if std::str::from_utf8(payload).is_ok() { Self::Utf8 } else { Self::Binary }
    }
}

words! {
    /// Who appended a frame.
    pub enum FrameSource {
        /// The worker that owns the attempt.
        Worker = "worker",
    }
}

words! {
    /// Which frames a tail shows.
    #[derive(Default)]
    pub enum TailVisibility {
        /// Every frame.
        #[default]
        All = "all",
        /// Durable and summary frames only.
        ExcludeBestEffort = "exclude_best_effort",
    }
}

impl TailVisibility {
    /// Whether a frame of this mode is shown.
    #[must_use]
    pub fn shows(self, mode: FrameMode) -> bool {
        self == Self::All || mode != FrameMode::BestEffort
    }
}

/// How many best-effort frames stay, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BestEffortLiveConfig {
    /// How long a frame is of interest; 5000 to 30000 is sensible.
    pub ttl_ms: u32,
    /// Fewest frames kept.
    #[serde(default = "BestEffortLiveConfig::maxlen_floor")]
    pub maxlen_floor: u32,
    /// Most frames kept; the floor wins when it is larger.
    #[serde(default = "BestEffortLiveConfig::maxlen_ceiling")]
    pub maxlen_ceiling: u32,
    /// Weight of the newest interval in the rate estimate; outside (0, 1] it counts as 0.2.
    #[serde(default = "BestEffortLiveConfig::ema_alpha")]
    #[cfg_attr(test, proptest(strategy = "0.0f64..2.0"))]
    pub ema_alpha: f64,
}

impl BestEffortLiveConfig {
    /// The defaults with the given time to live.
    #[must_use]
    pub const fn new(ttl_ms: u32) -> Self {
        Self {
            ttl_ms,
            maxlen_floor: Self::maxlen_floor(),
            maxlen_ceiling: Self::maxlen_ceiling(),
            ema_alpha: Self::ema_alpha(),
        }
    }

    const fn maxlen_floor() -> u32 {
        64
    }

    const fn maxlen_ceiling() -> u32 {
        16_384
    }

    const fn ema_alpha() -> f64 {
        0.2
    }
}

/// What becomes of an appended frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum StreamMode {
    /// The newest frames stay, up to the durable length.
    Durable {},
    /// The payload patches the summary document; a short window of patches stays.
    Summary {
        /// How to read the payload.
        #[serde(default)]
        patch_kind: PatchKind,
    },
    /// Frames stay while they are fresh. Trimming them may also drop older durable frames of the same stream.
    BestEffort {
        /// How many, and for how long.
        config: BestEffortLiveConfig,
    },
}

impl StreamMode {
    /// The word stored with a frame of this mode.
    #[must_use]
    pub const fn word(&self) -> FrameMode {
        match self {
            Self::Durable {} => FrameMode::Durable,
            Self::Summary { .. } => FrameMode::Summary,
            Self::BestEffort { .. } => FrameMode::BestEffort,
        }
    }
}

impl Default for StreamMode {
    fn default() -> Self {
        Self::Durable {}
    }
}

/// A frame to append.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Frame {
    /// The content, stored byte-exact; in summary mode a patch.
    pub payload: Blob,
    /// What it holds.
    pub kind: FrameKind,
    /// A label of the caller's; empty means the name of the kind.
    #[serde(default)]
    pub frame_type: String,
    /// Ties frames of one exchange together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What becomes of it.
    #[serde(default)]
    pub mode: StreamMode,
}

impl Frame {
    /// A durable frame without label.
    pub fn new(kind: FrameKind, payload: impl Into<Blob>) -> Self {
        Self {
            payload: payload.into(),
            kind,
            frame_type: String::new(),
            correlation_id: None,
            mode: StreamMode::default(),
        }
    }

    /// The label that readers see.
    #[must_use]
    pub fn effective_type(&self) -> &str {
        if self.frame_type.is_empty() { self.kind.as_str() } else { &self.frame_type }
    }
}

/// Where an appended frame stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AppendFrameOutcome {
    /// The id of the frame.
    pub stream_id: FrameId,
    /// How many frames the attempt has ever appended.
    pub frame_count: u64,
    /// The version of the summary document after this frame; summary mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_version: Option<u64>,
}

/// A stored frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StreamFrame {
    /// Identity and order inside the stream.
    pub id: FrameId,
    /// The caller's label, or the name of the kind.
    pub frame_type: String,
    /// When it was appended.
    pub at: TimestampMs,
    /// The content as it was given.
    pub payload: Blob,
    /// Whether the content reads as text.
    pub encoding: FrameEncoding,
    /// Who appended it.
    pub source: FrameSource,
    /// How it was appended.
    pub mode: FrameMode,
    /// Ties frames of one exchange together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The summary version this patch made; summary mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_version: Option<u64>,
}

/// Frames in ascending order, and whether more can come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StreamFrames {
    /// The frames.
    pub frames: Vec<StreamFrame>,
    /// When the stream closed; present exactly when it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<TimestampMs>,
    /// Why the stream closed; present exactly when it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_reason: Option<StreamCloseReason>,
}

impl StreamFrames {
    /// Whether a reader has seen everything: closed, and nothing left.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.frames.is_empty() && self.closed_at.is_some()
    }
}

/// The document that the summary frames of an attempt have built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SummaryDocument {
    /// A JSON object as UTF-8.
    pub document_json: Blob,
    /// How many patches were applied, from 1.
    pub version: u64,
    /// How patches are read.
    pub patch_kind: PatchKind,
    /// When the last patch was applied.
    pub last_updated_ms: TimestampMs,
    /// When the first patch was applied.
    pub first_applied_ms: TimestampMs,
}

/// Lets an attempt publish frames and lets anybody read them.
#[async_trait]
pub trait Streams: Send + Sync {
    /// Appends a frame to the stream of the handle's attempt; every call appends, a repeated one too.
    ///
    /// Errors, in order: `RetentionLimitExceeded` for a payload over the limit; `NotFound`; `StreamClosed` when the
    /// execution is not active; `StaleOwnerCannotAppend` for a lost or foreign lease; `StreamClosed` for a closed
    /// stream; `InvalidInput` for a faulty summary patch.
    async fn append_frame(&self, handle: &Handle, frame: Frame) -> Result<AppendFrameOutcome>;

    /// The frames from `from` to `to`, both included, oldest first, at most `count_limit`.
    ///
    /// An unknown execution or attempt reads as empty and open. `InvalidInput` for a count outside 1 to 10000,
    /// `ResourceExhausted` when too many stream operations run at once.
    async fn read_stream(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        from: FrameCursor,
        to: FrameCursor,
        count_limit: u64,
    ) -> Result<StreamFrames> {
        let _ = (execution_id, attempt_index, from, to, count_limit);
        Err(EngineError::Unavailable { op: "read_stream" })
    }

    /// The visible frames strictly after `after`, at most `count_limit`; waits up to `block_ms` for one, or for the
    /// stream to close. Zero does not wait.
    ///
    /// An empty answer that is not closed means the wait ran out. `InvalidInput` for `start` or `end`, for a count
    /// outside 1 to 10000 and for a wait over 30000; `ResourceExhausted` when too many stream operations run at once.
    async fn tail_stream(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        after: FrameCursor,
        block_ms: u64,
        count_limit: u64,
        visibility: TailVisibility,
    ) -> Result<StreamFrames> {
        let _ = (execution_id, attempt_index, after, block_ms, count_limit, visibility);
        Err(EngineError::Unavailable { op: "tail_stream" })
    }

    /// The summary document of an attempt; none before its first summary frame.
    async fn read_summary(
        &self,
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
    ) -> Result<Option<SummaryDocument>> {
        let _ = (execution_id, attempt_index);
        Err(EngineError::Unavailable { op: "read_summary" })
    }
}

forward! { Streams,
    append_frame(handle: &Handle, frame: Frame) -> AppendFrameOutcome => OnlyIfUnsent;
    read_stream(
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        from: FrameCursor,
        to: FrameCursor,
        count_limit: u64
    ) -> StreamFrames => Safe;
    tail_stream(
        execution_id: ExecutionId,
        attempt_index: AttemptIndex,
        after: FrameCursor,
        block_ms: u64,
        count_limit: u64,
        visibility: TailVisibility
    ) -> StreamFrames => Safe;
    read_summary(execution_id: ExecutionId, attempt_index: AttemptIndex) -> Option<SummaryDocument> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::inspection::forwarding::{any_execution, assert_forwards};
    use crate::testing::{answer_round_trips, json_round_trips};
    use proptest::prelude::*;

    json_round_trips!(BestEffortLiveConfig, StreamMode, Frame, FrameKind, PatchKind, TailVisibility);
    answer_round_trips!(AppendFrameOutcome, StreamFrame, StreamFrames, SummaryDocument);

    struct Bare;

    #[async_trait]
    impl Streams for Bare {
        async fn append_frame(&self, _: &Handle, _: Frame) -> Result<AppendFrameOutcome> {
            Err(EngineError::Unavailable { op: "append_frame" })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1))]
        #[test]
        fn a_layer_sees_every_operation_and_the_defaults_name_themselves(handle: Handle, frame: Frame) {
            let (id, attempt, from) = (any_execution(), AttemptIndex(0), FrameCursor::Start);
            assert_forwards!(
                Bare,
                append_frame(&handle, frame),
                read_stream(id, attempt, from, FrameCursor::End, 1),
                tail_stream(id, attempt, from, 0, 1, TailVisibility::All),
                read_summary(id, attempt),
            );
        }
    }

    #[test]
    fn a_frame_without_mode_is_durable_and_is_labelled_by_its_kind() {
        let frame: Frame = serde_json::from_str(r#"{"payload":"aGk=","kind":"stderr"}"#).expect("parses");
        assert_eq!(frame, Frame::new(FrameKind::Stderr, "hi"));
        assert_eq!(frame.mode.word(), FrameMode::Durable);
        assert_eq!(frame.effective_type(), "stderr");
        assert_eq!(Frame { frame_type: "token".into(), ..frame }.effective_type(), "token");
    }

    #[test]
    fn a_best_effort_mode_needs_only_its_ttl_and_a_summary_mode_nothing() {
        let live: StreamMode =
            serde_json::from_str(r#"{"type":"best_effort","config":{"ttl_ms":5000}}"#).expect("parses");
        assert_eq!(live, StreamMode::BestEffort { config: BestEffortLiveConfig::new(5000) });
        let summary: StreamMode = serde_json::from_str(r#"{"type":"summary"}"#).expect("parses");
        assert_eq!(summary, StreamMode::Summary { patch_kind: PatchKind::JsonMergePatch });
    }

    #[test]
    fn only_best_effort_frames_can_be_hidden_from_a_tail() {
        for mode in FrameMode::ALL.iter().copied() {
            assert!(TailVisibility::All.shows(mode));
            assert_eq!(TailVisibility::ExcludeBestEffort.shows(mode), mode != FrameMode::BestEffort);
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_marked_binary() {
        assert_eq!(FrameEncoding::of("grüße".as_bytes()), FrameEncoding::Utf8);
        assert_eq!(FrameEncoding::of(b""), FrameEncoding::Utf8);
        assert_eq!(FrameEncoding::of(&[0xff, 0xfe]), FrameEncoding::Binary);
    }

    #[test]
    fn the_end_of_a_stream_is_closed_and_empty() {
        let open = StreamFrames::default();
        let closed = StreamFrames { closed_at: Some(TimestampMs(1)), ..StreamFrames::default() };
        assert!(!open.is_end());
        assert!(closed.is_end());
    }
}
