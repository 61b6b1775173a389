//! Records and events as MessagePack.
//!
//! Records that stand beside an execution are sparse (`records::sparse`). Fields of events and of the other hot kinds are written by position: every
//! field is written, and new ones go to the end with a default. Those of all others are written by name.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use ff_core::error::ValidationKind;
use ff_core::{EngineError, Result};
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};

use crate::event::Event;
use crate::key::{Key, Name};
use crate::records::{self, Record, Sparse};

thread_local! {
    /// Where records are written before it is known how long they are: many are kept for a while, and none should keep more than it needs.
    static DRAFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

type Written = std::result::Result<(), rmp_serde::encode::Error>;

/// The bytes that are written, in whatever holds them.
fn written<B: for<'b> From<&'b [u8]>>(write: impl FnOnce(&mut Vec<u8>) -> Written) -> Result<B> {
    DRAFT.with_borrow_mut(|draft| {
        draft.clear();
        write(draft).map_err(|error| unwritable(&error))?;
        Ok(B::from(draft.as_slice()))
    })
}

fn by_position<T: Serialize>(value: &T, draft: &mut Vec<u8>) -> Written {
    value.serialize(&mut rmp_serde::Serializer::new(draft))
}

fn by_name<T: Serialize>(value: &T, draft: &mut Vec<u8>) -> Written {
    value.serialize(&mut rmp_serde::Serializer::new(draft).with_struct_map())
}

fn sparsely_by_position<T: Sparse>(record: &T, draft: &mut Vec<u8>) -> Written {
    record.write(&mut rmp_serde::Serializer::new(draft))
}

fn sparsely_by_name<T: Sparse>(record: &T, draft: &mut Vec<u8>) -> Written {
    record.write(&mut rmp_serde::Serializer::new(draft).with_struct_map())
}

fn unwritable(error: &rmp_serde::encode::Error) -> EngineError {
    EngineError::validation(ValidationKind::InvalidInput, format_args!("cannot be stored: {error}"))
}

fn unreadable(key: &Key, error: &rmp_serde::decode::Error) -> EngineError {
    // What does not decode may be quoted, and what is in the keyring is nobody's business.
    let why = if matches!(key.name, Name::Keyring) { "does not decode".to_owned() } else { error.to_string() };
    EngineError::validation(ValidationKind::Corruption, format_args!("{key:?}: record: {why}"))
}

fn read<T: DeserializeOwned>(key: &Key, bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| unreadable(key, &error))
}

/// A sparse record, with what its key tells.
struct Reader<T: Sparse>(T::Known);

impl<'de, T: Sparse> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fields of a record")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> std::result::Result<T, A::Error> {
        T::read(self.0, parts)
    }
}

fn read_sparse<T: Sparse>(key: &Key, known: T::Known, bytes: &[u8]) -> Result<T> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.deserialize_seq(Reader(known)).map_err(|error| unreadable(key, &error))
}

macro_rules! kinds {
    (
        sparsely_by_position { $($sparse:ident($($known:ident),+)),+ $(,)? }
        sparsely_by_name { $($named:ident($($told:ident),+)),+ $(,)? }
        by_position { $($hot:ident),+ $(,)? }
        by_name { $($cold:ident = $cold_name:ident),+ $(,)? }
    ) => {
        fn write_record(record: &Record, draft: &mut Vec<u8>) -> Written {
            match record {
                $(Record::$sparse(record) => sparsely_by_position(&**record, draft),)+
                $(Record::$named(record) => sparsely_by_name(&**record, draft),)+
                $(Record::$hot(record) => by_position(&**record, draft),)+
                $(Record::$cold(record) => by_name(&**record, draft),)+
            }
        }

        /// The record of a key.
        ///
        /// # Errors
        /// `Corruption` when the bytes are not one.
        pub fn decode_record(key: &Key, bytes: &[u8]) -> Result<Record> {
            Ok(match key.name {
                $(Name::$sparse($($known),+) => read_sparse::<records::$sparse>(key, ($($known,)+), bytes)?.into(),)+
                $(Name::$named($($told),+) => read_sparse::<records::$named>(key, ($($told,)+), bytes)?.into(),)+
                $(Name::$hot(..) => read::<records::$hot>(key, bytes)?.into(),)+
                $(Name::$cold_name { .. } => read::<records::$cold>(key, bytes)?.into(),)+
            })
        }
    };
}

kinds! {
    sparsely_by_position {
        Execution(id), Payload(execution), Outcome(execution), Attempt(execution, index), Grant(execution),
    }
    // A policy is written by name.
    sparsely_by_name { Definition(execution), ExecutionTags(execution), StreamHead(execution, index) }
    by_position { Fence, Progress, AttemptUsage }
    by_name {
        Frame = Frame, Summary = Summary, Suspension = Suspension, Waitpoint = Waitpoint, Signal = Signal,
        SignalTally = SignalTally, Dedup = Dedup, Settlement = Settlement, Flow = Flow, FlowTags = FlowTags,
        Edge = Edge, EdgeGroup = EdgeGroup, FlowProjection = FlowProjection, ProjectionMark = ProjectionMark,
        CancelAck = CancelAck, Continuation = Continuation, Budget = Budget, Ledger = Ledger,
        QuotaPolicy = QuotaPolicy, QuotaUsage = QuotaUsage, Admission = Admission, WindowEntry = WindowEntry,
        Worker = Worker, Lane = Lane, LaneClass = LaneClass, ScopeBinding = ScopeBinding, KeyringRecord = Keyring,
        Deployment = Deployment, StepHead = StepHead, Step = Step, Intake = Intake,
    }
}

