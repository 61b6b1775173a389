//! Tags of flows, kept apart from everything the engine decides upon.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::ids::FlowId;
use ff_core::partition::Partition;
use ff_core::tag::{validate_tag_count, validate_tag_key, validate_tag_value};

use crate::engine::Engine;
use crate::event::{Event, EventBody};
use crate::key::Key;
use crate::records::{Flow, FlowTags};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

pub(super) async fn set<S: Store>(engine: &Engine<S>, flow: FlowId, key: &str, value: &str) -> Result<()> {
    validate_tag_key(key)?;
    validate_tag_value(value)?;
    let home = engine.flow_home(flow);
    engine.run(SetTag { home, flow, key: key.to_owned(), value: value.to_owned() }).await
}

pub(super) async fn get<S: Store>(engine: &Engine<S>, flow: FlowId, key: &str) -> Result<Option<String>> {
    validate_tag_key(key)?;
    let tags: Option<FlowTags> = read_one(&engine.store, Key::flow_tags(engine.flow_home(flow), flow)).await?;
    Ok(tags.and_then(|mut tags| tags.tags.remove(key)))
}

struct SetTag {
    home: Partition,
    flow: FlowId,
    key: String,
    value: String,
}

#[async_trait]
impl Op for SetTag {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.flow), Key::flow_tags(self.home, self.flow)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        let mut flow = tx.flow(self.home, self.flow).await?;
        let stored = tx.get::<FlowTags>(Key::flow_tags(self.home, self.flow)).await?;
        let mut tags = stored.map(|record| record.tags).unwrap_or_default();
        if tags.insert(self.key.clone(), self.value.clone()).as_ref() == Some(&self.value) {
            return Ok(());
        }
        validate_tag_count(tags.len())?;
        flow.last_mutation_at = now;
        let set = BTreeMap::from([(self.key.clone(), self.value.clone())]);
        emit_attached(tx, &flow, &tags, &set);
        tx.put(flow);
        tx.put(FlowTags { home: self.home, flow: self.flow, tags, updated_at: now });
        Ok(())
    }
}

/// The tags of a flow, none when it has none.
pub(super) async fn read<S: Store>(engine: &Engine<S>, flow: FlowId) -> Result<BTreeMap<String, String>> {
    let tags: Option<FlowTags> = read_one(&engine.store, Key::flow_tags(engine.flow_home(flow), flow)).await?;
    Ok(tags.map(|record| record.tags).unwrap_or_default())
}

/// Tells that tags were set on a flow that has all of `tags` now.
pub(super) fn emit_attached(
    tx: &mut dyn Tx,
    flow: &Flow,
    tags: &BTreeMap<String, String>,
    set: &BTreeMap<String, String>,
) {
    for (key, value) in set {
        tx.emit(Event {
            partition: flow.home,
            namespace: flow.namespace.clone(),
            execution_id: None,
            tags: tags.clone(),
            at: tx.now(),
            body: EventBody::InstanceTag { key: key.clone(), value: value.clone() },
        });
    }
}
