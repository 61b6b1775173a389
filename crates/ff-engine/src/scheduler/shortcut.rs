//! A claim in one transaction, on a store whose transactions look at all partitions.
//!
//! It takes what stands at the head of open queues. Whatever calls for more (a policy to ask, a lost lease to reclaim, work that nobody can
//! take to put aside) is left to the general way.

use std::collections::BTreeSet;

use ff_core::error::EngineError;
use ff_core::ids::{LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use uuid::Uuid;

use super::classes::Walk;
use super::coverage::InGoodHands;
use super::grants::{Holder, live_grant};
use super::hunt::{Catch, FRUITLESS_MAX, Prize, Secure, Seeker};
use super::parking::{eligible_index, parked_routes};
use super::queue::{Queues, lane_keys};
use crate::index::{Bounds, Index};
use crate::records::{Execution, Record};
use crate::store::{Op, Reach, Tx};

/// Pages of classes that one transaction reads. Where more concern a worker, the general way is better.
const PAGES_MAX: usize = 5;

/// What the short way came to.
#[derive(Default)]
pub(super) struct Taken {
    /// What was taken, best first; nothing means that the general way is to be tried.
    pub(super) caught: Vec<Catch>,
    /// Whether kinds that the worker does not handle were passed over.
    pub(super) is_partial: bool,
    /// Whether nothing was taken because nothing waits: the general way would find nothing either.
    pub(super) is_all_quiet: bool,
}

/// Where to look.
struct Places {
    /// Queues to take from.
    queues: Vec<Index>,
    /// Where work is parked for want of such a worker, to be freed in the general way.
    parked: Vec<Index>,
    /// Whether classes were passed over.
    is_partial: bool,
}

/// Takes what stands at the heads of a lane's queues.
pub(super) struct TakeHeads {
    pub(super) lane: LaneId,
    pub(super) namespaces: Option<BTreeSet<Namespace>>,
    pub(super) kinds: Option<BTreeSet<String>>,
    /// Work of others that need not be looked at.
    pub(super) in_good_hands: InGoodHands,
    pub(super) holder: Holder,
    pub(super) prize: Prize,
    /// Until then an admission would hold.
    pub(super) until: TimestampMs,
    /// Identities of a lease and an attempt, for as many as are wanted.
    pub(super) ids: Vec<(Uuid, Uuid)>,
}

#[async_trait::async_trait]
impl Op for TakeHeads {
    type Out = Taken;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Taken> {
        match self.places(tx).await {
            Ok(Some(Places { queues, parked, is_partial })) => {
                let (caught, is_empty) = self.take(tx, &queues).await?;
                let is_all_quiet = is_empty && !is_partial && is_quiet(tx, &parked).await?;
                Ok(Taken { caught, is_partial, is_all_quiet })
            }
            Ok(None) => Ok(Taken::default()),
            // The general way goes round what does not decode.
            Err(EngineError::Validation { .. }) => Ok(Taken::default()),
            Err(error) => Err(error),
        }
    }
}

impl TakeHeads {
    /// Where to look, if nothing but the order of queues decides.
    async fn places(&self, tx: &mut dyn Tx) -> Result<Option<Places>> {
        let seeker = Seeker {
            lane: &self.lane,
            capabilities: &self.holder.capabilities,
            namespaces: self.namespaces.as_ref(),
            kinds: self.kinds.as_ref(),
        };
        let mut walk = Walk::new(seeker);
        for _ in 0..PAGES_MAX {
            let Some(bounds) = walk.bounds() else { break };
            let page = tx.list(&[walk.index()], &bounds).await?;
            walk.take(page);
        }
        if walk.bounds().is_some() {
            return Ok(None);
        }
        let is_partial = walk.is_partial;
        let classes = walk.found();
        let lanes = tx.load(&lane_keys(&self.lane, &classes)).await?;
        let queues = Queues::assorted(seeker, classes, lanes);
        let now = tx.now();
        let neglected = queues.uncovered.iter().filter(|class| !self.in_good_hands.has(class, now));
        let unroutable: Vec<Index> = neglected.map(eligible_index).collect();
        let is_simple = queues.gates().is_empty() && is_quiet(tx, &unroutable).await?;
        Ok(is_simple.then(|| Places {
            queues: queues.indexes(&BTreeSet::new()),
            parked: parked_routes(&queues.open),
            is_partial,
        }))
    }

    /// What was taken, and whether nothing stood there.
    async fn take(&self, tx: &mut dyn Tx, indexes: &[Index]) -> Result<(Vec<Catch>, bool)> {
        let mut caught = Vec::new();
        let mut is_empty = true;
        let mut fruitless = 0;
        let mut after = None;
        while caught.len() < self.ids.len() && fruitless < FRUITLESS_MAX && !indexes.is_empty() {
            let bounds = Bounds::first(self.ids.len() - caught.len()).after(after);
            let heads = match tx.list(indexes, &bounds).await {
                Err(EngineError::Validation { .. }) => return Ok((caught, false)),
                heads => heads?,
            };
            after = heads.last().map(|head| head.position.clone());
            if after.is_none() {
                break;
            }
            is_empty = false;
            let is_last = heads.len() < bounds.limit;
            for head in heads {
                let Record::Execution(candidate) = head.record else { return Ok((caught, false)) };
                if candidate.is_lost() || candidate.needs_admission() {
                    return Ok((caught, false));
                }
                match self.secure(tx, &candidate, self.ids[caught.len()]).await? {
                    Some(catch) => caught.push(catch),
                    None => fruitless += 1,
                }
            }
            if is_last {
                break;
            }
        }
        Ok((caught, is_empty))
    }

    async fn secure(&self, tx: &mut dyn Tx, candidate: &Execution, ids: (Uuid, Uuid)) -> Result<Option<Catch>> {
        if live_grant(tx, candidate.id).await?.is_some() {
            return Ok(None);
        }
        let secure = Secure {
            execution: candidate.id,
            epoch: candidate.epoch,
            holder: self.holder.clone(),
            prize: self.prize,
            until: self.until,
            first: ids.0,
            second: ids.1,
        };
        secure.run(tx).await
    }
}

/// Whether nothing stands in any of these places.
async fn is_quiet(tx: &mut dyn Tx, places: &[Index]) -> Result<bool> {
    Ok(places.is_empty() || tx.list(places, &Bounds::first(1)).await?.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::backend::ingress::CreateExecutionArgs;
    use ff_core::backend::workers::RegisterWorkerArgs;
    use ff_core::backend::{Ingress, Workers};
    use ff_core::ids::{WorkerId, WorkerInstanceId};

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::{Engine, Settings};
    use crate::memory::MemoryStore;
    use crate::records::LaneClass;
    use crate::scheduler::classes::walk;
    use crate::scheduler::hunt::hunt;
    use crate::scheduler::parking::park_unroutable;
    use crate::store::Store;

    struct Scene {
        engine: Engine<MemoryStore>,
        clock: ManualClock,
        holder: Holder,
        mail: BTreeSet<String>,
        lane: LaneId,
    }

    const PRIZE: Prize = Prize::Lease { ttl_ms: 30_000 };

    impl Scene {
        async fn open() -> Self {
            let clock = ManualClock::at(TimestampMs(1_700_000_000_000));
            let store = MemoryStore::new(Arc::new(clock.clone())).spanning_partitions();
            Self {
                engine: Engine::open(store, Settings::default()).await.unwrap(),
                clock,
                holder: Holder {
                    worker_id: WorkerId::new("w").unwrap(),
                    worker_instance_id: WorkerInstanceId::new("w-1").unwrap(),
                    capabilities: BTreeSet::new(),
                },
                mail: ["mail".to_owned()].into(),
                lane: LaneId::new("default").unwrap(),
            }
        }

        async fn submit(&self, kind: &str) {
            let args = CreateExecutionArgs::new(None, namespace(), self.lane.clone(), kind);
            self.engine.create_execution(args).await.unwrap();
        }

        async fn register(&self, kind: &str) {
            let args = RegisterWorkerArgs {
                worker_id: WorkerId::new(kind).unwrap(),
                worker_instance_id: WorkerInstanceId::new(kind).unwrap(),
                namespace: namespace(),
                lanes: [self.lane.clone()].into(),
                capabilities: BTreeSet::new(),
                kinds: Some([kind.to_owned()].into()),
                liveness_ttl_ms: 60_000,
            };
            self.engine.register_worker(args).await.unwrap();
        }

        /// Whether somebody who handles mail gets it the short way.
        async fn takes_mail_at_once(&self) -> bool {
            !self.look_for_mail().await.caught.is_empty()
        }

        async fn look_for_mail(&self) -> Taken {
            let now = self.engine.store.now().await.unwrap();
            let shortcut = TakeHeads {
                lane: self.lane.clone(),
                namespaces: None,
                kinds: Some(self.mail.clone()),
                in_good_hands: self.engine.hands.known(),
                holder: self.holder.clone(),
                prize: PRIZE,
                until: now.plus(5_000),
                ids: vec![(self.engine.uuid_at(now), self.engine.uuid_at(now))],
            };
            self.engine.run(shortcut).await.unwrap()
        }

        /// Whether somebody who handles mail gets it at all.
        async fn takes_mail(&self) -> bool {
            let seeker = Seeker {
                lane: &self.lane,
                capabilities: &self.holder.capabilities,
                namespaces: None,
                kinds: Some(&self.mail),
            };
            !hunt(&self.engine, seeker, &self.holder, PRIZE, 1).await.unwrap().caught.is_empty()
        }
    }

    fn namespace() -> Namespace {
        Namespace::new("acme").unwrap()
    }

    #[tokio::test]
    async fn work_in_good_hands_does_not_bar_the_short_way() {
        let scene = Scene::open().await;
        scene.register("bill").await;
        for kind in ["bill", "mail", "mail", "mail"] {
            scene.submit(kind).await;
        }
        assert!(!scene.takes_mail_at_once().await, "nobody knows yet who serves the other kind");
        assert!(scene.takes_mail().await);
        assert!(scene.takes_mail_at_once().await);
        scene.clock.advance(1_000);
        assert!(!scene.takes_mail_at_once().await, "it is to be looked at again now and then");
        assert!(scene.takes_mail().await);
    }

    #[tokio::test]
    async fn work_that_was_parked_does_not_bar_the_short_way() {
        let scene = Scene::open().await;
        for kind in ["bill", "mail", "mail"] {
            scene.submit(kind).await;
        }
        assert!(!scene.takes_mail_at_once().await, "nobody serves the other kind, which is to be told");
        assert!(scene.takes_mail().await);
        assert!(scene.takes_mail_at_once().await);
    }

    #[tokio::test]
    async fn the_short_way_knows_when_the_general_way_would_find_nothing() {
        let scene = Scene::open().await;
        assert!(scene.look_for_mail().await.is_all_quiet);
        scene.submit("mail").await;
        assert!(!scene.look_for_mail().await.is_all_quiet, "it was there and is taken");
        assert!(scene.look_for_mail().await.is_all_quiet);
        scene.submit("bill").await;
        assert!(!scene.look_for_mail().await.is_all_quiet, "somebody is to look who could do it");
    }

    #[tokio::test]
    async fn parked_work_is_left_to_the_general_way() {
        let scene = Scene::open().await;
        scene.submit("mail").await;
        park_unroutable(&scene.engine, &walk_lane(&scene).await).await.unwrap();
        let look = scene.look_for_mail().await;
        assert!(look.caught.is_empty() && !look.is_all_quiet);
        assert!(scene.takes_mail().await);
    }

    async fn walk_lane(scene: &Scene) -> Vec<LaneClass> {
        let seeker =
            Seeker { lane: &scene.lane, capabilities: &scene.holder.capabilities, namespaces: None, kinds: None };
        walk(&scene.engine, seeker).await.unwrap()
    }
}
