//! Records without what goes without saying: what their key tells, and what is as it is by default.
//!
//! Stored as a list: first a number whose bits tell which of the other fields are there, then the fields.

use serde::de::{Error, SeqAccess};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize, Serializer};

/// A record that is stored so.
pub(crate) trait Sparse: Sized {
    /// What its key tells.
    type Known;

    /// Writes all else.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;

    /// Reads all else.
    fn read<'de, A: SeqAccess<'de>>(known: Self::Known, parts: A) -> Result<Self, A::Error>;

    /// Itself, with those of the fields that may be as by default from another one whose bits are set; and the bits of all of them.
    #[cfg(test)]
    fn mixed(&self, other: &Self, chosen: u64) -> (Self, u64);
}

/// Which fields are not as they are by default, the first one in the lowest bit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Present {
    bits: u64,
    fields: u32,
}

impl Present {
    /// How many fields a record can have: a number has no more bits.
    pub(super) const FIELDS_MAX: usize = 64;

    /// The next field is like this.
    pub(super) fn note<T: Default + PartialEq>(&mut self, field: &T) {
        self.bits |= u64::from(*field != T::default()) << self.fields;
        self.fields += 1;
    }

    /// How many are there.
    pub(super) const fn count(self) -> usize {
        self.bits.count_ones() as usize
    }

    /// Whether the next field is there.
    const fn next(&mut self) -> bool {
        let is_there = self.bits & 1 == 1;
        self.bits >>= 1;
        is_there
    }

    pub(super) fn write<T: SerializeTuple>(self, out: &mut T) -> Result<(), T::Error> {
        out.serialize_element(&self.bits)
    }

    pub(super) fn write_next<T: SerializeTuple>(
        &mut self,
        out: &mut T,
        field: &impl Serialize,
    ) -> Result<(), T::Error> {
        if self.next() { out.serialize_element(field) } else { Ok(()) }
    }

    pub(super) fn read<'de, A: SeqAccess<'de>>(parts: &mut A) -> Result<Self, A::Error> {
        Ok(Self { bits: part(parts)?, fields: 0 })
    }

    pub(super) fn read_next<'de, T: Default + Deserialize<'de>, A: SeqAccess<'de>>(
        &mut self,
        parts: &mut A,
    ) -> Result<T, A::Error> {
        if self.next() { part(parts) } else { Ok(T::default()) }
    }

    /// Nothing is left that this program does not know.
    pub(super) fn end<E: Error>(self) -> Result<(), E> {
        if self.bits == 0 { Ok(()) } else { Err(E::custom("there are unknown fields")) }
    }
}

/// The next part, which must be there.
pub(super) fn part<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(parts: &mut A) -> Result<T, A::Error> {
    parts.next_element()?.ok_or_else(|| A::Error::custom("a field is missing"))
}

