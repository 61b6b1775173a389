//! Holds what is stored against what callers know.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use ff_core::Blob;
use ff_core::backend::EngineBackend;
use ff_core::backend::flows::SubmitFlowArgs;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::subscriptions::LeaseChange;
use ff_core::cursor::{FrameCursor, FrameId};
use ff_core::ids::{AttemptIndex, ExecutionId, FlowId};
use ff_core::state::PublicState;
use ff_engine::Engine;
use ff_engine::event::{Event, EventBody};
use ff_engine::records::{Execution, Record};
use ff_engine::store::Inspect;

use super::caller::TAG;
use super::line::Call;
use super::model::{Expected, Model};

/// Whether something is as it must be, and what is not.
pub type Verdict = Result<(), String>;

/// A store as it was found.
pub struct Found<'b> {
    backend: &'b dyn EngineBackend,
    records: Vec<Record>,
    executions: BTreeMap<ExecutionId, Execution>,
    by_payload: HashMap<Blob, ExecutionId>,
    attempts: BTreeMap<ExecutionId, usize>,
    completions: BTreeMap<ExecutionId, usize>,
    acquisitions: BTreeMap<ExecutionId, BTreeSet<u64>>,
    events: Vec<Event>,
    words: OnceCell<HashMap<String, usize>>,
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl<'b> Found<'b> {
    /// Looks at everything.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn look<S: Inspect>(backend: &'b Engine<S>) -> Result<Self, String> {
        let records = backend.store().records().await.map_err(told)?;
        let events = backend.store().event_log().await.map_err(told)?;
        let mut found = Self {
            backend,
            records,
            executions: BTreeMap::new(),
            by_payload: HashMap::new(),
            attempts: BTreeMap::new(),
            completions: BTreeMap::new(),
            acquisitions: BTreeMap::new(),
            events,
            words: OnceCell::new(),
        };
        for record in &found.records {
            match record {
                Record::Execution(it) => drop(found.executions.insert(it.id, Execution::clone(it))),
                Record::Payload(it) => drop(found.by_payload.insert(it.payload.clone(), it.execution)),
                Record::Attempt(it) => *found.attempts.entry(it.execution).or_default() += 1,
                _ => {}
            }
        }
        for event in &found.events {
            let Some(id) = event.execution_id else { continue };
            match &event.body {
                EventBody::Completion { .. } => *found.completions.entry(id).or_default() += 1,
                EventBody::Lease(LeaseChange::Acquired { lease_epoch, .. }) => {
                    found.acquisitions.entry(id).or_default().insert(lease_epoch.0);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Everything that happened.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many executions callers know that are not there.
    #[must_use]
    pub fn missing(&self, model: &Model) -> usize {
        model.executions.keys().filter(|id| !self.executions.contains_key(id)).count()
    }

    /// Every property that a state can show.
    ///
    /// # Errors
    /// What is violated.
    pub fn is_sound(&self) -> Verdict {
        let violations = ff_sim::check_dump(&self.records, &self.events);
        ensure(violations.is_empty(), || format!("violated: {violations:#?}"))
    }

    /// Compares, and teaches the model which of the calls without an answer have happened; says how many.
    ///
    /// # Errors
    /// What is not as it must be.
    pub async fn agrees_with(&self, model: &mut Model) -> Result<usize, String> {
        let mut pending = std::mem::take(&mut model.unanswered);
        pending.extend(std::mem::take(&mut model.pending).into_values());
        let known: BTreeSet<ExecutionId> = model.executions.keys().copied().collect();
        let mut happened = 0;
        for call in &pending {
            happened += usize::from(match call {
                Call::Create(args) => self.settle_create(model, args)?,
                Call::Submit(args) => self.settle_submit(model, args).await?,
                _ => false,
            });
        }
        for call in &pending {
            if let Call::Claim { worker } = call {
                happened += usize::from(self.settle_claim(model, worker));
            }
        }
        ensure(self.executions.keys().all(|id| model.executions.contains_key(id)), || {
            "there are executions that nobody created".to_owned()
        })?;
        for (flow, members) in &model.flows {
            self.has_flow(*flow, members).await?;
        }
        let ids: Vec<ExecutionId> = model.executions.keys().copied().collect();
        for id in ids {
            let expected = &model.executions[&id];
            let open: Vec<&Call> = pending.iter().filter(|call| concerns(call, id)).collect();
            let settled = self.settle(id, expected, &open).await.map_err(|why| format!("{id}: {why}"))?;
            happened += usize::from(settled.steps().count() > expected.steps().count());
            if !known.contains(&id) {
                self.is_recognised(id, &settled).await?;
            }
            model.executions.insert(id, settled);
        }
        Ok(happened)
    }

    /// An execution whose creation was not answered is there, or no trace of it is.
    fn settle_create(&self, model: &mut Model, args: &CreateExecutionArgs) -> Result<bool, String> {
        if let Some(id) = self.by_payload.get(&model.input(args)) {
            model.created(*id, args);
            return Ok(true);
        }
        let names = args.execution_id.map(|id| id.uuid().to_string()).into_iter().chain(args.idempotency_key.clone());
        self.has_no_trace(names.chain(args.tags.values().cloned())).map(|()| false)
    }

    async fn settle_submit(&self, model: &mut Model, args: &SubmitFlowArgs) -> Result<bool, String> {
        let flow = args.flow_id.expect("callers choose the id of a flow");
        let member = |payload: &Blob| self.by_payload.get(payload).copied();
        let members: BTreeMap<String, ExecutionId> =
            args.nodes.iter().filter_map(|node| Some((node.name.clone(), member(&node.input_payload)?))).collect();
        if self.backend.describe_flow(flow).await.map_err(told)?.is_none() {
            ensure(members.is_empty(), || format!("members without their flow {flow}: {members:?}"))?;
            let names = [flow.uuid().to_string(), args.nodes[0].tags[TAG].clone()];
            return self.has_no_trace(names).map(|()| false);
        }
        ensure(members.len() == args.nodes.len(), || format!("flow {flow} has only the members {members:?}"))?;
        model.submitted(args, flow, &members);
        Ok(true)
    }

    fn has_no_trace(&self, names: impl IntoIterator<Item = String>) -> Verdict {
        let words = self.words.get_or_init(|| words_of(&self.records));
        for name in names {
            let trace = words.get(&name).map(|record| &self.records[*record]);
            ensure(trace.is_none(), || format!("{name} is not there, but this is: {trace:?}"))?;
        }
        Ok(())
    }

    /// A claim that was not answered may have taken anything, once.
    fn settle_claim(&self, model: &mut Model, worker: &str) -> bool {
        let taken = self.executions.values().find(|execution| {
            let is_his = execution.lease.as_ref().is_some_and(|lease| lease.worker_instance_id.as_str() == worker);
            let expected = model.executions.get(&execution.id);
            is_his && expected.is_none_or(|expected| !expected.owners.contains_key(&execution.epoch.0))
        });
        if let Some(execution) = taken {
            model.claimed(execution.id, execution.epoch.0, execution.attempt_index.0);
        }
        taken.is_some()
    }

    async fn has_flow(&self, flow: FlowId, members: &BTreeMap<String, ExecutionId>) -> Verdict {
        let found = self.backend.describe_flow(flow).await.map_err(told)?;
        let found = found.ok_or_else(|| format!("flow {flow} is lost"))?;
        ensure(found.node_count as usize == members.len(), || format!("flow {flow} has lost members: {found:?}"))?;
        ensure(found.edge_count as usize + 1 == members.len(), || format!("flow {flow} has lost edges: {found:?}"))?;
        let strays = members.values().filter(|id| self.executions.get(id).map(|it| it.flow_id) != Some(Some(flow)));
        ensure(strays.count() == 0, || format!("flow {flow} does not have all of {members:?}"))
    }

    /// As far as answers go, or further by some of the calls without one; says how far.
    async fn settle(&self, id: ExecutionId, expected: &Expected, open: &[&Call]) -> Result<Expected, String> {
        ensure(expected.origin.is_some(), || "claimed, but nobody created it".to_owned())?;
        let seen = self.see(id, expected).await?;
        let mut possible = vec![expected.clone()];
        for call in open {
            let after: Vec<Expected> = possible.iter().map(|before| before.after(call)).collect();
            possible.extend(after);
        }
        let mut reasons = Vec::new();
        for expected in possible {
            match self.matches(&seen, &expected) {
                Ok(()) => return Ok(expected),
                Err(reason) => reasons.push(reason),
            }
        }
        match &*reasons {
            [reason] => Err(reason.clone()),
            reasons => Err(format!("half of {open:?} is there; with none, more and all of them: {reasons:#?}")),
        }
    }

    async fn see(&self, id: ExecutionId, expected: &Expected) -> Result<Seen, String> {
        let snapshot = self.backend.describe_execution(id).await.map_err(told)?.ok_or("lost")?;
        let context = self.backend.read_execution_context(id).await.map_err(told)?;
        let fields = self.backend.read_exec_core_fields(id, &["progress_percent"]).await.map_err(told)?;
        let mut streams = BTreeMap::new();
        for attempt in expected.owners.values().map(|owner| owner.attempt) {
            let range = (FrameCursor::Start, FrameCursor::End);
            let read = self.backend.read_stream(id, AttemptIndex(attempt), range.0, range.1, 10_000).await;
            let read = read.map_err(told)?;
            let frames = read.frames.into_iter().map(|frame| (frame.id, frame.payload)).collect();
            streams.insert(attempt, Stream { frames, is_closed: read.closed_at.is_some() });
        }
        let upstream = expected.origin.as_ref().and_then(|origin| origin.upstream);
        Ok(Seen {
            id,
            state: snapshot.public_state,
            upstream: upstream.map(|id| self.executions[&id].public_state()),
            payload: context.input_payload,
            tags: snapshot.tags,
            result: self.backend.get_execution_result(id).await.map_err(told)?,
            progress: fields["progress_percent"].as_ref().and_then(|text| text.parse().ok()),
            streams,
        })
    }

    fn matches(&self, seen: &Seen, expected: &Expected) -> Verdict {
        let origin = expected.origin.as_ref().expect("an origin");
        same("payload", &seen.payload, &origin.payload)?;
        same("tags", &seen.tags, &origin.tags)?;
        let states = expected.states(seen.upstream);
        ensure(states.contains(&seen.state), || {
            format!("is {:?}, not one of {states:?} (the one before it is {:?})", seen.state, seen.upstream)
        })?;
        same("result", &seen.result, &expected.result())?;
        same("progress", &seen.progress, &expected.progress())?;
        same("completion events", &self.completions.contains_key(&seen.id), &seen.state.is_terminal())?;
        same("completions", &self.completions.get(&seen.id).is_none_or(|count| *count == 1), &true)?;
        let acquired = self.acquisitions.get(&seen.id).cloned().unwrap_or_default();
        same("leases", &acquired, &expected.epochs())?;
        same("epoch", &self.executions[&seen.id].epoch.0, &expected.epochs().last().copied().unwrap_or(0))?;
        let attempts: BTreeSet<u32> = expected.owners.values().map(|owner| owner.attempt).collect();
        same("attempts", &self.attempts.get(&seen.id).copied().unwrap_or(0), &attempts.len())?;
        for (attempt, stream) in &seen.streams {
            stream.matches(expected.frames().get(attempt).map_or(&[], Vec::as_slice), expected.is_ended(*attempt))?;
        }
        Ok(())
    }

    /// Submitting it again finds it.
    async fn is_recognised(&self, id: ExecutionId, expected: &Expected) -> Verdict {
        let Some(again) = expected.origin.as_ref().and_then(|origin| origin.again.clone()) else { return Ok(()) };
        let answer = self.backend.create_execution(*again).await.map_err(told)?;
        same("submitted again", &answer, &CreateExecutionResult::Duplicate { execution_id: id })
    }
}

/// Every uuid and every mark that stands in a record, with a record that it stands in.
fn words_of(records: &[Record]) -> HashMap<String, usize> {
    let mut words = HashMap::new();
    for (number, record) in records.iter().enumerate() {
        let text = format!("{record:?}");
        let pieces = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.extend(pieces.filter(|piece| piece.contains('-')).map(|piece| (piece.to_owned(), number)));
    }
    words
}

fn concerns(call: &Call, id: ExecutionId) -> bool {
    match call {
        Call::Held { execution, .. } | Call::Cancel { execution } | Call::Tag { execution, .. } => *execution == id,
        Call::Create(_) | Call::Submit(_) | Call::Claim { .. } => false,
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Verdict {
    ensure(seen == expected, || format!("{what}: there is {seen:?}, there should be {expected:?}"))
}

/// An execution as readers see it.
struct Seen {
    id: ExecutionId,
    state: PublicState,
    upstream: Option<PublicState>,
    payload: Blob,
    tags: BTreeMap<String, String>,
    result: Option<Blob>,
    progress: Option<u8>,
    streams: BTreeMap<u32, Stream>,
}

struct Stream {
    frames: Vec<(FrameId, Blob)>,
    is_closed: bool,
}

impl Stream {
    fn matches(&self, expected: &[(Option<FrameId>, Blob)], is_ended: bool) -> Verdict {
        let agree = |(seen, wanted): (&(FrameId, Blob), &(Option<FrameId>, Blob))| {
            wanted.0.is_none_or(|id| id == seen.0) && wanted.1 == seen.1
        };
        let alike = self.frames.len() == expected.len() && self.frames.iter().zip(expected).all(agree);
        ensure(alike, || format!("frames: there are {:?}, there should be {expected:?}", self.frames))?;
        // A stream begins with its first frame.
        let should_be_closed = is_ended && !expected.is_empty();
        ensure(self.is_closed == should_be_closed || expected.is_empty(), || {
            format!("the stream is closed: {}, its attempt is over: {is_ended}", self.is_closed)
        })
    }
}
