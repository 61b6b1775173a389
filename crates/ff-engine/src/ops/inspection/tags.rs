//! Setting a tag.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::handle::HandlePayload;
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::partition::Partition;
use ff_core::rules::fence::check_light;
use ff_core::tag::{validate_tag_count, validate_tag_key, validate_tag_value};

use crate::event::{Event, EventBody};
use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::records::ExecutionTags;
use crate::store::{Op, Tx};

/// Sets one tag of an execution. Only the first tag ever touches the execution itself, so that tagging does not make its owner's
/// operations conflict.
pub(in crate::ops) struct SetTag {
    pub(in crate::ops) execution: ExecutionId,
    pub(in crate::ops) tag: Tag,
    /// Who must own the execution, if that matters.
    pub(in crate::ops) owner: Option<HandlePayload>,
}

/// A tag whose key and value are allowed.
pub(in crate::ops) struct Tag {
    key: String,
    value: String,
}

impl Tag {
    pub(in crate::ops) fn new(key: &str, value: &str) -> Result<Self> {
        validate_tag_key(key)?;
        validate_tag_value(value)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

#[async_trait]
impl Op for SetTag {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::execution_tags(self.execution), Key::fence(self.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let fence = tx.fence(self.execution).await?;
        if let Some(owner) = &self.owner {
            check_light(&stored_ownership(&fence), owner.fence(), Some(owner.attempt_index), tx.now())?;
        }
        let mut record = self.stored(tx).await?;
        let Tag { key, value } = &self.tag;
        if record.tags.get(key) == Some(value) {
            return Ok(());
        }
        record.tags.insert(key.clone(), value.clone());
        validate_tag_count(record.tags.len())?;
        record.updated_at = tx.now();
        self.announce(tx, fence.namespace, record.tags.clone());
        tx.put(record);
        Ok(())
    }
}

impl SetTag {
    async fn stored(&self, tx: &mut dyn Tx) -> Result<ExecutionTags> {
        if let Some(record) = tx.get::<ExecutionTags>(Key::execution_tags(self.execution)).await? {
            return Ok(record);
        }
        let mut execution = tx.execution(self.execution).await?;
        let created_at = execution.created_at;
        if !execution.tagged {
            execution.tagged = true;
            tx.put(execution);
        }
        Ok(ExecutionTags { execution: self.execution, created_at, tags: BTreeMap::new(), updated_at: tx.now() })
    }

    fn announce(&self, tx: &mut dyn Tx, namespace: Namespace, tags: BTreeMap<String, String>) {
        tx.emit(Event {
            partition: self.execution.partition(),
            namespace,
            execution_id: Some(self.execution),
            tags,
            at: tx.now(),
            body: EventBody::InstanceTag { key: self.tag.key.clone(), value: self.tag.value.clone() },
        });
    }
}
