//! Eight callers in a loop of mixed operations, who tell of every call before and after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ff_core::backend::EngineBackend;
use ff_core::backend::attempts::{CancelExecutionArgs, FailureReason};
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::flows::{FlowEdge, FlowNode, SubmitFlowArgs, SubmitFlowResult};
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::signals::{DeliverSignalArgs, SeedWaitpointHmacSecretArgs};
use ff_core::backend::streams::{Frame, FrameKind};
use ff_core::backend::suspension::{
    ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, SuspensionReasonCode, WaitpointBinding,
};
use ff_core::capability::CapabilitySet;
use ff_core::error::ValidationKind;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, LaneId, Namespace, SuspensionId, WaitpointId, WorkerId, WorkerInstanceId};
use ff_core::partition::PartitionCounts;
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, PolicyDocument, RetryPolicy};
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, EngineError, Result, TimestampMs};
use ff_engine::Engine;
use ff_engine::store::Store;
use uuid::Uuid;

use super::line::{Answer, Call, Line, Step};
use crate::seal::Seal;

/// Callers at once.
pub const CALLERS: usize = 8;

/// Where they find work: in twos and more they compete for it.
pub const LANES: [&str; 2] = ["lane-0", "lane-1"];

/// The tag that names what an execution is for.
pub const TAG: &str = "test.mark";

/// Longer than the test: leases end only when somebody wants them to.
const LEASE_MS: u64 = 600_000;

/// How long a claim waits for work, if it does.
const WAIT_MS: u64 = 300;

/// Executions that a caller holds at most.
const HELD_MAX: usize = 4;

/// How long a caller waits before its next call after one that went unanswered.
const BREATH: Duration = Duration::from_millis(100);

/// How callers are to work.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Manner {
    /// What they choose.
    pub seed: u64,
    /// In marks, beside the caller and the call.
    pub round: usize,
    /// The number of the first of them.
    pub first: usize,
    /// Bytes that inputs have beyond their mark.
    pub padding: usize,
    /// Whether completions are acknowledged and not made: a store that forgets.
    pub forgets: bool,
    /// Whether calls may fail in a way that leaves open what became of them, and some claims wait for work: the store is behind a
    /// connection that is lost now and then.
    pub is_remote: bool,
    /// Whether callers may be refused what they were told is theirs: a store that may lose the last moments.
    pub is_forgiving: bool,
}

