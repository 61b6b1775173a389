//! Where records live. A transaction touches one partition; everything about one flow shares one.

use std::fmt;
use std::str::FromStr;

use crc::{CRC_16_XMODEM, Crc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::ids::{BudgetId, FlowId, LaneId, Namespace, QuotaPolicyId, WorkerInstanceId};
use crate::wire;

const CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Number of worker registry shards; independent of the configured counts.
pub const WORKER_SHARDS: u16 = 256;

/// What a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartitionFamily {
    /// Flows, executions and all they own.
    Flow,
    /// Budgets and their ledgers.
    Budget,
    /// Quota policies and their admissions.
    Quota,
    /// The worker registry.
    Worker,
    /// Everything rare: lanes, keyring, scopes, deployment settings.
    Global,
}

impl PartitionFamily {
    const ALL: [Self; 5] = [Self::Flow, Self::Budget, Self::Quota, Self::Worker, Self::Global];

    /// The byte that stands for it where partitions are stored.
    const fn code(self) -> u8 {
        match self {
            Self::Flow => 0,
            Self::Budget => 1,
            Self::Quota => 2,
            Self::Worker => 3,
            Self::Global => 4,
        }
    }

    /// The prefix inside a hash tag.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Flow => "fp",
            Self::Budget => "b",
            Self::Quota => "q",
            Self::Worker => "w",
            Self::Global => "g",
        }
    }
}

/// One partition; its text form is its hash tag, `{fp:7}`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    family: PartitionFamily,
    index: u16,
}

impl Partition {
    /// The one partition of rare records.
    pub const GLOBAL: Self = Self { family: PartitionFamily::Global, index: 0 };

    /// A partition of the given family.
    #[must_use]
    pub const fn new(family: PartitionFamily, index: u16) -> Self {
        Self { family, index }
    }

    /// A partition of flows and executions.
    #[must_use]
    pub const fn flow(index: u16) -> Self {
        Self::new(PartitionFamily::Flow, index)
    }

    /// Family, then index: bytes that sort like the partition.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 3] {
        let [high, low] = self.index.to_be_bytes();
        [self.family.code(), high, low]
    }

    /// The partition of such bytes, if there is that family.
    #[must_use]
    pub fn from_bytes([code, high, low]: [u8; 3]) -> Option<Self> {
        let family = PartitionFamily::ALL.into_iter().find(|family| family.code() == code)?;
        Some(Self::new(family, u16::from_be_bytes([high, low])))
    }

    /// The family.
    #[must_use]
    pub const fn family(self) -> PartitionFamily {
        self.family
    }

    /// The index inside the family.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.index
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}:{}}}", self.family.prefix(), self.index)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({self})")
    }
}

/// Why a text is not a partition key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionKeyParseError {
    /// Not enclosed in braces.
    #[error("partition key {0:?} is not enclosed in braces")]
    MissingBraces(String),
    /// No colon between family and index.
    #[error("partition key {0:?} has no colon")]
    MalformedBody(String),
    /// A family that does not exist.
    #[error("partition key has the unknown family {0:?}")]
    UnknownFamilyPrefix(String),
    /// Not a u16.
    #[error("partition key has the invalid index {0:?}")]
    InvalidIndex(String),
}

impl FromStr for Partition {
    type Err = PartitionKeyParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let body = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .ok_or_else(|| PartitionKeyParseError::MissingBraces(text.to_owned()))?;
        let (prefix, index) =
            body.split_once(':').ok_or_else(|| PartitionKeyParseError::MalformedBody(text.to_owned()))?;
        let family = PartitionFamily::ALL
            .into_iter()
            .find(|family| family.prefix() == prefix)
            .ok_or_else(|| PartitionKeyParseError::UnknownFamilyPrefix(prefix.to_owned()))?;
        let invalid = || PartitionKeyParseError::InvalidIndex(index.to_owned());
        if !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        Ok(Self { family, index: index.parse().map_err(|_| invalid())? })
    }
}

impl Serialize for Partition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        wire::write(serializer, self, &self.to_bytes())
    }
}

impl<'de> Deserialize<'de> for Partition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        wire::read(deserializer)
    }
}

impl wire::TwoForms for Partition {
    const WHAT: &'static str = "a partition";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: PartitionKeyParseError| error.to_string())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.try_into().ok()?)
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for Partition {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        (0..5usize, any::<u16>()).prop_map(|(f, n)| Self::new(PartitionFamily::ALL[f], n)).boxed()
    }
}

