//! Reads, lists, tags, search, and the answer to "why does nothing happen".

mod explain;
#[cfg(test)]
pub(crate) mod forwarding;
mod search;
mod snapshots;

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::backend::layer::forward;
use crate::blob::Blob;
use crate::error::{EngineError, Result};
use crate::ids::{AttemptIndex, ExecutionId, FlowId, Namespace};
use crate::partition::PartitionKey;
use crate::state::PublicState;

pub use explain::{Explanation, Reason};
pub use search::{
    ExecutionSummary, LaneKey, ListExecutionsPage, ListLanesPage, SearchArgs, SearchCursor, SearchPage, TagPair,
};
pub use snapshots::{
    AttemptSummary, ExecutionContext, ExecutionInfo, ExecutionOutcome, ExecutionSnapshot, LeaseSummary,
};

/// Most entries of any listing or search page; a larger limit counts as this one.
pub const PAGE_LIMIT_MAX: u32 = 1000;

/// Shows executions without changing them, and keeps their tags.
#[async_trait]
pub trait Inspection: Send + Sync {
    /// Everything a person wants to see at a glance; none when the execution is missing.
    async fn describe_execution(&self, execution_id: ExecutionId) -> Result<Option<ExecutionSnapshot>>;

    /// What a handler needs to start. `InvalidInput` when the execution is missing, since a claim came before.
    async fn read_execution_context(&self, execution_id: ExecutionId) -> Result<ExecutionContext>;

    /// The current attempt, 0 before the first claim. `InvalidInput` when the execution is missing.
    async fn read_current_attempt_index(&self, execution_id: ExecutionId) -> Result<AttemptIndex> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "read_current_attempt_index" })
    }

    /// How many attempts were ever created. `InvalidInput` when the execution is missing.
    async fn read_total_attempt_count(&self, execution_id: ExecutionId) -> Result<u32> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "read_total_attempt_count" })
    }

    /// The flow of an execution; none when it is standalone or missing.
    async fn resolve_execution_flow_id(&self, execution_id: ExecutionId) -> Result<Option<FlowId>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "resolve_execution_flow_id" })
    }

    /// The public state; none when the execution is missing.
    async fn read_execution_state(&self, execution_id: ExecutionId) -> Result<Option<PublicState>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "read_execution_state" })
    }

    /// The full view with every state dimension; none when the execution is missing.
    async fn read_execution_info(&self, execution_id: ExecutionId) -> Result<Option<ExecutionInfo>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "read_execution_info" })
    }

    /// The result of a completed execution; none when it is missing, not completed, or completed without one.
    async fn get_execution_result(&self, execution_id: ExecutionId) -> Result<Option<Blob>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "get_execution_result" })
    }

    /// What the execution came to, waiting up to `max_wait_ms` until it is over: woken by the commit that ends it. None when it is not
    /// over by then (0 means not to wait), or when this process shuts down. One that a transaction of its caller has committed and that is not yet
    /// taken in is not over.
    ///
    /// Errors in order: `InvalidInput` for a wait of more than 30 seconds, `NotFound(execution)`.
    async fn await_outcome(&self, execution_id: ExecutionId, max_wait_ms: u64) -> Result<Option<ExecutionOutcome>> {
        let _ = (execution_id, max_wait_ms);
        Err(EngineError::Unavailable { op: "await_outcome" })
    }

    /// Stored fields as text, one entry per name; unknown names and fields of a missing execution are none.
    async fn read_exec_core_fields(
        &self,
        execution_id: ExecutionId,
        names: &[&str],
    ) -> Result<BTreeMap<String, Option<String>>> {
        let _ = (execution_id, names);
        Err(EngineError::Unavailable { op: "read_exec_core_fields" })
    }

    /// Sets one tag; repeating changes nothing. `InvalidInput` for a bad key or value before anything is read, then
    /// `NotFound`.
    async fn set_execution_tag(&self, execution_id: ExecutionId, key: &str, value: &str) -> Result<()> {
        let _ = (execution_id, key, value);
        Err(EngineError::Unavailable { op: "set_execution_tag" })
    }

    /// One tag; none when it or the execution is missing. `InvalidInput` for a bad key before anything
    /// is read.
    async fn get_execution_tag(&self, execution_id: ExecutionId, key: &str) -> Result<Option<String>> {
        let _ = (execution_id, key);
        Err(EngineError::Unavailable { op: "get_execution_tag" })
    }

    /// The namespace; none when the execution is missing.
    async fn get_execution_namespace(&self, execution_id: ExecutionId) -> Result<Option<Namespace>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "get_execution_namespace" })
    }

    /// Every lane ever used or registered, ordered by namespace and name, strictly after `cursor`. A limit of 0 yields
    /// an empty page.
    async fn list_lanes(&self, cursor: Option<LaneKey>, limit: u32) -> Result<ListLanesPage> {
        let _ = (cursor, limit);
        Err(EngineError::Unavailable { op: "list_lanes" })
    }

    /// The executions of one partition in order of id, strictly after `cursor`. A limit of 0 yields an empty page; an
    /// id is never listed twice. `InvalidInput` for a malformed partition.
    async fn list_executions(
        &self,
        partition: &PartitionKey,
        cursor: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ListExecutionsPage> {
        let _ = (partition, cursor, limit);
        Err(EngineError::Unavailable { op: "list_executions" })
    }

    /// Why the execution is where it is, most decisive reason first; none when it is missing.
    async fn explain(&self, execution_id: ExecutionId) -> Result<Option<Explanation>> {
        let _ = execution_id;
        Err(EngineError::Unavailable { op: "explain" })
    }

    /// Executions that match every given filter, newest first. A short page with a cursor means that the scan budget
    /// ran out, not that nothing follows. `InvalidInput` for a cursor of another search.
    async fn search_executions(&self, args: SearchArgs) -> Result<SearchPage> {
        let _ = args;
        Err(EngineError::Unavailable { op: "search_executions" })
    }
}

