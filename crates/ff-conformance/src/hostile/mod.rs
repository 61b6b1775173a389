//! What nobody should send: every facet refuses it with the right word, and nothing changes.

mod handles;
mod ids;
mod numbers;
mod strings;

use std::collections::BTreeMap;

use ff_core::Result;
use ff_core::backend::inspection::{ExecutionSnapshot, ExecutionSummary, LaneKey, SearchArgs};
use ff_core::backend::streams::StreamFrames;
use ff_core::backend::workers::{ListWorkersArgs, WorkerInfo};
use ff_core::cursor::FrameCursor;
use ff_core::ids::{AttemptIndex, ExecutionId};

use crate::{Case, World};

pub(crate) fn cases() -> Vec<Case> {
    [handles::cases(), strings::cases(), ids::cases(), numbers::cases()].into_iter().flatten().collect()
}

/// Everything a reader can see of a small world.
#[derive(Debug, PartialEq)]
struct Picture {
    executions: Vec<ExecutionSummary>,
    lanes: Vec<LaneKey>,
    workers: Vec<WorkerInfo>,
    described: Option<ExecutionSnapshot>,
    fields: BTreeMap<String, Option<String>>,
    stream: StreamFrames,
}

/// What is there, with one execution in detail.
async fn picture(world: &World, id: ExecutionId) -> Picture {
    let backend = &world.backend;
    let names =
        ["progress_percent", "lease_epoch", "lease_expires_at", "retry_count", "suspension_count", "delay_until"];
    Picture {
        executions: backend.search_executions(SearchArgs::default()).await.unwrap().entries,
        lanes: backend.list_lanes(None, 1000).await.unwrap().lanes,
        workers: backend.list_workers(ListWorkersArgs::default()).await.unwrap().entries,
        described: backend.describe_execution(id).await.unwrap(),
        fields: backend.read_exec_core_fields(id, &names).await.unwrap(),
        stream: backend.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 100).await.unwrap(),
    }
}

/// The code of a refusal; a panic that shows what came instead.
#[track_caller]
fn code<T: std::fmt::Debug>(what: &str, answer: Result<T>) -> &'static str {
    match answer {
        Err(error) => error.code(),
        Ok(answer) => panic!("{what}: expected a refusal, got {answer:?}"),
    }
}
