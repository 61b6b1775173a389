//! Arguments and answers of the signals facet.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::backend::suspension::ConditionKind;
use crate::blob::Blob;
use crate::error::ErrorSummary;
use crate::ids::{ExecutionId, LaneId, SignalId, WaitpointId};
use crate::state::WaitpointState;
use crate::time::TimestampMs;
use crate::token::WaitpointToken;
use crate::words::words;

/// How long a delivery is remembered by its idempotency key unless it says otherwise.
pub const SIGNAL_DEDUP_TTL_MS: u64 = 24 * 60 * 60 * 1000;

/// How many signals a waitpoint keeps unless a delivery says otherwise.
pub const SIGNAL_MAXLEN: u64 = 1_000;

/// Largest signal body unless the engine is configured otherwise.
pub const SIGNAL_PAYLOAD_BYTES_MAX: usize = 65_536;

/// Category of approval signals.
pub const APPROVAL_CATEGORY: &str = "approval";

/// Source type of approval signals.
pub const APPROVAL_SOURCE_TYPE: &str = "operator";

/// Entries of a page of pending waitpoints when no limit is given.
pub const PENDING_WAITPOINTS_LIMIT: u32 = 100;

/// Most entries of a page of pending waitpoints.
pub const PENDING_WAITPOINTS_LIMIT_MAX: u32 = 1_000;

/// A signing secret as a caller sends it: any text, even an empty one. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// The text as sent.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(redacted)")
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// A waitpoint that takes signals before its execution suspends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct PendingWaitpoint {
    /// The waitpoint; a suspend binds it with `UsePending`.
    pub waitpoint_id: WaitpointId,
    /// What a sender must present.
    pub waitpoint_token: WaitpointToken,
}

/// A signal for a waitpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct DeliverSignalArgs {
    /// The execution that owns the waitpoint.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Names the signal, so that a repetition is recognised; the engine mints one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_id: Option<SignalId>,
    /// What conditions match; not empty.
    pub signal_name: String,
    /// A category for people and filters.
    #[serde(default)]
    pub signal_category: String,
    /// What kind of sender.
    #[serde(default)]
    pub source_type: String,
    /// Which sender; empty when anonymous.
    #[serde(default)]
    pub source_identity: String,
    /// The body, kept byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Blob>,
    /// How the body is encoded, for its reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// The sender's correlation id, for its reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Makes repetitions at this waitpoint duplicates; empty means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// How long the idempotency key is remembered, [`SIGNAL_DEDUP_TTL_MS`] when absent; 0 switches it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_ttl_ms: Option<u64>,
    /// How long a resumed execution waits before it can be claimed; the resume policy's delay when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_delay_ms: Option<u64>,
    /// How many signals the execution may take, its policy's number when absent; 0 is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_signals_per_execution: Option<u64>,
    /// How many signals the waitpoint keeps, [`SIGNAL_MAXLEN`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_maxlen: Option<u64>,
    /// The waitpoint's token as the sender has it: any text, even an empty one.
    pub waitpoint_token: WaitpointToken,
}

impl DeliverSignalArgs {
    /// An anonymous signal without a body.
    pub fn new(
        execution_id: ExecutionId,
        waitpoint_id: WaitpointId,
        signal_name: impl Into<String>,
        waitpoint_token: WaitpointToken,
    ) -> Self {
        Self {
            execution_id,
            waitpoint_id,
            signal_id: None,
            signal_name: signal_name.into(),
            signal_category: String::new(),
            source_type: String::new(),
            source_identity: String::new(),
            payload: None,
            payload_encoding: None,
            correlation_id: None,
            idempotency_key: None,
            dedup_ttl_ms: None,
            resume_delay_ms: None,
            max_signals_per_execution: None,
            signal_maxlen: None,
            waitpoint_token,
        }
    }

    /// How long the idempotency key is remembered.
    #[must_use]
    pub fn dedup_ttl_ms(&self) -> u64 {
        self.dedup_ttl_ms.unwrap_or(SIGNAL_DEDUP_TTL_MS)
    }

