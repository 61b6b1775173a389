//! What must hold once trouble has stopped and everything had its chance to finish.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::partition::Partition;
use ff_core::state::{EligibilityState, PublicState};
use ff_engine::event::Event;
use ff_engine::key::Key;
use ff_engine::records::{Admission, Continuation, Execution, Flow, FlowProjection, Intake, QuotaUsage, Settlement};

use super::Checker;
use crate::invariants::Invariant;

impl Checker {
    /// Partitions that something was written to.
    pub(crate) fn touched(&self) -> impl Iterator<Item = Partition> {
        self.touched.iter().copied()
    }

    /// Every event, in order.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Checks that nothing is left undone whose time has come.
    pub(crate) fn nothing_overdue(&mut self) {
        let (mirror, findings, now) = (&self.mirror, &mut self.findings, self.latest);
        for execution in mirror.all::<Execution>() {
            let late = |at: Option<TimestampMs>| at.is_some_and(|at| at <= now);
            let state = execution.state();
            let delayed = state.eligibility_state == EligibilityState::NotEligibleUntilTime && late(execution.wake_at);
            findings.check(!delayed, Invariant::DelayIsKept, || {
                format!("{}: still delayed after {:?}", execution.id, execution.wake_at)
            });
            let expired = !execution.is_terminal() && late(execution.deadline_at);
            findings.check(!expired, Invariant::DeadlineEnds, || {
                format!("{}: {state:?} after its deadline {:?}", execution.id, execution.deadline_at)
            });
            let held = execution.is_leased() && late(execution.lease.as_ref().map(|lease| lease.expires_at));
            findings.check(!held, Invariant::LostOwnerFails, || {
                format!("{}: still leased after {:?}", execution.id, execution.lease)
            });
            let waits = execution.is_suspended() && late(execution.suspension_timeout_at);
            findings.check(!waits, Invariant::TimersAreIdempotent, || {
                format!("{}: still suspended after {:?}", execution.id, execution.suspension_timeout_at)
            });
            let runs = execution.is_leased() && late(execution.attempt_timeout_at);
            findings.check(!runs, Invariant::TimersAreIdempotent, || {
                format!("{}: still running after {:?}", execution.id, execution.attempt_timeout_at)
            });
        }
    }

    /// Checks what has come to rest at a time.
    pub(crate) fn rest_at(&mut self, now: TimestampMs) {
        self.latest = now;
        self.quiescent();
    }

    /// Checks what has come to rest.
    pub(crate) fn quiescent(&mut self) {
        self.scan();
        self.nothing_overdue();
        let (mirror, findings) = (&self.mirror, &mut self.findings);
        for execution in mirror.all::<Execution>() {
            findings.check(execution.is_terminal(), Invariant::ImpossibleSkips, || {
                let groups: Vec<_> = mirror.groups(execution.id).map(|g| (g.generation, g.state, g.counts)).collect();
                let Execution { id, namespace, lane, class, budget_ids, .. } = execution;
                let state = execution.state();
                format!("{id}: still {state:?} in {namespace}/{lane}, {class:?}, {budget_ids:?}, groups {groups:?}")
            });
        }
        for flow in mirror.all::<Flow>() {
            let mut counts: BTreeMap<PublicState, u32> = flow.purged.clone();
            for member in mirror.all::<Execution>().filter(|e| e.flow_id == Some(flow.id)) {
                *counts.entry(member.public_state()).or_default() += 1;
            }
            counts.retain(|_, count| *count > 0);
            if counts.is_empty() {
                continue;
            }
            let projected = mirror.get::<FlowProjection>(&Key::flow_projection(flow.home, flow.id)).map(|projection| {
                projection.counts.iter().filter(|(_, n)| **n > 0).map(|(s, n)| (*s, *n)).collect::<BTreeMap<_, _>>()
            });
            findings.check(projected.as_ref() == Some(&counts), Invariant::ProjectionAgrees, || {
                format!("flow {}: projected {projected:?}, is {counts:?}", flow.id)
            });
        }
        let owed: Vec<String> = mirror
            .all::<Settlement>()
            .map(|s| format!("settlement of {} {}", s.execution, s.epoch))
            .chain(mirror.all::<Continuation>().map(|c| format!("{:?}", c.work)))
            .chain(mirror.all::<Intake>().map(|intake| format!("intake {}", intake.id)))
            .collect();
        findings.check(owed.is_empty(), Invariant::TimersAreIdempotent, || format!("unfinished work: {owed:?}"));
        for admission in mirror.all::<Admission>().filter(|admission| admission.holds_slot) {
            findings.check(false, Invariant::AdmissionsAreBounded, || {
                format!("quota {}: {} still holds a slot", admission.quota, admission.execution)
            });
        }
        for usage in mirror.all::<QuotaUsage>() {
            findings.check(usage.holders == 0, Invariant::AdmissionsAreBounded, || {
                format!("quota {}: {} holders counted, nobody runs", usage.id, usage.holders)
            });
        }
    }
}
