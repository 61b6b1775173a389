//! Feeds of what happened, in commit order, resumable by cursor.

use std::collections::BTreeMap;
use std::pin::Pin;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backend::inspection::TagPair;
use crate::backend::layer::forward;
use crate::cursor::EventCursor;
use crate::error::{EngineError, Result};
use crate::ids::{
    AttemptIndex, ExecutionId, FlowId, LeaseEpoch, LeaseId, Namespace, SignalId, WaitpointId, WorkerInstanceId,
};
use crate::state::TerminalOutcome;
use crate::time::TimestampMs;
use crate::words::words;

/// A feed: ends after its first error, which tells where to subscribe again.
pub type Subscription<T> = Pin<Box<dyn futures_core::Stream<Item = Result<T>> + Send>>;

/// Narrows a feed or a pass to one tenant, one instance, or both. Empty lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ScannerFilter {
    /// Only this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Only executions with exactly this tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_tag: Option<TagPair>,
}

impl ScannerFilter {
    /// Whether everything passes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.namespace.is_none() && self.instance_tag.is_none()
    }

    /// Whether an execution of this namespace with these tags passes.
    #[must_use]
    pub fn matches(&self, namespace: &Namespace, tags: &BTreeMap<String, String>) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.instance_tag.as_ref().is_none_or(|wanted| wanted.is_in(tags))
    }
}

words! {
    /// Who took a lease away.
    pub enum RevokedBy {
        /// A person or their tool.
        Operator = "operator",
        /// A repairing pass.
        Reconciler = "reconciler",
        /// The engine itself.
        Backend = "backend",
    }
}

words! {
    /// Why an owner's lease ended in order.
    pub enum ReleaseReason {
        /// The attempt completed.
        Completed = "completed",
        /// The execution was cancelled.
        Cancelled = "cancelled",
        /// The attempt failed; another follows.
        FailedRetryScheduled = "failed_retry_scheduled",
        /// The attempt failed for good.
        FailedTerminal = "failed_terminal",
        /// The worker asked to go on later.
        WorkerDelay = "worker_delay",
        /// The worker waits for children.
        WaitingChildren = "waiting_children",
        /// The worker suspended.
        Suspend = "suspend",
        /// The attempt ran too long.
        ExpiredAttemptTimeout = "expired:attempt_timeout",
        /// The execution passed its deadline.
        ExpiredExecutionDeadline = "expired:execution_deadline",
        /// A required dependency became impossible.
        DependencyImpossible = "dependency_impossible",
    }
}

words! {
    /// What a replay re-opened.
    pub enum ReplayType {
        /// An execution that ran.
        Normal = "normal",
        /// A flow member that was skipped.
        SkippedFlowMember = "skipped_flow_member",
    }
}

/// What happened to the ownership of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum LeaseChange {
    /// A worker became the owner, by a claim or by going on after a pause.
    Acquired {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
        /// The attempt it is for.
        attempt_index: AttemptIndex,
        /// The owner.
        worker_instance_id: WorkerInstanceId,
    },
    /// The owner keeps it longer.
    Renewed {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
        /// The owner.
        worker_instance_id: WorkerInstanceId,
        /// The new end.
        expires_at: TimestampMs,
    },
    /// The owner did not renew in time.
    Expired {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
        /// Who owned it.
        prev_owner: WorkerInstanceId,
    },
    /// Another worker took over with a new attempt.
    Reclaimed {
        /// The epoch that was lost.
        prev_lease_epoch: LeaseEpoch,
        /// The lease.
        new_lease_id: LeaseId,
        /// Its epoch.
        new_lease_epoch: LeaseEpoch,
        /// The new attempt.
        attempt_index: AttemptIndex,
        /// The new owner.
        new_owner: WorkerInstanceId,
    },
    /// The lease was taken away.
    Revoked {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
        /// Who owned it.
        prev_owner: WorkerInstanceId,
        /// Who took it.
        revoked_by: RevokedBy,
        /// Why.
        reason: String,
    },
    /// The lease ended in order.
    Released {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
        /// Why.
        reason: ReleaseReason,
    },
    /// A terminal execution was re-opened.
    ReplayInitiated {
        /// What was re-opened.
        replay_type: ReplayType,
    },
}

