//! Which queues a worker may take from, and what stands at their heads.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::Result;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::kinds::handles;

use super::admission::{Denial, closed_gates};
use super::classes::{round, walk, walk_round};
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Execution, Gate, Lane, LaneClass, QueueClass, Record};
use crate::store::Store;
use crate::verbs::list_all;

/// Heads read at a time.
pub(super) const HEADS_PAGE: usize = 16;

/// Where a worker looks, and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeker<'a> {
    pub(crate) lane: &'a LaneId,
    pub(crate) capabilities: &'a BTreeSet<String>,
    pub(crate) namespaces: Option<&'a BTreeSet<Namespace>>,
    pub(crate) kinds: Option<&'a BTreeSet<String>>,
}

impl Seeker<'_> {
    /// Whether a class is in a namespace that it may take from.
    pub(super) fn wants(&self, class: &LaneClass) -> bool {
        self.namespaces.is_none_or(|wanted| wanted.contains(&class.namespace))
    }

    /// Whether it takes from a class of its lane when it can.
    pub(super) fn takes(&self, class: &LaneClass) -> bool {
        self.wants(class) && self.covers(&class.class)
    }

    /// Whether it can do such work.
    fn covers(&self, class: &QueueClass) -> bool {
        handles(self.kinds, class.kind.as_str()) && class.requirement.is_covered_by(self.capabilities)
    }
}

/// The classes of a lane, sorted by what they mean to one worker.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Those it may take from.
    pub(super) open: Vec<LaneClass>,
    /// Those it could take from if a policy were open.
    pub(super) gated: Vec<LaneClass>,
    /// Those it cannot serve.
    pub(super) uncovered: Vec<LaneClass>,
    /// Policies that are closed now.
    pub(super) closed: BTreeMap<Gate, Denial>,
    /// Namespaces in which the lane serves.
    pub(super) serving: BTreeSet<Namespace>,
}

impl Queues {
    /// The classes of the seeker's lane.
    pub(super) async fn of<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Self> {
        let classes = walk_round(engine, seeker).await?;
        let lanes = engine.store.read(&lane_keys(seeker.lane, &classes)).await?;
        let mut queues = Self::assorted(seeker, classes, lanes);
        let gates = queues.gates();
        if !gates.is_empty() {
            queues.closed = closed_gates(engine, &gates).await?;
        }
        let closed = &queues.closed;
        (queues.gated, queues.open) = std::mem::take(&mut queues.open)
            .into_iter()
            .partition(|class| class.class.gates.iter().any(|gate| closed.contains_key(gate)));
        Ok(queues)
    }

    /// As far as lanes, kinds and capabilities decide; every policy counts as open.
    pub(super) fn assorted(seeker: Seeker<'_>, classes: Vec<LaneClass>, lanes: Vec<Option<Record>>) -> Self {
        let mut queues = Self { serving: serving(&classes, lanes), ..Self::default() };
        for class in classes.into_iter().filter(|class| queues.serving.contains(&class.namespace)) {
            if seeker.covers(&class.class) {
                queues.open.push(class);
            } else {
                queues.uncovered.push(class);
            }
        }
        queues
    }

    /// The policies in front of its queues.
    pub(super) fn gates(&self) -> BTreeSet<Gate> {
        self.open.iter().flat_map(|class| class.class.gates.iter().copied()).collect()
    }

    /// The queues to look into: claimable executions, and those whose lease was lost. A class behind a closed gate is left out, one
    /// that closed since (`shut`) too; but a lost execution still has its slot, so a quota that is full does not hold it back.
    pub(super) fn indexes(&self, shut: &BTreeSet<Gate>) -> Vec<Index> {
        let is_closed = |gate: &&Gate| self.closed.contains_key(gate) || shut.contains(gate);
        let mut indexes = Vec::new();
        for LaneClass { namespace, lane, class, .. } in self.open.iter().chain(&self.gated) {
            let mut closed = class.gates.iter().filter(is_closed).peekable();
            if closed.peek().is_none() {
                indexes.push(Index::Eligible(namespace.clone(), lane.clone(), class.clone()));
            }
            if closed.all(|gate| matches!(gate, Gate::Quota(_))) {
                indexes.push(Index::Reclaimable(namespace.clone(), lane.clone(), class.clone()));
            }
        }
        indexes
    }
}

/// The classes that a seeker covers.
pub(crate) async fn covered_classes<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Vec<LaneClass>> {
    let mut classes = walk(engine, seeker).await?;
    classes.retain(|class| seeker.covers(&class.class));
    Ok(classes)
}

/// The next of the classes that a seeker need not look at itself, as far as it does not cover them.
pub(super) async fn uncovered_round<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Vec<LaneClass>> {
    let mut classes = round(engine, seeker).await?;
    classes.retain(|class| seeker.wants(class) && !seeker.covers(&class.class));
    let lanes = engine.store.read(&lane_keys(seeker.lane, &classes)).await?;
    Ok(Queues::assorted(seeker, classes, lanes).uncovered)
}

/// The lane of each namespace that has work in it.
pub(super) fn lane_keys(lane: &LaneId, classes: &[LaneClass]) -> Vec<Key> {
    let namespaces: BTreeSet<&Namespace> = classes.iter().map(|class| &class.namespace).collect();
    namespaces.into_iter().map(|namespace| Key::lane(namespace.clone(), lane.clone())).collect()
}

/// The namespaces in which the lane hands out work.
fn serving(classes: &[LaneClass], lanes: Vec<Option<Record>>) -> BTreeSet<Namespace> {
    let closed: BTreeSet<Namespace> = lanes
        .into_iter()
        .flatten()
        .filter_map(|record| Lane::try_from(record).ok())
        .filter(|lane| !lane.state.serves())
        .map(|lane| lane.namespace)
        .collect();
    classes.iter().map(|class| class.namespace.clone()).filter(|namespace| !closed.contains(namespace)).collect()
}

/// One page of candidates, best first, and where the next page begins, if there is one. Reserved ones are left out.
pub(super) async fn heads<S: Store>(
    engine: &Engine<S>,
    indexes: &[Index],
    after: Option<Position>,
) -> Result<(Vec<Execution>, Option<Position>)> {
    let found = list_all(&engine.store, indexes, &Bounds::first(HEADS_PAGE).after(after)).await?;
    let next = if found.len() == HEADS_PAGE { found.last().map(|found| found.position.clone()) } else { None };
    let candidates: Vec<Execution> =
        found.into_iter().filter_map(|found| Execution::try_from(found.record?).ok()).collect();
    let reserved = reserved(engine, &candidates).await?;
    Ok((candidates.into_iter().filter(|execution| !reserved.contains(&execution.id)).collect(), next))
}

pub(super) async fn reserved<S: Store>(engine: &Engine<S>, candidates: &[Execution]) -> Result<BTreeSet<ExecutionId>> {
    if candidates.is_empty() {
        return Ok(BTreeSet::new());
    }
    let keys: Vec<Key> = candidates.iter().map(|execution| Key::grant(execution.id)).collect();
    let now = engine.store.now().await?;
    let live = |record: Record| match record {
        Record::Grant(grant) if grant.is_live(now) => Some(grant.execution),
        _ => None,
    };
    Ok(engine.store.read(&keys).await?.into_iter().flatten().filter_map(live).collect())
}
