//! Rare records that every process shares.

use std::collections::BTreeSet;

use ff_core::TimestampMs;
use ff_core::ids::{BudgetId, LaneId, Namespace, QuotaPolicyId};
use ff_core::partition::PartitionCounts;
use ff_core::state::LaneState;
use ff_core::token::Keyring;
use serde::{Deserialize, Serialize};

use super::{Gate, QueueClass, Scope, Stored};
use crate::index::{Entry, Index, Position, Topic, pair_bytes};
use crate::key::Key;
use crate::tie::Tie;

/// A lane that was used or registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Lane {
    pub namespace: Namespace,
    pub lane: LaneId,
    pub state: LaneState,
    pub since: TimestampMs,
    pub reason: String,
}

impl Stored for Lane {
    fn key(&self) -> Key {
        Key::lane(self.namespace.clone(), self.lane.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let tie = pair_bytes(self.namespace.as_str(), self.lane.as_str());
        out.push(Entry::new(Index::Lanes, Position::by(tie)));
    }

    fn topics(&self, out: &mut Vec<Topic>) {
        out.push(Topic::Lane(self.lane.clone()));
    }
}

/// A class of work that a lane has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LaneClass {
    pub namespace: Namespace,
    pub lane: LaneId,
    pub class: QueueClass,
}

impl LaneClass {
    /// Its place among the classes of its lane, in any namespace.
    #[must_use]
    pub fn position(&self) -> Position {
        let named = Tie::default().text(self.namespace.as_str()).text(self.class.requirement.as_str());
        Position::by(self.class.gates.iter().fold(named, |tie, gate| match gate {
            Gate::Budget(budget) => tie.tag(b'b').uuid(budget.uuid()),
            Gate::Quota(quota) => tie.tag(b'q').uuid(quota.uuid()),
        }))
    }
}

impl Stored for LaneClass {
    fn key(&self) -> Key {
        Key::lane_class(self.namespace.clone(), self.lane.clone(), self.class.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::ClassesOfLane(self.lane.clone()), self.position()));
    }
}

/// Budgets and quotas attached to a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ScopeBinding {
    pub scope: Scope,
    pub budgets: BTreeSet<BudgetId>,
    pub quotas: BTreeSet<QuotaPolicyId>,
}

impl Stored for ScopeBinding {
    fn key(&self) -> Key {
        Key::scope_binding(self.scope.clone())
    }
}

/// Secrets: signing keys of waitpoints, the sealing key of handles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KeyringRecord {
    pub ring: Keyring,
}

impl Stored for KeyringRecord {
    fn key(&self) -> Key {
        Key::keyring()
    }
}

/// Settings fixed at first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Deployment {
    pub counts: PartitionCounts,
    pub created_at: TimestampMs,
}

impl Stored for Deployment {
    fn key(&self) -> Key {
        Key::deployment()
    }
}

#[cfg(test)]
mod tests {
    use ff_core::capability::RequirementClass;
    use uuid::Uuid;

    use super::*;

    fn place(namespace: &str, requirement: &str, gates: Vec<Gate>) -> Position {
        let requirement = RequirementClass::parse(requirement).unwrap();
        LaneClass {
            namespace: Namespace::new(namespace).unwrap(),
            lane: LaneId::new("default").unwrap(),
            class: QueueClass { requirement, gates },
        }
        .position()
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
            place("acme", "", vec![]),
            place("acm", "e", vec![]),
            place("acme", "gpu", vec![]),
            place("acme", "b", vec![]),
            place("acme", "gpu,big", vec![]),
            place("acme", "\"gpu\"", vec![]),
            place("acme", "", vec![budget(1)]),
            place("acme", "", vec![quota(1)]),
            place("acme", "", vec![budget(2)]),
            place("acme", "", vec![budget(1), budget(2)]),
            place("acme", "", vec![budget(1), quota(2)]),
            place("acme", "gpu", vec![budget(1)]),
        ];
        assert_eq!(BTreeSet::from_iter(&places).len(), places.len());
    }

    #[test]
    fn the_place_of_a_class_is_written_as_stores_keep_it() {
        let place = place("acme", "gpu,big", vec![budget(1), quota(2)]);
        let expected = b"acme\0\0big,gpu\0\0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01q\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02";
        assert_eq!(place, Position::by(*expected));
    }
}