    /// What makes a repetition at this waitpoint a duplicate. Never equal to the key of an approval.
    #[must_use]
    pub fn dedup_key(&self) -> Option<String> {
        let key = self.idempotency_key.as_deref().filter(|key| !key.is_empty())?;
        (self.dedup_ttl_ms() > 0).then(|| format!("signal:{key}"))
    }
}

/// A person's decision, delivered without handling the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct DeliverApprovalSignalArgs {
    /// The execution that owns the waitpoint.
    pub execution_id: ExecutionId,
    /// The execution's lane.
    pub lane_id: LaneId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The decision, by convention `approved` or `rejected`; not empty.
    pub signal_name: String,
    /// Who decides; counts as the source identity.
    pub approver: String,
    /// Tells decisions of one approver apart; the same decision with the same suffix is a duplicate.
    #[serde(default)]
    pub idempotency_suffix: String,
    /// How long the decision is remembered; 0 switches duplicate detection off.
    #[serde(default = "default_dedup_ttl_ms")]
    pub signal_dedup_ttl_ms: u64,
    /// How many signals the waitpoint keeps, [`SIGNAL_MAXLEN`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxlen: Option<u64>,
    /// How many signals the execution may take, its policy's number when absent; 0 is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_signals_per_execution: Option<u64>,
}

const fn default_dedup_ttl_ms() -> u64 {
    SIGNAL_DEDUP_TTL_MS
}

impl DeliverApprovalSignalArgs {
    /// What makes a repetition at this waitpoint a duplicate: decision, approver and suffix, unmistakably.
    #[must_use]
    pub fn dedup_key(&self) -> Option<String> {
        let Self { signal_name, approver, idempotency_suffix, .. } = self;
        (self.signal_dedup_ttl_ms > 0).then(|| {
            format!("approval:{}:{signal_name}:{}:{approver}:{idempotency_suffix}", signal_name.len(), approver.len())
        })
    }
}

words! {
    /// What an accepted signal did.
    pub enum SignalEffect {
        /// The condition holds now; the execution resumes.
        ResumeConditionSatisfied = "resume_condition_satisfied",
        /// Counts towards the condition, which does not hold yet.
        AppendedToWaitpoint = "appended_to_waitpoint",
        /// Stored; what it stands for was counted before.
        AppendedToWaitpointDuplicate = "appended_to_waitpoint_duplicate",
        /// Stored; the condition does not name this waitpoint.
        SignalIgnoredNotInCondition = "signal_ignored_not_in_condition",
        /// Stored; the condition wants other signal names here.
        SignalIgnoredMatcherFailed = "signal_ignored_matcher_failed",
        /// Stored; it is not what a single condition waits for.
        NoOp = "no_op",
        /// Stored until a suspension uses the pending waitpoint.
        BufferedForPendingWaitpoint = "buffered_for_pending_waitpoint",
    }
}

/// What became of a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum DeliverSignalResult {
    /// It is stored.
    Accepted {
        /// Its id.
        signal_id: SignalId,
        /// What it did.
        effect: SignalEffect,
    },
    /// It was delivered before; nothing changed.
    Duplicate {
        /// The signal of the first delivery.
        existing_signal_id: SignalId,
    },
}

/// The first signing secret of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SeedWaitpointHmacSecretArgs {
    /// Names the secret; not empty, no colon.
    pub kid: String,
    /// 64 hex digits.
    pub secret_hex: SecretText,
}

/// What a seed found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SeedOutcome {
    /// There was no secret; this one signs now.
    Seeded {
        /// Its name.
        kid: String,
    },
    /// A secret of this name was there.
    AlreadySeeded {
        /// Its name.
        kid: String,
        /// Whether it is the one that was given.
        same_secret: bool,
    },
}

/// A new signing secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RotateWaitpointHmacSecretAllArgs {
    /// Names the new secret; not empty, no colon.
    pub new_kid: String,
    /// Hex digits, an even number, not none.
    pub new_secret_hex: SecretText,
    /// How long tokens of the replaced secret stay valid; below 2^53.
    pub grace_ms: u64,
}

