//! What must hold, checked after every commit, after every answer, now and then over everything, and at the end.

mod budgets;
mod creation;
mod flows;
mod log;
mod mirror;
mod ownership;
mod quiescence;
mod state_machine;
mod streams_events;
mod suspension;

use std::collections::{BTreeMap, BTreeSet};

use ff_core::TimestampMs;
use ff_core::partition::Partition;
use ff_engine::event::Event;
use ff_engine::key::Key;
use ff_engine::records::{Execution, Record};

use crate::call::{Answer, Call};
use crate::invariants::{Invariant, Violation};
use crate::trouble::Commit;

use mirror::Kind;
pub(crate) use mirror::Mirror;

/// A call under way.
pub(super) struct Pending {
    pub(super) call: Call,
    /// The subject when the call began.
    pub(super) began: Option<Execution>,
    pub(super) began_at: TimestampMs,
    /// The subject when the call's last transaction ended.
    pub(super) last_seen: Option<Execution>,
    /// The subject as the call's last transaction that changed it left it.
    pub(super) left: Option<Execution>,
    /// How many records the call has changed.
    pub(super) writes: usize,
    /// How many events it emitted.
    pub(super) events: usize,
    /// How many traces of an admission it left.
    pub(super) admissions: usize,
    /// Whether it raised the usage of a budget.
    pub(super) added_usage: bool,
}

/// One changed record.
pub(super) struct Change {
    pub(super) key: Key,
    pub(super) before: Option<Record>,
    pub(super) after: Option<Record>,
}

/// One commit, after the mirror has followed it.
pub(super) struct Step<'a> {
    pub(super) call: Option<&'a Pending>,
    pub(super) now: TimestampMs,
    pub(super) changes: &'a [Change],
    pub(super) events: &'a [Event],
    pub(super) mirror: &'a Mirror,
}

impl Step<'_> {
    /// The operation that commits; empty while a process starts.
    pub(super) fn op(&self) -> &'static str {
        self.call.map_or("", |pending| pending.call.op)
    }

    /// Changes of records of one kind.
    pub(super) fn changed<R: Kind>(&self) -> impl Iterator<Item = (Option<&R>, Option<&R>)> {
        self.changes.iter().filter_map(|change| {
            let (before, after) = (change.before.as_ref().and_then(R::of), change.after.as_ref().and_then(R::of));
            (before.is_some() || after.is_some()).then_some((before, after))
        })
    }

    /// A record as it was before this commit.
    pub(super) fn before<R: Kind>(&self, key: &Key) -> Option<&R> {
        match self.changes.iter().find(|change| change.key == *key) {
            Some(change) => change.before.as_ref().and_then(R::of),
            None => self.mirror.get(key),
        }
    }
}

fn leaves_admission(change: &Change) -> bool {
    matches!((&change.before, &change.after), (None, Some(Record::Admission(_) | Record::WindowEntry(_))))
}

fn raises_usage(change: &Change) -> bool {
    match (&change.before, &change.after) {
        (Some(Record::Budget(before)), Some(Record::Budget(after))) => {
            after.period.usage.values().sum::<u64>() > before.period.usage.values().sum::<u64>()
        }
        _ => false,
    }
}

/// Violations found so far.
#[derive(Default)]
pub(super) struct Findings(Vec<Violation>);

impl Findings {
    /// Notes a violation unless the property holds.
    pub(super) fn check(&mut self, holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation { invariant, detail: detail() });
        }
    }
}

/// Follows a history and says when it must not have happened.
#[derive(Default)]
pub(crate) struct Checker {
    mirror: Mirror,
    latest: TimestampMs,
    calls: BTreeMap<usize, Pending>,
    next_call: usize,
    touched: BTreeSet<Partition>,
    events: Vec<Event>,
    findings: Findings,
    ownership: ownership::Memo,
    creation: creation::Memo,
    suspension: suspension::Memo,
    budgets: budgets::Memo,
}

impl Checker {
    /// A checker that did not see how this came about.
    pub(crate) fn of_dump(records: &[Record], events: &[Event]) -> Self {
        let mut checker = Self { events: events.to_vec(), ..Self::default() };
        for record in records {
            let key = record.key();
            let twice = checker.mirror.apply(&key, Some(record)).is_some();
            checker.findings.check(!twice, Invariant::SoundAnswers, || format!("{key:?} is stored twice"));
            checker.follow_places(&key, None, Some(record));
        }
        checker
    }

