//! One execution, as a client deals with it.

use std::fmt;
use std::time::Duration;

use ff_core::Blob;
use ff_core::backend::attempts::{CancelExecutionArgs, CancelExecutionResult};
use ff_core::backend::ingress::ReplayExecutionArgs;
use ff_core::backend::inspection::{ExecutionOutcome, ExecutionSnapshot, Explanation};
use ff_core::backend::streams::SummaryDocument;
use ff_core::error::{EngineError, Entity};
use ff_core::ids::{AttemptIndex, ExecutionId, FenceTriple};
use ff_core::rules::fence::CancelSource;
use ff_core::state::PublicState;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::frames::{FrameFeed, FramePlace};
use super::{Client, Ending};
use crate::error::{Error, Result};
use crate::handler::decode;
use crate::task::millis;
use crate::worker::pause_if_early;

/// How long one wait at the engine lasts at most.
const POLL: Duration = Duration::from_secs(25);

/// One execution, as a client deals with it. Cheap to clone.
#[derive(Clone)]
pub struct Run {
    pub(super) client: Client,
    id: ExecutionId,
    is_duplicate: bool,
}

impl Run {
    pub(super) const fn submitted(client: Client, id: ExecutionId, is_duplicate: bool) -> Self {
        Self { client, id, is_duplicate }
    }

    pub(super) const fn known(client: Client, id: ExecutionId) -> Self {
        Self { client, id, is_duplicate: false }
    }

    /// The execution.
    #[must_use]
    pub const fn id(&self) -> ExecutionId {
        self.id
    }

    /// Whether the submission found an execution with the same idempotency key.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        self.is_duplicate
    }

    /// Where it is; nothing when it is gone.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    pub async fn state(&self) -> Result<Option<PublicState>> {
        Ok(self.client.backend.read_execution_state(self.id).await?)
    }

    /// Everything about it at a glance.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub async fn describe(&self) -> Result<ExecutionSnapshot> {
        let snapshot = self.client.backend.describe_execution(self.id).await?;
        Ok(snapshot.ok_or(EngineError::not_found(Entity::Execution))?)
    }

    /// Why it is where it is.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub async fn explain(&self) -> Result<Explanation> {
        let explanation = self.client.backend.explain(self.id).await?;
        Ok(explanation.ok_or(EngineError::not_found(Entity::Execution))?)
    }

    /// Waits until it is over, and gives its result.
    ///
    /// # Errors
    /// [`Error::Ended`] when it did not complete, [`Error::Decode`] when the result is of another type.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T> {
        self.read(self.outcome(None).await?)
    }

    /// Waits until it is over, but no longer than `patience`, and gives its result.
    ///
    /// # Errors
    /// As [`result`](Self::result), and [`Error::StillRunning`].
    pub async fn result_within<T: DeserializeOwned>(&self, patience: Duration) -> Result<T> {
        self.read(self.outcome(Some(patience)).await?)
    }

    fn read<T: DeserializeOwned>(&self, outcome: ExecutionOutcome) -> Result<T> {
        let bytes = Ending::of(outcome).map_err(|ending| Error::Ended { id: self.id, ending })?;
        let bytes = bytes.unwrap_or_else(Blob::empty);
        decode(&bytes).map_err(|source| Error::Decode { what: format!("the result of {}", self.id), source })
    }

    /// Waits until it is over, however it ends.
    ///
    /// # Errors
    /// [`Error::StillRunning`] when that takes longer than `patience`; nothing given means for ever.
    pub async fn outcome(&self, patience: Option<Duration>) -> Result<ExecutionOutcome> {
        let began = Instant::now();
        loop {
            let left = patience.map(|patience| patience.saturating_sub(began.elapsed()));
            let wait = left.map_or(POLL, |left| left.min(POLL));
            let asked = Instant::now();
            if let Some(outcome) = self.client.backend.await_outcome(self.id, millis(wait)).await? {
                return Ok(outcome);
            }
            if left.is_some_and(|left| left <= wait) {
                return Err(Error::StillRunning { id: self.id, waited: began.elapsed() });
            }
            pause_if_early(asked, wait).await;
        }
    }

    /// Cancels it, wherever it is; a running handler is told.
    ///
    /// # Errors
    /// When it ended otherwise before.
    pub async fn cancel(&self, reason: &str) -> Result<CancelExecutionResult> {
        let args = CancelExecutionArgs {
            execution_id: self.id,
            reason: reason.to_owned(),
            source: CancelSource::OperatorOverride,
            fence: FenceTriple::default(),
        };
        Ok(self.client.backend.cancel_execution(args).await?)
    }

    /// Opens it again for another try, after it has ended.
    ///
    /// # Errors
    /// When it is not over, or was replayed as often as it may be.
    pub async fn replay(&self, reason: &str) -> Result<()> {
        let args =
            ReplayExecutionArgs { execution_id: self.id, reason: reason.to_owned(), requested_by: String::new() };
        self.client.backend.replay_execution(args).await?;
        Ok(())
    }

    /// What its handler publishes, from the first frame on; ends when it is over.
    #[must_use]
    pub fn frames(&self) -> FrameFeed {
        self.frames_after(FramePlace::default())
    }

    /// What its handler publishes after a place that an earlier reader came to.
    #[must_use]
    pub fn frames_after(&self, place: FramePlace) -> FrameFeed {
        FrameFeed::new(std::sync::Arc::clone(&self.client.backend), self.id, place)
    }

    /// The summary document of its latest attempt, if it has one.
    ///
    /// # Errors
    /// When the execution is gone.
    pub async fn summary(&self) -> Result<Option<SummaryDocument>> {
        let attempt: AttemptIndex = self.client.backend.read_current_attempt_index(self.id).await?;
        Ok(self.client.backend.read_summary(self.id, attempt).await?)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).field("is_duplicate", &self.is_duplicate).finish_non_exhaustive()
    }
}
