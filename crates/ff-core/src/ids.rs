//! Identifiers. UUIDs are accepted in any version; names are validated where they enter.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::partition::{Partition, PartitionCounts};
use crate::wire;

macro_rules! uuid_ids {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps any UUID.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID itself.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }

        #[cfg(test)]
        impl proptest::arbitrary::Arbitrary for $name {
            type Parameters = ();
            type Strategy = proptest::strategy::BoxedStrategy<Self>;

            fn arbitrary_with((): ()) -> Self::Strategy {
                use proptest::prelude::*;
                any::<u128>().prop_map(|bits| Self(Uuid::from_u128(bits))).boxed()
            }
        }
    )+};
}

uuid_ids! {
    /// A flow: the container of a graph of executions.
    FlowId,
    /// A budget.
    BudgetId,
    /// A quota policy.
    QuotaPolicyId,
    /// One acquisition of a lease.
    LeaseId,
    /// One attempt at an execution.
    AttemptId,
    /// One delivered signal.
    SignalId,
    /// A place where signals may arrive.
    WaitpointId,
    /// One suspension episode.
    SuspensionId,
    /// A dependency edge of a flow graph.
    EdgeId,
}

/// Most bytes of any free string: names, keys, reasons, labels.
pub const NAME_BYTES_MAX: usize = 256;

/// Most bytes of a lane name.
pub const LANE_BYTES_MAX: usize = 64;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("{what} is empty")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// More bytes than allowed.
    #[error("{what} has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A control character, or for lanes a byte outside printable ASCII.
    #[error("{what} has a forbidden character at byte {at}")]
    ForbiddenCharacter {
        /// Which name.
        what: &'static str,
        /// Byte offset of the character.
        at: usize,
    },
}

/// Checks a free string that may be empty: at most [`NAME_BYTES_MAX`] bytes, no control characters.
///
/// # Errors
/// [`NameError`] naming `what`.
pub fn check_free_string(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { what, len: text.len(), max: NAME_BYTES_MAX });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NameError::ForbiddenCharacter { what, at }),
        None => Ok(()),
    }
}

fn check_name(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    check_free_string(what, text)
}

fn check_lane(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > LANE_BYTES_MAX {
        return Err(NameError::TooLong { what, len: text.len(), max: LANE_BYTES_MAX });
    }
    match text.bytes().position(|b| !(0x20..=0x7e).contains(&b)) {
        Some(at) => Err(NameError::ForbiddenCharacter { what, at }),
        None => Ok(()),
    }
}

macro_rules! names {
    ($($(#[$meta:meta])* $name:ident ($what:literal, $check:path, $pattern:literal)),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Checks and wraps a name.
            ///
            /// # Errors
            /// [`NameError`] when it is too long or has a forbidden character, or is empty and must not be.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                let text = text.as_ref();
                $check($what, text)?;
                Ok(Self(text.into()))
            }

            /// The name as given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::wire::read_text(deserializer, $what, |text| Self::new(text))
            }
        }

        #[cfg(test)]
        impl proptest::arbitrary::Arbitrary for $name {
            type Parameters = ();
            type Strategy = proptest::strategy::BoxedStrategy<Self>;

            fn arbitrary_with((): ()) -> Self::Strategy {
                use proptest::prelude::*;
                $pattern.prop_map(|text| Self::new(text).expect("the pattern yields valid names")).boxed()
            }
        }
    )+};
}

names! {
    /// A queue of executions. Printable ASCII, 1 to 64 bytes.
    LaneId("lane", check_lane, "[ -~]{1,64}"),
    /// A tenant.
    Namespace("namespace", check_name, "[a-zé]{1,20}"),
    /// A logical worker, stable over restarts.
    WorkerId("worker_id", check_name, "[a-z]{1,20}"),
    /// One process incarnation of a worker.
    WorkerInstanceId("worker_instance_id", check_name, "[a-z0-9-]{1,20}"),
    /// What sort of work an execution is; it tells which handler runs it. May be empty.
    ExecutionKind("execution_kind", check_free_string, "[a-zé]{0,20}"),
}

/// How often ownership of an execution was granted; 0 before the first lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct LeaseEpoch(pub u64);

impl LeaseEpoch {
    /// The epoch of the next grant.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for LeaseEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of an attempt in the life of its execution, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct AttemptIndex(pub u32);

impl AttemptIndex {
    /// The index after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for AttemptIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FlowId {
    /// The flow that a submission with this idempotency key makes: the same key finds the same flow, and no other key leads to it.
    #[must_use]
    pub fn of_submission(namespace: &Namespace, idempotency_key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"flow submission\0");
        // Namespaces have no control characters, so the separator is unambiguous.
        hash.update(namespace.as_str());
        hash.update([0]);
        hash.update(idempotency_key);
        Self(uuid_of(hash))
    }

    /// The flow that an execution founds for its children: in the partition of the execution, and always the same. None when the deployment
    /// has no such partition.
    #[must_use]
    pub fn of_children(parent: ExecutionId, counts: &PartitionCounts) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update(b"flow of children\0");
        hash.update(parent.to_bytes());
        counts.spread_uuid_in(parent.partition, uuid_of(hash)).map(Self)
    }
}

/// The UUID that stands for what was hashed.
fn uuid_of(hash: Sha256) -> Uuid {
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// One unit of work. Its partition travels inside the id: `{fp:N}:<uuid>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutionId {
    partition: u16,
    uuid: Uuid,
}