    fn follow_places(&mut self, key: &Key, before: Option<&Record>, after: Option<&Record>) {
        let taken = self.mirror.place(key, before, after);
        self.findings.check(taken.is_none(), Invariant::PublicStateIsDerived, || {
            format!("{key:?} takes the place of another: {taken:?}")
        });
    }

    /// What is stored.
    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// The latest time a transaction saw.
    pub(crate) fn latest(&self) -> TimestampMs {
        self.latest
    }

    /// The first violation.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.findings.0.first()
    }

    /// Every violation.
    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.findings.0
    }

    /// Notes a violation that somebody else found.
    pub(crate) fn report(&mut self, invariant: Invariant, detail: String) {
        self.findings.0.push(Violation { invariant, detail });
    }

    /// Notes a violation unless the property holds.
    pub(crate) fn expect(&mut self, holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) {
        self.findings.check(holds, invariant, detail);
    }

    /// A call begins.
    pub(crate) fn begin(&mut self, call: Call) -> usize {
        let id = self.next_call;
        self.next_call += 1;
        let began = call.subject.and_then(|id| self.mirror.execution(id)).cloned();
        let pending = Pending {
            call,
            began,
            began_at: self.latest,
            last_seen: None,
            left: None,
            writes: 0,
            events: 0,
            admissions: 0,
            added_usage: false,
        };
        self.calls.insert(id, pending);
        id
    }

    /// A transaction ended.
    pub(crate) fn commit(&mut self, call: Option<usize>, commit: Commit) {
        self.latest = self.latest.max(commit.now);
        let mut changes = Vec::with_capacity(commit.changes.len());
        for (key, after) in commit.changes {
            self.findings.check(commit.home.is_none_or(|home| key.partition == home), Invariant::SoundAnswers, || {
                format!("a commit of {:?} writes {key:?}", commit.home)
            });
            self.touched.insert(key.partition);
            let before = self.mirror.apply(&key, after.as_ref());
            self.follow_places(&key, before.as_ref(), after.as_ref());
            if before.is_some() || after.is_some() {
                changes.push(Change { key, before, after });
            }
        }
        let mut pending = call.and_then(|id| self.calls.remove(&id));
        if let Some(pending) = &mut pending {
            pending.writes += changes.len();
            pending.events += commit.events.len();
            pending.admissions += changes.iter().filter(|change| leaves_admission(change)).count();
            pending.added_usage |= changes.iter().any(raises_usage);
            pending.last_seen = pending.call.subject.and_then(|id| self.mirror.execution(id)).cloned();
            let subject = pending.call.subject.map(Key::execution);
            if changes.iter().any(|change| Some(&change.key) == subject.as_ref()) {
                pending.left.clone_from(&pending.last_seen);
            }
        }
        if !changes.is_empty() || !commit.events.is_empty() {
            let step = Step {
                call: pending.as_ref(),
                now: commit.now,
                changes: &changes,
                events: &commit.events,
                mirror: &self.mirror,
            };
            ownership::commit(&step, &mut self.ownership, &mut self.findings);
            state_machine::commit(&step, &mut self.findings);
            creation::commit(&step, &mut self.creation, &mut self.findings);
            suspension::commit(&step, &mut self.suspension, &mut self.findings);
            flows::commit(&step, &mut self.findings);
            budgets::commit(&step, &mut self.budgets, &mut self.findings);
            streams_events::commit(&step, &mut self.findings);
        }
        if let (Some(id), Some(pending)) = (call, pending) {
            self.calls.insert(id, pending);
        }
        self.events.extend(commit.events);
    }

    /// A call ended.
    pub(crate) fn finish(&mut self, call: usize, answer: Answer<'_>) {
        let Some(pending) = self.calls.remove(&call) else { return };
        let findings = &mut self.findings;
        if let Answer::Refused(error) = answer {
            findings.check(!matches!(error.code(), "bug" | "unavailable"), Invariant::SoundAnswers, || {
                format!("{} answered {error}", pending.call.op)
            });
        }
        ownership::finish(&pending, answer, findings);
        state_machine::finish(&pending, answer, findings);
        creation::finish(&pending, answer, findings);
        suspension::finish(&pending, answer, &self.mirror, &mut self.suspension, findings);
        budgets::finish(&pending, answer, findings);
    }

    /// Checks over everything that is stored.
    pub(crate) fn scan(&mut self) {
        let (mirror, findings) = (&self.mirror, &mut self.findings);
        ownership::scan(mirror, findings);
        state_machine::scan(mirror, findings);
        suspension::scan(mirror, findings);
        flows::scan(mirror, findings);
        budgets::scan(mirror, findings);
        streams_events::scan(mirror, findings);
        log::scan(mirror, &self.events, findings);
    }
}
