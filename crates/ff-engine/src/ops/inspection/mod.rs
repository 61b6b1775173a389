//! Reads, lists, tags, search, and the answer to "why does nothing happen".

mod explain;
mod fields;
mod gates;
mod outcome;
mod search;
mod snapshot;
pub(super) mod tags;

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::backend::Inspection;
use ff_core::backend::inspection::{
    ExecutionContext, ExecutionInfo, ExecutionOutcome, ExecutionSnapshot, Explanation, LaneKey, ListExecutionsPage,
    ListLanesPage, PAGE_LIMIT_MAX, SearchArgs, SearchPage,
};
use ff_core::ids::{AttemptIndex, ExecutionId, FlowId, Namespace};
use ff_core::partition::{Partition, PartitionFamily, PartitionKey};
use ff_core::rules::waiting::check_wait_ms;
use ff_core::state::PublicState;
use ff_core::tag::validate_tag_key;
use ff_core::{Blob, EngineError, Result};

use tags::{SetTag, Tag};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position, pair_bytes};
use crate::key::Key;
use crate::records::{Execution, ExecutionTags, Lane, Outcome};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

#[async_trait]
impl<S: Store> Inspection for Engine<S> {
    async fn describe_execution(&self, execution_id: ExecutionId) -> Result<Option<ExecutionSnapshot>> {
        snapshot::describe(&self.store, execution_id).await
    }

    async fn read_execution_context(&self, execution_id: ExecutionId) -> Result<ExecutionContext> {
        snapshot::context(&self.store, execution_id).await
    }

    async fn read_current_attempt_index(&self, execution_id: ExecutionId) -> Result<AttemptIndex> {
        Ok(self.existing(execution_id).await?.attempt_index)
    }

    async fn read_total_attempt_count(&self, execution_id: ExecutionId) -> Result<u32> {
        Ok(self.existing(execution_id).await?.attempt_count)
    }

    async fn resolve_execution_flow_id(&self, execution_id: ExecutionId) -> Result<Option<FlowId>> {
        Ok(self.look_up(execution_id).await?.and_then(|execution| execution.flow_id))
    }

    async fn read_execution_state(&self, execution_id: ExecutionId) -> Result<Option<PublicState>> {
        Ok(self.look_up(execution_id).await?.map(|execution| execution.public_state()))
    }

    async fn read_execution_info(&self, execution_id: ExecutionId) -> Result<Option<ExecutionInfo>> {
        Ok(self.look_up(execution_id).await?.map(snapshot::info))
    }

    async fn get_execution_result(&self, execution_id: ExecutionId) -> Result<Option<Blob>> {
        let Some(execution) = self.look_up(execution_id).await? else { return Ok(None) };
        if !execution.has_result {
            return Ok(None);
        }
        let outcome: Option<Outcome> = read_one(&self.store, Key::outcome(execution_id)).await?;
        Ok(outcome.map(|outcome| outcome.result))
    }

    async fn await_outcome(&self, execution_id: ExecutionId, max_wait_ms: u64) -> Result<Option<ExecutionOutcome>> {
        check_wait_ms(max_wait_ms)?;
        outcome::wait_for(self, execution_id, max_wait_ms).await
    }

    async fn read_exec_core_fields(
        &self,
        execution_id: ExecutionId,
        names: &[&str],
    ) -> Result<BTreeMap<String, Option<String>>> {
        fields::read(&self.store, execution_id, names).await
    }

    async fn set_execution_tag(&self, execution_id: ExecutionId, key: &str, value: &str) -> Result<()> {
        let tag = Tag::new(key, value)?;
        self.check_partition(execution_id)?;
        self.run(SetTag { execution: execution_id, tag, owner: None }).await
    }

    async fn get_execution_tag(&self, execution_id: ExecutionId, key: &str) -> Result<Option<String>> {
        validate_tag_key(key)?;
        let tags: Option<ExecutionTags> = read_one(&self.store, Key::execution_tags(execution_id)).await?;
        Ok(tags.and_then(|mut record| record.tags.remove(key)))
    }

    async fn get_execution_namespace(&self, execution_id: ExecutionId) -> Result<Option<Namespace>> {
        Ok(self.look_up(execution_id).await?.map(|execution| execution.namespace))
    }

    async fn list_lanes(&self, cursor: Option<LaneKey>, limit: u32) -> Result<ListLanesPage> {
        let after = cursor.map(|key| Position::by(pair_bytes(key.namespace.as_str(), key.lane_id.as_str())));
        let found: Vec<Lane> = list_of(&self.store, Index::Lanes, page_and_one(limit).after(after)).await?;
        let keys = found.into_iter().map(|lane| LaneKey { namespace: lane.namespace, lane_id: lane.lane });
        let (lanes, next_cursor) = cut(keys.collect(), limit);
        Ok(ListLanesPage { lanes, next_cursor })
    }

    async fn list_executions(
        &self,
        partition: &PartitionKey,
        cursor: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ListExecutionsPage> {
        let home = self.partition_of(partition, PartitionFamily::Flow)?;
        let after = cursor.map(|id| Position::by(id.to_bytes()));
        let bounds = page_and_one(limit).after(after);
        let found: Vec<Execution> = list_of(&self.store, Index::ExecutionsIn(home), bounds).await?;
        let (executions, next_cursor) = cut(found.into_iter().map(|execution| execution.id).collect(), limit);
        Ok(ListExecutionsPage { executions, next_cursor })
    }

    async fn explain(&self, execution_id: ExecutionId) -> Result<Option<Explanation>> {
        explain::explain(self, execution_id).await
    }

    async fn search_executions(&self, args: SearchArgs) -> Result<SearchPage> {
        search::search(&self.store, &args).await
    }
}

/// Bounds for one page and the entry behind it, which tells whether there is more.
const fn page_and_one(limit: u32) -> Bounds {
    let limit = if limit > PAGE_LIMIT_MAX { PAGE_LIMIT_MAX } else { limit };
    Bounds::first(if limit == 0 { 0 } else { limit as usize + 1 })
}

/// A page of at most `limit`, and its last entry as the cursor when more was found.
fn cut<T: Clone>(mut found: Vec<T>, limit: u32) -> (Vec<T>, Option<T>) {
    let limit = usize::try_from(limit.min(PAGE_LIMIT_MAX)).unwrap_or(usize::MAX);
    let more = found.len() > limit;
    found.truncate(limit);
    let next = if more { found.last().cloned() } else { None };
    (found, next)
}

impl<S: Store> Engine<S> {
    async fn look_up(&self, id: ExecutionId) -> Result<Option<Execution>> {
        read_one(&self.store, Key::execution(id)).await
    }

    async fn existing(&self, id: ExecutionId) -> Result<Execution> {
        self.look_up(id).await?.ok_or_else(|| missing(id))
    }

    /// The partition a caller names, if it is of this family and exists.
    pub(crate) fn partition_of(&self, key: &PartitionKey, family: PartitionFamily) -> Result<Partition> {
        let partition = key.parse()?;
        if partition.family() != family {
            return Err(EngineError::invalid(format_args!("partition {partition} is of another family")));
        }
        self.check_known(partition)?;
        Ok(partition)
    }
}

/// The refusal of reads that only follow a claim.
fn missing(id: ExecutionId) -> EngineError {
    EngineError::invalid(format_args!("execution {id} does not exist"))
}