/// Works until the process is killed.
///
/// # Panics
/// When the store does not work at the beginning.
pub async fn work<S: Store>(backend: Arc<Engine<S>>, manner: &Manner) {
    let seal = Seal::of(&backend).await;
    seed_secret(&*backend).await;
    let numbers = manner.first..manner.first + CALLERS;
    let callers = numbers.map(|number| Caller::new(number, manner, backend.clone(), seal.clone()));
    for caller in callers.collect::<Vec<_>>() {
        tokio::spawn(caller.work());
    }
    loop {
        // Delays of retries end here; what fails now is due the next time, too.
        match backend.run_due(TimestampMs(i64::MAX), 100).await {
            Err(error) if manner.is_remote && !is_open(&error) => {
                Line::Trouble { caller: usize::MAX, error: format!("run_due: {error:?}") }.tell();
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether an error leaves open what became of a call, and says that it may be made again.
#[must_use]
pub const fn is_open(error: &EngineError) -> bool {
    matches!(error, EngineError::Transport { retryable: true, .. })
}

/// Whether an error tells a caller that the state of things does not allow its call; a token is refused when what it is for is gone.
const fn is_refusal(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::NotFound { .. }
            | EngineError::State(_)
            | EngineError::Contention(_)
            | EngineError::Validation { kind: ValidationKind::InvalidToken, .. }
    )
}

/// Suspensions need a secret that signs their tokens.
async fn seed_secret(backend: &dyn EngineBackend) {
    let args = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex: "ab".repeat(32).into() };
    backend.seed_waitpoint_hmac_secret(args).await.expect("the secret is stored");
}

/// An execution that a caller holds, or has put aside.
struct Held {
    handle: Handle,
    execution: ExecutionId,
    epoch: u64,
}

struct Caller {
    number: usize,
    round: usize,
    rng: fastrand::Rng,
    backend: Arc<dyn EngineBackend>,
    seal: Seal,
    lane: LaneId,
    worker: String,
    padding: usize,
    forgets: bool,
    is_remote: bool,
    is_forgiving: bool,
    calls: usize,
    held: Vec<Held>,
    suspended: Vec<(Held, DeliverSignalArgs)>,
    delayed: Vec<ExecutionId>,
}

impl Caller {
    fn new(number: usize, manner: &Manner, backend: Arc<dyn EngineBackend>, seal: Seal) -> Self {
        Self {
            number,
            round: manner.round,
            rng: fastrand::Rng::with_seed(manner.seed ^ (number as u64 + 1)),
            backend,
            seal,
            lane: LaneId::new(LANES[number % LANES.len()]).expect("a lane"),
            worker: format!("worker-{number}-{}", manner.round),
            padding: manner.padding,
            forgets: manner.forgets,
            is_remote: manner.is_remote,
            is_forgiving: manner.is_forgiving,
            calls: 0,
            held: Vec::new(),
            suspended: Vec::new(),
            delayed: Vec::new(),
        }
    }

    async fn work(mut self) {
        loop {
            let Err(error) = self.next().await else { continue };
            let (caller, told) = (self.number, format!("{error:?}"));
            let is_expected = self.is_remote && is_open(&error) || self.is_forgiving && is_refusal(&error);
            if !is_expected {
                Line::Trouble { caller, error: told }.tell();
                return;
            }
            Line::Unanswered { caller, error: told }.tell();
            tokio::time::sleep(BREATH).await;
        }
    }

    async fn next(&mut self) -> Result<()> {
        self.calls += 1;
        if !self.held.is_empty() && (self.held.len() >= HELD_MAX || self.rng.u8(..100) < 65) {
            return self.use_held().await;
        }
        match self.rng.u8(..100) {
            0..=39 => self.create().await,
            40..=47 => self.submit().await,
            48..=84 => self.claim().await,
            85..=93 => self.signal().await,
            _ => self.use_delayed().await,
        }
    }

    fn intend(&self, call: Call) {
        Line::Intend { caller: self.number, call }.tell();
    }

    fn acknowledge(&self, answer: Answer) {
        Line::Acknowledge { caller: self.number, answer }.tell();
    }

    /// Text that no other call has.
    fn mark(&self) -> String {
        format!("{}-{}-{}", self.round, self.number, self.calls)
    }

    fn uuid(&mut self) -> Uuid {
        uuid::Builder::from_random_bytes(self.rng.u128(..).to_be_bytes()).into_uuid()
    }

    fn tags(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(TAG.to_owned(), self.mark())])
    }

    async fn create(&mut self) -> Result<()> {
        let is_delayed = self.rng.u8(..10) == 0;
        // One half chooses its id, the other leaves it to the engine and is found by its payload.
        let uuid = self.uuid();
        let id = self.rng.bool().then(|| ExecutionId::solo(&self.lane, &PartitionCounts::default(), uuid));
        let args = CreateExecutionArgs {
            input_payload: Blob::from(&*self.mark()),
            idempotency_key: self.rng.bool().then(|| self.mark()),
            tags: if self.rng.bool() { self.tags() } else { BTreeMap::new() },
            policy: self.rng.bool().then(|| PolicyDocument::from(&patient())),
            delay_until: is_delayed.then_some(TimestampMs(i64::MAX / 2)),
            ..CreateExecutionArgs::new(id, namespace(), self.lane.clone(), "crash")
        };
        self.intend(Call::Create(Box::new(args.clone())));
        let input_payload = padded(&args.input_payload, self.padding);
        match self.backend.create_execution(CreateExecutionArgs { input_payload, ..args }).await? {
            CreateExecutionResult::Created { execution_id, .. } => {
                self.acknowledge(Answer::Created(execution_id));
                if is_delayed {
                    self.delayed.push(execution_id);
                }
                Ok(())
            }
            other @ CreateExecutionResult::Duplicate { .. } => Err(unexpected(&other)),
        }
    }

    async fn submit(&mut self) -> Result<()> {
        let node = |name: &str| FlowNode {
            name: name.to_owned(),
            lane_id: self.lane.clone(),
            execution_kind: "crash".to_owned(),
            input_payload: Blob::from(&*format!("{}-{name}", self.mark())),
            payload_encoding: None,
            priority: 0,
            tags: self.tags(),
            policy: None,
            delay_until: None,
            execution_deadline_at: None,
            join: None,
            trace_context: None,
        };
        let edge = |from: &str, to: &str| FlowEdge {
            from: from.to_owned(),
            to: to.to_owned(),
            kind: Default::default(),
            data_passing_ref: None,
        };
        let args = SubmitFlowArgs {
            flow_id: None,
            flow_kind: "chain".to_owned(),
            namespace: namespace(),
            idempotency_key: None,
            tags: BTreeMap::new(),
            nodes: ["a", "b", "c"].map(node).into(),
            edges: vec![edge("a", "b"), edge("b", "c")],
        };
        let args = SubmitFlowArgs { flow_id: Some(FlowId::from_uuid(self.uuid())), ..args };
        self.intend(Call::Submit(Box::new(args.clone())));
        match self.backend.submit_flow(args).await? {
            SubmitFlowResult::Submitted { flow_id, executions } => {
                self.acknowledge(Answer::Submitted { flow: flow_id, members: executions });
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn claim(&mut self) -> Result<()> {
        let worker = WorkerId::new("crash").expect("a worker");
        let instance = WorkerInstanceId::new(&self.worker).expect("an instance");
        self.intend(Call::Claim { worker: self.worker.clone() });
        let max_wait_ms = (self.is_remote && self.rng.bool()).then_some(WAIT_MS);
        let policy = ClaimPolicy { max_wait_ms, ..ClaimPolicy::new(worker, instance, LEASE_MS) };
        let Some(handle) = self.backend.claim(&self.lane, &CapabilitySet::default(), policy).await? else {
            self.acknowledge(Answer::NothingToClaim);
            return Ok(());
        };
        let inside = self.seal.open(&handle);
        let (execution, epoch) = (inside.execution_id, inside.lease_epoch.0);
        self.acknowledge(Answer::Claimed { execution, epoch, attempt: inside.attempt_index.0 });
        self.held.push(Held { handle, execution, epoch });
        Ok(())
    }

    fn some_step(&mut self) -> Step {
        let mark = self.mark();
        match self.rng.u8(..100) {
            0..=9 => Step::Renew,
            10..=29 => Step::Progress(self.rng.u8(..=100)),
            30..=54 => Step::Frame(Blob::from(&*mark)),
            55..=79 => Step::Complete(Blob::from(&*mark)),
            80..=85 => Step::FailForNow,
            86..=88 => Step::FailForGood,
            89..=91 => Step::Cancel,
            _ => Step::Suspend(WaitpointId::from_uuid(self.uuid())),
        }
    }

    async fn use_held(&mut self) -> Result<()> {
        let held = self.held.swap_remove(self.rng.usize(..self.held.len()));
        let step = self.some_step();
        self.intend(Call::Held { execution: held.execution, epoch: held.epoch, step: step.clone() });
        let (backend, handle) = (&self.backend, &held.handle);
        match step {
            Step::Renew => drop(backend.renew(handle).await?),
            Step::Progress(percent) => backend.progress(handle, Some(percent), None).await?,
            Step::Frame(payload) => {
                let appended = backend.append_frame(handle, Frame::new(FrameKind::Stdout, payload)).await?;
                self.acknowledge(Answer::Appended(appended.stream_id));
                self.held.push(held);
                return Ok(());
            }
            Step::Complete(result) => {
                if !self.forgets {
                    backend.complete(handle, Some(result)).await?;
                }
                self.acknowledge(Answer::Done);
                return Ok(());
            }
            Step::FailForNow | Step::FailForGood => {
                let class = if step == Step::FailForGood { FailureClass::Permanent } else { FailureClass::Transient };
                backend.fail(handle, FailureReason::new("a test says so"), class).await?;
                self.acknowledge(Answer::Done);
                return Ok(());
            }
            Step::Cancel => {
                backend.cancel(handle, "a test says so").await?;
                self.acknowledge(Answer::Done);
                return Ok(());
            }
            Step::Suspend(waitpoint) => return self.suspend(held, waitpoint).await,
            Step::Signal => {}
        }
        self.acknowledge(Answer::Done);
        self.held.push(held);
        Ok(())
    }

    async fn suspend(&mut self, held: Held, waitpoint: WaitpointId) -> Result<()> {
        let condition = ResumeCondition::Single { waitpoint_key: "go".to_owned(), matcher: SignalMatcher::Wildcard {} };
        let binding = WaitpointBinding::Fresh { waitpoint_id: waitpoint, waitpoint_key: "go".to_owned() };
        let id = SuspensionId::from_uuid(waitpoint.uuid());
        let args = SuspendArgs::new(id, binding, condition, SuspensionReasonCode::WaitingForSignal);
        match self.backend.suspend(&held.handle, args).await? {
            SuspendOutcome::Suspended { details, .. } => {
                self.acknowledge(Answer::Done);
                let signal = DeliverSignalArgs::new(held.execution, waitpoint, "go", details.waitpoint_token);
                self.suspended.push((held, signal));
                Ok(())
            }
            other @ SuspendOutcome::AlreadySatisfied { .. } => Err(unexpected(&other)),
        }
    }

    async fn signal(&mut self) -> Result<()> {
        let Some((held, signal)) = self.suspended.pop() else { return Ok(()) };
        self.intend(Call::Held { execution: held.execution, epoch: held.epoch, step: Step::Signal });
        self.backend.deliver_signal(signal).await?;
        self.acknowledge(Answer::Done);
        Ok(())
    }

    async fn use_delayed(&mut self) -> Result<()> {
        if self.delayed.is_empty() {
            return Ok(());
        }
        let execution = self.delayed.swap_remove(self.rng.usize(..self.delayed.len()));
        if self.rng.bool() {
            self.intend(Call::Cancel { execution });
            let args = CancelExecutionArgs {
                execution_id: execution,
                reason: "a test says so".to_owned(),
                source: Default::default(),
                fence: Default::default(),
            };
            self.backend.cancel_execution(args).await?;
        } else {
            let value = self.mark();
            self.intend(Call::Tag { execution, value: value.clone() });
            self.backend.set_execution_tag(execution, TAG, &value).await?;
            self.delayed.push(execution);
        }
        self.acknowledge(Answer::Done);
        Ok(())
    }
}

/// An input as it is submitted; lines carry it without its padding.
#[must_use]
pub fn padded(mark: &Blob, padding: usize) -> Blob {
    Blob::from([mark, &vec![b'.'; padding][..]].concat())
}

fn namespace() -> Namespace {
    Namespace::new("crash").expect("a namespace")
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

fn unexpected(answer: &dyn std::fmt::Debug) -> EngineError {
    EngineError::invalid(format_args!("an answer that cannot be: {answer:?}"))
}
