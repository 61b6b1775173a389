//! Executions come into being once.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::backend::ingress::CreateExecutionResult;
use ff_core::error::EngineError;
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::partition::Partition;
use ff_engine::records::Execution;

use super::{Findings, Pending, Step};
use crate::call::{Answer, Presents};
use crate::invariants::Invariant;

/// Keys that count, and until when.
#[derive(Default)]
pub(super) struct Memo {
    keys: BTreeMap<(Partition, Namespace, String), (ExecutionId, TimestampMs)>,
}

const CREATES: [&str; 2] = ["create_execution", "create_executions"];

pub(super) fn commit(step: &Step<'_>, memo: &mut Memo, findings: &mut Findings) {
    if !CREATES.contains(&step.op()) {
        return;
    }
    for (before, after) in step.changed::<Execution>() {
        let Some(after) = after else { continue };
        findings
            .check(before.is_none(), Invariant::CreatedOnce, || format!("{}: created over an existing one", after.id));
        let Some(Presents::Creation { namespace, key: Some(key), window_ms }) = step.call.map(|p| &p.call.presents)
        else {
            continue;
        };
        if *window_ms == 0 {
            continue;
        }
        let scope = (after.id.partition(), namespace.clone(), key.clone());
        let earlier = memo.keys.insert(scope, (after.id, step.now.plus(*window_ms)));
        let live = earlier.filter(|(_, until)| *until > step.now);
        findings.check(live.is_none(), Invariant::CreatedOnce, || {
            format!("{}: key {key:?} already made {live:?}", after.id)
        });
    }
}

pub(super) fn finish(pending: &Pending, answer: Answer<'_>, findings: &mut Findings) {
    if !CREATES.contains(&pending.call.op) {
        return;
    }
    if let Answer::Refused(EngineError::Validation { kind, detail }) = answer {
        findings.check(pending.writes == 0, Invariant::InvalidLeavesNoTrace, || {
            format!("a creation refused as {kind} ({detail}) wrote {} records", pending.writes)
        });
    }
    if let Some(CreateExecutionResult::Created { execution_id, .. }) = answer.is() {
        findings
            .check(pending.writes > 0, Invariant::CreatedOnce, || format!("{execution_id} was created by no commit"));
    }
}
