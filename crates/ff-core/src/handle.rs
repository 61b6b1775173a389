//! The worker's proof that it holds an attempt: sealed bytes that only the backend that made them can open.

mod codec;

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{EngineError, ValidationKind};
use crate::ids::{
    AttemptId, AttemptIndex, ExecutionId, LaneId, LeaseEpoch, LeaseFence, LeaseId, Namespace, WorkerId,
    WorkerInstanceId,
};
use crate::token::SealKey;
use crate::words::words;

use codec::{decode, encode, short_len};

words! {
    /// Which store serves a handle.
    pub enum BackendTag {
        /// Valkey or Redis.
        Valkey = "valkey",
        /// Postgres.
        Postgres = "postgres",
        /// SQLite.
        Sqlite = "sqlite",
        /// The memory store.
        Memory = "memory",
    }
}

impl BackendTag {
    /// The byte inside a handle.
    #[must_use]
    pub const fn wire_byte(self) -> u8 {
        match self {
            Self::Valkey => 0x01,
            Self::Postgres => 0x02,
            Self::Sqlite => 0x03,
            Self::Memory => 0x04,
        }
    }

    fn from_wire_byte(byte: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|tag| tag.wire_byte() == byte)
    }
}

words! {
    /// How a handle came about.
    pub enum HandleKind {
        /// A claim.
        Fresh = "fresh",
        /// A claim of an interrupted attempt, which goes on.
        Resumed = "resumed",
        /// A suspension: names the execution, holds no lease.
        Suspended = "suspended",
        /// A new attempt after a lost lease.
        Reclaimed = "reclaimed",
    }
}

impl HandleKind {
    const fn wire_byte(self) -> u8 {
        match self {
            Self::Fresh => 0x01,
            Self::Resumed => 0x02,
            Self::Suspended => 0x03,
            Self::Reclaimed => 0x04,
        }
    }

    /// Whether a lease comes with it.
    #[must_use]
    pub const fn is_lease_bearing(self) -> bool {
        !matches!(self, Self::Suspended)
    }
}

/// The sealed bytes; base64 in JSON, only their size in logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HandleOpaque(Arc<[u8]>);

impl HandleOpaque {
    /// Wraps bytes as they came.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for HandleOpaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleOpaque({} bytes)", self.0.len())
    }
}

impl Serialize for HandleOpaque {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for HandleOpaque {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Self::new).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for HandleOpaque {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<Vec<u8>>().prop_map(Self::new).boxed()
    }
}

/// What a claim hands to a worker, and what the worker shows with every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Handle {
    /// The store that made it.
    pub backend: BackendTag,
    /// How it came about.
    pub kind: HandleKind,
    /// The sealed rest.
    pub opaque: HandleOpaque,
}

/// What is sealed inside a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct HandlePayload {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt's position.
    pub attempt_index: AttemptIndex,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// How far a renewal extends it.
    pub lease_ttl_ms: u64,
    /// The lane of the execution.
    pub lane_id: LaneId,
    /// The tenant of the execution.
    pub namespace: Namespace,
    /// The worker.
    pub worker_id: WorkerId,
    /// Its process.
    pub worker_instance_id: WorkerInstanceId,
    /// How the handle came about.
    pub kind: HandleKind,
}

impl HandlePayload {
    /// The proof of ownership.
    #[must_use]
    pub const fn fence(&self) -> LeaseFence {
        LeaseFence { lease_id: self.lease_id, lease_epoch: self.lease_epoch, attempt_id: self.attempt_id }
    }
}

/// Why a handle does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleDecodeError {
    /// Made by another backend.
    #[error("expected={expected} actual={actual}")]
    ForeignBackend {
        /// The backend that was asked.
        expected: BackendTag,
        /// The backend that made it.
        actual: BackendTag,
    },
    /// Bytes are missing at the end.
    #[error("handle_codec: truncated: {needed} bytes needed, {have} given")]
    Truncated {
        /// Bytes a whole handle would have.
        needed: usize,
        /// Bytes given.
        have: usize,
    },
    /// Not a handle at all.
    #[error("handle_codec: unknown first byte {got:#04x}")]
    BadMagic {
        /// The first byte.
        got: u8,
    },
    /// A handle of a format this code does not know.
    #[error("handle_codec: unknown version {got}")]
    BadVersion {
        /// The version byte.
        got: u8,
    },
    /// A backend this code does not know.
    #[error("handle_codec: unknown backend byte {got:#04x}")]
    BadBackendTag {
        /// The backend byte.
        got: u8,
    },
    /// Forged or altered: the seal does not fit the content.
    #[error("handle_codec: seal is broken")]
    BrokenSeal,
    /// Sealed by us, yet a field does not decode.
    #[error("handle_codec: {field}: {detail}")]
    BadField {
        /// Which field.
        field: &'static str,
        /// Why.
        detail: String,
    },
}

