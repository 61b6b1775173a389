//! Setting a tag.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::partition::Partition;
use ff_core::tag::validate_tag_count;

use crate::event::{Event, EventBody};
use crate::key::Key;
use crate::records::ExecutionTags;
use crate::store::{Op, Tx};

/// Sets one tag of an execution. Only the first tag ever touches the execution itself, so that tagging does not make its owner's
/// operations conflict.
pub(super) struct SetTag {
    pub(super) execution: ExecutionId,
    pub(super) key: String,
    pub(super) value: String,
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
        let namespace = tx.fence(self.execution).await?.namespace;
        let mut record = self.stored(tx).await?;
        if record.tags.get(&self.key) == Some(&self.value) {
            return Ok(());
        }
        record.tags.insert(self.key.clone(), self.value.clone());
        validate_tag_count(record.tags.len())?;
        record.updated_at = tx.now();
        self.announce(tx, namespace, record.tags.clone());
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
            body: EventBody::InstanceTag { key: self.key.clone(), value: self.value.clone() },
        });
    }
}
