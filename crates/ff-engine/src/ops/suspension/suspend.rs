//! Releasing the lease and waiting for a condition.

use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::backend::suspension::{
    AdditionalWaitpointBinding, ResumeTrigger, SuspendArgs, SuspendOutcome, SuspendOutcomeDetails, WaitpointBinding,
    suspend_dedup_ttl_ms,
};
use ff_core::error::{ConflictKind, ContentionKind, StateKind, ValidationKind};
use ff_core::fault::{Fault, is_on};
use ff_core::handle::{BackendTag, Handle, HandleKind, HandlePayload};
use ff_core::ids::{AttemptIndex, ExecutionId, FenceTriple, LeaseFence};
use ff_core::partition::Partition;
use ff_core::policy::TimeoutBehavior;
use ff_core::rules::conditions::{ConditionProgress, validate_pending_key};
use ff_core::rules::fence::{CancelSource, FenceRule};
use ff_core::state::{CloseReason, WaitpointState};
use ff_core::token::{Keyring, SealKey};
use ff_core::{EngineError, Result, TimestampMs};

use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::lifecycle::{Subject, fence_check, fenced, park_attempt, policy, released};
use crate::ops::signals::SIGNALS_KEPT_MAX;
use crate::records::{Dedup, DedupScope, DedupValue, Execution, Lease, Record, Signal, Suspension, Waitpoint};
use crate::store::{Op, Tx};

pub(super) struct Suspend {
    pub(super) execution: ExecutionId,
    pub(super) fence: FenceTriple,
    /// As a handle names it; a bare triple names none.
    pub(super) attempt_index: Option<AttemptIndex>,
    pub(super) args: SuspendArgs,
    pub(super) keyring: Keyring,
    pub(super) seal_key: SealKey,
    pub(super) backend: BackendTag,
}

/// What a suspend did, and whether quotas are owed the end of an ownership.
pub(super) struct Suspended {
    pub(super) outcome: SuspendOutcome,
    pub(super) owes: bool,
}

#[async_trait::async_trait]
impl Op for Suspend {
    type Out = Result<Suspended>;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = Subject::keys(self.execution);
        keys.push(Key::definition(self.execution));
        keys.extend(self.dedup_scope().map(|scope| Key::dedup(self.home(), scope)));
        keys.extend(self.attempt_index.map(|index| Key::attempt(self.execution, index)));
        keys.extend(self.waitpoint_keys());
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let mut subject = Subject::load(tx, self.execution).await?;
        if let Some(outcome) = self.remembered(tx).await? {
            return Ok(Ok(Suspended { outcome, owes: false }));
        }
        let presented = fenced(self.fence, None, &CancelSource::LeaseHolder, FenceRule::Mandatory)?;
        let fence = match fence_check(tx, &mut subject, presented).await? {
            Ok(fence) => fence,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.check_episode(&subject.execution)?;
        let waitpoints = self.bind(tx, &mut subject.execution).await?;
        let mut episode = self.episode(tx, &subject.execution).await?;
        let details = details(&episode, &waitpoints)?;
        self.replay_buffered(tx, &mut episode, &waitpoints).await?;
        let outcome = if episode.progress.is_satisfied() {
            skip(tx, &mut subject, &mut episode, waitpoints);
            SuspendOutcome::AlreadySatisfied { details }
        } else {
            let lease = park(tx, &mut subject, &episode, waitpoints).await?;
            SuspendOutcome::Suspended { details, handle: self.suspended_handle(&subject.execution, fence, &lease) }
        };
        subject.save(tx);
        self.remember(tx, &outcome, episode.timeout_at);
        tx.put(episode);
        let owes = !subject.execution.quota_policy_ids.is_empty();
        Ok(Ok(Suspended { outcome, owes }))
    }
}

impl Suspend {
    fn waitpoint_keys(&self) -> Vec<Key> {
        self.args.waitpoints.iter().map(|binding| Key::waitpoint(self.home(), binding.waitpoint_id())).collect()
    }

    fn dedup_scope(&self) -> Option<DedupScope> {
        let key = self.args.dedup_key()?.to_owned();
        Some(DedupScope::Suspend { execution: self.execution, key })
    }

    async fn remembered(&self, tx: &mut dyn Tx) -> Result<Option<SuspendOutcome>> {
        let Some(scope) = self.dedup_scope() else { return Ok(None) };
        let now = tx.now();
        let found = tx.get::<Dedup>(Key::dedup(self.home(), scope)).await?.filter(|dedup| dedup.is_live(now));
        Ok(found.and_then(|dedup| match dedup.value {
            DedupValue::Suspend(outcome) => Some(*outcome),
            _ => None,
        }))
    }