/// A partition as callers write it: its hash tag, not yet parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct PartitionKey(pub String);

impl PartitionKey {
    /// The partition it names.
    ///
    /// # Errors
    /// [`PartitionKeyParseError`] when the text is not a hash tag.
    pub fn parse(&self) -> Result<Partition, PartitionKeyParseError> {
        self.0.parse()
    }
}

impl From<Partition> for PartitionKey {
    fn from(partition: Partition) -> Self {
        Self(partition.to_string())
    }
}

/// How many partitions each family has: stored at first start, verified ever after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionCounts {
    /// Partitions of flows and executions.
    pub flow: std::num::NonZeroU16,
    /// Partitions of budgets.
    pub budget: std::num::NonZeroU16,
    /// Partitions of quotas.
    pub quota: std::num::NonZeroU16,
}

impl Default for PartitionCounts {
    fn default() -> Self {
        const FLOW: std::num::NonZeroU16 = std::num::NonZeroU16::new(256).expect("not zero");
        const OTHER: std::num::NonZeroU16 = std::num::NonZeroU16::new(32).expect("not zero");
        Self { flow: FLOW, budget: OTHER, quota: OTHER }
    }
}

impl PartitionCounts {
    /// Index of the partition that holds a flow.
    #[must_use]
    pub fn flow_index(&self, flow: FlowId) -> u16 {
        crc16(flow.uuid().as_bytes()) % self.flow
    }

    /// Index for a solo execution placed by its lane.
    #[must_use]
    pub fn lane_index(&self, lane: &LaneId) -> u16 {
        crc16(lane.as_str().as_bytes()) % self.flow
    }

    /// Index for a solo execution whose id the engine mints: by idempotency key when there is one, else spread.
    #[must_use]
    pub fn solo_index(&self, namespace: &Namespace, idempotency_key: Option<&str>, uuid: Uuid) -> u16 {
        let hash = match idempotency_key {
            Some(key) => {
                let mut digest = CRC16.digest();
                digest.update(namespace.as_str().as_bytes());
                digest.update(&[0]);
                digest.update(key.as_bytes());
                digest.finalize()
            }
            None => return self.spread_index(uuid),
        };
        hash % self.flow
    }

    /// Index for a solo execution that has nothing but its UUID.
    #[must_use]
    pub fn spread_index(&self, uuid: Uuid) -> u16 {
        crc16(uuid.as_bytes()) % self.flow
    }

    /// A UUID of that index, the same as a given one up to its last two bytes. None if there is none.
    #[must_use]
    pub fn spread_uuid_in(&self, index: u16, uuid: Uuid) -> Option<Uuid> {
        let by_chance = crc16(uuid.as_bytes());
        let first = by_chance - by_chance % self.flow;
        let wanted = first.checked_add(index).or_else(|| first.checked_sub(self.flow.get())?.checked_add(index))?;
        // Checksums differ by the checksum of what differs.
        let difference = ending_with(by_chance ^ wanted).to_be_bytes();
        let mut bytes = uuid.into_bytes();
        bytes[14] ^= difference[0];
        bytes[15] ^= difference[1];
        (index < self.flow.get()).then_some(Uuid::from_bytes(bytes))
    }

    /// The partition of a flow.
    #[must_use]
    pub fn of_flow(&self, flow: FlowId) -> Partition {
        Partition::flow(self.flow_index(flow))
    }

    /// The partition of a budget.
    #[must_use]
    pub fn of_budget(&self, budget: BudgetId) -> Partition {
        Partition::new(PartitionFamily::Budget, crc16(budget.uuid().as_bytes()) % self.budget)
    }

    /// The partition of a quota policy.
    #[must_use]
    pub fn of_quota(&self, quota: QuotaPolicyId) -> Partition {
        Partition::new(PartitionFamily::Quota, crc16(quota.uuid().as_bytes()) % self.quota)
    }

    /// How many partitions a family has.
    #[must_use]
    pub fn count(&self, family: PartitionFamily) -> u16 {
        match family {
            PartitionFamily::Flow => self.flow.get(),
            PartitionFamily::Budget => self.budget.get(),
            PartitionFamily::Quota => self.quota.get(),
            PartitionFamily::Worker => WORKER_SHARDS,
            PartitionFamily::Global => 1,
        }
    }

    /// Whether the partition exists under these counts.
    #[must_use]
    pub fn contains(&self, partition: Partition) -> bool {
        partition.index() < self.count(partition.family())
    }
}

