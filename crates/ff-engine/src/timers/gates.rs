//! A policy opens, or a limit is crossed: what that means for the executions attached to it.

use ff_core::backend::budgets::BreachAction;
use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::backend::suspension::{ResumeCondition, SuspensionReasonCode, SuspensionRequester};
use ff_core::ids::{BudgetId, ExecutionId, QuotaPolicyId, SuspensionId};
use ff_core::partition::Partition;
use ff_core::policy::TimeoutBehavior;
use ff_core::rules::conditions::ConditionProgress;
use ff_core::state::{BlockingReason, EligibilityState};
use ff_core::{EngineError, Result, TimestampMs};
use uuid::Uuid;

use super::continuation::{Keep, Step};
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::{Key, Name};
use crate::lifecycle::{Ending, Subject, finish, released};
use crate::records::{Attempt, Continuation, ContinuationWork, Gate, Suspension};
use crate::scheduler::admission::{closed_gate, free_slots_of};
use crate::store::{Op, Store, Tx};

/// Who acts when a budget does.
const ACTOR: &str = "budget";

const fn parked_by(gate: Gate) -> Index {
    match gate {
        Gate::Budget(budget) => Index::BudgetParked(budget),
        Gate::Quota(quota) => Index::QuotaParked(quota),
    }
}

/// A name for the work of opening a gate; none when nobody waits there.
pub(crate) async fn opening<S: Store>(engine: &Engine<S>, gate: Gate) -> Result<Option<Uuid>> {
    if engine.store.keys(&parked_by(gate), &Bounds::first(1)).await?.is_empty() {
        return Ok(None);
    }
    engine.mint().await.map(Some)
}

/// Lets in at once who was parked at a gate that opened meanwhile. To be called after parking: a gate that opened between the denial
/// and the parking has looked for waiters too early.
pub(crate) async fn recheck<S: Store>(engine: &Engine<S>, gate: Gate) -> Result<()> {
    if closed_gate(engine, gate).await?.is_some() {
        return Ok(());
    }
    match gate {
        Gate::Budget(budget) => open_budget(engine, budget, None).await.map(drop),
        Gate::Quota(quota) => open_quota(engine, quota, None).await.map(drop),
    }
}

/// Runs the first slice of opening a gate. What fails or is left comes due as a continuation.
pub(crate) async fn run_at_once<S: Store>(engine: &Engine<S>, continuation: Continuation) {
    if engine.settings.settle_at_once {
        let _ = advance(engine, continuation).await;
    }
}

/// Does one slice and writes down what it left; says whether that was news.
pub(crate) async fn advance<S: Store>(engine: &Engine<S>, continuation: Continuation) -> Result<bool> {
    let step = step(engine, &continuation).await?;
    Keep { record: continuation, step }.write(engine).await
}

/// One slice of what follows from a policy that opened, or from a limit that was crossed.
pub(crate) async fn step<S: Store>(engine: &Engine<S>, continuation: &Continuation) -> Result<Step> {
    match &continuation.work {
        ContinuationWork::OpenBudget { budget } => open_budget(engine, *budget, Some(continuation)).await,
        ContinuationWork::OpenQuota { quota } => open_quota(engine, *quota, Some(continuation)).await,
        ContinuationWork::Breach { budget, action } => breach(engine, *budget, *action, continuation).await,
        _ => Ok(Step::Done),
    }
}

/// Releases what a budget parked, unless it is used up again.
async fn open_budget<S: Store>(
    engine: &Engine<S>,
    budget: BudgetId,
    continuation: Option<&Continuation>,
) -> Result<Step> {
    let gate = Gate::Budget(budget);
    if closed_gate(engine, gate).await?.is_some() {
        return Ok(Step::Done);
    }
    let (parked, next) = slice_of(engine, parked_by(gate), continuation, engine.settings.slice).await?;
    for execution in parked {
        each(engine, Promote { execution, gate }).await?;
    }
    go_on(engine, next).await
}

/// Releases as many as a quota has room for, oldest first.
async fn open_quota<S: Store>(
    engine: &Engine<S>,
    quota: QuotaPolicyId,
    continuation: Option<&Continuation>,
) -> Result<Step> {
    let gate = Gate::Quota(quota);
    let slice = engine.settings.slice;
    let free = free_slots_of(engine, quota).await?;
    let room = free.map_or(usize::MAX, |free| usize::try_from(free).unwrap_or(usize::MAX));
    let limit = room.min(slice);
    if limit == 0 {
        return Ok(Step::Done);
    }
    let (parked, next) = slice_of(engine, parked_by(gate), continuation, limit).await?;
    for execution in parked {
        each(engine, Promote { execution, gate }).await?;
    }
    go_on(engine, next.filter(|_| room > slice)).await
}

