//! News across processes: a claim waits in one process for work that another submits, and a reader waits there for the frame that this
//! one appends.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::streams::{Frame, FrameKind, TailVisibility};
use ff_core::capability::CapabilitySet;
use ff_core::cursor::{FrameCursor, FrameId};
use ff_core::ids::{AttemptIndex, LaneId, WorkerId, WorkerInstanceId};
use ff_core::{Blob, Result};

use super::report::Line;
use super::{LEASE_MS, Shift, namespace};
use crate::seal::Seal;

/// How long a claim or a reader waits.
const WAIT_MS: u64 = 1_000;

pub(super) fn lane(process: usize) -> LaneId {
    LaneId::new(format!("ping-{process}")).expect("a lane")
}

/// All processes are on one machine and share its clock.
fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn heard(of: &str, at: u64, said: &Blob) {
    let said: u64 = std::str::from_utf8(said).ok().and_then(|text| text.parse().ok()).expect("a time");
    Line::News { of: of.to_owned(), micros: at.saturating_sub(said) }.tell();
}

fn now() -> Blob {
    Blob::from(&*micros().to_string())
}

/// Submits work for the next process and waits for its frame, again and again.
pub(super) async fn ask(backend: Arc<dyn EngineBackend>, shift: Shift, until: Instant) -> Result<()> {
    while Instant::now() < until {
        let args = CreateExecutionArgs {
            input_payload: now(),
            ..CreateExecutionArgs::new(None, namespace(), lane((shift.process + 1) % shift.processes), "ping")
        };
        let CreateExecutionResult::Created { execution_id, .. } = backend.create_execution(args).await? else {
            continue;
        };
        let (first, beginning) = (AttemptIndex(0), FrameCursor::At(FrameId::ZERO));
        while Instant::now() < until {
            let seen = backend.tail_stream(execution_id, first, beginning, WAIT_MS, 10, TailVisibility::All).await?;
            if let Some(frame) = seen.frames.first() {
                heard("a frame", micros(), &frame.payload);
                break;
            }
        }
    }
    Ok(())
}

/// Waits for work of another process and answers it with a frame, again and again.
pub(super) async fn answer(backend: Arc<dyn EngineBackend>, seal: Seal, process: usize, until: Instant) -> Result<()> {
    let (worker, instance) = (WorkerId::new("pong")?, WorkerInstanceId::new(format!("pong-{process}"))?);
    let policy = ClaimPolicy { max_wait_ms: Some(WAIT_MS), ..ClaimPolicy::new(worker, instance, LEASE_MS) };
    while Instant::now() < until {
        let claimed = backend.claim(&lane(process), &CapabilitySet::default(), policy.clone()).await?;
        let at = micros();
        let Some(handle) = claimed else { continue };
        let asked = backend.read_execution_context(seal.open(&handle).execution_id).await?;
        heard("work", at, &asked.input_payload);
        backend.append_frame(&handle, Frame::new(FrameKind::Stdout, now())).await?;
        backend.complete(&handle, None).await?;
    }
    Ok(())
}