/// One entry of the lease history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LeaseHistoryEvent {
    /// Resumes strictly after this event.
    pub cursor: EventCursor,
    /// The execution.
    pub execution_id: ExecutionId,
    /// When it happened.
    pub at: TimestampMs,
    /// What happened.
    pub change: LeaseChange,
}

words! {
    /// How an execution ended, as its completion event says it.
    pub enum CompletionOutcome {
        /// Completed.
        Success = "success",
        /// Failed for good.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
        /// A deadline or timeout ended it.
        Expired = "expired",
        /// A required dependency became impossible.
        Skipped = "skipped",
    }
}

impl CompletionOutcome {
    /// The completion that a terminal outcome means; none while not terminal.
    #[must_use]
    pub const fn of(outcome: TerminalOutcome) -> Option<Self> {
        match outcome {
            TerminalOutcome::None => None,
            TerminalOutcome::Success => Some(Self::Success),
            TerminalOutcome::Failed => Some(Self::Failed),
            TerminalOutcome::Cancelled => Some(Self::Cancelled),
            TerminalOutcome::Expired => Some(Self::Expired),
            TerminalOutcome::Skipped => Some(Self::Skipped),
        }
    }
}

impl From<CompletionOutcome> for TerminalOutcome {
    fn from(outcome: CompletionOutcome) -> Self {
        match outcome {
            CompletionOutcome::Success => Self::Success,
            CompletionOutcome::Failed => Self::Failed,
            CompletionOutcome::Cancelled => Self::Cancelled,
            CompletionOutcome::Expired => Self::Expired,
            CompletionOutcome::Skipped => Self::Skipped,
        }
    }
}

/// An execution became terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CompletionEvent {
    /// Resumes strictly after this event.
    pub cursor: EventCursor,
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its flow, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// How it ended.
    pub outcome: CompletionOutcome,
    /// When it ended.
    pub at: TimestampMs,
}

words! {
    /// What a delivered signal did.
    pub enum SignalDeliveryEffect {
        /// It met the condition.
        Satisfied = "satisfied",
        /// It was recorded; the condition needs more.
        Appended = "appended",
        /// It waits for a suspension to use its waitpoint.
        Buffered = "buffered",
        /// It had been delivered before.
        Deduped = "deduped",
        /// The condition does not ask for it.
        Ignored = "ignored",
    }
}

/// A signal passed authentication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SignalDeliveryEvent {
    /// Resumes strictly after this event.
    pub cursor: EventCursor,
    /// The execution.
    pub execution_id: ExecutionId,
    /// The signal.
    pub signal_id: SignalId,
    /// Where it arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
    /// Who sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_identity: Option<String>,
    /// What it did.
    pub effect: SignalDeliveryEffect,
    /// When it arrived.
    pub at: TimestampMs,
}

words! {
    /// What happened to a tag.
    pub enum InstanceTagChange {
        /// It was set.
        Attached = "attached",
        /// It was removed.
        Cleared = "cleared",
    }
}

/// A tag of an execution changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct InstanceTagEvent {
    /// Resumes strictly after this event.
    pub cursor: EventCursor,
    /// The execution.
    pub execution_id: ExecutionId,
    /// What happened.
    pub change: InstanceTagChange,
    /// The tag as it was set, or as it was before it was removed.
    pub tag: TagPair,
    /// When it happened.
    pub at: TimestampMs,
}