/// Why a text is not an execution id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecutionIdParseError {
    /// The `{fp:` prefix or the `}:` separator is missing.
    #[error("execution id {0:?} has no {{fp:N}}: tag")]
    MissingTag(String),
    /// N is not a decimal u16.
    #[error("execution id has the invalid partition index {0:?}")]
    InvalidPartitionIndex(String),
    /// The rest is not a UUID.
    #[error("execution id has the invalid uuid {0:?}")]
    InvalidUuid(String),
}

impl ExecutionId {
    /// An id in the given flow partition.
    #[must_use]
    pub const fn new(partition: u16, uuid: Uuid) -> Self {
        Self { partition, uuid }
    }

    /// Partition, then UUID: bytes that sort like the id.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[..2].copy_from_slice(&self.partition.to_be_bytes());
        bytes[2..].copy_from_slice(self.uuid.as_bytes());
        bytes
    }

    /// The id of such bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 18]) -> Self {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[2..]);
        Self::new(u16::from_be_bytes([bytes[0], bytes[1]]), Uuid::from_bytes(uuid))
    }

    /// An id beside its flow.
    #[must_use]
    pub fn for_flow(flow: FlowId, counts: &PartitionCounts, uuid: Uuid) -> Self {
        Self::new(counts.flow_index(flow), uuid)
    }

    /// A solo id, placed by its lane.
    #[must_use]
    pub fn solo(lane: &LaneId, counts: &PartitionCounts, uuid: Uuid) -> Self {
        Self::new(counts.lane_index(lane), uuid)
    }

    /// The child of a name that an execution spawns in one of its lives, beside it; a life ends with a replay.
    #[must_use]
    pub fn of_child(parent: Self, replay_count: u32, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"child\0");
        hash.update(parent.to_bytes());
        hash.update(replay_count.to_be_bytes());
        hash.update(name);
        Self::new(parent.partition, uuid_of(hash))
    }

    /// The partition that holds the execution.
    #[must_use]
    pub const fn partition(self) -> Partition {
        Partition::flow(self.partition)
    }

    /// The UUID without its partition.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.uuid
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{fp:{}}}:{}", self.partition, self.uuid)
    }
}

impl fmt::Debug for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutionId({self})")
    }
}

impl FromStr for ExecutionId {
    type Err = ExecutionIdParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let missing = || ExecutionIdParseError::MissingTag(text.to_owned());
        let tagged = text.strip_prefix("{fp:").ok_or_else(missing)?;
        let (index, uuid) = tagged.split_once("}:").ok_or_else(missing)?;
        if index.is_empty() || !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ExecutionIdParseError::InvalidPartitionIndex(index.to_owned()));
        }
        let partition = index.parse().map_err(|_| ExecutionIdParseError::InvalidPartitionIndex(index.to_owned()))?;
        let uuid = Uuid::parse_str(uuid).map_err(|_| ExecutionIdParseError::InvalidUuid(uuid.to_owned()))?;
        Ok(Self { partition, uuid })
    }
}

impl Serialize for ExecutionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        wire::write(serializer, self, &self.to_bytes())
    }
}

impl<'de> Deserialize<'de> for ExecutionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        wire::read(deserializer)
    }
}

impl wire::TwoForms for ExecutionId {
    const WHAT: &'static str = "an execution id";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: ExecutionIdParseError| error.to_string())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.try_into().ok()?).into()
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for ExecutionId {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<(u16, u128)>().prop_map(|(n, bits)| Self::new(n, Uuid::from_u128(bits))).boxed()
    }
}

/// Proof of ownership, all or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LeaseFence {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// The attempt it was granted for.
    pub attempt_id: AttemptId,
}

/// A fence as a caller presents it: all three parts, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FenceTriple {
    /// The lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// Its epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<LeaseEpoch>,
    /// The attempt it was granted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
}

/// One or two parts of a fence were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("partial_fence_triple")]
pub struct PartialFence;

impl FenceTriple {
    /// No fence at all.
    pub const NONE: Self = Self { lease_id: None, lease_epoch: None, attempt_id: None };

    /// The whole fence, or none.
    ///
    /// # Errors
    /// [`PartialFence`] when one or two parts are missing.
    pub fn complete(self) -> Result<Option<LeaseFence>, PartialFence> {
        match (self.lease_id, self.lease_epoch, self.attempt_id) {
            (None, None, None) => Ok(None),
            (Some(lease_id), Some(lease_epoch), Some(attempt_id)) => {
                Ok(Some(LeaseFence { lease_id, lease_epoch, attempt_id }))
            }
            _ => Err(PartialFence),
        }
    }
}

impl From<LeaseFence> for FenceTriple {
    fn from(fence: LeaseFence) -> Self {
        Self {
            lease_id: Some(fence.lease_id),
            lease_epoch: Some(fence.lease_epoch),
            attempt_id: Some(fence.attempt_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_key_always_leads_to_the_same_flow() {
        let flow = |namespace: &str, key| FlowId::of_submission(&Namespace::new(namespace).unwrap(), key);
        assert_eq!(flow("acme", "order-1").to_string(), "90ccf8fb-c1be-89f1-a0bd-603b4ad546a9");
        assert_ne!(flow("acme", "order-1"), flow("acme", "order-2"));
        assert_ne!(flow("acme", "1"), flow("acm", "e1"));
    }
}