/// The registry shard of a worker instance.
#[must_use]
pub fn of_worker(instance: &WorkerInstanceId) -> Partition {
    let shard = fnv1a64(instance.as_str().as_bytes()) % u64::from(WORKER_SHARDS);
    Partition::new(PartitionFamily::Worker, u16::try_from(shard).unwrap_or(0))
}

/// CRC-16/XMODEM, the polynomial of cluster slots.
#[must_use]
pub fn crc16(bytes: &[u8]) -> u16 {
    CRC16.checksum(bytes)
}

/// The only two bytes with that checksum, after nothing but zeros: undoes 16 steps of [`CRC16`].
fn ending_with(checksum: u16) -> u16 {
    (0..16).fold(checksum, |after, _| {
        // The polynomial ends with a one, so the last bit says whether this step has added it.
        if after & 1 == 1 { (after ^ CRC_16_XMODEM.poly) >> 1 | 1 << 15 } else { after >> 1 }
    })
}

/// FNV-1a, 64 bits.
#[must_use]
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str) -> u16 {
        PartitionCounts::default().lane_index(&LaneId::new(name).unwrap())
    }

    #[test]
    fn hashes_match_the_published_vectors() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(lane("default"), 86);
        assert_eq!(lane("workers-a"), 193);
        assert_eq!(lane("gpu"), 144);
        assert_eq!(fnv1a64(b"worker-a"), 0x2490_eec5_9027_63fd);
        let worker = WorkerInstanceId::new("worker-a").unwrap();
        assert_eq!(of_worker(&worker), Partition::new(PartitionFamily::Worker, 253));
    }

    #[test]
    fn ids_land_in_the_published_partitions() {
        let counts = PartitionCounts::default();
        let cases = [("550e8400-e29b-41d4-a716-446655440000", 24, 24), ("11111111-1111-1111-1111-111111111111", 6, 6)];
        for (uuid, flow, budget) in cases {
            let uuid = Uuid::parse_str(uuid).unwrap();
            assert_eq!(counts.flow_index(FlowId::from_uuid(uuid)), flow);
            assert_eq!(counts.of_budget(BudgetId::from_uuid(uuid)).index(), budget);
            assert_eq!(counts.of_quota(QuotaPolicyId::from_uuid(uuid)).index(), budget);
        }
        assert_eq!(counts.flow_index(FlowId::from_uuid(Uuid::nil())), 0);
    }

    #[test]
    fn a_key_places_a_solo_execution_whatever_its_uuid() {
        let counts = PartitionCounts::default();
        let namespace = Namespace::new("acme").unwrap();
        let place = |uuid| counts.solo_index(&namespace, Some("order-1"), Uuid::from_u128(uuid));
        assert_eq!(place(1), place(2));
    }

    #[test]
    fn every_partition_has_a_uuid_like_any_other() {
        let namespace = Namespace::new("acme").unwrap();
        for flow in [1, 256, 300, 40_000, u16::MAX] {
            let counts = PartitionCounts { flow: flow.try_into().unwrap(), ..PartitionCounts::default() };
            for number in 0..100 {
                let uuid = Uuid::from_u128(0x0197_0000_0000_7000_8000_1234_5678_9abc + number * 0x1_2345_6789);
                for index in (0..flow).step_by(usize::from(flow / 256).max(1)).chain([flow - 1]) {
                    let placed = counts.spread_uuid_in(index, uuid).unwrap();
                    assert_eq!(counts.solo_index(&namespace, None, placed), index);
                    assert_eq!(placed.as_bytes()[..14], uuid.as_bytes()[..14]);
                }
                assert_eq!(counts.spread_uuid_in(flow, uuid), None);
            }
        }
    }

    #[test]
    fn a_malformed_partition_key_says_what_is_wrong() {
        use PartitionKeyParseError as E;
        let parse = |text: &str| PartitionKey(text.to_owned()).parse();
        assert_eq!(parse("fp:1"), Err(E::MissingBraces("fp:1".into())));
        assert_eq!(parse("{fp}"), Err(E::MalformedBody("{fp}".into())));
        assert_eq!(parse("{zz:1}"), Err(E::UnknownFamilyPrefix("zz".into())));
        assert_eq!(parse("{fp:70000}"), Err(E::InvalidIndex("70000".into())));
        assert_eq!(parse("{fp:+1}"), Err(E::InvalidIndex("+1".into())));
        assert_eq!(parse("{fp:7}"), Ok(Partition::flow(7)));
    }
}
