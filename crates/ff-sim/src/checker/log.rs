//! What the event log says of an execution is what its record says.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange};
use ff_core::ids::{ExecutionId, LeaseEpoch, LeaseId};
use ff_engine::event::{Event, EventBody};
use ff_engine::records::Execution;

use super::{Findings, Mirror};
use crate::invariants::Invariant;

/// How far the clocks of processes may be apart; far less than the time before an id can be used again.
const SKEW_MS: u64 = 1_000;

/// The lease somebody became owner through, and its epoch.
fn acquired(event: &Event) -> Option<(LeaseId, LeaseEpoch)> {
    match &event.body {
        EventBody::Lease(LeaseChange::Acquired { lease_id, lease_epoch, .. }) => Some((*lease_id, *lease_epoch)),
        EventBody::Lease(LeaseChange::Reclaimed { new_lease_id, new_lease_epoch, .. }) => {
            Some((*new_lease_id, *new_lease_epoch))
        }
        _ => None,
    }
}

/// Compares a log from which nothing was trimmed with what is stored.
pub(super) fn scan(mirror: &Mirror, events: &[Event], findings: &mut Findings) {
    let mut told: BTreeMap<ExecutionId, Vec<&Event>> = BTreeMap::new();
    let mut leases: BTreeSet<LeaseId> = BTreeSet::new();
    for event in events {
        if let Some((lease_id, _)) = acquired(event) {
            findings.check(leases.insert(lease_id), Invariant::SingleLease, || {
                format!("{:?}: lease {lease_id} was granted twice", event.execution_id)
            });
        }
        if let Some(id) = event.execution_id {
            told.entry(id).or_default().push(event);
        }
    }
    for execution in mirror.all::<Execution>() {
        let own = told.remove(&execution.id).unwrap_or_default();
        // A purged id may have been used again: earlier events are those of another execution.
        let own: Vec<&Event> = own.into_iter().filter(|event| event.at.plus(SKEW_MS) >= execution.created_at).collect();
        completions(execution, &own, findings);
        epochs(execution, &own, findings);
    }
}

/// Completions and replays take turns, as often as the execution ended and was opened again.
fn completions(execution: &Execution, own: &[&Event], findings: &mut Findings) {
    let (mut last, mut replays, mut in_turn) = (None, 0, true);
    for event in own {
        match &event.body {
            EventBody::Completion { outcome, .. } => in_turn &= last.replace(*outcome).is_none(),
            EventBody::Replayed { .. } => {
                in_turn &= last.take().is_some();
                replays += 1;
            }
            _ => {}
        }
    }
    let wanted = CompletionOutcome::of(execution.state().terminal_outcome);
    let right = in_turn && last == wanted && replays == execution.replay_count;
    findings.check(right, Invariant::OneCompletionEvent, || {
        let state = execution.public_state();
        format!("{}: {state} after {} replays, told {last:?} after {replays}", execution.id, execution.replay_count)
    });
}

/// Every change of hands has a higher epoch than the one before, and the last is the one that is stored.
fn epochs(execution: &Execution, own: &[&Event], findings: &mut Findings) {
    let mut last = None;
    for event in own {
        let Some((lease_id, lease_epoch)) = acquired(event) else { continue };
        let higher = last.is_none_or(|(_, before)| lease_epoch > before);
        findings.check(higher, Invariant::EpochRises, || {
            format!("{}: epoch {lease_epoch} was granted after {last:?}", execution.id)
        });
        last = Some((lease_id, lease_epoch));
    }
    let holds = execution.lease.as_ref().filter(|_| execution.is_leased()).map(|lease| (lease.id, execution.epoch));
    findings.check(holds.is_none() || holds == last, Invariant::EpochRises, || {
        format!("{}: held through {holds:?}, told {last:?}", execution.id)
    });
}
