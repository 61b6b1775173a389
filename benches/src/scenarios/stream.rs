//! Appending frames, each caller to an execution of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ff_core::Blob;
use ff_core::backend::EngineBackend;
use ff_core::backend::streams::{Frame, FrameKind};
use serde::Serialize;

use crate::latency::Latencies;
use crate::rounds::Side;
use crate::settings::{CALLERS, FRAME_BYTES, Options};
use crate::stores::Subject;
use crate::work::{Caller, Measured, Stopwatch, timed, together};

const LANE: &str = "stream";

/// Frames per second, and the latency of one append.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Frames and latencies.
    #[serde(flatten)]
    pub side: Side,
}

/// Measures appends.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<StreamReport> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        let opened = subject.open().await?;
        measure(&opened.backend, options.warm_up()).await?;
        let measured = measure(&opened.backend, options.measured()).await?;
        println!("round {round}: {:.0} frames/s", measured.per_s);
        rounds.push(measured);
    }
    Ok(StreamReport { side: Side::of(&rounds) })
}

async fn measure(backend: &Arc<dyn EngineBackend>, time: Duration) -> Result<Measured> {
    let mut claimed = Vec::new();
    for number in 0..CALLERS[0] {
        let caller = Caller::new(backend, LANE, number)?;
        caller.create(0).await?;
        let handle = caller.claim().await?;
        claimed.push((caller, handle));
    }
    let watch = Stopwatch::start();
    let until = watch.after(time);
    let tasks = claimed.iter().cloned().map(|(caller, handle)| async move {
        let mut appends = Latencies::default();
        while Instant::now() < until {
            let frame = Frame::new(FrameKind::Stdout, Blob::from(vec![b'x'; FRAME_BYTES]));
            let append = async { Ok(caller.backend().append_frame(&handle, frame).await?) };
            timed(&mut appends, append).await?;
        }
        Ok(appends)
    });
    let mut appends = Latencies::default();
    together(tasks).await?.into_iter().for_each(|noted| appends.merge(noted));
    let measured = watch.measured(appends.count() as f64, appends);
    for (caller, handle) in &claimed {
        caller.complete(handle).await?;
    }
    Ok(measured)
}
