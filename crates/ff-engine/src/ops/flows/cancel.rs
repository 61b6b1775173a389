//! Cancelling flows: the flow at once, its members slice by slice, each in a commit of its own.

use std::time::Duration;

use async_trait::async_trait;
use ff_core::backend::flows::{
    CANCEL_MEMBERS_ECHO_MAX, CancelFlowHeader, CancelFlowHeaderArgs, CancelFlowPolicy, CancelFlowResult, CancelFlowWait,
};
use ff_core::error::{ErrorClass, StateKind};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::rules::fence::CancelSource;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::event::{Event, EventBody};
use crate::index::{Bounds, Index, Position};
use crate::key::{Key, Name};
use crate::lifecycle::graph::{continuation_id, owes_cancellation};
use crate::lifecycle::{Ending, Subject, finish};
use crate::records::{
    CancelAck, Continuation, ContinuationWork, Execution, Flow, FlowCancellation, FlowTags, ProjectionMark,
};
use crate::store::{Op, Store, Tx};
use crate::timers::continuation::Step;
use crate::timers::settlement::settle_now;
use crate::verbs::read_one;

/// What members are told when nobody gave a reason.
const REASON: &str = "flow_cancelled";

/// How long a waiting caller pauses after a conflict.
const PAUSE_MS: u64 = 100;

/// The members that a policy owes a cancellation.
const fn owed(policy: CancelFlowPolicy, home: Partition, flow: FlowId) -> Option<Index> {
    match policy {
        CancelFlowPolicy::FlowOnly => None,
        CancelFlowPolicy::CancelAll => Some(Index::LiveMembersOf(home, flow)),
        CancelFlowPolicy::CancelPending => Some(Index::PendingMembersOf(home, flow)),
    }
}

/// Where the work of cancelling a flow's members is kept while there is any.
pub(crate) fn continuation_key(home: Partition, flow: FlowId) -> Key {
    Key::continuation(home, continuation_id("cancel members", flow.uuid()))
}

async fn ids<S: Store>(engine: &Engine<S>, index: &Index) -> Result<Vec<ExecutionId>> {
    let keys = engine.store.keys(index, &Bounds::first(CANCEL_MEMBERS_ECHO_MAX)).await?;
    Ok(keys.into_iter().filter_map(|(_, key)| member(&key)).collect())
}

const fn member(key: &Key) -> Option<ExecutionId> {
    match key.name {
        Name::Execution(id) => Some(id),
        _ => None,
    }
}

/// Members owed a cancellation, as an answer shows them.
struct Affected {
    member_count: u64,
    ids: Vec<ExecutionId>,
}

impl Affected {
    async fn by<S: Store>(engine: &Engine<S>, policy: CancelFlowPolicy, flow: FlowId) -> Result<Self> {
        match owed(policy, engine.flow_home(flow), flow) {
            None => Ok(Self { member_count: 0, ids: Vec::new() }),
            Some(index) => {
                Ok(Self { member_count: engine.store.count(&index).await?, ids: ids(engine, &index).await? })
            }
        }
    }
}

pub(super) async fn cancel_header<S: Store>(
    engine: &Engine<S>,
    args: CancelFlowHeaderArgs,
) -> Result<CancelFlowHeader> {
    let policy = args.check()?;
    let home = engine.flow_home(args.flow_id);
    let CancelFlowHeaderArgs { flow_id: flow, reason, grace_ms, .. } = args;
    match engine.run(Flip { home, flow, reason, policy, grace_ms }).await? {
        None => {
            let Affected { member_count, ids } = Affected::by(engine, policy, flow).await?;
            Ok(CancelFlowHeader::Cancelled { cancellation_policy: policy, member_count, member_execution_ids: ids })
        }
        Some(earlier) => Ok(CancelFlowHeader::AlreadyTerminal {
            stored_cancellation_policy: Some(earlier.policy),
            stored_cancel_reason: Some(earlier.reason),
            member_execution_ids: ids(engine, &Index::MembersOf(home, flow)).await?,
        }),
    }
}