/// What a rotation did in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RotateWaitpointHmacSecretOutcome {
    /// The new secret signs now.
    Rotated {
        /// What signed before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous_kid: Option<String>,
        /// What signs now.
        new_kid: String,
        /// How many retired secrets past their grace were dropped.
        gc_count: u32,
    },
    /// This secret signs already.
    Noop {
        /// Its name.
        kid: String,
    },
    /// Nothing changed.
    Refused {
        /// Why: `rotation_conflict` when the name holds another secret.
        error: ErrorSummary,
    },
}

/// The outcome of a rotation in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RotateWaitpointHmacSecretAllEntry {
    /// The place.
    pub partition: u16,
    /// What happened there.
    pub result: RotateWaitpointHmacSecretOutcome,
}

/// The outcome of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RotateWaitpointHmacSecretAllResult {
    /// One entry per keyring: exactly one, partition 0, on stores with one keyring.
    pub entries: Vec<RotateWaitpointHmacSecretAllEntry>,
}

/// A page of open waitpoints to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListPendingWaitpointsArgs {
    /// Whose waitpoints.
    pub execution_id: ExecutionId,
    /// The last waitpoint of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<WaitpointId>,
    /// Most entries, [`PENDING_WAITPOINTS_LIMIT`] when absent; taken as at least 1 and at most
    /// [`PENDING_WAITPOINTS_LIMIT_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl ListPendingWaitpointsArgs {
    /// The first page of an execution's open waitpoints.
    #[must_use]
    pub const fn new(execution_id: ExecutionId) -> Self {
        Self { execution_id, after: None, limit: None }
    }

    /// The number of entries a full page has.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.limit.unwrap_or(PENDING_WAITPOINTS_LIMIT).clamp(1, PENDING_WAITPOINTS_LIMIT_MAX) as usize
    }
}

/// A waitpoint that takes signals. Its token is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct PendingWaitpointInfo {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its key.
    pub waitpoint_key: String,
    /// Whose it is.
    pub execution_id: ExecutionId,
    /// `pending` or `active`.
    pub state: WaitpointState,
    /// The kind of condition it is bound to; absent while pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition_kind: Option<ConditionKind>,
    /// Signal names the condition waits for here, sorted; empty when any name counts or no signal does.
    #[serde(default)]
    pub required_signal_names: Vec<String>,
    /// When it was created.
    pub created_at: TimestampMs,
    /// When a suspension bound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_at: Option<TimestampMs>,
    /// When it stops waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<TimestampMs>,
    /// The secret that signed its token.
    pub token_kid: String,
    /// The first 16 hex digits of its token's digest.
    pub token_fingerprint: String,
}

