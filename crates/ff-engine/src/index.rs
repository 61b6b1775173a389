//! Derived orders over records: what can be listed, ranged over, or comes due.

use ff_core::TimestampMs;
use ff_core::ids::{
    AttemptIndex, BudgetId, ExecutionId, ExecutionKind, FlowId, LaneId, Namespace, QuotaPolicyId, WaitpointId,
    WorkerInstanceId,
};
use ff_core::partition::Partition;
use ff_core::state::PublicState;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::key::Key;
use crate::records::{QueueClass, Record, Route};

/// An index. Those with an [owner](Index::owner) can be ranged over inside a transaction, all can be listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Index {
    /// Attempts of an execution, by index.
    AttemptsOf(ExecutionId),
    /// Frames of a stream, by id.
    FramesOf(ExecutionId, AttemptIndex),
    /// Suspension episodes of an execution, by ordinal.
    SuspensionsOf(ExecutionId),
    /// Steps of an execution, by life and name.
    StepsOf(ExecutionId),
    /// All waitpoints of an execution, by id.
    WaitpointsOf(ExecutionId),
    /// Pending and active waitpoints of an execution, by id.
    OpenWaitpointsOf(ExecutionId),
    /// Pending and active waitpoints of an execution with this key, by id.
    OpenWaitpointsNamed(ExecutionId, String),
    /// Signals recorded for a waitpoint, in order of arrival.
    SignalsOf(Partition, WaitpointId),
    /// Deduplication records that die with an execution.
    DedupsOf(ExecutionId),
    /// Members of a flow, by execution id.
    MembersOf(Partition, FlowId),
    /// Members that are neither terminal nor active.
    PendingMembersOf(Partition, FlowId),
    /// Members that are not terminal.
    LiveMembersOf(Partition, FlowId),
    /// Edges that leave an execution, by edge id.
    EdgesFrom(Partition, FlowId, ExecutionId),
    /// Edges that enter an execution, by edge id.
    EdgesInto(Partition, FlowId, ExecutionId),
    /// All edges of a flow, by edge id.
    EdgesOf(Partition, FlowId),
    /// Edge groups of a flow, by downstream and generation.
    GroupsOf(Partition, FlowId),
    /// Edge groups that enter an execution, by generation.
    GroupsInto(ExecutionId),
    /// Acknowledged member cancellations of a flow.
    CancelAcksOf(Partition, FlowId),
    /// Entries of a rate window, oldest first.
    WindowOf(Partition, QuotaPolicyId, String),
    /// Admissions of a quota, by execution.
    AdmissionsOf(Partition, QuotaPolicyId),
    /// Ledgers of a budget, by execution.
    LedgersOf(Partition, BudgetId),

    /// Claimable executions of one class, best rank first.
    Eligible(Namespace, LaneId, QueueClass),
    /// Executions whose lease expired and whose backoff has passed, best rank first.
    Reclaimable(Namespace, LaneId, QueueClass),
    /// Claimable executions of one partition and lane, best rank first.
    EligibleIn(Partition, LaneId),
    /// Executions parked because no live worker handles their kind or covers what they require, by time of parking.
    RouteParked(Namespace, LaneId, Route),
    /// The same, of those that somebody parked and that any worker could take.
    RouteHeld(Namespace, LaneId, Route),
    /// Executions parked by a budget, by time of parking.
    BudgetParked(BudgetId),
    /// Executions parked by a quota, by time of parking.
    QuotaParked(QuotaPolicyId),
    /// Live executions attached to a budget, by id.
    AttachedTo(BudgetId),
    /// Classes of work a lane has seen lately, in any namespace.
    ClassesOfLane(LaneId),
    /// Leases that were lost, by expiry.
    LostLeases,
    /// Executions of a partition, by id.
    ExecutionsIn(Partition),
    /// Suspended executions of a partition, by timeout, those without last.
    SuspendedIn(Partition),
    /// Terminal executions of a lane in a partition, by completion.
    TerminalIn(Partition, LaneId),
    /// Terminal executions without a retention of their own, by completion.
    Terminal,
    /// Flows of a partition, by id.
    FlowsIn(Partition),
    /// Budgets of a partition, by id.
    BudgetsIn(Partition),
    /// Quota counters of a partition, by id.
    QuotasIn(Partition),
    /// Every lane, by namespace and name.
    Lanes,
    /// Every registered worker, by namespace and instance.
    Workers,
    /// Workers of a namespace and lane, by instance.
    WorkersOf(Namespace, LaneId),
    /// Executions of a namespace, newest first.
    CreatedIn(Namespace),
    /// Every execution, newest first.
    Created,
    /// Executions of a lane in a state, newest first.
    LaneState(LaneId, PublicState),
    /// Executions of a kind in a state, newest first.
    KindState(ExecutionKind, PublicState),
    /// Executions with a tag pair, newest first.
    Tagged(String, String),
    /// Ledgers that name an execution, in any budget.
    SpendingOf(ExecutionId),
    /// Submissions on their way in that ask for an execution by this id.
    IntakesOf(ExecutionId),
    /// Work that comes due, earliest first.
    Due(DueKind),
}

