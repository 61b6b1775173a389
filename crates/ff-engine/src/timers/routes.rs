//! A worker came: what was parked for want of it is freed, a slice at a time.

use std::collections::BTreeSet;

use ff_core::ids::{LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Index, Position};
use crate::key::Key;
use crate::records::{Continuation, ContinuationWork};
use crate::scheduler::parking::{free_routes, held_routes, parked_routes};
use crate::scheduler::queue::{Seeker, covered_classes};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Who came to a lane.
#[derive(Clone, Copy)]
struct Newcomer<'a> {
    namespace: &'a Namespace,
    lane: &'a LaneId,
    capabilities: &'a BTreeSet<String>,
    kinds: Option<&'a BTreeSet<String>>,
}

/// Frees parked executions that a worker can serve: the first slice at once, the rest as continuations.
pub(crate) async fn open_route<S: Store>(
    engine: &Engine<S>,
    namespace: &Namespace,
    lanes: &BTreeSet<LaneId>,
    capabilities: &BTreeSet<String>,
    kinds: Option<&BTreeSet<String>>,
) -> Result<()> {
    for lane in lanes {
        let parked = parked_for(engine, Newcomer { namespace, lane, capabilities, kinds }).await?;
        if parked.is_empty() || engine.store.lowest(&parked, None).await?.is_none() {
            continue;
        }
        let now = engine.store.now().await?;
        let continuation = Continuation {
            home: Partition::GLOBAL,
            id: engine.uuid_at(now),
            work: ContinuationWork::OpenRoute {
                namespace: namespace.clone(),
                lane: lane.clone(),
                capabilities: capabilities.clone(),
                kinds: kinds.cloned(),
            },
            after: None,
            due_at: now,
        };
        engine.run(Begin { continuation: continuation.clone() }).await?;
        handle(engine, continuation, now).await?;
    }
    Ok(())
}

/// Where work waits that such a worker can do; other parked work is not looked at.
async fn parked_for<S: Store>(engine: &Engine<S>, newcomer: Newcomer<'_>) -> Result<Vec<Index>> {
    let Newcomer { namespace, lane, capabilities, kinds } = newcomer;
    let namespaces = BTreeSet::from([namespace.clone()]);
    let seeker = Seeker { lane, capabilities, namespaces: Some(&namespaces), kinds };
    let classes = covered_classes(engine, seeker).await?;
    let mut parked = parked_routes(&classes);
    parked.extend(held_routes(&classes));
    Ok(parked)
}

/// Frees one slice, then goes on later or is done. Says whether it is now further than it was.
pub(crate) async fn handle<S: Store>(
    engine: &Engine<S>,
    continuation: Continuation,
    _now: TimestampMs,
) -> Result<bool> {
    let ContinuationWork::OpenRoute { namespace, lane, capabilities, kinds } = &continuation.work else {
        return Ok(false);
    };
    let parked = parked_for(engine, Newcomer { namespace, lane, capabilities, kinds: kinds.as_ref() }).await?;
    let freed = free_routes(engine, &parked, continuation.after.clone(), engine.settings.slice).await?;
    let key = Key::continuation(continuation.home, continuation.id);
    changes(engine, key, Advance { continuation, next: freed.next }).await
}

struct Begin {
    continuation: Continuation,
}

#[async_trait::async_trait]
impl Op for Begin {
    type Out = ();

    fn home(&self) -> Partition {
        self.continuation.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.put(self.continuation.clone());
        Ok(())
    }
}

struct Advance {
    continuation: Continuation,
    next: Option<Position>,
}

#[async_trait::async_trait]
impl Op for Advance {
    type Out = ();

    fn home(&self) -> Partition {
        self.continuation.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::continuation(self.continuation.home, self.continuation.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = Key::continuation(self.continuation.home, self.continuation.id);
        let Some(stored) = tx.get::<Continuation>(key.clone()).await? else { return Ok(()) };
        // Somebody else went on from here.
        if stored.after != self.continuation.after {
            return Ok(());
        }
        match &self.next {
            Some(next) => tx.put(Continuation { after: Some(next.clone()), due_at: tx.now(), ..stored }),
            None => tx.delete(key),
        }
        Ok(())
    }
}
