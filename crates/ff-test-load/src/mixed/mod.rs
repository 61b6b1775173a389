//! What processes do side by side on one store: callers in a loop of mixed operations, timers, news of another process, and a reader of
//! everything that happens.

mod crew;
mod ping;
pub mod report;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ff_core::backend::EngineBackend;
use ff_core::backend::attempts::{CancelExecutionArgs, FailureReason};
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::flows::{FlowEdge, FlowNode, SubmitFlowArgs};
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::signals::{DeliverSignalArgs, SeedWaitpointHmacSecretArgs};
use ff_core::backend::streams::{Frame, FrameKind};
use ff_core::backend::suspension::{
    ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, SuspensionReasonCode, WaitpointBinding,
};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId, Namespace, SuspensionId, WaitpointId, WorkerId, WorkerInstanceId};
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, PolicyDocument, RetryPolicy};
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, EngineError, Result, TimestampMs};
use ff_engine::Engine;
use ff_engine::store::Store;
use tokio::sync::oneshot;

use crate::feed::Reader;
use crate::seal::Seal;
pub use crew::work_together;
use report::Line;

/// Callers of each process, beside those that wait for news.
const CALLERS: usize = 4;

/// Where callers of all processes meet.
const LANES: [&str; 2] = ["mixed-0", "mixed-1"];

/// Longer than the test.
const LEASE_MS: u64 = 600_000;

/// Over before its owner comes back.
const SHORT_LEASE_MS: u64 = 200;

/// How long a claim waits for work.
const WAIT_MS: u64 = 300;

/// The part of one process.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Shift {
    /// Its number.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// How long they work.
    pub seconds: u64,
}

/// Every lane that so many processes use.
#[must_use]
pub fn lanes(processes: usize) -> Vec<String> {
    let shared = LANES.into_iter().map(str::to_owned);
    shared.chain((0..processes).map(|process| ping::lane(process).to_string())).collect()
}

/// What the contract says an owner may be told whose execution was cancelled by others, or whose lease ended.
const OWNER: &[&str] = &["execution_not_active", "lease_expired", "stale_lease"];

/// The errors that the contract documents and that this load can meet, by operation. Whatever else comes is trouble.
fn documented(op: &str) -> &'static [&'static str] {
    match op {
        "renew" | "progress" | "complete" | "fail" | "suspend" | "cancel" => OWNER,
        "append_frame" => &["stream_closed", "stale_owner_cannot_append"],
        "deliver_signal" => &["target_not_signalable", "waitpoint_closed"],
        "cancel_execution" => &["execution_not_active"],
        _ => &[],
    }
}

/// How calls ended, and how long they took.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<(&'static str, &'static str), u64>,
    slowest: BTreeMap<&'static str, u64>,
}

/// Works for as long as it was told to, then says so, and reads what happens until its input ends.
///
/// # Panics
/// When nobody listens, and when a task does.
pub async fn work<S: Store>(backend: Arc<Engine<S>>, shift: Shift) {
    seed_secret(&*backend).await;
    let seal = Seal::of(&backend).await;
    let until = Instant::now() + Duration::from_secs(shift.seconds);
    let tally = Arc::<Mutex<Tally>>::default();
    let api: Arc<dyn EngineBackend> = backend.clone();
    let reading = tokio::spawn(read_everything(backend.clone()));
    let mut tasks = vec![
        tokio::spawn(ping::ask(api.clone(), shift, until)),
        tokio::spawn(ping::answer(api.clone(), seal.clone(), shift.process, until)),
    ];
    for number in 0..CALLERS {
        let caller = Caller::new(shift, number, api.clone(), seal.clone(), tally.clone());
        tasks.push(tokio::spawn(caller.work(until)));
    }
    while Instant::now() < until {
        if let Err(error) = backend.run_due(TimestampMs(i64::MAX), 100).await {
            trouble("run_due", &error);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        if let Err(error) = task.await.expect("a task works to its end") {
            trouble("ping", &error);
        }
    }
    tell(&tally.lock().expect("nobody panicked"));
    Line::Finished.tell();
    if let Err(error) = reading.await.expect("a reader reads to the end") {
        trouble("events", &error);
    }
}

/// Tells everything that happens. When the input ends, nobody changes anything any more: what is there then is all.
async fn read_everything<S: Store>(backend: Arc<Engine<S>>) -> Result<()> {
    let (ended, mut end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.send(())
    });
    let mut reader = Reader::of(backend.store()).await?;
    loop {
        tokio::select! {
            seen = reader.next(backend.store()) => Line::Saw(seen?).tell(),
            _ = &mut end => break,
        }
    }
    loop {
        match reader.read(backend.store()).await? {
            nothing if nothing.is_empty() => return Ok(()),
            seen => Line::Saw(seen).tell(),
        }
    }
}