/// The executions of the next slice of an index, and where the one after begins, if there is one. Only keys are read, so that a
/// record that does not decode keeps no other from its turn.
async fn slice_of<S: Store>(
    engine: &Engine<S>,
    index: Index,
    continuation: Option<&Continuation>,
    limit: usize,
) -> Result<(Vec<ExecutionId>, Option<Position>)> {
    let bounds = Bounds::first(limit).after(continuation.and_then(|continuation| continuation.after.clone()));
    let keys = engine.store.keys(&index, &bounds).await?;
    let next = keys.last().filter(|_| keys.len() == limit).map(|(position, _)| position.clone());
    let executions = keys.into_iter().filter_map(|(_, key)| match key.name {
        Name::Execution(id) => Some(id),
        _ => None,
    });
    Ok((executions.collect(), next))
}

/// Does one execution's share of bulk work; one that does not decode is passed by.
async fn each<S: Store, O: Op<Out = ()>>(engine: &Engine<S>, op: O) -> Result<()> {
    match engine.run(op).await {
        Err(EngineError::Validation { .. }) => Ok(()),
        done => done,
    }
}

async fn go_on<S: Store>(engine: &Engine<S>, next: Option<Position>) -> Result<Step> {
    match next {
        Some(after) => Ok(Step::More { after: Some(after), due_at: engine.store.now().await? }),
        None => Ok(Step::Done),
    }
}

/// Makes an execution claimable that a gate still holds.
struct Promote {
    execution: ExecutionId,
    gate: Gate,
}

#[async_trait::async_trait]
impl Op for Promote {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut subject) = Subject::find(tx, self.execution).await? else { return Ok(()) };
        let held = matches!(
            subject.execution.state().eligibility_state,
            EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota
        );
        if held && subject.execution.blocked_by == Some(self.gate) {
            subject.execution.promote(tx.now());
            subject.save(tx);
        }
        Ok(())
    }
}

/// Acts on a slice of the live executions attached to a budget, each in a commit of its own.
async fn breach<S: Store>(
    engine: &Engine<S>,
    budget: BudgetId,
    action: BreachAction,
    continuation: &Continuation,
) -> Result<Step> {
    let index = Index::AttachedTo(budget);
    let (attached, next) = slice_of(engine, index, Some(continuation), engine.settings.slice).await?;
    for execution in attached {
        let suspension = SuspensionId::from_uuid(engine.mint().await?);
        each(engine, Act { budget, action, execution, suspension }).await?;
    }
    go_on(engine, next).await
}

/// What a crossed limit does to one execution.
struct Act {
    budget: BudgetId,
    action: BreachAction,
    execution: ExecutionId,
    suspension: SuspensionId,
}

impl Act {
    fn reason(&self) -> String {
        format!("budget {} exceeded", self.budget)
    }

    async fn cancel(&self, tx: &mut dyn Tx, subject: Subject) -> Result<()> {
        finish(tx, subject, Ending::cancelled(self.reason(), ACTOR)).await.map(drop)
    }

    /// Takes it from its worker until a person resumes it.
    async fn pause(&self, tx: &mut dyn Tx, mut subject: Subject) -> Result<()> {
        let now = tx.now();
        let execution = &mut subject.execution;
        let reason = SuspensionReasonCode::PausedByBudget;
        let ordinal = execution.suspension_count;
        let release = execution.pause(reason.blocking_reason(), now);
        tx.put(Suspension {
            execution: execution.id,
            ordinal,
            id: self.suspension,
            attempt_index: execution.attempt_index,
            reason,
            requested_by: SuspensionRequester::Policy,
            condition: ResumeCondition::OperatorOnly {},
            progress: ConditionProgress::default(),
            resume_delay_ms: None,
            timeout_at: None,
            timeout_behavior: TimeoutBehavior::default(),
            continuation_metadata_pointer: None,
            waitpoints: Vec::new(),
            opened_at: now,
            closed: None,
            trigger: None,
            timeout_signal: None,
            life: execution.replay_count,
        });
        if let Some(mut attempt) = tx.get::<Attempt>(Key::attempt(execution.id, execution.attempt_index)).await? {
            attempt.take_away(now);
            tx.put(attempt);
        }
        released(tx, &subject, release, ReleaseReason::Suspend);
        subject.save(tx);
        Ok(())
    }

    /// Holds it until the budget opens.
    fn hold(&self, tx: &mut dyn Tx, mut subject: Subject) {
        let now: TimestampMs = tx.now();
        subject.execution.block(
            EligibilityState::BlockedByBudget,
            BlockingReason::WaitingForBudget,
            Some(self.reason()),
            Some(Gate::Budget(self.budget)),
            None,
            now,
        );
        tx.delete(Key::grant(self.execution));
        subject.save(tx);
    }
}

#[async_trait::async_trait]
impl Op for Act {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let found = Subject::find(tx, self.execution).await?;
        let Some(subject) = found.filter(|subject| !subject.execution.is_terminal()) else { return Ok(()) };
        let execution = &subject.execution;
        match self.action {
            BreachAction::CancelAll => self.cancel(tx, subject).await,
            BreachAction::CancelPending if !execution.is_active() => self.cancel(tx, subject).await,
            BreachAction::Suspend if execution.is_leased() => self.pause(tx, subject).await,
            BreachAction::Suspend if execution.is_eligible() => {
                self.hold(tx, subject);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