impl From<HandleDecodeError> for EngineError {
    fn from(error: HandleDecodeError) -> Self {
        let kind = match error {
            HandleDecodeError::ForeignBackend { .. } => ValidationKind::HandleFromOtherBackend,
            HandleDecodeError::Truncated { .. }
            | HandleDecodeError::BadMagic { .. }
            | HandleDecodeError::BadVersion { .. }
            | HandleDecodeError::BadBackendTag { .. } => ValidationKind::InvalidInput,
            HandleDecodeError::BrokenSeal | HandleDecodeError::BadField { .. } => ValidationKind::Corruption,
        };
        Self::validation(kind, error)
    }
}

// magic, version, backend, kind, u16 length of the body; then the body; then the seal over all of it.
// Integers are big-endian, strings have a u16 length before them.
const MAGIC: u8 = 0xF5;
const VERSION: u8 = 1;
const HEADER_LEN: usize = 6;
const SEAL_LEN: usize = 32;

impl Handle {
    /// Seals a payload for its worker.
    #[must_use]
    pub fn seal(backend: BackendTag, payload: &HandlePayload, key: &SealKey) -> Self {
        let body = encode(payload);
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len() + SEAL_LEN);
        bytes.extend([MAGIC, VERSION, backend.wire_byte(), payload.kind.wire_byte()]);
        bytes.extend(short_len(&body));
        bytes.extend(body);
        let seal = key.mac().chain_update(&bytes).finalize().into_bytes();
        bytes.extend(seal);
        Self { backend, kind: payload.kind, opaque: HandleOpaque::new(bytes) }
    }

    /// What was sealed, if this backend sealed it and nobody changed it since.
    ///
    /// # Errors
    /// [`HandleDecodeError`]; a foreign backend is recognised before the seal is tried.
    pub fn open(&self, expected: BackendTag, key: &SealKey) -> Result<HandlePayload, HandleDecodeError> {
        same_backend(expected, self.backend)?;
        let parts = self.parts()?;
        same_backend(expected, parts.backend()?)?;
        key.mac()
            .chain_update(parts.sealed()?)
            .verify_slice(parts.seal()?)
            .map_err(|_| HandleDecodeError::BrokenSeal)?;
        if parts.kind != self.kind.wire_byte() {
            return Err(HandleDecodeError::BrokenSeal);
        }
        decode(parts.body()?, self.kind)
    }

    /// What the handle says, for the worker it was given to. Proves nothing: only [`open`](Self::open) tells a true one from a forged one.
    ///
    /// # Errors
    /// [`HandleDecodeError`] when the bytes are no handle.
    pub fn peek(&self) -> Result<HandlePayload, HandleDecodeError> {
        let parts = self.parts()?;
        parts.backend()?;
        decode(parts.body()?, self.kind)
    }

    fn parts(&self) -> Result<Parts<'_>, HandleDecodeError> {
        let bytes = self.opaque.as_bytes();
        let truncated = || HandleDecodeError::Truncated { needed: HEADER_LEN + SEAL_LEN, have: bytes.len() };
        let [magic, rest @ ..] = bytes else { return Err(truncated()) };
        if *magic != MAGIC {
            return Err(HandleDecodeError::BadMagic { got: *magic });
        }
        let [version, rest @ ..] = rest else { return Err(truncated()) };
        if *version != VERSION {
            return Err(HandleDecodeError::BadVersion { got: *version });
        }
        let [backend, rest @ ..] = rest else { return Err(truncated()) };
        Ok(Parts { bytes, backend: *backend, kind: rest.first().copied().unwrap_or_default() })
    }
}

fn same_backend(expected: BackendTag, actual: BackendTag) -> Result<(), HandleDecodeError> {
    if actual == expected { Ok(()) } else { Err(HandleDecodeError::ForeignBackend { expected, actual }) }
}

/// The bytes of a handle whose first ones are as they should be.
struct Parts<'a> {
    bytes: &'a [u8],
    backend: u8,
    kind: u8,
}

