//! Records and events as MessagePack.
//!
//! Fields of the hot kinds are written by position: new ones go to the end with a default. Those of all others are written by name.

use ff_core::error::ValidationKind;
use ff_core::{EngineError, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::Event;
use crate::key::{Key, Name};
use crate::records::{self, Record};

fn by_position<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec(value).map_err(|error| unwritable(&error))
}

fn by_name<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| unwritable(&error))
}

fn unwritable(error: &rmp_serde::encode::Error) -> EngineError {
    EngineError::validation(ValidationKind::InvalidInput, format_args!("cannot be stored: {error}"))
}

fn read<T: DeserializeOwned>(key: &Key, bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes)
        .map_err(|error| EngineError::validation(ValidationKind::Corruption, format_args!("{key:?}: record: {error}")))
}

macro_rules! kinds {
    (by_position { $($hot:ident $(= $hot_name:ident)?),+ $(,)? } by_name { $($cold:ident = $cold_name:ident),+ $(,)? }) => {
        /// The bytes of a record; its key tells its kind.
        ///
        /// # Errors
        /// `InvalidInput` when a value has no stored form.
        pub fn encode_record(record: &Record) -> Result<Vec<u8>> {
            match record {
                $(Record::$hot(record) => by_position(&**record),)+
                $(Record::$cold(record) => by_name(&**record),)+
            }
        }

        /// The record of a key.
        ///
        /// # Errors
        /// `Corruption` when the bytes are not one.
        pub fn decode_record(key: &Key, bytes: &[u8]) -> Result<Record> {
            Ok(match key.name {
                $(Name::$hot(..) => read::<records::$hot>(key, bytes)?.into(),)+
                $(Name::$cold_name { .. } => read::<records::$cold>(key, bytes)?.into(),)+
            })
        }
    };
}

kinds! {
    by_position { Execution, Fence, Payload, Outcome, Progress, Attempt, AttemptUsage, Grant }
    by_name {
        Definition = Definition, ExecutionTags = ExecutionTags, StreamHead = StreamHead, Frame = Frame, Summary = Summary,
        Suspension = Suspension, Waitpoint = Waitpoint, Signal = Signal, SignalTally = SignalTally, Dedup = Dedup,
        Settlement = Settlement, Flow = Flow, FlowTags = FlowTags, Edge = Edge, EdgeGroup = EdgeGroup,
        FlowProjection = FlowProjection, ProjectionMark = ProjectionMark, CancelAck = CancelAck,
        Continuation = Continuation, Budget = Budget, Ledger = Ledger, QuotaPolicy = QuotaPolicy,
        QuotaUsage = QuotaUsage, Admission = Admission, WindowEntry = WindowEntry, Worker = Worker, Lane = Lane,
        LaneClass = LaneClass, ScopeBinding = ScopeBinding, KeyringRecord = Keyring, Deployment = Deployment,
    }
}

/// The bytes of an event.
///
/// # Errors
/// `InvalidInput` when a value has no stored form.
pub fn encode_event(event: &Event) -> Result<Vec<u8>> {
    by_name(event)
}

/// The event of such bytes.
///
/// # Errors
/// `Corruption` when the bytes are not one.
pub fn decode_event(bytes: &[u8]) -> Result<Event> {
    rmp_serde::from_slice(bytes)
        .map_err(|error| EngineError::validation(ValidationKind::Corruption, format_args!("event: {error}")))
}
