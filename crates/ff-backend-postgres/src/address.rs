//! Where records are stored, and what is stored there.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use ff_core::Result;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::partition::Partition;
use ff_engine::codec::decode_record;
use ff_engine::index::Entry;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use postgres_types::{IsNull, ToSql, Type, to_sql_checked};

use crate::young::Birth;

/// The row that a record is stored in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    /// The row of an execution, with what stands beside it.
    Execution(ExecutionId),
    /// A row of its own.
    Record(Key),
}

impl Address {
    /// Where to look first for the record of a key.
    pub(crate) fn of(key: &Key) -> Self {
        match (&key.name, Satellite::of(key)) {
            (Name::Execution(id) | Name::Fence(id), _) => Self::Execution(*id),
            (_, Some((id, _))) => Self::Execution(id),
            _ => Self::Record(key.clone()),
        }
    }

    pub(crate) const fn partition(&self) -> Partition {
        match self {
            Self::Execution(id) => id.partition(),
            Self::Record(key) => key.partition,
        }
    }

    /// The execution it belongs to, if there is one.
    pub(crate) const fn execution(&self) -> Option<ExecutionId> {
        match self {
            Self::Execution(id) => Some(*id),
            Self::Record(key) => key.execution_id(),
        }
    }
}

/// Records that stand in the row of their execution: what nearly every execution has or is asked for, while it is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Satellite {
    Definition,
    FirstAttempt,
    FirstStream,
    ClaimGrant,
    Payload,
    Outcome,
    Tags,
}

impl Satellite {
    pub(crate) const ALL: [Self; 7] = [
        Self::Definition,
        Self::FirstAttempt,
        Self::FirstStream,
        Self::ClaimGrant,
        Self::Payload,
        Self::Outcome,
        Self::Tags,
    ];

    /// Bytes of a record that stands in the row; larger ones would be copied with every change of the execution.
    pub(crate) const fn bytes_max(self) -> usize {
        match self {
            Self::Definition | Self::FirstAttempt | Self::FirstStream | Self::ClaimGrant => 1_024,
            Self::Payload | Self::Outcome | Self::Tags => 256,
        }
    }

    /// The column of a record, if it is of a kind that has one.
    pub(crate) const fn of(key: &Key) -> Option<(ExecutionId, Self)> {
        match key.name {
            Name::Definition(id) => Some((id, Self::Definition)),
            Name::Attempt(id, AttemptIndex(0)) => Some((id, Self::FirstAttempt)),
            Name::StreamHead(id, AttemptIndex(0)) => Some((id, Self::FirstStream)),
            Name::Grant(id) => Some((id, Self::ClaimGrant)),
            Name::Payload(id) => Some((id, Self::Payload)),
            Name::Outcome(id) => Some((id, Self::Outcome)),
            Name::ExecutionTags(id) => Some((id, Self::Tags)),
            _ => None,
        }
    }

    /// The key of an execution's record.
    pub(crate) const fn key(self, id: ExecutionId) -> Key {
        match self {
            Self::Definition => Key::definition(id),
            Self::FirstAttempt => Key::attempt(id, AttemptIndex(0)),
            Self::FirstStream => Key::stream_head(id, AttemptIndex(0)),
            Self::ClaimGrant => Key::grant(id),
            Self::Payload => Key::payload(id),
            Self::Outcome => Key::outcome(id),
            Self::Tags => Key::execution_tags(id),
        }
    }

    pub(crate) const fn column(self) -> &'static str {
        match self {
            Self::Definition => "definition",
            Self::FirstAttempt => "first_attempt",
            Self::FirstStream => "first_stream",
            Self::ClaimGrant => "claim_grant",
            Self::Payload => "payload",
            Self::Outcome => "outcome",
            Self::Tags => "tags",
        }
    }
}

/// What a column holds.
#[derive(Clone, Debug, Default)]
pub(crate) enum Cell {
    /// There is no such record.
    #[default]
    Absent,
    /// The record.
    Here(Arc<Held>),
    /// The record stands in a row of its own.
    Elsewhere,
}

impl Cell {
    /// The cell of a stored column.
    pub(crate) fn read(column: Option<&[u8]>) -> Self {
        match column {
            None => Self::Absent,
            Some([]) => Self::Elsewhere,
            Some(bytes) => Self::Here(Arc::new(Held { bytes: bytes.into(), record: OnceLock::new() })),
        }
    }

    /// The cell of a record that is written.
    pub(crate) fn written(record: Record, bytes: Vec<u8>) -> Self {
        Self::Here(Arc::new(Held { bytes: bytes.into(), record: record.into() }))
    }

    /// The column of a cell.
    pub(crate) fn column(&self) -> Option<&[u8]> {
        match self {
            Self::Absent => None,
            Self::Here(held) => Some(held.bytes()),
            Self::Elsewhere => Some(&[]),
        }
    }
}

impl ToSql for Cell {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.column().to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::BYTEA
    }

    to_sql_checked!();
}

/// A record in a column.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Box<[u8]>,
    /// What they say, once that was asked for.
    record: OnceLock<Record>,
}

impl Held {
    /// The record as it is stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The record.
    pub(crate) fn record(&self, key: &Key) -> Result<Record> {
        if let Some(record) = self.record.get() {
            return Ok(record.clone());
        }
        let record = decode_record(key, &self.bytes)?;
        Ok(self.record.get_or_init(|| record).clone())
    }
}

/// What a row holds.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Changes with the row; never 0.
    pub(crate) version: i64,
    /// The record, or why it cannot be read.
    pub(crate) record: Result<Record>,
    /// As it is stored.
    pub(crate) body: Arc<[u8]>,
    /// What stands beside an execution, in the order of [`Satellite`].
    pub(crate) cells: [Cell; Satellite::ALL.len()],
    /// When the execution was born, if it is young: then the journal has it, and no row does.
    pub(crate) birth: Option<Birth>,
    /// In which indexes its record stands, once that was asked for.
    entries: OnceLock<Entries>,
}

/// Where a record stands in indexes.
pub(crate) type Entries = Arc<[Entry]>;

impl Stored {
    /// The version of a row that is not there.
    pub(crate) const NO_VERSION: i64 = 0;

    /// Whether it is an execution that is over.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.record, Ok(Record::Execution(execution)) if execution.is_terminal())
    }

    /// A row as it was read.
    pub(crate) fn read(key: &Key, version: i64, body: &[u8]) -> Self {
        let record = decode_record(key, body);
        Self { version, record, body: body.into(), cells: Default::default(), birth: None, entries: OnceLock::new() }
    }

    /// A row as it is written.
    pub(crate) fn written(version: i64, record: Record, body: Arc<[u8]>, entries: Entries) -> Self {
        Self { version, record: Ok(record), body, cells: Default::default(), birth: None, entries: entries.into() }
    }

    /// The same, under another version.
    pub(crate) fn at_version(&self, version: i64) -> Self {
        Self { version, ..self.clone() }
    }

    /// The same, young or not.
    pub(crate) fn born(self, birth: Option<Birth>) -> Self {
        Self { birth, ..self }
    }

    /// In which indexes its record stands.
    pub(crate) fn entries(&self) -> &Entries {
        self.entries.get_or_init(|| self.record.as_ref().map(Record::entries).unwrap_or_default().into())
    }
}