/// The bytes of a record; its key tells its kind.
///
/// # Errors
/// `InvalidInput` when a value has no stored form.
pub fn encode_record(record: &Record) -> Result<Vec<u8>> {
    written(|draft| write_record(record, draft))
}

/// The bytes of a record that several hold.
///
/// # Errors
/// `InvalidInput` when a value has no stored form.
pub fn encode_shared_record(record: &Record) -> Result<Arc<[u8]>> {
    written(|draft| write_record(record, draft))
}

/// The bytes of an event.
///
/// # Errors
/// `InvalidInput` when a value has no stored form.
pub fn encode_event(event: &Event) -> Result<Vec<u8>> {
    written(|draft| by_position(event, draft))
}

/// The event of such bytes.
///
/// # Errors
/// `Corruption` when the bytes are not one.
pub fn decode_event(bytes: &[u8]) -> Result<Event> {
    rmp_serde::from_slice(bytes)
        .map_err(|error| EngineError::validation(ValidationKind::Corruption, format_args!("event: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ff_core::TimestampMs;
    use ff_core::backend::flows::CreateFlowArgs;
    use ff_core::backend::ingress::CreateExecutionArgs;
    use ff_core::backend::subscriptions::{
        CompletionOutcome, LeaseChange, ReleaseReason, RevokedBy, SignalDeliveryEffect,
    };
    use ff_core::ids::{
        AttemptId, AttemptIndex, BudgetId, ExecutionId, ExecutionKind, FlowId, LaneId, LeaseEpoch, LeaseId, Namespace,
        SignalId, WaitpointId, WorkerId, WorkerInstanceId,
    };
    use ff_core::partition::Partition;
    use ff_core::policy::{ExecutionPolicy, RetryPolicy};
    use uuid::Uuid;

    use super::*;
    use crate::event::{EventBody, WorkerChange};
    use crate::records::{Execution, Intake, IntakeWork, NewExecution, QueueClass, Taker};

    fn instance() -> WorkerInstanceId {
        WorkerInstanceId::new("w-1").unwrap()
    }

    fn bodies() -> Vec<EventBody> {
        let (lease_id, lease_epoch) = (LeaseId::from_uuid(Uuid::from_u128(1)), LeaseEpoch(2));
        let attempt_index = AttemptIndex(3);
        let leases = [
            LeaseChange::Acquired { lease_id, lease_epoch, attempt_index, worker_instance_id: instance() },
            LeaseChange::Renewed { lease_id, lease_epoch, expires_at: TimestampMs(9), worker_instance_id: instance() },
            LeaseChange::Expired { lease_id, lease_epoch, prev_owner: instance() },
            LeaseChange::Reclaimed {
                prev_lease_epoch: lease_epoch,
                new_lease_id: lease_id,
                new_lease_epoch: LeaseEpoch(3),
                attempt_index,
                new_owner: instance(),
            },
            LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::Completed },
            LeaseChange::Revoked {
                lease_id,
                lease_epoch,
                prev_owner: instance(),
                revoked_by: RevokedBy::Operator,
                reason: "why".into(),
            },
        ];
        let flow_id = FlowId::from_uuid(Uuid::from_u128(4));
        let others = [
            EventBody::Completion { outcome: CompletionOutcome::Success, flow_id: None },
            EventBody::Completion { outcome: CompletionOutcome::Failed, flow_id: Some(flow_id) },
            EventBody::Signal {
                signal_id: SignalId::from_uuid(Uuid::from_u128(5)),
                waitpoint_id: WaitpointId::from_uuid(Uuid::from_u128(6)),
                source_identity: "me".into(),
                effect: SignalDeliveryEffect::Satisfied,
            },
            EventBody::InstanceTag { key: "k".into(), value: "v".into() },
            EventBody::PriorityChanged { from: 1, to: -2 },
            EventBody::Replayed { reason: "r".into(), requested_by: "b".into() },
            EventBody::FlowCancelRequested { flow_id, reason: String::new() },
            EventBody::LaneStateChanged { lane: "l".into(), state: "paused".into(), reason: "r".into() },
            EventBody::Worker { instance: instance(), change: WorkerChange::MarkedDead { reason: "gone".into() } },
            EventBody::Worker { instance: instance(), change: WorkerChange::Heartbeat },
        ];
        leases.into_iter().map(EventBody::Lease).chain(others).collect()
    }

    #[test]
    fn every_kind_of_event_is_read_back_as_it_was_written() {
        for body in bodies() {
            for execution_id in [None, Some(ExecutionId::new(7, Uuid::from_u128(8)))] {
                let event = Event {
                    partition: Partition::flow(7),
                    namespace: Namespace::new("acme").unwrap(),
                    execution_id,
                    tags: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
                    at: TimestampMs(1_700_000_000_000),
                    body: body.clone(),
                };
                assert_eq!(decode_event(&encode_event(&event).unwrap()).unwrap(), event);
            }
        }
    }

    fn round_trip(record: &Record) -> Record {
        decode_record(&record.key(), &encode_record(record).unwrap()).unwrap()
    }

    #[test]
    fn an_execution_is_read_back_as_it_was_written_through_its_life() {
        let now = TimestampMs(1_700_000_000_000);
        let new = NewExecution {
            id: ExecutionId::new(7, Uuid::from_u128(8)),
            namespace: Namespace::new("acme").unwrap(),
            lane: LaneId::new("mail").unwrap(),
            class: QueueClass::plain(ExecutionKind::new("task").unwrap()),
            priority: -5,
            delay_until: None,
            deadline_at: Some(now),
            budget_ids: Vec::new(),
            quota_policy_ids: Vec::new(),
            retention_ms: Some(5),
            tagged: true,
        };
        let mut execution = Execution::create(new, now);
        assert_eq!(round_trip(&execution.clone().into()), execution.clone().into());
        let taker = Taker {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(1)),
            worker_id: WorkerId::new("w").unwrap(),
            worker_instance_id: instance(),
            ttl_ms: 10,
        };
        execution.claim(taker, AttemptId::from_uuid(Uuid::from_u128(2)), now);
        assert_eq!(round_trip(&execution.clone().into()), execution.into());
    }

    #[test]
    fn a_submission_is_read_back_as_it_was_written() {
        let id = ExecutionId::new(7, Uuid::from_u128(8));
        let namespace = Namespace::new("acme").unwrap();
        let policy = ExecutionPolicy {
            retry_policy: Some(RetryPolicy::default()),
            budget_ids: vec![BudgetId::from_uuid(Uuid::from_u128(3))],
            ..ExecutionPolicy::default()
        };
        let args = CreateExecutionArgs {
            input_payload: vec![0, 0xff, 7].into(),
            priority: -5,
            idempotency_key: Some("k\0\u{e9}".to_owned()),
            tags: BTreeMap::from([("a.b".to_owned(), "c".to_owned())]),
            policy: Some(policy.into()),
            delay_until: Some(TimestampMs(9)),
            ..CreateExecutionArgs::new(None, namespace.clone(), LaneId::new("mail").unwrap(), "task")
        };
        let flow =
            CreateFlowArgs { flow_id: FlowId::from_uuid(Uuid::from_u128(4)), flow_kind: "order".into(), namespace };
        for work in [IntakeWork::Execution { id, args: args.into() }, IntakeWork::Flow { args: flow }] {
            let intake = Intake { home: id.partition(), id: Uuid::from_u128(1), work, submitted_at: TimestampMs(5) };
            assert_eq!(round_trip(&intake.clone().into()), intake.into());
        }
    }

    #[test]
    fn words_are_stored_as_one_byte_and_read_back_even_from_within_a_tagged_enum() {
        for reason in ReleaseReason::ALL {
            let bytes = rmp_serde::to_vec(reason).unwrap();
            assert_eq!((bytes.len(), rmp_serde::from_slice(&bytes).ok()), (1, Some(*reason)));
            let lease_id = LeaseId::from_uuid(Uuid::from_u128(1));
            let change = LeaseChange::Released { lease_id, lease_epoch: LeaseEpoch(2), reason: *reason };
            let bytes = rmp_serde::to_vec(&change).unwrap();
            assert_eq!(rmp_serde::from_slice::<LeaseChange>(&bytes).unwrap(), change);
        }
        assert!(rmp_serde::from_slice::<ReleaseReason>(&[0x7f]).is_err(), "no word has this place");
        assert_eq!(serde_json::to_string(&ReleaseReason::Completed).unwrap(), "\"completed\"");
        assert!(serde_json::from_str::<ReleaseReason>("0").is_err(), "a place is no word");
        assert!(serde_json::from_value::<ReleaseReason>(0.into()).is_err(), "a place is no word");
    }

    #[test]
    fn a_damaged_keyring_tells_no_secret() {
        let secret = rmp_serde::to_vec("5ec2e7").unwrap();
        let told = decode_record(&Key::keyring(), &secret).unwrap_err().to_string();
        assert!(!told.contains("5ec2e7"), "{told}");
    }

    #[test]
    fn bytes_that_are_no_record_are_corruption() {
        let key = Key::execution(ExecutionId::new(7, Uuid::from_u128(8)));
        for bytes in [&[][..], &[0xc1], &[0x93, 1, 2, 3]] {
            assert_eq!(decode_record(&key, bytes).map_err(|error| error.code()), Err("corruption"));
        }
    }
}