/// What can come due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DueKind {
    /// A lease runs out. Every lease that is held stands here.
    LeaseExpiry,
    /// The backoff before a reclaim is over.
    ReclaimBackoff,
    /// A delay is over.
    Delay,
    /// A denied execution may be tried again.
    Readmission,
    /// An attempt has run too long.
    AttemptTimeout,
    /// An execution has lived too long.
    Deadline,
    /// A suspension has waited too long.
    SuspensionTimeout,
    /// A pending waitpoint runs out.
    WaitpointExpiry,
    /// A grant runs out.
    GrantExpiry,
    /// A provisional admission must be confirmed or dropped.
    AdmissionExpiry,
    /// An ended ownership is to be settled.
    Settlement,
    /// Bulk work goes on.
    Continuation,
    /// Siblings of a decided group are to be cancelled.
    SiblingCancel,
    /// A flow is to be projected.
    Projection,
    /// A budget starts a new period.
    BudgetReset,
    /// A worker's registration runs out.
    WorkerExpiry,
    /// A stream of live frames runs out.
    StreamExpiry,
    /// A deduplication record runs out.
    DedupExpiry,
    /// A terminal execution has been kept long enough.
    Retention,
    /// A class of work may be forgotten.
    ClassExpiry,
    /// A submission that was committed elsewhere is to be taken in.
    Intake,
}

impl DueKind {
    /// Every kind.
    pub const ALL: [Self; 21] = [
        Self::LeaseExpiry,
        Self::ReclaimBackoff,
        Self::Delay,
        Self::Readmission,
        Self::AttemptTimeout,
        Self::Deadline,
        Self::SuspensionTimeout,
        Self::WaitpointExpiry,
        Self::GrantExpiry,
        Self::AdmissionExpiry,
        Self::Settlement,
        Self::Continuation,
        Self::SiblingCancel,
        Self::Projection,
        Self::BudgetReset,
        Self::WorkerExpiry,
        Self::StreamExpiry,
        Self::DedupExpiry,
        Self::Retention,
        Self::ClassExpiry,
        Self::Intake,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpiry => "lease_expiry",
            Self::ReclaimBackoff => "reclaim_backoff",
            Self::Delay => "delay",
            Self::Readmission => "readmission",
            Self::AttemptTimeout => "attempt_timeout",
            Self::Deadline => "deadline",
            Self::SuspensionTimeout => "suspension_timeout",
            Self::WaitpointExpiry => "waitpoint_expiry",
            Self::GrantExpiry => "grant_expiry",
            Self::AdmissionExpiry => "admission_expiry",
            Self::Settlement => "settlement",
            Self::Continuation => "continuation",
            Self::SiblingCancel => "sibling_cancel",
            Self::Projection => "projection",
            Self::BudgetReset => "budget_reset",
            Self::WorkerExpiry => "worker_expiry",
            Self::StreamExpiry => "stream_expiry",
            Self::DedupExpiry => "dedup_expiry",
            Self::Retention => "retention",
            Self::ClassExpiry => "class_expiry",
            Self::Intake => "intake",
        }
    }

    /// Whether it only makes room: nobody waits for it, so it is done beside what somebody waits for.
    #[must_use]
    pub const fn is_cleanup(self) -> bool {
        matches!(self, Self::StreamExpiry | Self::DedupExpiry | Self::Retention | Self::ClassExpiry)
    }

    /// Whether an item can take several commits, so that it pays to look whether somebody else has done it.
    #[must_use]
    pub const fn is_long(self) -> bool {
        matches!(self, Self::Settlement | Self::Continuation | Self::SiblingCancel | Self::Projection | Self::Retention)
    }

    /// How long the process that left the work has to do it itself, as it usually does right away.
    #[must_use]
    pub const fn grace_ms(self) -> u64 {
        match self {
            Self::Settlement => 1_000,
            _ => 0,
        }
    }
}