    fn remember(&self, tx: &mut dyn Tx, outcome: &SuspendOutcome, timeout_at: Option<TimestampMs>) {
        let Some(scope) = self.dedup_scope() else { return };
        let value = DedupValue::Suspend(Box::new(outcome.clone()));
        let expires_at = tx.now().plus(suspend_dedup_ttl_ms(timeout_at, tx.now()));
        tx.put(Dedup { home: self.home(), scope, value, expires_at });
    }

    fn check_episode(&self, execution: &Execution) -> Result<()> {
        if self.attempt_index.is_some_and(|index| index != execution.attempt_index) {
            return Err(EngineError::validation(ValidationKind::InvalidLeaseForSuspend, "attempt_index"));
        }
        if execution.suspension.is_some() {
            return Err(StateKind::AlreadySuspended.into());
        }
        Ok(())
    }

    /// The waitpoints of the bindings, each with its token, none of them written yet.
    async fn bind(&self, tx: &mut dyn Tx, execution: &mut Execution) -> Result<Vec<Waitpoint>> {
        let now = tx.now();
        let stored = tx.load(&self.waitpoint_keys()).await?;
        let bound: Result<Vec<Waitpoint>> = self
            .args
            .waitpoints
            .iter()
            .zip(stored)
            .map(|(binding, stored)| match binding {
                WaitpointBinding::Fresh { waitpoint_id, waitpoint_key } => match stored {
                    Some(_) => Err(ConflictKind::WaitpointAlreadyExists.into()),
                    None => Ok(Waitpoint::pending(execution, *waitpoint_id, waitpoint_key.clone(), now)),
                },
                WaitpointBinding::UsePending { .. } => self.pending(stored, execution, now, false),
                WaitpointBinding::UseEarlier { .. } => self.pending(stored, execution, now, true),
            })
            .collect();
        let mut bound = bound?;
        for waitpoint in bound.iter_mut().filter(|waitpoint| waitpoint.token.is_none()) {
            waitpoint.token = Some(self.keyring.sign(&waitpoint.token_subject())?);
        }
        Ok(bound)
    }

    /// A pending waitpoint as it is bound; one of an earlier attempt only if that is asked for. The end of an execution closes what is pending, so
    /// there is none of an earlier life.
    fn pending(
        &self,
        stored: Option<Record>,
        execution: &Execution,
        now: TimestampMs,
        of_any_attempt: bool,
    ) -> Result<Waitpoint> {
        let stored = stored.and_then(|record| Waitpoint::try_from(record).ok());
        let mut waitpoint = stored.ok_or(ContentionKind::WaitpointNotFound)?;
        if waitpoint.state != WaitpointState::Pending {
            return Err(StateKind::WaitpointNotPending.into());
        }
        let is_of_this_attempt = waitpoint.attempt_index == execution.attempt_index;
        if waitpoint.execution != execution.id || !(of_any_attempt || is_of_this_attempt) {
            return Err(EngineError::validation(ValidationKind::InvalidWaitpointForExecution, waitpoint.id));
        }
        waitpoint.attempt_index = execution.attempt_index;
        if waitpoint.has_run_out(now) {
            return Err(StateKind::PendingWaitpointExpired.into());
        }
        if waitpoint.token.is_none() {
            return Err(EngineError::validation(ValidationKind::WaitpointNotTokenBound, waitpoint.id));
        }
        validate_pending_key(&self.args, &waitpoint.key)?;
        Ok(waitpoint)
    }

