//! Streams, summaries and purges.

use ff_core::backend::streams::FrameMode;
use ff_core::ids::ExecutionId;
use ff_core::rules::streams::NULL_SENTINEL;
use ff_core::state::StreamCloseReason;
use ff_engine::key::{Key, Name};
use ff_engine::records::{Attempt, Edge, EdgeGroup, Execution, Frame, Record, Signal, StreamHead, Summary, Waitpoint};

use super::mirror::Kind;
use super::{Findings, Mirror, Step};
use crate::invariants::Invariant;

pub(super) fn commit(step: &Step<'_>, findings: &mut Findings) {
    for (before, after) in step.changed::<Frame>() {
        if let (None, Some(after)) = (before, after) {
            frame(step, after, findings);
        }
    }
    for (before, after) in step.changed::<StreamHead>() {
        head(step, before, after, findings);
    }
    for (_, after) in step.changed::<Summary>() {
        if let Some(after) = after {
            summary(step.mirror, after, findings);
        }
    }
    purges(step, findings);
}

fn frame(step: &Step<'_>, after: &Frame, findings: &mut Findings) {
    let head = step.before::<StreamHead>(&Key::stream_head(after.execution, after.index));
    let last = head.map(|head| head.last_id);
    findings.check(last.is_none_or(|last| after.frame.id > last), Invariant::FramesAreOrdered, || {
        format!("{}: frame {} after {last:?}", after.execution, after.frame.id)
    });
    let closed = head.and_then(|head| head.closed);
    findings.check(closed.is_none(), Invariant::FramesAreOrdered, || {
        format!("{}: frame {} after closure {closed:?}", after.execution, after.frame.id)
    });
}

fn head(step: &Step<'_>, before: Option<&StreamHead>, after: Option<&StreamHead>, findings: &mut Findings) {
    let Some(after) = after else {
        let Some(before) = before else { return };
        // With its attempt a stream goes for good.
        let purged = step.mirror.get::<Attempt>(&Key::attempt(before.execution, before.index)).is_none();
        findings.check(purged || !before.retention.has_durable, Invariant::DurableFramesStay, || {
            format!("{}: {} dropped a durable stream", before.execution, step.op())
        });
        return;
    };
    durable_stays(after, findings);
    let frames = step.changed::<Frame>().filter(|(before, frame)| {
        before.is_none() && frame.is_some_and(|f| f.execution == after.execution && f.index == after.index)
    });
    let (mut appended, mut summaries) = (0, 0);
    for (_, frame) in frames {
        appended += 1;
        summaries += u64::from(frame.is_some_and(|frame| frame.frame.mode == FrameMode::Summary));
    }
    let (count, version, closed) = before.map_or((0, 0, None), |b| (b.frame_count, b.summary_version, b.closed));
    findings.check(after.frame_count == count + appended, Invariant::FramesAreOrdered, || {
        format!("{}: {count} frames plus {appended} became {}", after.execution, after.frame_count)
    });
    findings.check(after.summary_version == version + summaries, Invariant::SummaryVersions, || {
        format!("{}: version {version} plus {summaries} became {}", after.execution, after.summary_version)
    });
    let replaced = match (closed, after.closed) {
        (Some((_, old)), Some((_, new))) => {
            old == new || (old == StreamCloseReason::LeaseExpired && new == StreamCloseReason::Reclaimed)
        }
        (Some(_), None) => false,
        _ => true,
    };
    findings.check(replaced, Invariant::FramesAreOrdered, || {
        format!("{}: closure {closed:?} became {:?}", after.execution, after.closed)
    });
}

fn durable_stays(head: &StreamHead, findings: &mut Findings) {
    let kept = !head.retention.has_durable || head.retention.expires_at.is_none();
    findings.check(kept, Invariant::DurableFramesStay, || format!("{}: {:?}", head.execution, head.retention));
}

fn summary(mirror: &Mirror, after: &Summary, findings: &mut Findings) {
    let head = mirror.get::<StreamHead>(&Key::stream_head(after.execution, after.index));
    findings.check(head.is_some_and(|head| head.summary_version == after.version), Invariant::SummaryVersions, || {
        format!("{}: summary {} beside {head:?}", after.execution, after.version)
    });
    let text = String::from_utf8_lossy(&after.document_json);
    findings
        .check(!text.contains(NULL_SENTINEL), Invariant::SummaryVersions, || format!("{}: {text}", after.execution));
}

