//! Taking a signal: authentication, duplicates, evaluation, resume.

use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult, SIGNAL_MAXLEN, SignalEffect};
use ff_core::backend::subscriptions::SignalDeliveryEffect;
use ff_core::backend::suspension::ResumeTrigger;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{LaneId, SignalId, check_free_string};
use ff_core::partition::Partition;
use ff_core::policy::DEFAULT_MAX_SIGNALS;
use ff_core::rules::conditions::MatchedSignal;
use ff_core::state::{CloseReason, WaitpointState};
use ff_core::token::{Keyring, TokenError};
use ff_core::{EngineError, Result, TimestampMs};

use super::SIGNALS_KEPT_MAX;
use crate::event::EventBody;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::{self, Resume, Subject};
use crate::ops::suspension::check_delay;
use crate::records::{Dedup, DedupScope, DedupValue, Signal, SignalTally, Suspension, Waitpoint};
use crate::store::{Op, Tx};

/// Signals one delivery drops at most.
const TRIMMED_AT_ONCE: usize = 64;

/// Why a sender may send.
pub(super) enum Authority {
    /// It presents the waitpoint's token.
    Token,
    /// It is trusted and names the execution's lane; the engine presents the token.
    Lane(LaneId),
}

pub(super) struct Deliver {
    pub(super) args: DeliverSignalArgs,
    pub(super) dedup_key: Option<String>,
    pub(super) authority: Authority,
    /// The sender's, or a new one.
    pub(super) signal_id: SignalId,
    pub(super) keyring: Keyring,
    pub(super) payload_max: usize,
}

#[async_trait::async_trait]
impl Op for Deliver {
    type Out = Result<DeliverSignalResult>;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = Subject::keys(self.args.execution_id);
        keys.push(Key::waitpoint(self.home(), self.args.waitpoint_id));
        keys.push(Key::signal_tally(self.args.execution_id));
        keys.extend(self.dedup_key.clone().map(|key| self.remembered_at(key)));
        if self.args.max_signals_per_execution.is_none() {
            keys.push(Key::definition(self.args.execution_id));
        }
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let mut subject = Subject::load(tx, self.args.execution_id).await?;
        let waitpoint = match self.authenticate(tx, &subject).await? {
            Ok(waitpoint) => waitpoint,
            Err(refusal) => {
                self.note_failure(tx).await?;
                return Ok(Err(refusal));
            }
        };
        self.check_content()?;
        if let Some(existing_signal_id) = self.delivered_before(tx).await? {
            self.emit(tx, &subject, existing_signal_id, SignalDeliveryEffect::Deduped);
            return Ok(Ok(DeliverSignalResult::Duplicate { existing_signal_id }));
        }
        let episode = self.target(tx, &subject, &waitpoint).await?;
        let tally = self.count(tx).await?;
        let effect = self.take(tx, &mut subject, waitpoint, episode).await?;
        tx.put(tally);
        self.remember(tx);
        self.emit(tx, &subject, self.signal_id, shown_effect(effect));
        Ok(Ok(DeliverSignalResult::Accepted { signal_id: self.signal_id, effect }))
    }
}

impl Deliver {
    fn remembered_at(&self, key: String) -> Key {
        Key::dedup(self.home(), DedupScope::Signal { waitpoint: self.args.waitpoint_id, key })
    }

