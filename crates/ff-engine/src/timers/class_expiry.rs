//! A class of work that nothing came into for long is forgotten, unless it is in use.

use ff_core::partition::Partition;
use ff_core::state::PublicState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, LaneClass, Stored};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Live executions of the same kind looked at. Where there are more, the class is not worth the search.
const LOOKED_AT_MAX: usize = 200;

/// Forgets a class, or keeps it for another while. Says whether it did either.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: LaneClass, _now: TimestampMs) -> Result<bool> {
    let in_use = is_in_use(engine, &record).await?;
    changes(engine, record.key(), Expire { record, in_use }).await
}

/// Whether an execution that is not over belongs to the class: sooner or later it stands in its queue. One list shows it in whatever state
/// it is. What is over comes back only after it has made the class known again, and so does whatever is new.
async fn is_in_use<S: Store>(engine: &Engine<S>, record: &LaneClass) -> Result<bool> {
    let live = PublicState::ALL.iter().copied().filter(|state| !state.is_terminal());
    let indexes: Vec<Index> = live.map(|state| Index::KindState(record.class.kind.clone(), state)).collect();
    let found = engine.store.list(&indexes, &Bounds::first(LOOKED_AT_MAX)).await?;
    let belongs = |execution: &Execution| {
        execution.namespace == record.namespace && execution.lane == record.lane && execution.class == record.class
    };
    let is_full = found.len() == LOOKED_AT_MAX;
    Ok(is_full || found.into_iter().any(|listed| Execution::try_from(listed.record).is_ok_and(|it| belongs(&it))))
}

struct Expire {
    record: LaneClass,
    in_use: bool,
}

#[async_trait::async_trait]
impl Op for Expire {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![self.record.key()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        // Whoever came in since has said so.
        let stored = tx.get::<LaneClass>(self.record.key()).await?.filter(|stored| *stored == self.record);
        let Some(stored) = stored.filter(|stored| stored.expires_at().is_due(now)) else { return Ok(()) };
        if self.in_use {
            tx.put(LaneClass { used_at: now, ..stored });
        } else {
            tx.delete(stored.key());
        }
        Ok(())
    }
}