pub(super) async fn cancel_flow<S: Store>(
    engine: &Engine<S>,
    flow: FlowId,
    policy: CancelFlowPolicy,
    wait: CancelFlowWait,
) -> Result<CancelFlowResult> {
    let home = engine.flow_home(flow);
    if engine.run(Flip { home, flow, reason: REASON.to_owned(), policy, grace_ms: 0 }).await?.is_some() {
        return Err(StateKind::FlowAlreadyTerminal.into());
    }
    let Affected { member_count, ids } = Affected::by(engine, policy, flow).await?;
    let (cancellation_policy, member_execution_ids) = (policy, ids);
    if member_count == 0 {
        return Ok(CancelFlowResult::Cancelled { cancellation_policy, member_count, member_execution_ids });
    }
    let Some(budget_ms) = wait.budget_ms() else {
        return Ok(CancelFlowResult::CancellationScheduled { cancellation_policy, member_count, member_execution_ids });
    };
    let failed_member_execution_ids = cancel_all_slices(engine, flow, policy, budget_ms).await?;
    if failed_member_execution_ids.is_empty() {
        return Ok(CancelFlowResult::Cancelled { cancellation_policy, member_count, member_execution_ids });
    }
    let over = |id: &ExecutionId| !failed_member_execution_ids.contains(id);
    let member_execution_ids = member_execution_ids.into_iter().filter(over).collect();
    Ok(CancelFlowResult::PartiallyCancelled { cancellation_policy, member_execution_ids, failed_member_execution_ids })
}

/// Cancels members for a caller that waits; says which could not be cancelled. What the caller does not wait for is left to the timers.
async fn cancel_all_slices<S: Store>(
    engine: &Engine<S>,
    flow: FlowId,
    policy: CancelFlowPolicy,
    budget_ms: u64,
) -> Result<Vec<ExecutionId>> {
    let home = engine.flow_home(flow);
    let deadline = engine.store.now().await?.plus(budget_ms);
    let mut failed = Vec::new();
    let mut after = None;
    loop {
        let now = engine.store.now().await?;
        if deadline.is_due(now) {
            return Err(EngineError::Timeout { op: "cancel_flow", elapsed: Duration::from_millis(budget_ms) });
        }
        match slice(engine, home, flow, policy, after.clone()).await {
            Ok(slice) => {
                failed.extend(slice.failed);
                after = slice.next;
            }
            Err(error) if error.class() == ErrorClass::Retryable => {
                engine.store.sleep_until(now.plus(PAUSE_MS).min(deadline)).await;
                continue;
            }
            Err(error) => return Err(error),
        }
        if after.is_none() {
            forget_acknowledgements(engine, home, flow).await?;
            engine.run(DropContinuation { home, flow }).await?;
            failed.truncate(CANCEL_MEMBERS_ECHO_MAX);
            return Ok(failed);
        }
    }
}

/// What became of one slice of members.
struct Slice {
    /// Where the next one begins.
    next: Option<Position>,
    /// Members that cannot be cancelled, now or later.
    failed: Vec<ExecutionId>,
}

async fn slice<S: Store>(
    engine: &Engine<S>,
    home: Partition,
    flow: FlowId,
    policy: CancelFlowPolicy,
    after: Option<Position>,
) -> Result<Slice> {
    let Some(index) = owed(policy, home, flow) else { return Ok(Slice { next: None, failed: Vec::new() }) };
    let limit = engine.settings.slice.max(1);
    let page = engine.store.keys(&index, &Bounds::first(limit).after(after)).await?;
    let next = page.last().filter(|_| page.len() == limit).map(|(position, _)| position.clone());
    let mut failed = Vec::new();
    for execution in page.iter().filter_map(|(_, key)| member(key)) {
        match engine.run(CancelMember { flow, execution }).await {
            Ok(true) => settle_now(engine, execution).await,
            Ok(false) => {}
            Err(EngineError::Validation { .. }) => failed.push(execution),
            Err(error) => return Err(error),
        }
    }
    Ok(Slice { next, failed })
}

/// One slice of the continuation that cancels members.
pub(crate) async fn step<S: Store>(engine: &Engine<S>, record: &Continuation, flow: FlowId) -> Result<Step> {
    let home = record.home;
    let stored = read_one::<Flow, S>(&engine.store, Key::flow(home, flow)).await?;
    let Some(cancellation) = stored.and_then(|flow| flow.cancellation) else { return Ok(Step::Done) };
    let slice = slice(engine, home, flow, cancellation.policy, record.after.clone()).await?;
    let after = match slice.next {
        Some(next) => next,
        None => {
            forget_acknowledgements(engine, home, flow).await?;
            return Ok(Step::Done);
        }
    };
    Ok(Step::More { after: Some(after), due_at: engine.store.now().await? })
}

/// Flips the flow; answers an earlier cancellation, which stands.
struct Flip {
    home: Partition,
    flow: FlowId,
    reason: String,
    policy: CancelFlowPolicy,
    /// How long the caller has before the engine cancels the members itself.
    grace_ms: u64,
}