    async fn episode(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<Suspension> {
        let (timeout_at, timeout_behavior) = self.timeout(tx).await?;
        let args = &self.args;
        Ok(Suspension {
            execution: execution.id,
            ordinal: execution.suspension_count,
            id: args.suspension_id,
            attempt_index: execution.attempt_index,
            reason: args.reason_code,
            requested_by: args.requested_by,
            condition: args.resume_condition.clone(),
            progress: ConditionProgress::default(),
            resume_delay_ms: args.resume_policy.resume_delay_ms,
            timeout_at,
            timeout_behavior,
            continuation_metadata_pointer: args.continuation_metadata_pointer.clone(),
            waitpoints: args.waitpoints.iter().map(WaitpointBinding::waitpoint_id).collect(),
            opened_at: tx.now(),
            closed: None,
            trigger: None,
            timeout_signal: None,
            life: execution.replay_count,
        })
    }

    /// When to stop waiting and what then: as asked, else as the policy says.
    async fn timeout(&self, tx: &mut dyn Tx) -> Result<(Option<TimestampMs>, TimeoutBehavior)> {
        if self.args.timeout_at.is_some() {
            return Ok((self.args.timeout_at, self.args.timeout_behavior));
        }
        let policy = policy(tx, self.execution).await?.and_then(|policy| policy.suspension_policy);
        Ok(match policy {
            Some(policy) => (policy.default_timeout_ms.map(|ms| tx.now().plus(ms)), policy.timeout_behavior),
            None => (None, self.args.timeout_behavior),
        })
    }

    /// Counts what the pending primary has buffered, in order of arrival, until the condition holds.
    async fn replay_buffered(&self, tx: &mut dyn Tx, episode: &mut Suspension, bound: &[Waitpoint]) -> Result<()> {
        let buffered = |primary: &&Waitpoint| primary.signal_count > 0 && !is_on(Fault::BufferedSignalsIgnored);
        let Some(primary) = bound.first().filter(buffered) else { return Ok(()) };
        let index = Index::SignalsOf(primary.home, primary.id);
        for signal in tx.range_of::<Signal>(index, Bounds::first(SIGNALS_KEPT_MAX)).await? {
            episode.progress.apply(&episode.condition, &signal.facts(&primary.key));
            if episode.progress.is_satisfied() {
                break;
            }
        }
        Ok(())
    }

    fn suspended_handle(&self, execution: &Execution, fence: LeaseFence, lease: &Lease) -> Handle {
        let payload = HandlePayload {
            execution_id: execution.id,
            attempt_index: execution.attempt_index,
            attempt_id: fence.attempt_id,
            lease_id: fence.lease_id,
            lease_epoch: fence.lease_epoch,
            lease_ttl_ms: lease.ttl_ms,
            lane_id: execution.lane.clone(),
            namespace: execution.namespace.clone(),
            worker_id: lease.worker_id.clone(),
            worker_instance_id: lease.worker_instance_id.clone(),
            kind: HandleKind::Suspended,
        };
        Handle::seal(self.backend, &payload, &self.seal_key)
    }
}

fn details(episode: &Suspension, bound: &[Waitpoint]) -> Result<SuspendOutcomeDetails> {
    let mut shown = bound.iter().map(|waitpoint| {
        let waitpoint_token = waitpoint
            .token
            .clone()
            .ok_or_else(|| EngineError::validation(ValidationKind::WaitpointNotTokenBound, waitpoint.id))?;
        let (waitpoint_id, waitpoint_key) = (waitpoint.id, waitpoint.key.clone());
        Ok(AdditionalWaitpointBinding { waitpoint_id, waitpoint_key, waitpoint_token })
    });
    let primary = shown.next().ok_or_else(|| EngineError::invalid("waitpoints_empty"))??;
    Ok(SuspendOutcomeDetails {
        suspension_id: episode.id,
        waitpoint_id: primary.waitpoint_id,
        waitpoint_key: primary.waitpoint_key,
        waitpoint_token: primary.waitpoint_token,
        additional_waitpoints: shown.collect::<Result<_>>()?,
    })
}

/// The condition holds already: the episode is over before it began, and ownership stays.
fn skip(tx: &mut dyn Tx, subject: &mut Subject, episode: &mut Suspension, bound: Vec<Waitpoint>) {
    let now = tx.now();
    let ordinal = subject.execution.skip_suspension(now);
    episode.trigger = Some(ResumeTrigger::Signal);
    episode.close(CloseReason::Resumed, now);
    for mut waitpoint in bound {
        waitpoint.activate(ordinal, now);
        waitpoint.close(CloseReason::Resumed, now);
        tx.put(waitpoint);
    }
}

/// Releases the lease and parks the attempt; gives the lease that was.
async fn park(tx: &mut dyn Tx, subject: &mut Subject, episode: &Suspension, bound: Vec<Waitpoint>) -> Result<Lease> {
    let now = tx.now();
    let primary = bound.first().map(|waitpoint| waitpoint.id);
    for mut waitpoint in bound {
        waitpoint.activate(episode.ordinal, now);
        tx.put(waitpoint);
    }
    park_attempt(tx, &subject.execution).await?;
    let reason = episode.reason.blocking_reason();
    let primary = primary.ok_or_else(|| EngineError::invalid("waitpoints_empty"))?;
    let release = subject.execution.suspend(reason, episode.timeout_at, primary, now);
    released(tx, subject, release.clone(), ReleaseReason::Suspend);
    release.map(|release| release.lease).ok_or_else(|| StateKind::StaleLease.into())
}