    /// The waitpoint, if the sender may know it. A missing and a foreign one look like a wrong token.
    async fn authenticate(&self, tx: &mut dyn Tx, subject: &Subject) -> Result<Result<Waitpoint>> {
        if let Authority::Lane(lane) = &self.authority
            && subject.execution.lane != *lane
        {
            return Err(EngineError::invalid(format_args!("lane_mismatch: {lane} is not the execution's lane")));
        }
        let found = tx.get::<Waitpoint>(Key::waitpoint(self.home(), self.args.waitpoint_id)).await?;
        let own = found.filter(|waitpoint| waitpoint.execution == self.args.execution_id);
        let token = match (&self.authority, &own) {
            (Authority::Token, None) => return Ok(Err(TokenError::Mismatch.into())),
            (Authority::Token, Some(_)) => Some(self.args.waitpoint_token.clone()),
            (Authority::Lane(_), own) => own.as_ref().and_then(|waitpoint| waitpoint.token.clone()),
        };
        let (Some(waitpoint), Some(token)) = (own, token) else {
            return Err(EngineError::not_found(Entity::Waitpoint));
        };
        let verified = self.keyring.verify(&token, &waitpoint.token_subject(), tx.now());
        Ok(verified.map(|()| waitpoint).map_err(EngineError::from))
    }

    async fn tally(&self, tx: &mut dyn Tx) -> Result<SignalTally> {
        let id = self.args.execution_id;
        Ok(tx.get::<SignalTally>(Key::signal_tally(id)).await?.unwrap_or_else(|| SignalTally::none(id)))
    }

    async fn note_failure(&self, tx: &mut dyn Tx) -> Result<()> {
        let mut tally = self.tally(tx).await?;
        tally.last_hmac_validation_failed_at = Some(tx.now());
        tx.put(tally);
        Ok(())
    }

    fn check_content(&self) -> Result<()> {
        let args = &self.args;
        let size = args.payload.as_ref().map_or(0, |payload| payload.len());
        if size > self.payload_max {
            let detail = format!("signal payload has {size} bytes, at most {} are allowed", self.payload_max);
            return Err(EngineError::validation(ValidationKind::PayloadTooLarge, detail));
        }
        if args.signal_name.is_empty() {
            return Err(EngineError::invalid("signal_name is empty"));
        }
        check_free_string("signal_name", &args.signal_name)?;
        check_free_string("signal_category", &args.signal_category)?;
        check_free_string("source_type", &args.source_type)?;
        check_free_string("source_identity", &args.source_identity)?;
        check_free_string("payload_encoding", args.payload_encoding.as_deref().unwrap_or(""))?;
        check_free_string("correlation_id", args.correlation_id.as_deref().unwrap_or(""))?;
        check_free_string("idempotency_key", args.idempotency_key.as_deref().unwrap_or(""))?;
        check_delay("resume_delay_ms", args.resume_delay_ms.unwrap_or(0))
    }

    /// The signal of an earlier delivery with the same idempotency key or the same id.
    async fn delivered_before(&self, tx: &mut dyn Tx) -> Result<Option<SignalId>> {
        if is_on(Fault::SignalDedupSkipped) {
            return Ok(None);
        }
        if let Some(key) = &self.dedup_key
            && let Some(signal) = self.remembered(tx, key.clone()).await?
        {
            return Ok(Some(signal));
        }
        if self.args.signal_id.is_none() {
            return Ok(None);
        }
        let recorded = Key::signal(self.home(), self.args.waitpoint_id, self.signal_id);
        if tx.get::<Signal>(recorded).await?.is_some() {
            return Ok(Some(self.signal_id));
        }
        self.remembered(tx, dropped_key(self.signal_id)).await
    }

    async fn remembered(&self, tx: &mut dyn Tx, key: String) -> Result<Option<SignalId>> {
        let now = tx.now();
        let found = tx.get::<Dedup>(self.remembered_at(key)).await?.filter(|dedup| dedup.is_live(now));
        Ok(found.and_then(|dedup| match dedup.value {
            DedupValue::Signal { signal, .. } => Some(signal),
            _ => None,
        }))
    }