/// Says which fields the key tells, which are always there, and which only where they are not as by default. Their order is part of stored
/// data: new ones go to the end of the last list. What is set most often comes first there, so that the number stays small.
macro_rules! sparse {
    ($name:ident {
        known: [$($known:ident: $type:ty),+],
        always: [$($always:ident),* $(,)?],
        or_default: [$($rare:ident),* $(,)?],
    }) => {
        const _: () = assert!([$(stringify!($rare)),*].len() <= $crate::records::sparse::Present::FIELDS_MAX);

        impl $crate::records::sparse::Sparse for $name {
            type Known = ($($type,)+);

            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeTuple;
                let mut present = $crate::records::sparse::Present::default();
                $(present.note(&self.$rare);)*
                const ALWAYS: &[&str] = &[$(stringify!($always)),*];
                let mut out = serializer.serialize_tuple(1 + ALWAYS.len() + present.count())?;
                present.write(&mut out)?;
                $(out.serialize_element(&self.$always)?;)*
                $(present.write_next(&mut out, &self.$rare)?;)*
                out.end()
            }

            fn read<'de, A: serde::de::SeqAccess<'de>>(known: Self::Known, mut parts: A) -> Result<Self, A::Error> {
                let ($($known,)+) = known;
                let mut present = $crate::records::sparse::Present::read(&mut parts)?;
                $(let $always = $crate::records::sparse::part(&mut parts)?;)*
                $(let $rare = present.read_next(&mut parts)?;)*
                present.end()?;
                Ok(Self { $($known,)+ $($always,)* $($rare,)* })
            }

            #[cfg(test)]
            fn mixed(&self, other: &Self, chosen: u64) -> (Self, u64) {
                let (mut mixed, mut bit) = (self.clone(), 1_u64);
                $(
                    if chosen & bit != 0 {
                        mixed.$rare = other.$rare.clone();
                    }
                    bit <<= 1;
                )*
                (mixed, bit - 1)
            }
        }
    };
}
pub(super) use sparse;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ff_core::TimestampMs;
    use ff_core::cursor::FrameId;
    use ff_core::ids::{
        AttemptId, AttemptIndex, BudgetId, ExecutionId, ExecutionKind, FlowId, LaneId, LeaseEpoch, LeaseId, Namespace,
        QuotaPolicyId, WaitpointId, WorkerId, WorkerInstanceId,
    };
    use ff_core::policy::{ExecutionPolicy, RetryPolicy, StreamPolicy};
    use ff_core::rules::streams::StreamRetention;
    use ff_core::state::{AttemptLifecycle, AttemptType, StreamCloseReason};
    use ff_core::trace::TraceContext;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::codec::{decode_record, encode_record};
    use crate::records::{
        Attempt, Cancellation, Definition, Execution, ExecutionTags, Failure, Gate, Grant, GrantKind, Lease, Lineage,
        NewExecution, Outcome, ParkMarker, Payload, PendingLineage, QueueClass, Record, Stored, StreamHead,
    };

    const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
    const SOME: Option<TimestampMs> = Some(NOW);

    fn id() -> ExecutionId {
        ExecutionId::new(7, Uuid::from_u128(8))
    }

    fn text() -> String {
        "why".to_owned()
    }

    fn worker() -> (WorkerId, WorkerInstanceId) {
        (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap())
    }

    fn budget() -> BudgetId {
        BudgetId::from_uuid(Uuid::from_u128(3))
    }

    /// One that is as by default wherever it can be, and one that is not.
    fn executions() -> [Execution; 2] {
        let new = NewExecution {
            id: id(),
            namespace: Namespace::new("acme").unwrap(),
            lane: LaneId::new("mail").unwrap(),
            class: QueueClass::plain(ExecutionKind::new("task").unwrap()),
            priority: 0,
            delay_until: None,
            deadline_at: None,
            budget_ids: Vec::new(),
            quota_policy_ids: Vec::new(),
            retention_ms: None,
            tagged: false,
        };
        let (worker_id, worker_instance_id) = worker();
        let bare = Execution::create(new, NOW);
        let full = Execution {
            priority: 1,
            blocking_detail: Some(text()),
            started_at: SOME,
            completed_at: SOME,
            lease: Some(Lease {
                id: LeaseId::from_uuid(Uuid::from_u128(1)),
                worker_id,
                worker_instance_id,
                ttl_ms: 1,
                acquired_at: NOW,
                renewed_at: SOME,
                expires_at: NOW,
                revoked: Some((NOW, text())),
            }),
            attempt_count: 1,
            attempt_index: AttemptIndex(2),
            attempt_id: Some(AttemptId::from_uuid(Uuid::from_u128(2))),
            pending_lineage: Some(PendingLineage::Retry { reason: text(), previous: AttemptIndex(0), at: NOW }),
            park_marker: Some(ParkMarker::WaitingChildren),
            wake_at: SOME,
            remembered_delay: SOME,
            blocked_at: SOME,
            blocked_by: Some(Gate::Budget(budget())),
            deadline_at: SOME,
            attempt_timeout_at: SOME,
            attempt_time_left_ms: Some(0),
            reclaim_at: SOME,
            reclaim_open: true,
            retry_count: 3,
            reclaim_count: 4,
            consecutive_reclaims: 5,
            replay_count: 6,
            suspension: Some(0),
            suspension_count: 7,
            suspension_timeout_at: SOME,
            current_waitpoint: Some(WaitpointId::from_uuid(Uuid::from_u128(4))),
            flow_id: Some(FlowId::from_uuid(Uuid::from_u128(5))),
            dependency_generation: 8,
            failure: Some(Failure { reason: text(), category: text() }),
            cancellation: Some(Cancellation { reason: text(), by: text() }),
            budget_ids: vec![budget()],
            quota_policy_ids: vec![QuotaPolicyId::from_uuid(Uuid::from_u128(6))],
            retention_ms: Some(0),
            tagged: true,
            has_result: true,
            last_capability_mismatch_at: SOME,
            purging: true,
            parked_by_hand: true,
            first_suspension: 9,
            kept_until: SOME,
            had_waitpoints: true,
            ..bare.clone()
        };
        [bare, full]
    }

    fn attempts() -> [Attempt; 2] {
        let (worker_id, worker_instance_id) = worker();
        let bare = Attempt {
            execution: id(),
            index: AttemptIndex(3),
            id: AttemptId::from_uuid(Uuid::from_u128(2)),
            attempt_type: AttemptType::Replay,
            lifecycle: AttemptLifecycle::Started,
            lease_id: LeaseId::from_uuid(Uuid::from_u128(1)),
            lease_epoch: LeaseEpoch(4),
            worker_id,
            worker_instance_id,
            created_at: NOW,
            started_at: NOW,
            suspended_at: None,
            resumed_at: None,
            ended_at: None,
            reason: None,
            category: None,
            detail: None,
            lineage: None,
            taken: false,
        };
        let full = Attempt {
            suspended_at: SOME,
            resumed_at: SOME,
            ended_at: SOME,
            reason: Some(String::new()),
            category: Some(text()),
            detail: Some(vec![0, 0xff].into()),
            lineage: Some(Lineage { reason: text(), requested_by: None, previous: Some(AttemptIndex(0)) }),
            taken: true,
            ..bare.clone()
        };
        [bare, full]
    }

    fn definitions() -> [Definition; 2] {
        let bare = Definition {
            execution: id(),
            policy: None,
            payload_encoding: None,
            creator_identity: String::new(),
            idempotency_key: None,
            trace_context: None,
        };
        let policy = ExecutionPolicy {
            retry_policy: Some(RetryPolicy::default()),
            budget_ids: vec![budget()],
            ..ExecutionPolicy::default()
        };
        let full = Definition {
            policy: Some(policy),
            payload_encoding: Some(text()),
            creator_identity: text(),
            idempotency_key: Some(String::new()),
            trace_context: Some(TraceContext { traceparent: text(), tracestate: None }),
            ..bare.clone()
        };
        [bare, full]
    }

    fn streams() -> [StreamHead; 2] {
        let bare = StreamHead::open(id(), AttemptIndex(3), NOW);
        let full = StreamHead {
            last_id: FrameId { ms: 1, seq: 2 },
            frame_count: 3,
            retained: 4,
            total_bytes: 5,
            retention: StreamRetention { has_durable: false, expires_at: SOME, rate: None },
            policy: Some(StreamPolicy { retention_maxlen: None, retention_ttl_ms: Some(6) }),
            summary_version: 7,
            expired_to: FrameId { ms: 8, seq: 0 },
            closed: Some((NOW, StreamCloseReason::LeaseExpired)),
            ..bare.clone()
        };
        [bare, full]
    }

    fn payloads() -> [Payload; 2] {
        let bare = Payload { execution: id(), payload: Vec::new().into(), inputs: BTreeMap::new() };
        let inputs = BTreeMap::from([(text(), vec![1].into())]);
        [bare.clone(), Payload { payload: vec![0, 0xff].into(), inputs, ..bare }]
    }

    fn outcomes() -> [Outcome; 2] {
        [Vec::new(), vec![0]].map(|result| Outcome { execution: id(), result: result.into() })
    }

    fn tags() -> [ExecutionTags; 2] {
        let bare = ExecutionTags { execution: id(), created_at: NOW, tags: BTreeMap::new(), updated_at: NOW };
        [bare.clone(), ExecutionTags { tags: BTreeMap::from([(text(), text())]), ..bare }]
    }

    fn grants() -> [Grant; 2] {
        let (worker_id, worker_instance_id) = worker();
        let bare = Grant {
            execution: id(),
            kind: GrantKind::Resume,
            id: Uuid::from_u128(9),
            lane: LaneId::new("mail").unwrap(),
            worker_id,
            worker_instance_id,
            capabilities: BTreeSet::new(),
            created_at: NOW,
            expires_at: NOW,
        };
        [bare.clone(), Grant { capabilities: BTreeSet::from([text()]), ..bare }]
    }

    /// The number at the beginning, behind the length of the list.
    fn number_of(bytes: &[u8]) -> u64 {
        let behind_length = if bytes[0] == 0xdc { 3 } else { 1 };
        rmp_serde::from_slice(&bytes[behind_length..]).unwrap()
    }

    fn check<T: Sparse + Stored>([bare, full]: [T; 2], chosen: u64) {
        let (mixed, all) = bare.mixed(&full, chosen);
        let record: Record = mixed.into();
        let bytes = encode_record(&record).unwrap();
        assert_eq!(number_of(&bytes), chosen & all, "what is chosen is stored and nothing else");
        assert_eq!(decode_record(&record.key(), &bytes).unwrap(), record);
    }

    fn check_all(chosen: u64) {
        check(executions(), chosen);
        check(attempts(), chosen);
        check(definitions(), chosen);
        check(streams(), chosen);
        check(payloads(), chosen);
        check(outcomes(), chosen);
        check(tags(), chosen);
        check(grants(), chosen);
    }

    #[test]
    fn what_is_bare_and_what_is_full_is_read_back_as_it_was_written() {
        check_all(0);
        check_all(u64::MAX);
    }

    proptest! {
        #[test]
        fn any_mixture_is_read_back_as_it_was_written(chosen: u64) {
            check_all(chosen);
        }
    }

    #[test]
    fn fields_that_are_unknown_or_missing_are_corruption() {
        let [record, _] = outcomes().map(Record::from);
        // An array of a number and a field: one that is known, one that is not, and one that is not there.
        assert!(decode_record(&record.key(), &[0x92, 0b01, 0xc4, 0x01, 7]).is_ok());
        for bytes in [&[0x92, 0b10, 0xc4, 0x01, 7][..], &[0x91, 0b01], &[0x92, 0b00, 0xc4, 0x01, 7], &[0x90]] {
            let read = decode_record(&record.key(), bytes);
            assert_eq!(read.map_err(|error| error.code()), Err("corruption"), "{bytes:?}");
        }
    }
}