fn purges(step: &Step<'_>, findings: &mut Findings) {
    for (before, after) in step.changed::<Execution>() {
        let (Some(before), None) = (before, after) else { continue };
        findings.check(before.is_terminal(), Invariant::PurgeIsComplete, || {
            format!("{} was purged while {}", before.id, before.public_state())
        });
        let needed = before.flow_id.and_then(|flow| {
            step.mirror.edges(flow).find(|edge| edge.upstream == before.id && is_unresolved(step.mirror, edge))
        });
        findings.check(needed.is_none(), Invariant::PurgeIsComplete, || {
            format!("{} was purged while edge {:?} is unresolved", before.id, needed.map(|edge| edge.id))
        });
    }
    for change in step.changes.iter().filter(|change| change.before.is_some() && change.after.is_none()) {
        let owner = match &change.key.name {
            Name::Definition(id) | Name::Payload(id) | Name::Attempt(id, _) | Name::ExecutionTags(id) => *id,
            Name::Suspension(id, _) | Name::SignalTally(id) | Name::Progress(id) | Name::AttemptUsage(id, _) => *id,
            Name::Step(id, _, _) | Name::StepHead(id) => *id,
            _ => continue,
        };
        // A large execution goes in slices, its own record last.
        let over = step.mirror.execution(owner).is_none_or(Execution::is_terminal);
        findings.check(over, Invariant::PurgeIsComplete, || {
            format!("{} deleted {:?} of a live execution", step.op(), change.key.name)
        });
    }
}

fn is_unresolved(mirror: &Mirror, edge: &Edge) -> bool {
    use ff_core::state::EdgeState;
    let open = matches!(edge.state, EdgeState::Staged | EdgeState::Unsatisfied);
    open && mirror.execution(edge.downstream).is_some_and(|downstream| !downstream.is_terminal())
}

/// What streams are at any moment, and that nothing is left of executions that are gone.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    for frame in mirror.all::<Frame>() {
        let head = mirror.get::<StreamHead>(&Key::stream_head(frame.execution, frame.index));
        findings.check(head.is_some_and(|head| frame.frame.id <= head.last_id), Invariant::FramesAreOrdered, || {
            format!("{}: frame {} beyond its head", frame.execution, frame.frame.id)
        });
    }
    mirror.all::<StreamHead>().for_each(|head| durable_stays(head, findings));
    mirror.all::<Summary>().for_each(|document| summary(mirror, document, findings));
    let traces = traces(mirror);
    findings.check(traces.is_empty(), Invariant::PurgeIsComplete, || format!("left behind: {traces:?}"));
}

/// What is left of executions that are gone.
fn traces(mirror: &Mirror) -> Vec<Key> {
    let gone = |id: ExecutionId| mirror.execution(id).is_none();
    let is_trace = |key: &Key, record: &Record| match &key.name {
        Name::Definition(id) | Name::Payload(id) | Name::Outcome(id) | Name::Progress(id) => gone(*id),
        Name::ExecutionTags(id) | Name::Attempt(id, _) | Name::AttemptUsage(id, _) | Name::Grant(id) => gone(*id),
        Name::StreamHead(id, _) | Name::Frame(id, _, _) | Name::Summary(id, _) => gone(*id),
        Name::Suspension(id, _) | Name::SignalTally(id) => gone(*id),
        Name::Step(id, _, _) | Name::StepHead(id) => gone(*id),
        Name::Waitpoint(_) => Waitpoint::of(record).is_some_and(|waitpoint| gone(waitpoint.execution)),
        Name::Signal(..) => Signal::of(record).is_some_and(|signal| gone(signal.execution)),
        // Groups are the flow's, and go with its last member.
        Name::EdgeGroup(id, _) => {
            gone(*id) && EdgeGroup::of(record).is_some_and(|group| mirror.flow(group.flow).is_none())
        }
        _ => false,
    };
    mirror.records().iter().filter(|(key, record)| is_trace(key, record)).map(|(key, _)| key.clone()).collect()
}