    /// The suspension to evaluate; none when the signal is to be buffered.
    async fn target(&self, tx: &mut dyn Tx, subject: &Subject, waitpoint: &Waitpoint) -> Result<Option<Suspension>> {
        let execution = &subject.execution;
        if execution.is_terminal() {
            return Err(StateKind::TargetNotSignalable.into());
        }
        match waitpoint.state {
            WaitpointState::Closed | WaitpointState::Expired => Err(StateKind::WaitpointClosed.into()),
            WaitpointState::Pending if waitpoint.has_run_out(tx.now()) => Err(StateKind::WaitpointClosed.into()),
            WaitpointState::Pending => Ok(None),
            WaitpointState::Active => {
                let ordinal = waitpoint.suspension.filter(|ordinal| execution.suspension == Some(*ordinal));
                let current = ordinal.filter(|_| execution.is_suspended()).ok_or(StateKind::TargetNotSignalable)?;
                let episode = tx.get::<Suspension>(Key::suspension(execution.id, current)).await?;
                episode.map(Some).ok_or_else(|| StateKind::TargetNotSignalable.into())
            }
        }
    }

    /// Counts one more signal, within the limit of the execution.
    async fn count(&self, tx: &mut dyn Tx) -> Result<SignalTally> {
        let mut tally = self.tally(tx).await?;
        let max = self.signals_max(tx).await?;
        if max > 0 && tally.recorded >= max {
            let detail = format!("the execution has taken {} signals, at most {max} are allowed", tally.recorded);
            return Err(EngineError::validation(ValidationKind::SignalLimitExceeded, detail));
        }
        tally.recorded += 1;
        tally.last_signal_at = Some(tx.now());
        Ok(tally)
    }

    async fn signals_max(&self, tx: &mut dyn Tx) -> Result<u64> {
        if let Some(max) = self.args.max_signals_per_execution {
            return Ok(max);
        }
        let policy = lifecycle::policy(tx, self.args.execution_id).await?;
        Ok(u64::from(policy.map_or(DEFAULT_MAX_SIGNALS, |policy| policy.max_signals_per_execution)))
    }

    /// Stores the signal and lets the condition see it; resumes the execution when the condition holds now.
    async fn take(
        &self,
        tx: &mut dyn Tx,
        subject: &mut Subject,
        mut waitpoint: Waitpoint,
        episode: Option<Suspension>,
    ) -> Result<SignalEffect> {
        let mut signal = self.signal(waitpoint.signal_count, tx.now());
        waitpoint.signal_count += 1;
        let Some(mut episode) = episode else {
            let effect = signal.effect;
            tx.put(signal);
            self.trim(tx, &mut waitpoint, &[]).await?;
            tx.put(waitpoint);
            return Ok(effect);
        };
        let effect = episode.progress.apply(&episode.condition, &signal.facts(&waitpoint.key));
        signal.effect = effect;
        tx.put(signal);
        self.trim(tx, &mut waitpoint, episode.progress.matched()).await?;
        tx.put(waitpoint);
        let policy_delay_ms = episode.resume_delay_ms;
        let satisfied = episode.progress.is_satisfied();
        tx.put(episode);
        if satisfied {
            let delay_ms = self.args.resume_delay_ms.or(policy_delay_ms).unwrap_or(0);
            let resume = Resume { reason: CloseReason::Resumed, trigger: ResumeTrigger::Signal, delay_ms };
            lifecycle::resume(tx, subject, resume).await?;
        }
        Ok(effect)
    }

    fn signal(&self, ordinal: u64, now: TimestampMs) -> Signal {
        let args = &self.args;
        Signal {
            home: self.home(),
            waitpoint: args.waitpoint_id,
            id: self.signal_id,
            execution: args.execution_id,
            ordinal,
            name: args.signal_name.clone(),
            category: args.signal_category.clone(),
            source_type: args.source_type.clone(),
            source_identity: args.source_identity.clone(),
            correlation_id: args.correlation_id.clone(),
            payload: args.payload.clone(),
            payload_encoding: args.payload_encoding.clone(),
            accepted_at: now,
            effect: SignalEffect::BufferedForPendingWaitpoint,
        }
    }

