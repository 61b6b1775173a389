//! Consuming a grant: a new attempt, or the interrupted one continued.

use ff_core::backend::claims::{
    ClaimExecutionArgs, ClaimExecutionResult, ClaimResumedExecutionArgs, ClaimResumedExecutionResult, ClaimedExecution,
    ClaimedResumedExecution, ResumeToken,
};
use ff_core::error::{BugKind, ContentionKind};
use ff_core::handle::{Handle, HandleKind};
use ff_core::ids::{AttemptId, AttemptIndex, ExecutionId, LaneId, LeaseId, WorkerId, WorkerInstanceId};
use ff_core::partition::Partition;
use ff_core::state::AttemptState;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::ops::{check_duration, check_reach};
use crate::records::{Attempt, Execution, GrantKind, Taker};
use crate::scheduler::grants::{Presenter, consume_grant};
use crate::scheduler::ownership::{Owned, is_being_cancelled, take};
use crate::store::{Op, Store, Tx};

/// Consumes a claim grant.
pub(super) async fn claim_execution<S: Store>(
    engine: &Engine<S>,
    args: ClaimExecutionArgs,
) -> Result<ClaimExecutionResult> {
    check_duration("lease_ttl_ms", args.lease_ttl_ms)?;
    check_reach("attempt_timeout_ms", args.attempt_timeout_ms.unwrap_or_default())?;
    engine.check_partition(args.execution_id)?;
    let consume = Consume {
        execution: args.execution_id,
        way: Way::Fresh { attempt_id: args.attempt_id, deadline_at: args.execution_deadline_at },
        worker_id: args.worker_id,
        worker_instance_id: args.worker_instance_id,
        lane: Some(args.lane_id),
        grant_key: None,
        lease_id: args.lease_id,
        lease_ttl_ms: args.lease_ttl_ms,
        expected_index: Some(args.expected_attempt_index),
        attempt_timeout_ms: args.attempt_timeout_ms,
    };
    let owned = engine.run(consume).await??;
    let proof = Proof::of(engine, &owned)?;
    Ok(ClaimExecutionResult::Claimed(ClaimedExecution {
        execution_id: owned.execution.id,
        lease_id: proof.lease_id,
        lease_epoch: owned.execution.epoch,
        attempt_index: owned.execution.attempt_index,
        attempt_id: proof.attempt_id,
        attempt_type: owned.attempt_type,
        lease_expires_at: proof.lease_expires_at,
        handle: proof.handle,
    }))
}

/// Consumes a resume grant.
pub(super) async fn claim_resumed_execution<S: Store>(
    engine: &Engine<S>,
    args: ClaimResumedExecutionArgs,
) -> Result<ClaimResumedExecutionResult> {
    check_duration("lease_ttl_ms", args.lease_ttl_ms)?;
    check_reach("remaining_attempt_timeout_ms", args.remaining_attempt_timeout_ms.unwrap_or_default())?;
    engine.check_partition(args.execution_id)?;
    let consume = Consume {
        execution: args.execution_id,
        way: Way::Resumed,
        worker_id: args.worker_id,
        worker_instance_id: args.worker_instance_id,
        lane: Some(args.lane_id),
        grant_key: None,
        lease_id: args.lease_id,
        lease_ttl_ms: args.lease_ttl_ms,
        expected_index: Some(args.current_attempt_index),
        attempt_timeout_ms: args.remaining_attempt_timeout_ms,
    };
    let owned = engine.run(consume).await??;
    let proof = Proof::of(engine, &owned)?;
    Ok(ClaimResumedExecutionResult::Claimed(ClaimedResumedExecution {
        execution_id: owned.execution.id,
        lease_id: proof.lease_id,
        lease_epoch: owned.execution.epoch,
        attempt_index: owned.execution.attempt_index,
        attempt_id: proof.attempt_id,
        lease_expires_at: proof.lease_expires_at,
        handle: proof.handle,
    }))
}

