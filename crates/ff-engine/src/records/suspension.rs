//! Suspension episodes, their waitpoints and the signals that arrived.

use ff_core::backend::signals::SignalEffect;
use ff_core::backend::suspension::{ResumeCondition, ResumeTrigger, SuspensionReasonCode, SuspensionRequester};
use ff_core::ids::{AttemptIndex, ExecutionId, SignalId, SuspensionId, WaitpointId};
use ff_core::partition::Partition;
use ff_core::policy::TimeoutBehavior;
use ff_core::rules::conditions::{ConditionProgress, MatchedSignal, SignalFacts};
use ff_core::state::{CloseReason, WaitpointState};
use ff_core::token::{TokenSubject, WaitpointToken};
use ff_core::{Blob, TimestampMs};
use serde::{Deserialize, Serialize};

use super::{Execution, Stored};
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;
use crate::tie::Tie;

/// One suspension episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Suspension {
    pub execution: ExecutionId,
    pub ordinal: u32,
    pub id: SuspensionId,
    pub attempt_index: AttemptIndex,
    pub reason: SuspensionReasonCode,
    pub requested_by: SuspensionRequester,
    pub condition: ResumeCondition,
    pub progress: ConditionProgress,
    pub resume_delay_ms: Option<u64>,
    pub timeout_at: Option<TimestampMs>,
    pub timeout_behavior: TimeoutBehavior,
    pub continuation_metadata_pointer: Option<String>,
    /// The first one is primary.
    pub waitpoints: Vec<WaitpointId>,
    pub opened_at: TimestampMs,
    pub closed: Option<(TimestampMs, CloseReason)>,
    /// What resumed it.
    pub trigger: Option<ResumeTrigger>,
    /// The signal recorded by a timeout that resumed it.
    pub timeout_signal: Option<MatchedSignal>,
    /// How often the execution had been replayed when it began.
    #[serde(default)]
    pub life: u32,
}

impl Suspension {
    /// Ends the episode.
    pub fn close(&mut self, reason: CloseReason, now: TimestampMs) {
        if self.closed.is_none() {
            self.closed = Some((now, reason));
        }
    }

    /// Hands the episode to a person: no timeout any more.
    pub fn escalate(&mut self) {
        self.reason = SuspensionReasonCode::WaitingForOperatorReview;
        self.requested_by = SuspensionRequester::SystemTimeoutPolicy;
        self.timeout_at = None;
        self.timeout_behavior = TimeoutBehavior::default();
    }

    /// Whether its attempt went on after it.
    #[must_use]
    pub const fn was_resumed(&self) -> bool {
        matches!(self.closed, Some((_, CloseReason::Resumed | CloseReason::TimedOutAutoResume)))
    }

    /// The signals that explain its end, in order of arrival.
    pub fn explaining(&self) -> impl Iterator<Item = MatchedSignal> + '_ {
        self.progress.matched().iter().copied().chain(self.timeout_signal)
    }
}

impl Stored for Suspension {
    fn key(&self) -> Key {
        Key::suspension(self.execution, self.ordinal)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::SuspensionsOf(self.execution), Position::new(i64::from(self.ordinal), [])));
    }
}

/// A place where signals may arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Waitpoint {
    pub home: Partition,
    pub id: WaitpointId,
    pub key: String,
    pub execution: ExecutionId,
    pub attempt_index: AttemptIndex,
    /// The episode it is bound to; none while pending.
    pub suspension: Option<u32>,
    pub token: Option<WaitpointToken>,
    pub state: WaitpointState,
    pub created_at: TimestampMs,
    pub activated_at: Option<TimestampMs>,
    pub satisfied_at: Option<TimestampMs>,
    pub expires_at: Option<TimestampMs>,
    pub closed: Option<(TimestampMs, CloseReason)>,
    /// Signals ever recorded; the ordinal of the next one.
    pub signal_count: u64,
    /// Signals with a smaller ordinal were dropped, unless a condition counted them.
    pub trimmed_to: u64,
}