impl<'a> Parts<'a> {
    fn backend(&self) -> Result<BackendTag, HandleDecodeError> {
        BackendTag::from_wire_byte(self.backend).ok_or(HandleDecodeError::BadBackendTag { got: self.backend })
    }

    /// Where the seal begins.
    fn sealed_len(&self) -> Result<usize, HandleDecodeError> {
        let have = self.bytes.len();
        let [_, _, _, _, high, low, ..] = self.bytes else {
            return Err(HandleDecodeError::Truncated { needed: HEADER_LEN + SEAL_LEN, have });
        };
        let sealed = HEADER_LEN + usize::from(u16::from_be_bytes([*high, *low]));
        let needed = sealed + SEAL_LEN;
        if have < needed { Err(HandleDecodeError::Truncated { needed, have }) } else { Ok(sealed) }
    }

    fn sealed(&self) -> Result<&'a [u8], HandleDecodeError> {
        Ok(&self.bytes[..self.sealed_len()?])
    }

    fn seal(&self) -> Result<&'a [u8], HandleDecodeError> {
        Ok(&self.bytes[self.sealed_len()?..])
    }

    fn body(&self) -> Result<&'a [u8], HandleDecodeError> {
        Ok(&self.sealed()?[HEADER_LEN..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn key() -> SealKey {
        SealKey::new([7; 32])
    }

    fn payload(kind: HandleKind) -> HandlePayload {
        HandlePayload {
            execution_id: ExecutionId::new(7, Uuid::from_u128(1)),
            attempt_index: AttemptIndex(3),
            attempt_id: AttemptId::from_uuid(Uuid::from_u128(2)),
            lease_id: LeaseId::from_uuid(Uuid::from_u128(3)),
            lease_epoch: LeaseEpoch(4),
            lease_ttl_ms: 30_000,
            lane_id: LaneId::new("default").expect("valid"),
            namespace: Namespace::new("acme").expect("valid"),
            worker_id: WorkerId::new("worker").expect("valid"),
            worker_instance_id: WorkerInstanceId::new("worker-1").expect("valid"),
            kind,
        }
    }

    #[test]
    fn whoever_holds_a_handle_can_read_it() {
        assert_eq!(sealed().peek(), Ok(payload(HandleKind::Fresh)));
        let nothing = Handle { opaque: HandleOpaque::new([]), ..sealed() };
        assert!(matches!(nothing.peek(), Err(HandleDecodeError::Truncated { .. })));
    }

    fn sealed() -> Handle {
        Handle::seal(BackendTag::Sqlite, &payload(HandleKind::Fresh), &key())
    }

    fn with_bytes(bytes: Vec<u8>) -> Handle {
        Handle { opaque: HandleOpaque::new(bytes), ..sealed() }
    }

    fn open(handle: &Handle) -> Result<HandlePayload, HandleDecodeError> {
        handle.open(BackendTag::Sqlite, &key())
    }

    fn kind_of(error: HandleDecodeError) -> ValidationKind {
        match EngineError::from(error) {
            EngineError::Validation { kind, .. } => kind,
            other => panic!("not a validation error: {other:?}"),
        }
    }

    #[test]
    fn the_fence_comes_out_as_it_went_in() {
        let opened = open(&sealed()).expect("opens");
        assert_eq!(opened, payload(HandleKind::Fresh));
        let fence = opened.fence();
        assert_eq!((fence.lease_epoch, fence.lease_id), (LeaseEpoch(4), opened.lease_id));
        assert_eq!(fence.attempt_id, opened.attempt_id);
    }

    #[test]
    fn a_handle_of_another_backend_is_named_as_such_inside_and_outside() {
        let foreign = Handle::seal(BackendTag::Postgres, &payload(HandleKind::Fresh), &SealKey::new([9; 32]));
        for handle in [foreign.clone(), Handle { backend: BackendTag::Sqlite, ..foreign }] {
            match EngineError::from(open(&handle).expect_err("foreign")) {
                EngineError::Validation { kind, detail } => {
                    assert_eq!(kind, ValidationKind::HandleFromOtherBackend);
                    assert_eq!(detail, "expected=sqlite actual=postgres");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn every_truncation_is_invalid_input() {
        let whole = sealed().opaque.as_bytes().to_vec();
        for len in 0..whole.len() {
            let error = open(&with_bytes(whole[..len].to_vec())).expect_err("truncated");
            assert!(matches!(error, HandleDecodeError::Truncated { have, .. } if have == len), "{len}: {error}");
            assert_eq!(kind_of(error), ValidationKind::InvalidInput);
        }
    }

    #[test]
    fn every_changed_bit_is_noticed_and_past_the_header_it_is_corruption() {
        let whole = sealed().opaque.as_bytes().to_vec();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                let kind = kind_of(open(&with_bytes(bytes)).expect_err("altered"));
                if at == 3 || at >= HEADER_LEN {
                    assert_eq!(kind, ValidationKind::Corruption, "byte {at} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_relabelled_handle_is_corruption() {
        let suspended = Handle::seal(BackendTag::Sqlite, &payload(HandleKind::Suspended), &key());
        assert!(!suspended.kind.is_lease_bearing());
        for kind in [HandleKind::Fresh, HandleKind::Resumed, HandleKind::Reclaimed] {
            let relabelled = Handle { kind, ..suspended.clone() };
            assert_eq!(open(&relabelled), Err(HandleDecodeError::BrokenSeal));
        }
        assert_eq!(kind_of(HandleDecodeError::BrokenSeal), ValidationKind::Corruption);
    }

    #[test]
    fn a_handle_under_another_key_or_with_bytes_added_is_corruption() {
        let other = Handle::seal(BackendTag::Sqlite, &payload(HandleKind::Fresh), &SealKey::new([8; 32]));
        assert_eq!(open(&other), Err(HandleDecodeError::BrokenSeal));
        let mut longer = sealed().opaque.as_bytes().to_vec();
        longer.push(0);
        assert_eq!(open(&with_bytes(longer)), Err(HandleDecodeError::BrokenSeal));
    }

    #[test]
    fn bytes_of_no_known_format_are_invalid_input() {
        for bytes in [b"garbage".to_vec(), vec![MAGIC, 9], vec![MAGIC, VERSION, 0x7f], vec![0x02, 0x01, 0x03]] {
            assert_eq!(kind_of(open(&with_bytes(bytes)).expect_err("unknown")), ValidationKind::InvalidInput);
        }
    }

    #[test]
    fn a_sealed_body_that_does_not_decode_is_corruption() {
        let good = encode(&payload(HandleKind::Fresh));
        let mut bad_lane = good.clone();
        let lane_at = good.windows(7).position(|w| w == b"default").expect("there");
        bad_lane[lane_at] = 0x07;
        let mut longer = good.clone();
        longer.push(1);
        for body in [bad_lane, longer, good[..good.len() - 1].to_vec(), Vec::new()] {
            let mut bytes = vec![MAGIC, VERSION, BackendTag::Sqlite.wire_byte(), HandleKind::Fresh.wire_byte()];
            bytes.extend(short_len(&body));
            bytes.extend(body);
            let seal = key().mac().chain_update(&bytes).finalize().into_bytes();
            bytes.extend(seal);
            let error = open(&with_bytes(bytes)).expect_err("undecodable");
            assert!(matches!(error, HandleDecodeError::BadField { .. }), "{error}");
            assert_eq!(kind_of(error), ValidationKind::Corruption);
        }
    }

    #[test]
    fn the_longest_names_fit() {
        let longest = HandlePayload {
            lane_id: LaneId::new("l".repeat(64)).expect("valid"),
            namespace: Namespace::new("n".repeat(256)).expect("valid"),
            worker_id: WorkerId::new("w".repeat(256)).expect("valid"),
            worker_instance_id: WorkerInstanceId::new("i".repeat(256)).expect("valid"),
            ..payload(HandleKind::Resumed)
        };
        let handle = Handle::seal(BackendTag::Memory, &longest, &key());
        assert_eq!(handle.open(BackendTag::Memory, &key()), Ok(longest));
    }

    #[test]
    fn bytes_stay_out_of_logs() {
        let shown = format!("{:?}", sealed());
        assert!(shown.contains("bytes)") && !shown.contains("default"), "{shown}");
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(payload: HandlePayload, backend: BackendTag, key: SealKey) {
            let handle = Handle::seal(backend, &payload, &key);
            prop_assert_eq!(handle.kind, payload.kind);
            prop_assert_eq!(handle.open(backend, &key), Ok(payload));
        }

        #[test]
        fn hostile_bytes_never_open(mut bytes: Vec<u8>, like_ours: bool) {
            if like_ours {
                bytes.splice(0..0, [MAGIC, VERSION, BackendTag::Sqlite.wire_byte()]);
            }
            prop_assert!(open(&with_bytes(bytes)).is_err());
        }
    }

    crate::testing::json_round_trips!(Handle);
}