    /// Drops the oldest signals beyond what the waitpoint keeps, but none that the open condition has counted. What was dropped is
    /// still recognised when it comes again.
    async fn trim(&self, tx: &mut dyn Tx, waitpoint: &mut Waitpoint, counted: &[MatchedSignal]) -> Result<()> {
        let most = SIGNALS_KEPT_MAX as u64;
        // What a pending waitpoint holds no condition has seen yet; it goes only when the sender says how much is enough.
        let usual = if waitpoint.state == WaitpointState::Pending { most } else { SIGNAL_MAXLEN };
        let kept = self.args.signal_maxlen.unwrap_or(usual).clamp(1, most);
        let keep_from = waitpoint.signal_count.saturating_sub(kept);
        if keep_from <= waitpoint.trimmed_to {
            return Ok(());
        }
        let bounds = Bounds::first(TRIMMED_AT_ONCE)
            .after(before(waitpoint.trimmed_to))
            .until(Position::end_of(ordinal(keep_from - 1)));
        let old = tx.range_of::<Signal>(Index::SignalsOf(waitpoint.home, waitpoint.id), bounds).await?;
        waitpoint.trimmed_to = match old.last() {
            Some(last) if old.len() == TRIMMED_AT_ONCE => last.ordinal + 1,
            _ => keep_from,
        };
        for signal in old {
            let id = MatchedSignal { waitpoint_id: signal.waitpoint, signal_id: signal.id };
            if !counted.contains(&id) {
                self.drop_signal(tx, &signal);
            }
        }
        Ok(())
    }

    fn drop_signal(&self, tx: &mut dyn Tx, signal: &Signal) {
        tx.delete(Key::signal(signal.home, signal.waitpoint, signal.id));
        tx.put(Dedup {
            home: signal.home,
            scope: DedupScope::Signal { waitpoint: signal.waitpoint, key: dropped_key(signal.id) },
            value: DedupValue::Signal { signal: signal.id, execution: signal.execution },
            // It goes with its execution.
            expires_at: TimestampMs(i64::MAX),
        });
    }

    fn remember(&self, tx: &mut dyn Tx) {
        let Some(key) = self.dedup_key.clone() else { return };
        tx.put(Dedup {
            home: self.home(),
            scope: DedupScope::Signal { waitpoint: self.args.waitpoint_id, key },
            value: DedupValue::Signal { signal: self.signal_id, execution: self.args.execution_id },
            expires_at: tx.now().plus(self.args.dedup_ttl_ms()),
        });
    }

    fn emit(&self, tx: &mut dyn Tx, subject: &Subject, signal_id: SignalId, effect: SignalDeliveryEffect) {
        let waitpoint_id = self.args.waitpoint_id;
        let source_identity = self.args.source_identity.clone();
        subject.emit(tx, EventBody::Signal { signal_id, waitpoint_id, source_identity, effect });
    }
}

/// What makes a signal that was dropped a duplicate. No key of a sender begins like this.
fn dropped_key(id: SignalId) -> String {
    format!("dropped:{id}")
}

fn ordinal(ordinal: u64) -> i64 {
    i64::try_from(ordinal).unwrap_or(i64::MAX)
}

fn before(first: u64) -> Option<Position> {
    first.checked_sub(1).map(|last| Position::end_of(ordinal(last)))
}

const fn shown_effect(effect: SignalEffect) -> SignalDeliveryEffect {
    match effect {
        SignalEffect::ResumeConditionSatisfied => SignalDeliveryEffect::Satisfied,
        SignalEffect::AppendedToWaitpoint | SignalEffect::AppendedToWaitpointDuplicate => {
            SignalDeliveryEffect::Appended
        }
        SignalEffect::BufferedForPendingWaitpoint => SignalDeliveryEffect::Buffered,
        SignalEffect::SignalIgnoredNotInCondition | SignalEffect::SignalIgnoredMatcherFailed | SignalEffect::NoOp => {
            SignalDeliveryEffect::Ignored
        }
    }
}
