//! An execution together with what its events carry.

use std::collections::BTreeMap;

use ff_core::backend::subscriptions::LeaseChange;
use ff_core::error::Entity;
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result};

use crate::draft::Draft;
use crate::event::{Event, EventBody};
use crate::key::Key;
use crate::records::{Execution, ExecutionTags, ProjectionMark};
use crate::store::Tx;

/// An execution and its tags, loaded to be changed.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) execution: Draft<Execution>,
    pub(crate) tags: BTreeMap<String, String>,
}

impl Subject {
    /// What an operation on the execution surely needs.
    pub(crate) fn keys(id: ExecutionId) -> Vec<Key> {
        vec![Key::execution(id), Key::execution_tags(id)]
    }

    /// The execution, if it exists.
    pub(crate) async fn find(tx: &mut dyn Tx, id: ExecutionId) -> Result<Option<Self>> {
        let Some(execution) = tx.draft(id).await? else { return Ok(None) };
        let tags = if execution.tagged {
            tx.get::<ExecutionTags>(Key::execution_tags(id)).await?.map(|record| record.tags).unwrap_or_default()
        } else {
            BTreeMap::new()
        };
        Ok(Some(Self { execution, tags }))
    }

    /// The execution, or `NotFound`.
    pub(crate) async fn load(tx: &mut dyn Tx, id: ExecutionId) -> Result<Self> {
        Self::find(tx, id).await?.ok_or(EngineError::not_found(Entity::Execution))
    }

    /// Appends an event about it.
    pub(crate) fn emit(&self, tx: &mut dyn Tx, body: EventBody) {
        tx.emit(Event {
            partition: self.execution.id.partition(),
            namespace: self.execution.namespace.clone(),
            execution_id: Some(self.execution.id),
            tags: self.tags.clone(),
            at: tx.now(),
            body,
        });
    }

    /// Appends an event about its ownership.
    pub(crate) fn emit_lease(&self, tx: &mut dyn Tx, change: LeaseChange) {
        self.emit(tx, EventBody::Lease(change));
    }

    /// Writes it, and asks for its flow to be projected anew.
    pub(crate) fn save(&self, tx: &mut dyn Tx) {
        if let Some(flow) = self.execution.flow_id {
            tx.put(ProjectionMark::for_change(self.execution.id.partition(), flow, Some(self.execution.id), tx.now()));
        }
        self.save_unprojected(tx);
    }

    /// Writes it after a change that no summary of its flow shows.
    pub(crate) fn save_unprojected(&self, tx: &mut dyn Tx) {
        tx.put_draft(&self.execution);
    }
}
