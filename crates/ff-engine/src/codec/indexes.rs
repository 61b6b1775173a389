//! Indexes as bytes. They are looked up, never read back.

use ff_core::ids::{LaneId, Namespace};

use super::parts::{Part, put_text};
use crate::index::{DueKind, Index};
use crate::records::QueueClass;

const fn due_code(kind: DueKind) -> u8 {
    match kind {
        DueKind::LeaseExpiry => 1,
        DueKind::ReclaimBackoff => 2,
        DueKind::Delay => 3,
        DueKind::Readmission => 4,
        DueKind::AttemptTimeout => 5,
        DueKind::Deadline => 6,
        DueKind::SuspensionTimeout => 7,
        DueKind::WaitpointExpiry => 8,
        DueKind::GrantExpiry => 9,
        DueKind::AdmissionExpiry => 10,
        DueKind::Settlement => 11,
        DueKind::Continuation => 12,
        DueKind::SiblingCancel => 13,
        DueKind::Projection => 14,
        DueKind::BudgetReset => 15,
        DueKind::WorkerExpiry => 16,
        DueKind::StreamExpiry => 17,
        DueKind::DedupExpiry => 18,
        DueKind::Retention => 19,
        DueKind::ClassExpiry => 20,
        DueKind::Intake => 21,
    }
}

macro_rules! indexes {
    ($($code:literal $variant:ident $(($($part:ident),+))?),+ $(,)?) => {
        /// The bytes of an index.
        #[must_use]
        pub fn encode_index(index: &Index) -> Vec<u8> {
            let mut out = Vec::with_capacity(48);
            match index {
                $(Index::$variant $(($($part),+))? => {
                    out.push($code);
                    $($($part.put(&mut out);)+)?
                })+
                Index::LaneState(lane, state) => {
                    out.push(60);
                    lane.put(&mut out);
                    put_text(state.as_str(), &mut out);
                }
                Index::KindState(kind, state) => {
                    out.push(61);
                    kind.put(&mut out);
                    put_text(state.as_str(), &mut out);
                }
                Index::Due(kind) => out.extend_from_slice(&[62, due_code(*kind)]),
            }
            out
        }
    };
}

indexes! {
    1 AttemptsOf(execution),
    2 FramesOf(execution, attempt),
    3 SuspensionsOf(execution),
    4 WaitpointsOf(execution),
    5 OpenWaitpointsOf(execution),
    6 OpenWaitpointsNamed(execution, key),
    7 SignalsOf(home, waitpoint),
    8 DedupsOf(execution),
    9 MembersOf(home, flow),
    10 PendingMembersOf(home, flow),
    11 LiveMembersOf(home, flow),
    12 EdgesFrom(home, flow, execution),
    13 EdgesInto(home, flow, execution),
    14 EdgesOf(home, flow),
    15 GroupsOf(home, flow),
    16 GroupsInto(execution),
    17 CancelAcksOf(home, flow),
    18 WindowOf(home, quota, dimension),
    19 AdmissionsOf(home, quota),
    20 LedgersOf(home, budget),
    21 Eligible(namespace, lane, class),
    22 Reclaimable(namespace, lane, class),
    23 EligibleIn(home, lane),
    24 RouteParked(namespace, lane, route),
    25 BudgetParked(budget),
    26 QuotaParked(quota),
    27 AttachedTo(budget),
    28 ClassesOfLane(lane),
    31 LostLeases,
    32 ExecutionsIn(home),
    33 SuspendedIn(home),
    34 TerminalIn(home, lane),
    35 Terminal,
    36 FlowsIn(home),
    37 BudgetsIn(home),
    38 QuotasIn(home),
    39 Lanes,
    40 Workers,
    41 WorkersOf(namespace, lane),
    42 CreatedIn(namespace),
    43 Created,
    44 Tagged(key, value),
    45 SpendingOf(execution),
    46 RouteHeld(namespace, lane, route),
    47 StepsOf(execution),
    48 IntakesOf(execution),
}

/// The bytes that name one queue of claimable work.
#[must_use]
pub fn encode_queue(namespace: &Namespace, lane: &LaneId, class: &QueueClass) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    namespace.put(&mut out);
    lane.put(&mut out);
    class.put(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_of_due_work_has_a_code_of_its_own() {
        let codes: BTreeSet<Vec<u8>> = DueKind::ALL.iter().map(|kind| encode_index(&Index::Due(*kind))).collect();
        assert_eq!(codes.len(), DueKind::ALL.len());
    }

    #[test]
    fn the_border_between_two_texts_counts() {
        let tagged = |key: &str, value: &str| encode_index(&Index::Tagged(key.into(), value.into()));
        assert_ne!(tagged("ab", "c"), tagged("a", "bc"));
    }
}
