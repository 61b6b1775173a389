//! Submit, claim, suspend, signal, claim again, complete, by callers with a lane each, so that a caller takes its own
//! execution again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ff_core::backend::EngineBackend;
use ff_core::backend::signals::{DeliverSignalArgs, SeedWaitpointHmacSecretArgs};
use ff_core::backend::suspension::{
    ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, SuspendOutcomeDetails, SuspensionReasonCode,
    WaitpointBinding,
};
use ff_core::handle::{Handle, HandleKind};
use ff_core::ids::{ExecutionId, SuspensionId, WaitpointId};
use serde::Serialize;
use uuid::Uuid;

use crate::latency::Latencies;
use crate::rounds::Side;
use crate::settings::{CALLERS, Options};
use crate::stores::Subject;
use crate::work::{Caller, Measured, Stopwatch, together};

/// Cycles per second; the latencies run from the signal to the claim of what it resumed.
#[derive(Clone, Debug, Serialize)]
pub struct SuspendReport {
    /// Cycles and latencies.
    #[serde(flatten)]
    pub side: Side,
}

/// Measures cycles.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<SuspendReport> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        let opened = subject.open().await?;
        let secret = SeedWaitpointHmacSecretArgs { kid: "bench".into(), secret_hex: "ab".repeat(32).into() };
        opened.backend.seed_waitpoint_hmac_secret(secret).await?;
        measure(&opened.backend, options.warm_up()).await?;
        let measured = measure(&opened.backend, options.measured()).await?;
        println!("round {round}: {:.0} cycles/s", measured.per_s);
        rounds.push(measured);
    }
    Ok(SuspendReport { side: Side::of(&rounds) })
}

async fn measure(backend: &Arc<dyn EngineBackend>, time: Duration) -> Result<Measured> {
    let watch = Stopwatch::start();
    let mut tasks = Vec::new();
    for number in 0..CALLERS[0] {
        let caller = Caller::new(backend, &format!("suspend-{number}"), number)?;
        tasks.push(go_round(caller, watch.after(time)));
    }
    let mut resumes = Latencies::default();
    together(tasks).await?.into_iter().for_each(|noted| resumes.merge(noted));
    Ok(watch.measured(resumes.count() as f64, resumes))
}

async fn go_round(caller: Caller, until: Instant) -> Result<Latencies> {
    let mut resumes = Latencies::default();
    while Instant::now() < until {
        let execution = caller.create(0).await?;
        let waitpoint = suspend(&caller, &caller.claim().await?).await?;
        let begin = Instant::now();
        signal(&caller, execution, waitpoint).await?;
        let resumed = caller.claim().await?;
        resumes.note(begin.elapsed());
        ensure!(resumed.kind == HandleKind::Resumed, "{execution} was not resumed but {}", resumed.kind);
        caller.complete(&resumed).await?;
    }
    Ok(resumes)
}

async fn suspend(caller: &Caller, handle: &Handle) -> Result<SuspendOutcomeDetails> {
    let waitpoint = WaitpointId::from_uuid(Uuid::now_v7());
    let condition = ResumeCondition::Single { waitpoint_key: "go".into(), matcher: SignalMatcher::by_name("go") };
    let binding = WaitpointBinding::Fresh { waitpoint_id: waitpoint, waitpoint_key: "go".into() };
    let suspension = SuspensionId::from_uuid(Uuid::now_v7());
    let args = SuspendArgs::new(suspension, binding, condition, SuspensionReasonCode::WaitingForSignal);
    match caller.backend().suspend(handle, args).await? {
        SuspendOutcome::Suspended { details, .. } => Ok(details),
        SuspendOutcome::AlreadySatisfied { .. } => bail!("a suspension ended before its signal"),
    }
}

async fn signal(caller: &Caller, execution: ExecutionId, waitpoint: SuspendOutcomeDetails) -> Result<()> {
    let args = DeliverSignalArgs::new(execution, waitpoint.waitpoint_id, "go", waitpoint.waitpoint_token);
    caller.backend().deliver_signal(args).await?;
    Ok(())
}