fn trouble(op: &str, error: &EngineError) {
    Line::Trouble { op: op.to_owned(), error: format!("{error:?}") }.tell();
}

fn tell(tally: &Tally) {
    for ((op, outcome), times) in &tally.outcomes {
        Line::Counted { op: (*op).to_owned(), outcome: (*outcome).to_owned(), times: *times }.tell();
    }
    for (op, micros) in &tally.slowest {
        Line::Slowest { op: (*op).to_owned(), micros: *micros }.tell();
    }
}

/// Suspensions need a secret that signs their tokens.
async fn seed_secret(backend: &dyn EngineBackend) {
    let args = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex: "ab".repeat(32).into() };
    backend.seed_waitpoint_hmac_secret(args).await.expect("the secret is stored");
}

fn namespace() -> Namespace {
    Namespace::new("shared").expect("a namespace")
}

struct Caller {
    rng: fastrand::Rng,
    backend: Arc<dyn EngineBackend>,
    seal: Seal,
    tally: Arc<Mutex<Tally>>,
    worker: String,
    created: Vec<ExecutionId>,
    held: Vec<Handle>,
    signals: Vec<DeliverSignalArgs>,
}

impl Caller {
    fn new(shift: Shift, number: usize, backend: Arc<dyn EngineBackend>, seal: Seal, tally: Arc<Mutex<Tally>>) -> Self {
        let rng = fastrand::Rng::with_seed((shift.process * 100 + number) as u64);
        let worker = format!("worker-{}-{number}", shift.process);
        Self { rng, backend, seal, tally, worker, created: Vec::new(), held: Vec::new(), signals: Vec::new() }
    }

    async fn work(mut self, until: Instant) -> Result<()> {
        while Instant::now() < until {
            match self.rng.u8(..100) {
                0..=17 => self.create().await,
                18..=19 => self.submit().await,
                20..=21 => self.cancel_created().await,
                22..=25 => self.signal().await,
                26..=54 => self.claim().await,
                _ if self.held.is_empty() => self.claim().await,
                _ => self.use_held().await,
            }
        }
        Ok(())
    }

    /// Makes a call and notes how it ended; none when it was refused as documented.
    async fn call<T>(&self, op: &'static str, call: impl Future<Output = Result<T>>) -> Option<T> {
        let begin = Instant::now();
        let answer = call.await;
        let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        let outcome = answer.as_ref().map_or_else(EngineError::code, |_| "ok");
        {
            let mut tally = self.tally.lock().expect("nobody panicked");
            *tally.outcomes.entry((op, outcome)).or_default() += 1;
            let slowest = tally.slowest.entry(op).or_default();
            *slowest = micros.max(*slowest);
        }
        if let Err(error) = &answer
            && !documented(op).contains(&outcome)
        {
            trouble(op, error);
        }
        answer.ok()
    }

    fn lane(&mut self) -> LaneId {
        LaneId::new(LANES[self.rng.usize(..2)]).expect("a lane")
    }

    async fn create(&mut self) {
        let args = CreateExecutionArgs {
            input_payload: Blob::from(vec![7; 500]),
            policy: self.rng.bool().then(|| PolicyDocument::from(&patient())),
            ..CreateExecutionArgs::new(None, namespace(), self.lane(), "mixed")
        };
        let answer = self.call("create_execution", self.backend.create_execution(args)).await;
        if let Some(CreateExecutionResult::Created { execution_id, .. }) = answer {
            self.created.push(execution_id);
        }
    }

    async fn submit(&mut self) {
        let lane = self.lane();
        let node = |name: &str| FlowNode {
            name: name.to_owned(),
            lane_id: lane.clone(),
            execution_kind: "mixed".to_owned(),
            input_payload: Blob::from(name),
            payload_encoding: None,
            priority: 0,
            tags: BTreeMap::new(),
            policy: None,
            delay_until: None,
            execution_deadline_at: None,
            join: None,
            trace_context: None,
        };
        let (from, to) = ("a".to_owned(), "b".to_owned());
        let args = SubmitFlowArgs {
            flow_id: None,
            flow_kind: "chain".to_owned(),
            namespace: namespace(),
            idempotency_key: None,
            tags: BTreeMap::new(),
            nodes: ["a", "b"].map(node).into(),
            edges: vec![FlowEdge { from, to, kind: Default::default(), data_passing_ref: None }],
        };
        self.call("submit_flow", self.backend.submit_flow(args)).await;
    }

