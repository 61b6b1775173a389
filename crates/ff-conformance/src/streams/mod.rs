//! Frames that a running attempt publishes, and the summary document they build.

mod append;
mod read;
mod summary;

use ff_core::backend::streams::{
    AppendFrameOutcome, BestEffortLiveConfig, Frame, FrameKind, PatchKind, StreamFrames, StreamMode,
};
use ff_core::cursor::FrameCursor;
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, ExecutionId};

use crate::{Case, World};

const FIRST: AttemptIndex = AttemptIndex(0);

const SUMMARY: StreamMode = StreamMode::Summary { patch_kind: PatchKind::JsonMergePatch };

pub(crate) fn cases() -> Vec<Case> {
    [append::cases(), read::cases(), summary::cases()].into_iter().flatten().collect()
}

fn durable(text: &str) -> Frame {
    Frame::new(FrameKind::Stdout, text)
}

fn summary_of(patch: &str) -> Frame {
    Frame { mode: SUMMARY, ..Frame::new(FrameKind::Event, patch) }
}

fn live(text: &str, ttl_ms: u32) -> Frame {
    let config = BestEffortLiveConfig { maxlen_floor: 4, maxlen_ceiling: 8, ..BestEffortLiveConfig::new(ttl_ms) };
    Frame { mode: StreamMode::BestEffort { config }, ..durable(text) }
}

async fn append(world: &World, handle: &Handle, frame: Frame) -> AppendFrameOutcome {
    world.backend.append_frame(handle, frame).await.unwrap()
}

async fn read_all(world: &World, id: ExecutionId, attempt: AttemptIndex) -> StreamFrames {
    world.backend.read_stream(id, attempt, FrameCursor::Start, FrameCursor::End, 10_000).await.unwrap()
}

fn texts(page: &StreamFrames) -> Vec<String> {
    page.frames.iter().map(|frame| String::from_utf8(frame.payload.to_vec()).unwrap()).collect()
}