/// A page of open waitpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListPendingWaitpointsResult {
    /// In the order of their ids.
    pub entries: Vec<PendingWaitpointInfo>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<WaitpointId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    crate::testing::json_round_trips!(
        DeliverSignalArgs,
        DeliverApprovalSignalArgs,
        SeedWaitpointHmacSecretArgs,
        RotateWaitpointHmacSecretAllArgs,
        ListPendingWaitpointsArgs,
        PendingWaitpoint,
        PendingWaitpointInfo,
        ListPendingWaitpointsResult,
        RotateWaitpointHmacSecretAllEntry,
        RotateWaitpointHmacSecretAllResult,
        SecretText,
    );
    crate::testing::answer_round_trips!(DeliverSignalResult, SeedOutcome, RotateWaitpointHmacSecretOutcome);

    fn delivery(token: &str) -> DeliverSignalArgs {
        let execution_id = ExecutionId::new(1, Uuid::from_u128(1));
        let waitpoint_id = WaitpointId::from_uuid(Uuid::from_u128(2));
        DeliverSignalArgs::new(execution_id, waitpoint_id, "approved", WaitpointToken::new(token))
    }

    fn approval(name: &str, approver: &str, suffix: &str) -> DeliverApprovalSignalArgs {
        DeliverApprovalSignalArgs {
            execution_id: ExecutionId::new(1, Uuid::from_u128(1)),
            lane_id: LaneId::new("default").expect("a lane"),
            waitpoint_id: WaitpointId::from_uuid(Uuid::from_u128(2)),
            signal_name: name.into(),
            approver: approver.into(),
            idempotency_suffix: suffix.into(),
            signal_dedup_ttl_ms: SIGNAL_DEDUP_TTL_MS,
            maxlen: None,
            max_signals_per_execution: None,
        }
    }

    #[test]
    fn tokens_and_secrets_do_not_show_in_debug_output() {
        let seed = SeedWaitpointHmacSecretArgs { kid: "k1".into(), secret_hex: "5ec2e7".into() };
        let rotate =
            RotateWaitpointHmacSecretAllArgs { new_kid: "k2".into(), new_secret_hex: "5ec2e7".into(), grace_ms: 1 };
        let shown = format!("{:?} {seed:?} {rotate:?}", delivery("k1:5ec2e7"));
        assert!(!shown.contains("5ec2e7"), "{shown}");
        assert!(shown.contains("k2"), "{shown}");
    }

    #[test]
    fn a_malformed_token_still_reaches_the_engine() {
        let mut json = serde_json::to_value(delivery("")).expect("serializes");
        json["waitpoint_token"] = "no colon, not hex".into();
        let args: DeliverSignalArgs = serde_json::from_value(json).expect("parses");
        assert_eq!(args.waitpoint_token.expose(), "no colon, not hex");
    }

    #[test]
    fn a_signal_without_a_key_or_with_no_memory_is_never_a_duplicate_by_key() {
        let mut args = delivery("t");
        assert_eq!(args.dedup_key(), None);
        args.idempotency_key = Some(String::new());
        assert_eq!(args.dedup_key(), None);
        args.idempotency_key = Some("once".into());
        assert_eq!(args.dedup_key().as_deref(), Some("signal:once"));
        args.dedup_ttl_ms = Some(0);
        assert_eq!(args.dedup_key(), None);
    }

    #[test]
    fn a_page_has_between_one_and_a_thousand_entries() {
        let mut args = ListPendingWaitpointsArgs::new(ExecutionId::new(1, Uuid::nil()));
        for (limit, size) in [(None, 100), (Some(0), 1), (Some(7), 7), (Some(5_000), 1_000)] {
            args.limit = limit;
            assert_eq!(args.page_size(), size, "{limit:?}");
        }
    }

    #[test]
    fn an_approval_that_says_nothing_about_memory_is_remembered_for_a_day() {
        let mut json = serde_json::to_value(approval("approved", "ann", "")).expect("serializes");
        json.as_object_mut().expect("an object").remove("signal_dedup_ttl_ms");
        let args: DeliverApprovalSignalArgs = serde_json::from_value(json).expect("parses");
        assert_eq!(args.signal_dedup_ttl_ms, SIGNAL_DEDUP_TTL_MS);
    }

    proptest! {
        #[test]
        fn approvals_collide_only_when_decision_approver_and_suffix_agree(
            one in ("[a:1]{0,4}", "[a:1]{0,4}", "[a:1]{0,4}"),
            two in ("[a:1]{0,4}", "[a:1]{0,4}", "[a:1]{0,4}"),
        ) {
            let key = |parts: &(String, String, String)| approval(&parts.0, &parts.1, &parts.2).dedup_key();
            prop_assert_eq!(key(&one) == key(&two), one == two);
        }

        #[test]
        fn no_idempotency_key_of_a_sender_passes_for_an_approval(key: String, name: String, approver: String) {
            let vote = approval(&name, &approver, "").dedup_key().expect("remembered");
            for forged in [key, vote.clone()] {
                let args = DeliverSignalArgs { idempotency_key: Some(forged), ..delivery("t") };
                prop_assert_ne!(args.dedup_key(), Some(vote.clone()));
            }
        }
    }
}
