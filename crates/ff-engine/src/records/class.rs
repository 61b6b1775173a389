//! Classes of work: what queues together.

use ff_core::TimestampMs;
use ff_core::capability::RequirementClass;
use ff_core::ids::{BudgetId, ExecutionKind, LaneId, Namespace, QuotaPolicyId};
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;
use crate::tie::Tie;

/// For so long a class is known although nothing came into it.
const KEPT_MS: u64 = 24 * 60 * 60 * 1000;

/// After so long what comes in says so. The rest of [`KEPT_MS`] is the time that it has to commit.
const FRESH_MS: u64 = KEPT_MS / 2;

/// A policy that can close for all executions attached to it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// A budget shared by scope.
    Budget(BudgetId),
    /// A quota.
    Quota(QuotaPolicyId),
}

/// What decides who can take an execution, apart from its rank: its kind, required capabilities, and shared policies that may be
/// closed. Executions of one class queue together, so a claim never looks at work it cannot take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueClass {
    /// What a worker must handle.
    pub kind: ExecutionKind,
    /// Capabilities a worker must have.
    pub requirement: RequirementClass,
    /// Policies that must be open, sorted.
    pub gates: Vec<Gate>,
}

impl QueueClass {
    /// Work of a kind that requires nothing and that no shared policy is in front of.
    #[must_use]
    pub fn plain(kind: ExecutionKind) -> Self {
        Self { kind, requirement: RequirementClass::default(), gates: Vec::new() }
    }

    /// What it asks of workers.
    #[must_use]
    pub fn route(&self) -> Route {
        Route { kind: self.kind.clone(), requirement: self.requirement.clone() }
    }
}

/// What work asks of workers, whatever policies are in front of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// What a worker must handle.
    pub kind: ExecutionKind,
    /// Capabilities a worker must have.
    pub requirement: RequirementClass,
}

/// A class of work that a lane has seen lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LaneClass {
    pub namespace: Namespace,
    pub lane: LaneId,
    pub class: QueueClass,
    /// When something came into it, or was found in it. Kept roughly: it may have been later, but not much.
    pub used_at: TimestampMs,
}

impl LaneClass {
    /// Its place among the classes of its lane, in any namespace.
    #[must_use]
    pub fn position(&self) -> Position {
        Position::by(self.tie(Tie::default()))
    }

    /// Before every class of a namespace.
    #[must_use]
    pub fn before_all_of(namespace: &Namespace) -> Position {
        Position::by(Tie::default().text(namespace.as_str()))
    }

    /// After every class of a namespace.
    #[must_use]
    pub fn after_all_of(namespace: &Namespace) -> Position {
        let mut position = Self::before_all_of(namespace);
        // The end mark of the name plus one: nothing that begins with the name and its end mark comes after it.
        if let Some(end) = position.tie.last_mut() {
            *end = 1;
        }
        position
    }

    /// Before every class of a namespace and kind.
    #[must_use]
    pub fn before_kind(namespace: &Namespace, kind: &str) -> Position {
        Position::by(Tie::default().text(namespace.as_str()).text(kind))
    }

    fn tie(&self, before: Tie) -> Tie {
        let QueueClass { kind, requirement, gates } = &self.class;
        let named = before.text(self.namespace.as_str()).text(kind.as_str()).long_text(requirement.as_str());
        gates.iter().fold(named, |tie, gate| match gate {
            Gate::Budget(budget) => tie.tag(b'b').uuid(budget.uuid()),
            Gate::Quota(quota) => tie.tag(b'q').uuid(quota.uuid()),
        })
    }

    /// Whether it stays known long enough for what comes into it now.
    #[must_use]
    pub fn is_fresh(&self, now: TimestampMs) -> bool {
        !self.used_at.plus(FRESH_MS).is_due(now)
    }

    /// When it is forgotten, unless it is in use.
    #[must_use]
    pub fn expires_at(&self) -> TimestampMs {
        self.used_at.plus(KEPT_MS)
    }

    /// The same, as if it had last been used so long ago that it is forgotten then.
    #[must_use]
    pub(crate) fn due_at(self, at: TimestampMs) -> Self {
        Self { used_at: TimestampMs(at.0.saturating_sub_unsigned(KEPT_MS)), ..self }
    }
}