impl Waitpoint {
    /// A waitpoint of an execution's current attempt, without a token yet. The execution notes that it has one.
    #[must_use]
    pub fn pending(execution: &mut Execution, id: WaitpointId, key: String, now: TimestampMs) -> Self {
        execution.had_waitpoints = true;
        Self {
            home: execution.id.partition(),
            id,
            key,
            execution: execution.id,
            attempt_index: execution.attempt_index,
            suspension: None,
            token: None,
            state: WaitpointState::Pending,
            created_at: now,
            activated_at: None,
            satisfied_at: None,
            expires_at: None,
            closed: None,
            signal_count: 0,
            trimmed_to: 0,
        }
    }

    /// What its token speaks for.
    #[must_use]
    pub fn token_subject(&self) -> TokenSubject<'_> {
        TokenSubject {
            execution_id: self.execution,
            waitpoint_id: self.id,
            waitpoint_key: &self.key,
            created_at: self.created_at,
        }
    }

    /// Whether it is pending and its time is over, noticed or not.
    #[must_use]
    pub fn has_run_out(&self, now: TimestampMs) -> bool {
        self.state == WaitpointState::Pending && self.expires_at.is_some_and(|at| at.is_due(now))
    }

    /// Binds a pending or fresh waitpoint to an episode.
    pub fn activate(&mut self, suspension: u32, now: TimestampMs) {
        self.state = WaitpointState::Active;
        self.suspension = Some(suspension);
        self.activated_at = Some(now);
        self.expires_at = None;
    }

    /// Closes it for good.
    pub fn close(&mut self, reason: CloseReason, now: TimestampMs) {
        if self.state.is_open() {
            self.state = WaitpointState::Closed;
            self.closed = Some((now, reason));
            if reason == CloseReason::Resumed {
                self.satisfied_at = Some(now);
            }
        }
    }
}

impl Stored for Waitpoint {
    fn key(&self) -> Key {
        Key::waitpoint(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let by_id = || Position::by(*self.id.uuid().as_bytes());
        out.push(Entry::new(Index::WaitpointsOf(self.execution), by_id()));
        if self.state.is_open() {
            out.push(Entry::new(Index::OpenWaitpointsOf(self.execution), by_id()));
            out.push(Entry::new(Index::OpenWaitpointsNamed(self.execution, self.key.clone()), by_id()));
        }
        if let (WaitpointState::Pending, Some(at)) = (self.state, self.expires_at) {
            // Callers choose ids, so the same one may be due in several partitions.
            let tie = Tie::default().partition(self.home).uuid(self.id.uuid());
            out.push(Entry::new(Index::Due(DueKind::WaitpointExpiry), Position::at(at, tie)));
        }
    }
}

/// One recorded signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Signal {
    pub home: Partition,
    pub waitpoint: WaitpointId,
    pub id: SignalId,
    pub execution: ExecutionId,
    /// Order of arrival at the waitpoint, from 0.
    pub ordinal: u64,
    pub name: String,
    pub category: String,
    pub source_type: String,
    pub source_identity: String,
    pub correlation_id: Option<String>,
    pub payload: Option<Blob>,
    pub payload_encoding: Option<String>,
    pub accepted_at: TimestampMs,
    pub effect: SignalEffect,
}

impl Signal {
    /// What a condition looks at.
    #[must_use]
    pub fn facts<'a>(&'a self, waitpoint_key: &'a str) -> SignalFacts<'a> {
        SignalFacts {
            signal_id: self.id,
            waitpoint_id: self.waitpoint,
            waitpoint_key,
            name: &self.name,
            source_type: &self.source_type,
            source_identity: &self.source_identity,
        }
    }
}

impl Stored for Signal {
    fn key(&self) -> Key {
        Key::signal(self.home, self.waitpoint, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(
            Index::SignalsOf(self.home, self.waitpoint),
            Position::new(i64::try_from(self.ordinal).unwrap_or(i64::MAX), *self.id.uuid().as_bytes()),
        ));
    }
}

/// Counters of signals of one execution, apart from its ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SignalTally {
    pub execution: ExecutionId,
    pub recorded: u64,
    pub last_signal_at: Option<TimestampMs>,
    pub last_hmac_validation_failed_at: Option<TimestampMs>,
}

impl SignalTally {
    /// Nothing arrived yet.
    #[must_use]
    pub const fn none(execution: ExecutionId) -> Self {
        Self { execution, recorded: 0, last_signal_at: None, last_hmac_validation_failed_at: None }
    }
}

impl Stored for SignalTally {
    fn key(&self) -> Key {
        Key::signal_tally(self.execution)
    }
}