impl Index {
    /// The record whose ranges this index belongs to: entering or leaving the index counts as a change of the owner's ranges, so that
    /// a commit can tell whether a range is still what it was. `None` for indexes that span partitions.
    #[must_use]
    pub fn owner(&self) -> Option<Key> {
        match self {
            Self::AttemptsOf(id)
            | Self::SuspensionsOf(id)
            | Self::WaitpointsOf(id)
            | Self::OpenWaitpointsOf(id)
            | Self::OpenWaitpointsNamed(id, _)
            | Self::DedupsOf(id)
            | Self::GroupsInto(id) => Some(Key::execution(*id)),
            Self::StepsOf(id) => Some(Key::step_head(*id)),
            Self::FramesOf(id, index) => Some(Key::stream_head(*id, *index)),
            Self::SignalsOf(home, waitpoint) => Some(Key::waitpoint(*home, *waitpoint)),
            Self::MembersOf(home, flow)
            | Self::PendingMembersOf(home, flow)
            | Self::LiveMembersOf(home, flow)
            | Self::EdgesFrom(home, flow, _)
            | Self::EdgesInto(home, flow, _)
            | Self::EdgesOf(home, flow)
            | Self::GroupsOf(home, flow)
            | Self::CancelAcksOf(home, flow) => Some(Key::flow(*home, *flow)),
            Self::WindowOf(home, quota, _) | Self::AdmissionsOf(home, quota) => Some(Key::quota_usage(*home, *quota)),
            Self::LedgersOf(home, budget) => Some(Key::budget(*home, *budget)),
            _ => None,
        }
    }
}

/// Where a record stands inside an index: by number, then by bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// A time, a rank, an ordinal; 0 where only the tie decides.
    pub major: i64,
    /// Breaks ties; unique inside the index. Most are ids of executions.
    pub tie: SmallVec<[u8; 24]>,
}

impl Position {
    /// A position by number, ties broken by bytes.
    #[must_use]
    pub fn new(major: i64, tie: impl AsRef<[u8]>) -> Self {
        Self { major, tie: SmallVec::from_slice(tie.as_ref()) }
    }

    /// A position by time.
    #[must_use]
    pub fn at(time: TimestampMs, tie: impl AsRef<[u8]>) -> Self {
        Self::new(time.0, tie)
    }

    /// A position by time and execution.
    #[must_use]
    pub fn of(major: i64, execution: ExecutionId) -> Self {
        Self::new(major, execution.to_bytes())
    }

    /// A position by bytes alone.
    #[must_use]
    pub fn by(tie: impl AsRef<[u8]>) -> Self {
        Self::new(0, tie)
    }

    /// After every entry whose number is at most `major`.
    #[must_use]
    pub fn end_of(major: i64) -> Self {
        Self::new(major, [0xff; 64])
    }
}

/// Two names as bytes that sort like the pair; names have no control characters.
#[must_use]
pub fn pair_bytes(first: &str, second: &str) -> Vec<u8> {
    let mut bytes = first.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(second.as_bytes());
    bytes
}

/// One place in one index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The index.
    pub index: Index,
    /// The place.
    pub position: Position,
}