impl Stored for LaneClass {
    fn key(&self) -> Key {
        Key::lane_class(self.namespace.clone(), self.lane.clone(), self.class.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::ClassesOfLane(self.lane.clone()), self.position()));
        let tie = self.tie(Tie::default().text(self.lane.as_str()));
        out.push(Entry::new(Index::Due(DueKind::ClassExpiry), Position::at(self.expires_at(), tie)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    fn lane_class(namespace: &str, kind: &str, requirement: &str, gates: Vec<Gate>) -> LaneClass {
        let requirement = RequirementClass::parse(requirement).unwrap();
        LaneClass {
            namespace: Namespace::new(namespace).unwrap(),
            lane: LaneId::new("default").unwrap(),
            class: QueueClass { kind: ExecutionKind::new(kind).unwrap(), requirement, gates },
            used_at: TimestampMs(1_000),
        }
    }

    fn place(namespace: &str, kind: &str, requirement: &str, gates: Vec<Gate>) -> Position {
        lane_class(namespace, kind, requirement, gates).position()
    }

    fn budget(n: u128) -> Gate {
        Gate::Budget(BudgetId::from_uuid(Uuid::from_u128(n)))
    }

    fn quota(n: u128) -> Gate {
        Gate::Quota(QuotaPolicyId::from_uuid(Uuid::from_u128(n)))
    }

    #[test]
    fn every_class_of_a_lane_has_a_place_of_its_own() {
        let places = [
            place("acme", "", "", vec![]),
            place("acm", "e", "", vec![]),
            place("acm", "", "e", vec![]),
            place("acme", "gpu", "", vec![]),
            place("acme", "", "gpu", vec![]),
            place("acme", "gpu", "gpu", vec![]),
            place("acme", "", "b", vec![]),
            place("acme", "", "gpu,big", vec![]),
            place("acme", "", "\"gpu\"", vec![]),
            place("acme", "", "", vec![budget(1)]),
            place("acme", "b", "", vec![budget(1)]),
            place("acme", "", "", vec![quota(1)]),
            place("acme", "", "", vec![budget(2)]),
            place("acme", "", "", vec![budget(1), budget(2)]),
            place("acme", "", "", vec![budget(1), quota(2)]),
            place("acme", "", "gpu", vec![budget(1)]),
        ];
        assert_eq!(BTreeSet::from_iter(&places).len(), places.len());
    }

    #[test]
    fn the_place_of_a_class_is_written_as_stores_keep_it() {
        let place = place("acme", "mail", "gpu,big", vec![budget(1), quota(2)]);
        let expected =
            b"acme\0\0mail\0\0big,gpu\0\0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01q\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02";
        assert_eq!(place, Position::by(*expected));
    }

    #[test]
    fn classes_of_one_namespace_and_kind_stand_together() {
        let acme = Namespace::new("acme").unwrap();
        let (before, after) = (LaneClass::before_all_of(&acme), LaneClass::after_all_of(&acme));
        for inside in [place("acme", "", "", vec![]), place("acme", "\u{10ffff}", "gpu", vec![quota(1)])] {
            assert!(before < inside && inside < after);
        }
        assert!(place("acm", "z", "", vec![]) < before && place("acme!", "", "", vec![]) > after);
        let mail = LaneClass::before_kind(&acme, "mail");
        assert!(place("acme", "mai", "z", vec![]) < mail && mail < place("acme", "mail", "", vec![]));
        assert!(before < LaneClass::before_kind(&acme, "") && mail < LaneClass::before_kind(&acme, "mail!"));
    }

    #[test]
    fn classes_of_different_lanes_come_due_at_different_places() {
        let due = |lane: &str, kind: &str| {
            let class = LaneClass { lane: LaneId::new(lane).unwrap(), ..lane_class("acme", kind, "", vec![]) };
            let mut entries = Vec::new();
            class.entries(&mut entries);
            entries.into_iter().find(|entry| entry.index == Index::Due(DueKind::ClassExpiry)).unwrap().position
        };
        assert_ne!(due("a", "mail"), due("b", "mail"));
        assert_ne!(due("a", "mail"), due("a", "bill"));
    }

    #[test]
    fn what_comes_into_a_fresh_class_has_half_a_day_to_commit() {
        let class = lane_class("acme", "mail", "", vec![]);
        let day = 24 * 60 * 60 * 1000;
        assert!(class.is_fresh(TimestampMs(1_000 + day / 2 - 1)));
        assert!(!class.is_fresh(TimestampMs(1_000 + day / 2)));
        assert_eq!(class.expires_at(), TimestampMs(1_000 + day));
    }
}
