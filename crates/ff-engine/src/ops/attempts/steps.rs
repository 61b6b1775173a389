//! The attempt remembers values for those that come after it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::backend::attempts::{STEPS_BYTES_MAX, STEPS_MAX};
use ff_core::error::{Entity, ValidationKind};
use ff_core::handle::HandlePayload;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::rules::fence::check_light;
use ff_core::{Blob, EngineError, Result};

use super::check_size;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::records::{Execution, Step, StepHead};
use crate::store::{Op, Store, Tx};
use crate::verbs::{list_of, read_one};

/// Steps read at once.
const PAGE: usize = 100;

pub(super) struct SaveStep {
    pub(super) owner: HandlePayload,
    pub(super) name: String,
    pub(super) value: Blob,
    pub(super) value_bytes_max: usize,
}

#[async_trait]
impl Op for SaveStep {
    /// What is remembered under the name.
    type Out = Blob;

    fn home(&self) -> Partition {
        self.owner.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.owner.execution_id;
        vec![Key::fence(id), Key::step_head(id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Blob> {
        let id = self.owner.execution_id;
        let fence = tx.fence(id).await?;
        check_light(&stored_ownership(&fence), self.owner.fence(), Some(self.owner.attempt_index), tx.now())?;
        let life = fence.replay_count;
        if let Some(step) = tx.get::<Step>(Key::step(id, life, self.name.clone())).await? {
            return Ok(step.value);
        }
        check_size("step", Some(&self.value), self.value_bytes_max)?;
        let mut head = StepHead::of_life(tx.get::<StepHead>(Key::step_head(id)).await?, id, life);
        if head.count >= STEPS_MAX {
            return Err(EngineError::invalid(format_args!("too_many_steps: at most {STEPS_MAX}")));
        }
        head.count += 1;
        head.bytes = head.bytes.saturating_add(u64::try_from(self.value.len()).unwrap_or(u64::MAX));
        if head.bytes > STEPS_BYTES_MAX {
            return Err(EngineError::validation(
                ValidationKind::PayloadTooLarge,
                format_args!("steps: {} bytes together with this one, at most {STEPS_BYTES_MAX}", head.bytes),
            ));
        }
        tx.put(head);
        let (name, value) = (self.name.clone(), self.value.clone());
        tx.put(Step { execution: id, life, name, value, saved_at: tx.now() });
        Ok(self.value.clone())
    }
}

/// Everything remembered in the current life of an execution.
pub(super) async fn read<S: Store>(store: &S, id: ExecutionId) -> Result<BTreeMap<String, Blob>> {
    let execution: Option<Execution> = read_one(store, Key::execution(id)).await?;
    let life = execution.ok_or(EngineError::not_found(Entity::Execution))?.replay_count;
    let mut steps = BTreeMap::new();
    let mut after = Some(Position::end_of(i64::from(life) - 1));
    loop {
        let bounds = Bounds::first(PAGE).after(after).until(Position::end_of(i64::from(life)));
        let page: Vec<Step> = list_of(store, Index::StepsOf(id), bounds).await?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|step| Position::new(i64::from(life), &step.name));
        steps.extend(page.into_iter().map(|step| (step.name, step.value)));
        if is_last {
            return Ok(steps);
        }
    }
}