    async fn cancel_created(&mut self) {
        if self.created.is_empty() {
            return;
        }
        let execution_id = self.created.swap_remove(self.rng.usize(..self.created.len()));
        let reason = "a test says so".to_owned();
        let args = CancelExecutionArgs { execution_id, reason, source: Default::default(), fence: Default::default() };
        self.call("cancel_execution", self.backend.cancel_execution(args)).await;
    }

    async fn signal(&mut self) {
        if let Some(signal) = self.signals.pop() {
            self.call("deliver_signal", self.backend.deliver_signal(signal)).await;
        }
    }

    async fn claim(&mut self) {
        let lease_ms = if self.rng.u8(..20) == 0 { SHORT_LEASE_MS } else { LEASE_MS };
        let worker = WorkerId::new("mixed").expect("a worker");
        let instance = WorkerInstanceId::new(&self.worker).expect("an instance");
        let max_wait_ms = (self.rng.u8(..4) == 0).then_some(WAIT_MS);
        let policy = ClaimPolicy { max_wait_ms, ..ClaimPolicy::new(worker, instance, lease_ms) };
        let (lane, none) = (self.lane(), CapabilitySet::default());
        let Some(Some(handle)) = self.call("claim", self.backend.claim(&lane, &none, policy)).await else { return };
        let inside = self.seal.open(&handle);
        let (execution, epoch) = (inside.execution_id, inside.lease_epoch.0);
        Line::Claimed { execution, epoch, worker: self.worker.clone() }.tell();
        self.held.push(handle);
    }

    async fn use_held(&mut self) {
        let handle = self.held.swap_remove(self.rng.usize(..self.held.len()));
        let backend = Arc::clone(&self.backend);
        let is_kept = match self.rng.u8(..100) {
            0..=7 => self.call("renew", backend.renew(&handle)).await.is_some(),
            8..=17 => self.call("progress", backend.progress(&handle, Some(50), None)).await.is_some(),
            18..=32 => {
                let frame = Frame::new(FrameKind::Stdout, vec![7; 100]);
                self.call("append_frame", backend.append_frame(&handle, frame)).await.is_some()
            }
            33..=82 => {
                self.call("complete", backend.complete(&handle, Some(Blob::from("done")))).await;
                false
            }
            83..=91 => {
                let reason = FailureReason::new("a test says so");
                self.call("fail", backend.fail(&handle, reason, FailureClass::Transient)).await;
                false
            }
            92..=93 => {
                self.call("cancel", backend.cancel(&handle, "a test says so")).await;
                false
            }
            _ => {
                self.suspend(&handle).await;
                false
            }
        };
        if is_kept {
            self.held.push(handle);
        }
    }

    async fn suspend(&mut self, handle: &Handle) {
        let uuid = uuid::Builder::from_random_bytes(self.rng.u128(..).to_be_bytes()).into_uuid();
        let waitpoint = WaitpointId::from_uuid(uuid);
        let condition = ResumeCondition::Single { waitpoint_key: "go".to_owned(), matcher: SignalMatcher::Wildcard {} };
        let binding = WaitpointBinding::Fresh { waitpoint_id: waitpoint, waitpoint_key: "go".to_owned() };
        let id = SuspensionId::from_uuid(uuid);
        let args = SuspendArgs::new(id, binding, condition, SuspensionReasonCode::WaitingForSignal);
        let answer = self.call("suspend", self.backend.suspend(handle, args)).await;
        if let Some(SuspendOutcome::Suspended { details, .. }) = answer {
            let execution = self.seal.open(handle).execution_id;
            self.signals.push(DeliverSignalArgs::new(execution, waitpoint, "go", details.waitpoint_token));
        }
    }
}

/// Retries at once, and often enough.
fn patient() -> ExecutionPolicy {
    let retry = RetryPolicy {
        max_retries: 1_000,
        backoff: BackoffStrategy::Fixed { delay_ms: 1 },
        retryable_categories: Vec::new(),
    };
    ExecutionPolicy { retry_policy: Some(retry), ..ExecutionPolicy::default() }
}
