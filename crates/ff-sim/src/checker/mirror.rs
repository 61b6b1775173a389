//! What is stored, rebuilt from the commits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ff_core::ids::{ExecutionId, FlowId, WaitpointId};
use ff_core::partition::PartitionCounts;
use ff_engine::index::Entry;
use ff_engine::key::{Key, Name};
use ff_engine::records::{
    Admission, Attempt, Budget, Continuation, Dedup, Definition, Deployment, Edge, EdgeGroup, Execution, Flow,
    FlowProjection, Frame, Grant, Intake, KeyringRecord, Lane, Ledger, QuotaPolicy, QuotaUsage, Record, Settlement,
    Signal, StreamHead, Summary, Suspension, Waitpoint, WindowEntry, Worker,
};

/// A record of a known kind.
pub(crate) trait Kind: 'static {
    /// The record, if it is of this kind.
    fn of(record: &Record) -> Option<&Self>;
}

macro_rules! kinds {
    ($($name:ident),+ $(,)?) => {$(
        impl Kind for $name {
            fn of(record: &Record) -> Option<&Self> {
                match record {
                    Record::$name(record) => Some(record),
                    _ => None,
                }
            }
        }
    )+};
}

kinds! {
    Admission, Attempt, Budget, Continuation, Dedup, Definition, Deployment, Edge, EdgeGroup, Execution, Flow, FlowProjection,
    Frame, Grant, Intake, KeyringRecord, Lane, Ledger, QuotaPolicy, QuotaUsage, Settlement, Signal, StreamHead, Summary, Suspension, Waitpoint,
    WindowEntry, Worker,
}

/// Records by key, and the few groupings the checks ask for.
#[derive(Default)]
pub(crate) struct Mirror {
    records: BTreeMap<Key, Record>,
    attempts: BTreeMap<ExecutionId, BTreeSet<Key>>,
    suspensions: BTreeMap<ExecutionId, BTreeSet<Key>>,
    waitpoints: BTreeMap<ExecutionId, BTreeSet<Key>>,
    signals: BTreeMap<WaitpointId, BTreeSet<Key>>,
    edges: BTreeMap<FlowId, BTreeSet<Key>>,
    groups: BTreeMap<ExecutionId, BTreeSet<Key>>,
    /// Who stands where in the indexes.
    places: HashMap<Entry, Key>,
}

impl Mirror {
    /// Follows one change; gives what was there before.
    pub(super) fn apply(&mut self, key: &Key, record: Option<&Record>) -> Option<Record> {
        let old = match record {
            Some(record) => self.records.insert(key.clone(), record.clone()),
            None => self.records.remove(key),
        };
        let known = record.or(old.as_ref());
        let group = match (&key.name, known) {
            (Name::Attempt(execution, _), _) => self.attempts.entry(*execution).or_default(),
            (Name::Suspension(execution, _), _) => self.suspensions.entry(*execution).or_default(),
            (Name::Waitpoint(_), Some(Record::Waitpoint(waitpoint))) => {
                self.waitpoints.entry(waitpoint.execution).or_default()
            }
            (Name::Signal(waitpoint, _), _) => self.signals.entry(*waitpoint).or_default(),
            (Name::Edge(flow, _), _) => self.edges.entry(*flow).or_default(),
            (Name::EdgeGroup(downstream, _), _) => self.groups.entry(*downstream).or_default(),
            _ => return old,
        };
        if record.is_some() {
            group.insert(key.clone());
        } else {
            group.remove(key);
        }
        old
    }

    /// Follows the index entries of one change; gives a place that another record holds already.
    pub(super) fn place(&mut self, key: &Key, before: Option<&Record>, after: Option<&Record>) -> Option<(Entry, Key)> {
        let old = before.map(Record::entries).unwrap_or_default();
        let new = after.map(Record::entries).unwrap_or_default();
        for entry in old.iter().filter(|entry| !new.contains(entry)) {
            self.places.remove(entry);
        }
        let mut taken = None;
        for entry in new.into_iter().filter(|entry| !old.contains(entry)) {
            if let Some(other) = self.places.insert(entry.clone(), key.clone()) {
                taken = Some((entry, other));
            }
        }
        taken
    }

    /// A record.
    pub(crate) fn get<R: Kind>(&self, key: &Key) -> Option<&R> {
        self.records.get(key).and_then(R::of)
    }

    /// Every record of a kind.
    pub(crate) fn all<R: Kind>(&self) -> impl Iterator<Item = &R> {
        self.records.values().filter_map(R::of)
    }

    /// Records of a kind from a key on, as long as they are of that kind.
    pub(crate) fn from<R: Kind>(&self, key: Key) -> impl Iterator<Item = &R> {
        self.records.range(key..).map_while(|(_, record)| R::of(record))
    }

    /// Every record.
    pub(crate) fn records(&self) -> &BTreeMap<Key, Record> {
        &self.records
    }

    /// An execution.
    pub(crate) fn execution(&self, id: ExecutionId) -> Option<&Execution> {
        self.get(&Key::execution(id))
    }

    /// How many partitions the deployment has.
    pub(crate) fn counts(&self) -> PartitionCounts {
        self.get::<Deployment>(&Key::deployment()).map_or_else(PartitionCounts::default, |deployment| deployment.counts)
    }

    /// A flow, wherever it lives.
    pub(crate) fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.get(&Key::flow(self.counts().of_flow(id), id))
    }

    fn grouped<R: Kind>(&self, keys: Option<&BTreeSet<Key>>) -> impl Iterator<Item = &R> {
        keys.into_iter().flatten().filter_map(|key| self.get(key))
    }

    /// Attempts of an execution, by index.
    pub(crate) fn attempts(&self, execution: ExecutionId) -> impl Iterator<Item = &Attempt> {
        self.grouped(self.attempts.get(&execution))
    }

    /// Suspensions of an execution, by ordinal.
    pub(crate) fn suspensions(&self, execution: ExecutionId) -> impl Iterator<Item = &Suspension> {
        self.grouped(self.suspensions.get(&execution))
    }

    /// Waitpoints of an execution.
    pub(crate) fn waitpoints(&self, execution: ExecutionId) -> impl Iterator<Item = &Waitpoint> {
        self.grouped(self.waitpoints.get(&execution))
    }

    /// Signals of a waitpoint.
    pub(crate) fn signals(&self, waitpoint: WaitpointId) -> impl Iterator<Item = &Signal> {
        self.grouped(self.signals.get(&waitpoint))
    }

    /// Edges of a flow.
    pub(crate) fn edges(&self, flow: FlowId) -> impl Iterator<Item = &Edge> {
        self.grouped(self.edges.get(&flow))
    }

    /// Groups into an execution, by generation.
    pub(crate) fn groups(&self, downstream: ExecutionId) -> impl Iterator<Item = &EdgeGroup> {
        self.grouped(self.groups.get(&downstream))
    }
}
