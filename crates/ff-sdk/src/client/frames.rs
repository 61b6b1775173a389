//! Frames as a stream that a reader can leave and come back to.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use ff_core::backend::EngineBackend;
use ff_core::backend::streams::{StreamFrame, StreamFrames, TailVisibility};
use ff_core::cursor::{FrameCursor, FrameId};
use ff_core::ids::{AttemptIndex, ExecutionId};
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Frames read at a time, and how long one read waits for the first.
const PAGE: u64 = 256;
const WAIT_MS: u64 = 25_000;

/// A place in the frames of an execution: after this frame of this attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FramePlace {
    /// Which attempt.
    pub attempt: u32,
    /// Milliseconds part of the frame's id.
    pub ms: u64,
    /// Order inside the millisecond.
    pub seq: u64,
}

type Page = Pin<Box<dyn Future<Output = Result<Next>> + Send>>;

/// What the next read found.
enum Next {
    /// Frames of an attempt.
    Frames(u32, Vec<StreamFrame>),
    /// Nothing more of this attempt; the next one may publish.
    Attempt(u32),
    /// The execution is over, and everything was read.
    End,
}

/// Frames in order, over all attempts, as they come; ends when the execution is over. After an error the same feed can be read on.
pub struct FrameFeed {
    backend: Arc<dyn EngineBackend>,
    id: ExecutionId,
    place: FramePlace,
    ready: VecDeque<StreamFrame>,
    reading: Option<Page>,
    is_over: bool,
}

impl FrameFeed {
    pub(super) const fn new(backend: Arc<dyn EngineBackend>, id: ExecutionId, place: FramePlace) -> Self {
        Self { backend, id, place, ready: VecDeque::new(), reading: None, is_over: false }
    }

    /// After the last frame that was given; another reader can go on from here.
    #[must_use]
    pub const fn place(&self) -> FramePlace {
        self.place
    }

    /// The next frame; nothing once the execution is over and everything was read.
    ///
    /// # Errors
    /// When the engine cannot be reached; reading on is possible.
    pub async fn next(&mut self) -> Option<Result<StreamFrame>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    fn read(&self) -> Page {
        Box::pin(next(Arc::clone(&self.backend), self.id, self.place))
    }
}

impl Stream for FrameFeed {
    type Item = Result<StreamFrame>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                (self.place.ms, self.place.seq) = (frame.id.ms, frame.id.seq);
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let mut reading = self.reading.take().unwrap_or_else(|| self.read());
            let Poll::Ready(found) = reading.as_mut().poll(cx) else {
                self.reading = Some(reading);
                return Poll::Pending;
            };
            match found {
                Ok(Next::Frames(attempt, frames)) => {
                    if attempt != self.place.attempt {
                        self.place = FramePlace { attempt, ..FramePlace::default() };
                    }
                    self.ready.extend(frames);
                }
                Ok(Next::Attempt(attempt)) => self.place = FramePlace { attempt, ..FramePlace::default() },
                Ok(Next::End) => self.is_over = true,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

/// Reads on after a place.
async fn next(backend: Arc<dyn EngineBackend>, id: ExecutionId, place: FramePlace) -> Result<Next> {
    let after = FrameId { ms: place.ms, seq: place.seq };
    let found = tail(&*backend, id, place.attempt, after, WAIT_MS).await?;
    if !found.frames.is_empty() || found.closed_at.is_none() && !is_over(&*backend, id).await? {
        return Ok(Next::Frames(place.attempt, found.frames));
    }
    // This attempt says no more: either another one follows, or the execution is over.
    let following = place.attempt + 1;
    tokio::select! {
        biased;
        later = tail(&*backend, id, following, FrameId::ZERO, WAIT_MS) => {
            let later = later?;
            if later.frames.is_empty() && later.closed_at.is_some() {
                return Ok(Next::Attempt(following));
            }
            if later.frames.is_empty() && is_over(&*backend, id).await? {
                return after_the_end(&*backend, id, following).await;
            }
            Ok(if later.frames.is_empty() { Next::Frames(place.attempt, Vec::new()) } else { Next::Frames(following, later.frames) })
        }
        outcome = backend.await_outcome(id, WAIT_MS) => {
            match outcome? {
                Some(_) => after_the_end(&*backend, id, following).await,
                None => Ok(Next::Frames(place.attempt, Vec::new())),
            }
        }
    }
}

/// The execution is over: what attempts from this one on have published, if there are any.
async fn after_the_end(backend: &dyn EngineBackend, id: ExecutionId, following: u32) -> Result<Next> {
    let attempts = backend.read_total_attempt_count(id).await.map_err(Error::from)?;
    Ok(if following < attempts { Next::Attempt(following) } else { Next::End })
}

async fn is_over(backend: &dyn EngineBackend, id: ExecutionId) -> Result<bool> {
    Ok(backend.await_outcome(id, 0).await?.is_some())
}

async fn tail(
    backend: &dyn EngineBackend,
    id: ExecutionId,
    attempt: u32,
    after: FrameId,
    wait_ms: u64,
) -> Result<StreamFrames> {
    let cursor = FrameCursor::At(after);
    Ok(backend.tail_stream(id, AttemptIndex(attempt), cursor, wait_ms, PAGE, TailVisibility::All).await?)
}