/// Consumes a resume grant by its token; nothing when the execution is no longer resumable.
pub(super) async fn claim_from_resume_grant<S: Store>(
    engine: &Engine<S>,
    token: ResumeToken,
) -> Result<Option<Handle>> {
    check_duration("lease_ttl_ms", token.lease_ttl_ms)?;
    engine.check_partition(token.grant.execution_id)?;
    let consume = Consume {
        execution: token.grant.execution_id,
        way: Way::Resumed,
        worker_id: token.worker_id,
        worker_instance_id: token.worker_instance_id,
        lane: Some(token.grant.lane_id),
        grant_key: Some(token.grant.grant_key),
        lease_id: LeaseId::from_uuid(engine.mint().await?),
        lease_ttl_ms: token.lease_ttl_ms,
        expected_index: None,
        attempt_timeout_ms: None,
    };
    match engine.run(consume).await.and_then(|answer| answer) {
        Ok(owned) => engine.handle_of(&owned.execution, owned.kind).map(Some),
        Err(EngineError::Contention(
            ContentionKind::NotAResumedExecution
            | ContentionKind::ExecutionNotLeaseable
            | ContentionKind::InvalidClaimGrant,
        )) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an answer tells about an ownership.
struct Proof {
    lease_id: LeaseId,
    attempt_id: AttemptId,
    lease_expires_at: TimestampMs,
    handle: Handle,
}

impl Proof {
    fn of<S: Store>(engine: &Engine<S>, owned: &Owned) -> Result<Self> {
        let handle = engine.handle_of(&owned.execution, owned.kind)?;
        let (Some(lease), Some(attempt_id)) = (&owned.execution.lease, owned.execution.attempt_id) else {
            return Err(EngineError::Bug(BugKind::DanglingReference));
        };
        Ok(Self { lease_id: lease.id, attempt_id, lease_expires_at: lease.expires_at, handle })
    }
}

/// How ownership is to be taken.
enum Way {
    Fresh { attempt_id: AttemptId, deadline_at: Option<TimestampMs> },
    Resumed,
}

impl Way {
    const fn grant_kind(&self) -> GrantKind {
        match self {
            Self::Fresh { .. } => GrantKind::Claim,
            Self::Resumed => GrantKind::Resume,
        }
    }
}

struct Consume {
    execution: ExecutionId,
    way: Way,
    worker_id: WorkerId,
    worker_instance_id: WorkerInstanceId,
    lane: Option<LaneId>,
    grant_key: Option<String>,
    lease_id: LeaseId,
    lease_ttl_ms: u64,
    expected_index: Option<AttemptIndex>,
    attempt_timeout_ms: Option<u64>,
}

#[async_trait::async_trait]
impl Op for Consume {
    type Out = Result<Owned>;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.execution;
        [Key::grant(id), Key::definition(id)].into_iter().chain(Subject::keys(id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<Owned>> {
        let mut subject = Subject::load(tx, self.execution).await?;
        if let Some(owned) = self.taken_already(tx, &subject.execution).await? {
            return Ok(Ok(owned));
        }
        self.check_state(tx, &subject.execution).await?;
        let presenter = Presenter {
            kind: self.way.grant_kind(),
            worker_id: &self.worker_id,
            worker_instance_id: &self.worker_instance_id,
            lane: self.lane.as_ref(),
            grant_key: self.grant_key.as_deref(),
        };
        if let Err(refusal) = consume_grant(tx, &subject.execution, &presenter).await? {
            return Ok(Err(refusal.into()));
        }
        if self.expected_index.is_some_and(|expected| expected != self.next_index(&subject.execution)) {
            return Err(ContentionKind::ExecutionNotLeaseable.into());
        }
        let attempt_id = match self.way {
            Way::Fresh { attempt_id, deadline_at } => {
                subject.execution.deadline_at = deadline_at.or(subject.execution.deadline_at);
                attempt_id
            }
            // A continued attempt keeps its id.
            Way::Resumed => AttemptId::from_uuid(self.lease_id.uuid()),
        };
        let taker = Taker {
            lease_id: self.lease_id,
            worker_id: self.worker_id.clone(),
            worker_instance_id: self.worker_instance_id.clone(),
            ttl_ms: self.lease_ttl_ms,
        };
        take(tx, subject, taker, attempt_id, self.attempt_timeout_ms).await.map(Ok)
    }
}

impl Consume {
    /// The ownership this very call took before, when its answer was lost.
    async fn taken_already(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<Option<Owned>> {
        let is_theirs = execution.is_leased()
            && execution.lease.as_ref().is_some_and(|lease| {
                lease.id == self.lease_id
                    && lease.worker_id == self.worker_id
                    && lease.worker_instance_id == self.worker_instance_id
            });
        let kind = match self.way {
            Way::Fresh { attempt_id, .. } if execution.attempt_id == Some(attempt_id) => HandleKind::Fresh,
            Way::Fresh { .. } => return Ok(None),
            Way::Resumed => HandleKind::Resumed,
        };
        if !is_theirs {
            return Ok(None);
        }
        let attempt = tx.get::<Attempt>(Key::attempt(execution.id, execution.attempt_index)).await?;
        Ok(attempt.map(|attempt| Owned {
            execution: execution.clone().into(),
            kind,
            attempt_type: attempt.attempt_type,
        }))
    }

    /// Whether the state allows this way of taking ownership.
    async fn check_state(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
        if !execution.is_runnable() {
            return Err(ContentionKind::ExecutionNotLeaseable.into());
        }
        let interrupted = execution.state().attempt_state == AttemptState::AttemptInterrupted;
        if matches!(self.way, Way::Resumed) && !interrupted {
            return Err(ContentionKind::NotAResumedExecution.into());
        }
        if !execution.is_eligible() || is_being_cancelled(tx, execution).await? {
            return Err(ContentionKind::ExecutionNotLeaseable.into());
        }
        if matches!(self.way, Way::Fresh { .. }) && interrupted {
            return Err(ContentionKind::UseClaimResumedExecution.into());
        }
        Ok(())
    }

    /// The index the attempt will have.
    const fn next_index(&self, execution: &Execution) -> AttemptIndex {
        match self.way {
            Way::Fresh { .. } => AttemptIndex(execution.attempt_count),
            Way::Resumed => execution.attempt_index,
        }
    }
}
