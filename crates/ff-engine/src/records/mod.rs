//! What is stored, and in which indexes it stands.
//!
//! A record declares its key and its index entries; stores derive everything else from these declarations, so no code path maintains
//! an index by hand. Records change only through named transitions.

mod attempt;
mod beside;
mod budget;
mod class;
mod dedup;
mod execution;
mod flow;
mod global;
mod grant;
mod intake;
mod pending_work;
mod quota;
mod sparse;
mod step;
mod stream;
mod suspension;
mod transitions;
mod worker;

use std::sync::Arc;

pub use attempt::{Attempt, AttemptEnd, AttemptUsage, Lineage};
pub use beside::{Definition, ExecutionTags, Outcome, Payload, Progress};
pub use budget::{Budget, BudgetPeriod, Ledger, Scope};
pub use class::{Gate, LaneClass, QueueClass, Route};
pub use dedup::{Dedup, DedupScope, DedupValue};
pub use execution::{
    Cancellation, Execution, Failure, Fence, Lease, ParkMarker, PendingLineage, RANK_PRIORITY_MAX, rank, rank_floor,
};
pub use flow::{
    CancelAck, Edge, EdgeGroup, Flow, FlowCancellation, FlowProjection, FlowTags, ProjectionMark, SiblingCancel,
};
pub use global::{Deployment, KeyringRecord, Lane, ScopeBinding};
pub use grant::{Grant, GrantKind};
pub use intake::{Intake, IntakeWork};
pub use pending_work::{Continuation, ContinuationWork, Settlement};
pub use quota::{Admission, QuotaPolicy, QuotaUsage, WindowEntry};
pub(crate) use sparse::Sparse;
pub use step::{Step, StepHead};
pub(crate) use stream::frame_position;
pub use stream::{Frame, StreamHead, Summary};
pub use suspension::{Signal, SignalTally, Suspension, Waitpoint};
pub use transitions::{NewExecution, Release, Taker};
pub use worker::Worker;

use crate::index::{Entry, Topic};
use crate::key::Key;

/// A type that can be stored.
pub trait Stored: Into<Record> + TryFrom<Record, Error = Record> + Clone {
    /// Where it is kept.
    fn key(&self) -> Key;

    /// In which indexes it stands, and where.
    fn entries(&self, _out: &mut Vec<Entry>) {}

    /// Who may want to know that it was written.
    fn topics(&self, _out: &mut Vec<Topic>) {}
}

macro_rules! records {
    ($($name:ident),+ $(,)?) => {
        /// Any stored record.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Record { $($name(Arc<$name>)),+ }

        impl Record {
            /// Where it is kept.
            #[must_use]
            pub fn key(&self) -> Key {
                match self { $(Self::$name(record) => record.key()),+ }
            }

            /// In which indexes it stands, and where.
            #[must_use]
            pub fn entries(&self) -> Vec<Entry> {
                let mut out = Vec::new();
                self.add_entries(&mut out);
                out
            }

            /// Adds where it stands to what is there already.
            pub fn add_entries(&self, out: &mut Vec<Entry>) {
                match self { $(Self::$name(record) => record.entries(out)),+ }
            }

            /// Who may want to know that it was written.
            #[must_use]
            pub fn topics(&self) -> Vec<Topic> {
                let mut out = Vec::new();
                match self { $(Self::$name(record) => record.topics(&mut out)),+ }
                out
            }

            /// Ownership as a part of an execution; any other record as it is.
            #[must_use]
            pub fn ownership(self) -> Self {
                match self {
                    Self::Execution(execution) => execution.ownership().into(),
                    other => other,
                }
            }

            /// The name of its kind.
            #[must_use]
            pub const fn kind(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name)),+ }
            }
        }

        $(
            impl From<$name> for Record {
                fn from(record: $name) -> Self {
                    Self::$name(Arc::new(record))
                }
            }

            impl TryFrom<Record> for $name {
                type Error = Record;

                fn try_from(record: Record) -> Result<Self, Record> {
                    match record {
                        Record::$name(record) => Ok(Arc::unwrap_or_clone(record)),
                        other => Err(other),
                    }
                }
            }
        )+
    };
}

records! {
    Execution, Fence, Definition, Payload, Outcome, Progress, ExecutionTags, Attempt, AttemptUsage, Grant, StreamHead, Frame,
    Summary, Suspension, Waitpoint, Signal, SignalTally, Dedup, Settlement, Flow, FlowTags, Edge, EdgeGroup, FlowProjection,
    ProjectionMark, CancelAck, Continuation, Budget, Ledger, QuotaPolicy, QuotaUsage, Admission, WindowEntry, Worker, Lane,
    LaneClass, ScopeBinding, KeyringRecord, Deployment, StepHead, Step, Intake,
}
