//! Taking work: one claimer for each lane, for all free slots at once.

use std::sync::Arc;
use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::error::EngineError;
use ff_core::handle::Handle;
use ff_core::ids::LaneId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::board::Board;
use super::{Shared, driver, pause_if_early};

/// Most executions taken by one call.
const BATCH_MAX: usize = 64;

/// Pauses after a claim that failed.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// Takes work of one lane.
pub(super) struct Claimer {
    pub(super) shared: Arc<Shared>,
    pub(super) board: Arc<Board>,
    pub(super) lane: LaneId,
    pub(super) slots: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) stopping: CancellationToken,
    /// Ends every task where it stands.
    pub(super) abandoned: CancellationToken,
}

impl Claimer {
    pub(super) async fn run(self) {
        let mut pause = PAUSE_FIRST;
        while let Some(slot) = self.slot().await {
            match self.take(slot).await {
                Ok(()) => pause = PAUSE_FIRST,
                Err(error) => {
                    warn!(lane = %self.lane, %error, ?pause, "cannot take work; trying again");
                    self.rest(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    pause = (pause * 2).min(PAUSE_LONGEST);
                }
            }
        }
    }

    /// A free slot; nothing once the worker stops.
    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            slot = Arc::clone(&self.slots).acquire_owned() => slot.ok(),
        }
    }

    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = self.stopping.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Takes what is there, else waits for some.
    async fn take(&self, first: OwnedSemaphorePermit) -> Result<(), EngineError> {
        let mut slots = vec![first];
        while slots.len() < BATCH_MAX
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            slots.push(slot);
        }
        let is_only_lane = self.shared.lanes.len() == 1;
        let taken = self.claim(slots.len(), is_only_lane.then_some(self.shared.poll)).await?;
        if is_only_lane || !taken.is_empty() {
            self.begin_all(taken, slots);
            return Ok(());
        }
        // A lane without work must not hold slots that another one could use.
        drop(slots);
        for handle in self.claim(1, Some(self.shared.poll)).await? {
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => self.begin(handle, slot),
                Err(_) => self.give_back(&handle).await,
            }
        }
        Ok(())
    }

    /// Up to `count` executions. A worker that stops does not wait for more; what was taken by then is still run.
    async fn claim(&self, count: usize, wait: Option<Duration>) -> Result<Vec<Handle>, EngineError> {
        let (shared, count) = (&self.shared, u32::try_from(count).unwrap_or(u32::MAX));
        let policy = shared.claim_policy(wait);
        let claim = shared.backend.claim_many(&self.lane, &shared.capabilities, policy, count);
        let Some(wait) = wait else { return claim.await };
        let began = Instant::now();
        let taken = tokio::select! {
            biased;
            taken = claim => taken?,
            // Whatever such a claim may have taken at this very moment comes back when its lease runs out.
            () = self.stopping.cancelled() => Vec::new(),
        };
        if taken.is_empty() {
            pause_if_early(began, wait).await;
        }
        Ok(taken)
    }

    fn begin_all(&self, taken: Vec<Handle>, slots: Vec<OwnedSemaphorePermit>) {
        for (handle, slot) in taken.into_iter().zip(slots) {
            self.begin(handle, slot);
        }
    }

    fn begin(&self, handle: Handle, slot: OwnedSemaphorePermit) {
        let (shared, board) = (Arc::clone(&self.shared), Arc::clone(&self.board));
        let (abandoned, taken_at) = (self.abandoned.clone(), Instant::now());
        self.tasks.spawn(async move {
            tokio::select! {
                () = driver::drive(shared, board, handle, taken_at) => {}
                () = abandoned.cancelled() => {}
            }
            drop(slot);
        });
    }

    /// Another lane was faster and no slot is left: somebody else shall have it.
    async fn give_back(&self, handle: &Handle) {
        if let Err(error) = self.shared.backend.delay(handle, TimestampMs::ZERO).await {
            warn!(lane = %self.lane, %error, "cannot give work back; it is free when its lease runs out");
        }
    }
}