forward! { Inspection,
    describe_execution(execution_id: ExecutionId) -> Option<ExecutionSnapshot> => Safe;
    read_execution_context(execution_id: ExecutionId) -> ExecutionContext => Safe;
    read_current_attempt_index(execution_id: ExecutionId) -> AttemptIndex => Safe;
    read_total_attempt_count(execution_id: ExecutionId) -> u32 => Safe;
    resolve_execution_flow_id(execution_id: ExecutionId) -> Option<FlowId> => Safe;
    read_execution_state(execution_id: ExecutionId) -> Option<PublicState> => Safe;
    read_execution_info(execution_id: ExecutionId) -> Option<ExecutionInfo> => Safe;
    get_execution_result(execution_id: ExecutionId) -> Option<Blob> => Safe;
    await_outcome(execution_id: ExecutionId, max_wait_ms: u64) -> Option<ExecutionOutcome> => Safe;
    read_exec_core_fields(execution_id: ExecutionId, names: &[&str]) -> BTreeMap<String, Option<String>> => Safe;
    set_execution_tag(execution_id: ExecutionId, key: &str, value: &str) -> () => Safe;
    get_execution_tag(execution_id: ExecutionId, key: &str) -> Option<String> => Safe;
    get_execution_namespace(execution_id: ExecutionId) -> Option<Namespace> => Safe;
    list_lanes(cursor: Option<LaneKey>, limit: u32) -> ListLanesPage => Safe;
    list_executions(partition: &PartitionKey, cursor: Option<ExecutionId>, limit: u32) -> ListExecutionsPage => Safe;
    explain(execution_id: ExecutionId) -> Option<Explanation> => Safe;
    search_executions(args: SearchArgs) -> SearchPage => Safe;
}

#[cfg(test)]
mod tests {
    use super::forwarding::{any_execution, assert_forwards};
    use super::*;

    struct Bare;

    #[async_trait]
    impl Inspection for Bare {
        async fn describe_execution(&self, _: ExecutionId) -> Result<Option<ExecutionSnapshot>> {
            Err(EngineError::Unavailable { op: "describe_execution" })
        }

        async fn read_execution_context(&self, _: ExecutionId) -> Result<ExecutionContext> {
            Err(EngineError::Unavailable { op: "read_execution_context" })
        }
    }

    #[test]
    fn a_layer_sees_every_operation_and_the_defaults_name_themselves() {
        let id = any_execution();
        assert_forwards!(
            Bare,
            describe_execution(id),
            read_execution_context(id),
            read_current_attempt_index(id),
            read_total_attempt_count(id),
            resolve_execution_flow_id(id),
            read_execution_state(id),
            read_execution_info(id),
            get_execution_result(id),
            await_outcome(id, 0),
            read_exec_core_fields(id, &["lane_id"]),
            set_execution_tag(id, "app.key", "value"),
            get_execution_tag(id, "app.key"),
            get_execution_namespace(id),
            list_lanes(None, 1),
            list_executions(&PartitionKey("{fp:1}".into()), None, 1),
            explain(id),
            search_executions(SearchArgs::default()),
        );
    }
}