/// Feeds over all partitions, at least once, in commit order per partition.
///
/// The empty cursor starts at the tail; every event carries the cursor that resumes strictly after it, and events that
/// the filter drops advance it silently. A foreign or truncated cursor is `InvalidInput`, one older than retention
/// `CursorExpired`, both before the feed starts. A feed that loses its store yields `StreamDisconnected` and ends;
/// nothing is lost silently.
#[async_trait]
pub trait Subscriptions: Send + Sync {
    /// What happens to ownership: acquired, renewed, expired, reclaimed, revoked, released, re-opened.
    async fn subscribe_lease_history(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<LeaseHistoryEvent>> {
        let _ = (cursor, filter);
        Err(EngineError::Unavailable { op: "subscribe_lease_history" })
    }

    /// Every transition into a terminal state, of flow members and others alike.
    async fn subscribe_completion(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<CompletionEvent>> {
        let _ = (cursor, filter);
        Err(EngineError::Unavailable { op: "subscribe_completion" })
    }

    /// Every delivery that passed authentication, duplicates and ignored ones included.
    async fn subscribe_signal_delivery(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<SignalDeliveryEvent>> {
        let _ = (cursor, filter);
        Err(EngineError::Unavailable { op: "subscribe_signal_delivery" })
    }

    /// Every change of an execution's tags.
    async fn subscribe_instance_tags(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<InstanceTagEvent>> {
        let _ = (cursor, filter);
        Err(EngineError::Unavailable { op: "subscribe_instance_tags" })
    }
}

forward! { Subscriptions through around,
    subscribe_lease_history(cursor: EventCursor, filter: &ScannerFilter) -> Subscription<LeaseHistoryEvent> => Safe;
    subscribe_completion(cursor: EventCursor, filter: &ScannerFilter) -> Subscription<CompletionEvent> => Safe;
    subscribe_signal_delivery(cursor: EventCursor, filter: &ScannerFilter) -> Subscription<SignalDeliveryEvent>
        => Safe;
    subscribe_instance_tags(cursor: EventCursor, filter: &ScannerFilter) -> Subscription<InstanceTagEvent> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::inspection::forwarding::assert_forwards;
    use crate::testing::{answer_round_trips, json_round_trips};
    use proptest::prelude::*;

    json_round_trips!(ScannerFilter, LeaseChange, ReleaseReason);
    answer_round_trips!(LeaseHistoryEvent, CompletionEvent, SignalDeliveryEvent, InstanceTagEvent);

    fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    struct Bare;
    impl Subscriptions for Bare {}

    #[test]
    fn a_layer_sees_every_subscription_and_the_defaults_name_themselves() {
        let filter = ScannerFilter::default();
        assert_forwards!(
            Bare,
            subscribe_lease_history(EventCursor::TAIL, &filter),
            subscribe_completion(EventCursor::TAIL, &filter),
            subscribe_signal_delivery(EventCursor::TAIL, &filter),
            subscribe_instance_tags(EventCursor::TAIL, &filter),
        );
    }

    #[test]
    fn a_filter_wants_its_namespace_and_its_exact_tag() {
        let acme = Namespace::new("acme").expect("valid");
        let other = Namespace::new("other").expect("valid");
        let filter = ScannerFilter {
            namespace: Some(acme.clone()),
            instance_tag: Some(TagPair { key: "app.instance".into(), value: "1".into() }),
        };
        assert!(filter.matches(&acme, &tags(&[("app.instance", "1"), ("app.x", "y")])));
        assert!(!filter.matches(&other, &tags(&[("app.instance", "1")])));
        assert!(!filter.matches(&acme, &tags(&[("app.instance", "2")])));
        assert!(!filter.matches(&acme, &tags(&[("app.other", "1")])));
        assert!(!filter.matches(&acme, &tags(&[])));
    }

    #[test]
    fn every_terminal_outcome_has_a_completion_of_the_same_name() {
        for outcome in TerminalOutcome::ALL.iter().copied() {
            match CompletionOutcome::of(outcome) {
                Some(completion) => {
                    assert_eq!(completion.as_str(), outcome.as_str());
                    assert_eq!(TerminalOutcome::from(completion), outcome);
                }
                None => assert_eq!(outcome, TerminalOutcome::None),
            }
        }
    }

    proptest! {
        #[test]
        fn an_empty_filter_lets_everything_through(namespace: Namespace, tags: BTreeMap<String, String>) {
            prop_assert!(ScannerFilter::default().is_empty());
            prop_assert!(ScannerFilter::default().matches(&namespace, &tags));
        }
    }
}