#[async_trait]
impl Op for Flip {
    type Out = Option<FlowCancellation>;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.flow), Key::flow_tags(self.home, self.flow)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<FlowCancellation>> {
        let now = tx.now();
        let mut flow = tx.flow(self.home, self.flow).await?;
        if let Some(earlier) = flow.cancellation {
            return Ok(Some(earlier));
        }
        flow.cancel(self.reason.clone(), self.policy, now);
        if flow.node_count > 0 && self.policy != CancelFlowPolicy::FlowOnly {
            tx.put(Continuation {
                home: self.home,
                id: continuation_id("cancel members", self.flow.uuid()),
                work: ContinuationWork::CancelMembers { flow: self.flow },
                after: None,
                due_at: now.plus(self.grace_ms),
            });
        }
        if flow.node_count > 0 {
            tx.put(ProjectionMark::for_change(self.home, self.flow, None, now));
        }
        let tags = tx.get::<FlowTags>(Key::flow_tags(self.home, self.flow)).await?;
        tx.emit(Event {
            partition: self.home,
            namespace: flow.namespace.clone(),
            execution_id: None,
            tags: tags.map(|record| record.tags).unwrap_or_default(),
            at: now,
            body: EventBody::FlowCancelRequested { flow_id: self.flow, reason: self.reason.clone() },
        });
        tx.put(flow);
        Ok(None)
    }
}

/// Cancels one member if its cancelled flow still owes that; looks again, because a worker may have taken or ended it since.
struct CancelMember {
    flow: FlowId,
    execution: ExecutionId,
}

#[async_trait]
impl Op for CancelMember {
    type Out = bool;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let ack = Key::cancel_ack(self.home(), self.flow, self.execution);
        [Key::flow(self.home(), self.flow), ack].into_iter().chain(Subject::keys(self.execution)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let flow = tx.get::<Flow>(Key::flow(self.home(), self.flow)).await?;
        let Some(cancellation) = flow.and_then(|flow| flow.cancellation) else { return Ok(false) };
        if tx.get::<CancelAck>(Key::cancel_ack(self.home(), self.flow, self.execution)).await?.is_some() {
            return Ok(false);
        }
        let Some(subject) = Subject::find(tx, self.execution).await? else { return Ok(false) };
        if !owes_cancellation(cancellation.policy, &subject.execution) {
            return Ok(false);
        }
        let ending = Ending::cancelled(cancellation.reason, CancelSource::FlowCascade.as_str());
        finish(tx, subject, ending).await?;
        Ok(true)
    }
}

pub(super) async fn acknowledge<S: Store>(engine: &Engine<S>, flow: FlowId, execution: ExecutionId) -> Result<()> {
    if execution.partition() != engine.flow_home(flow) {
        return Ok(());
    }
    engine.run(Acknowledge { flow, execution }).await
}

/// Notes that somebody else has taken care of a member; nothing to note once the members are no longer owed.
struct Acknowledge {
    flow: FlowId,
    execution: ExecutionId,
}

#[async_trait]
impl Op for Acknowledge {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![continuation_key(self.home(), self.flow), Key::execution(self.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let is_owed = tx.get::<Continuation>(continuation_key(self.home(), self.flow)).await?.is_some();
        let execution = tx.get::<Execution>(Key::execution(self.execution)).await?;
        if is_owed && execution.is_some_and(|execution| execution.flow_id == Some(self.flow)) {
            tx.put(CancelAck { home: self.home(), flow: self.flow, execution: self.execution });
        }
        Ok(())
    }
}

/// The caller has done all of it.
struct DropContinuation {
    home: Partition,
    flow: FlowId,
}

#[async_trait]
impl Op for DropContinuation {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.delete(continuation_key(self.home, self.flow));
        Ok(())
    }
}

/// Forgets who acknowledged what, once all members were looked at.
async fn forget_acknowledgements<S: Store>(engine: &Engine<S>, home: Partition, flow: FlowId) -> Result<()> {
    let limit = engine.settings.slice.max(1);
    while !engine.run(DropAcknowledgements { home, flow, limit }).await? {}
    Ok(())
}

/// Drops a slice of acknowledgements; says whether it was the last.
struct DropAcknowledgements {
    home: Partition,
    flow: FlowId,
    limit: usize,
}

#[async_trait]
impl Op for DropAcknowledgements {
    type Out = bool;

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let index = Index::CancelAcksOf(self.home, self.flow);
        let acks = tx.range_of::<CancelAck>(index, Bounds::first(self.limit)).await?;
        let is_last = acks.len() < self.limit;
        for ack in acks {
            tx.delete(Key::cancel_ack(self.home, self.flow, ack.execution));
        }
        Ok(is_last)
    }
}
