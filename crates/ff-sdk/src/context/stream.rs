//! Frames: what a handler publishes while it works.

use std::time::Duration;

use ff_core::Blob;
use ff_core::backend::streams::{BestEffortLiveConfig, Frame, FrameKind, StreamMode};
use serde::Serialize;

use super::Context;
use crate::error::{TaskError, TaskResult};
use crate::task::millis;

/// Publishes frames of one mode.
#[must_use = "nothing is published until a frame is sent"]
pub struct Frames<'a> {
    context: &'a Context,
    mode: StreamMode,
    label: String,
}

impl Context {
    /// Frames that stay.
    pub fn stream(&self) -> Frames<'_> {
        Frames { context: self, mode: StreamMode::Durable {}, label: String::new() }
    }

    /// Frames for those who look right now; they are kept no longer than `ttl`.
    pub fn live(&self, ttl: Duration) -> Frames<'_> {
        let ttl_ms = u32::try_from(millis(ttl)).unwrap_or(u32::MAX);
        let mode = StreamMode::BestEffort { config: BestEffortLiveConfig::new(ttl_ms) };
        Frames { context: self, mode, label: String::new() }
    }

    /// Changes the summary document by a JSON merge patch; answers its version.
    ///
    /// # Errors
    /// When the patch is not an object, or the execution is no longer this worker's.
    pub async fn summary(&self, patch: &impl Serialize) -> TaskResult<u64> {
        let mode = StreamMode::Summary { patch_kind: ff_core::backend::streams::PatchKind::default() };
        let payload = json(patch)?;
        let frame = Frame { mode, ..Frame::new(FrameKind::Event, payload) };
        let appended = self.guarded(self.backend().append_frame(&self.parts().handle, frame)).await?;
        Ok(appended.summary_version.unwrap_or_default())
    }
}

impl Frames<'_> {
    /// Labels the frames, so that readers can tell them apart.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Publishes text.
    ///
    /// # Errors
    /// When it is too large, or the execution is no longer this worker's.
    pub async fn text(&self, text: impl AsRef<str>) -> TaskResult {
        self.send(FrameKind::Stdout, text.as_ref().into()).await
    }

    /// Publishes a document.
    ///
    /// # Errors
    /// As for [`text`](Self::text), and when it cannot be written as JSON.
    pub async fn json(&self, document: &impl Serialize) -> TaskResult {
        self.send(FrameKind::Event, json(document)?).await
    }

    /// Publishes bytes.
    ///
    /// # Errors
    /// As for [`text`](Self::text).
    pub async fn bytes(&self, bytes: impl Into<Blob>) -> TaskResult {
        self.send(FrameKind::Blob, bytes.into()).await
    }

    async fn send(&self, kind: FrameKind, payload: Blob) -> TaskResult {
        let Self { context, mode, label } = self;
        let frame = Frame { frame_type: label.clone(), mode: mode.clone(), ..Frame::new(kind, payload) };
        context.guarded(context.backend().append_frame(&context.parts().handle, frame)).await.map(|_| ())
    }
}

fn json(document: &impl Serialize) -> TaskResult<Blob> {
    let bytes = serde_json::to_vec(document)
        .map_err(|error| TaskError::permanent(format!("a frame cannot be written as JSON: {error}")))?;
    Ok(bytes.into())
}
