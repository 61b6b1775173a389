//! Siblings of a decided group: cancelled one by one, then forgotten.

use async_trait::async_trait;
use ff_core::backend::dependencies::SiblingCancelReconcileAction;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{EdgeGroup, Execution};
use crate::store::{Op, Store, Tx};

/// Groups of one downstream that are looked at; only the latest few can owe anything.
const GROUPS: usize = 100;

pub(super) async fn drain<S: Store>(engine: &Engine<S>, flow: FlowId, downstream: ExecutionId) -> Result<()> {
    if downstream.partition() != engine.flow_home(flow) {
        return Ok(());
    }
    engine.run(Drain { flow, downstream, only_when_over: false }).await.map(drop)
}

pub(super) async fn reconcile<S: Store>(
    engine: &Engine<S>,
    flow: FlowId,
    downstream: ExecutionId,
) -> Result<SiblingCancelReconcileAction> {
    if downstream.partition() != engine.flow_home(flow) {
        return Ok(SiblingCancelReconcileAction::NoOp);
    }
    let drained = engine.run(Drain { flow, downstream, only_when_over: true }).await?;
    Ok(if drained { SiblingCancelReconcileAction::CompletedDrain } else { SiblingCancelReconcileAction::NoOp })
}

/// Forgets owed siblings; says whether any group owed some and owes none now.
struct Drain {
    flow: FlowId,
    downstream: ExecutionId,
    /// Leaves groups alone some of whose siblings are not over.
    only_when_over: bool,
}

#[async_trait]
impl Op for Drain {
    type Out = bool;

    fn home(&self) -> Partition {
        self.downstream.partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let index = Index::GroupsInto(self.downstream);
        let groups = tx.range_of::<EdgeGroup>(index, Bounds::last(GROUPS)).await?;
        let mut drained = false;
        for mut group in groups.into_iter().filter(|group| group.flow == self.flow && group.owes_cancellations()) {
            if self.only_when_over && !all_over(tx, &group).await? {
                continue;
            }
            group.drain();
            tx.put(group);
            drained = true;
        }
        Ok(drained)
    }
}

async fn all_over(tx: &mut dyn Tx, group: &EdgeGroup) -> Result<bool> {
    for sibling in group.sibling_cancel.iter().flat_map(|cancel| &cancel.siblings) {
        let sibling = tx.get::<Execution>(Key::execution(*sibling)).await?;
        if sibling.is_some_and(|sibling| !sibling.is_terminal()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes siblings off the list of a group after they were cancelled; the others are due again later.
pub(crate) struct Cancelled {
    pub(crate) downstream: ExecutionId,
    pub(crate) generation: u32,
    pub(crate) siblings: Vec<ExecutionId>,
    pub(crate) next_at: TimestampMs,
}

#[async_trait]
impl Op for Cancelled {
    type Out = ();

    fn home(&self) -> Partition {
        self.downstream.partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = Key::edge_group(self.downstream, self.generation);
        let Some(mut group) = tx.get::<EdgeGroup>(key).await? else { return Ok(()) };
        let Some(cancel) = &mut group.sibling_cancel else { return Ok(()) };
        cancel.siblings.retain(|sibling| !self.siblings.contains(sibling));
        cancel.pending = !cancel.siblings.is_empty();
        cancel.due_at = self.next_at;
        tx.put(group);
        Ok(())
    }
}