impl Entry {
    /// An entry.
    #[must_use]
    pub const fn new(index: Index, position: Position) -> Self {
        Self { index, position }
    }
}

/// Which part of an index is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Only positions after this one.
    pub after: Option<Position>,
    /// Only positions up to and including this one.
    pub until: Option<Position>,
    /// At most so many.
    pub limit: usize,
    /// From the end backwards; `after` and `until` keep their meaning of lower and upper end.
    pub reverse: bool,
}

impl Bounds {
    /// The first `limit` entries.
    #[must_use]
    pub const fn first(limit: usize) -> Self {
        Self { after: None, until: None, limit, reverse: false }
    }

    /// The last `limit` entries, last first.
    #[must_use]
    pub const fn last(limit: usize) -> Self {
        Self { after: None, until: None, limit, reverse: true }
    }

    /// Only entries after a position, if one is given.
    #[must_use]
    pub fn after(mut self, position: Option<Position>) -> Self {
        self.after = position;
        self
    }

    /// Only entries up to and including a position.
    #[must_use]
    pub fn until(mut self, position: Position) -> Self {
        self.until = Some(position);
        self
    }

    /// Whether a position lies inside, the limit aside.
    #[must_use]
    pub fn contains(&self, position: &Position) -> bool {
        self.after.as_ref().is_none_or(|after| position > after)
            && self.until.as_ref().is_none_or(|until| position <= until)
    }
}

/// A record found in an index.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The index it was found in.
    pub index: Index,
    /// Where it stands.
    pub position: Position,
    /// The record.
    pub record: Record,
}

/// Several lists, each within bounds, as one.
#[must_use]
pub fn merge_listed(mut lists: Vec<Vec<Listed>>, bounds: &Bounds) -> Vec<Listed> {
    if lists.len() < 2 {
        return lists.pop().unwrap_or_default();
    }
    let mut out: Vec<Listed> = lists.into_iter().flatten().collect();
    out.sort_by(|a, b| a.position.cmp(&b.position));
    if bounds.reverse {
        out.reverse();
    }
    out.truncate(bounds.limit);
    out
}

/// What a listener can wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Work may be claimable in a lane.
    Lane(LaneId),
    /// A stream got a frame or closed.
    Stream(ExecutionId),
    /// A member of a flow ended.
    Flow(FlowId),
    /// An execution ended.
    Execution(ExecutionId),
    /// Somebody else than the worker ended one of its ownerships.
    Worker(WorkerInstanceId),
    /// Any event was appended.
    Events,
}

impl Topic {
    /// The topic in a message to another process: one letter, then a name without control characters.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Lane(lane) => format!("l{lane}"),
            Self::Stream(execution) => format!("s{execution}"),
            Self::Flow(flow) => format!("f{flow}"),
            Self::Execution(execution) => format!("x{execution}"),
            Self::Worker(instance) => format!("w{instance}"),
            Self::Events => "e".to_owned(),
        }
    }

    /// The topic of such a word; none for one that is not known.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        let kind = word.chars().next()?;
        let rest = &word[kind.len_utf8()..];
        match kind {
            'l' => rest.parse().ok().map(Self::Lane),
            's' => rest.parse().ok().map(Self::Stream),
            'f' => rest.parse().ok().map(Self::Flow),
            'x' => rest.parse().ok().map(Self::Execution),
            'w' => rest.parse().ok().map(Self::Worker),
            'e' => Some(Self::Events),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_topic_is_heard_as_it_was_told() {
        let execution = ExecutionId::new(7, Uuid::from_u128(9));
        for topic in [
            Topic::Lane(LaneId::new("mail and more").unwrap()),
            Topic::Stream(execution),
            Topic::Flow(FlowId::from_uuid(Uuid::from_u128(3))),
            Topic::Execution(execution),
            Topic::Worker(WorkerInstanceId::new("w-1").unwrap()),
            Topic::Events,
        ] {
            assert_eq!(Topic::of_word(&topic.word()), Some(topic));
        }
        assert_eq!(Topic::of_word("?of a later version"), None);
    }
}
