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

use super::coverage::InGoodHands;
use super::grants::{Holder, live_grant};
use super::hunt::{Catch, FRUITLESS_MAX, Prize, Secure, Seeker};
use super::parking::eligible_index;
use super::queue::{CLASSES_PAGE, Queues, lane_keys};
use crate::index::{Bounds, Index};
use crate::records::{Execution, LaneClass};
use crate::store::{Op, Reach, Tx};

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
    /// What was taken, best first; nothing means that the general way is to be tried.
    type Out = Vec<Catch>;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Vec<Catch>> {
        match self.queues(tx).await {
            Ok(Some(indexes)) => self.take(tx, &indexes).await,
            Ok(None) => Ok(Vec::new()),
            // The general way goes round what does not decode.
            Err(EngineError::Validation { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

impl TakeHeads {
    /// The queues to take from, if nothing but their order decides.
    async fn queues(&self, tx: &mut dyn Tx) -> Result<Option<Vec<Index>>> {
        let seeker = Seeker {
            lane: &self.lane,
            capabilities: &self.holder.capabilities,
            namespaces: self.namespaces.as_ref(),
            kinds: self.kinds.as_ref(),
        };
        let listed = tx.list(&[Index::ClassesOfLane(self.lane.clone())], &Bounds::first(CLASSES_PAGE)).await?;
        if listed.len() == CLASSES_PAGE {
            return Ok(None);
        }
        let classes: Vec<LaneClass> = listed
            .into_iter()
            .filter_map(|listed| LaneClass::try_from(listed.record).ok())
            .filter(|class| seeker.wants(class))
            .collect();
        let lanes = tx.load(&lane_keys(&self.lane, &classes)).await?;
        let queues = Queues::assorted(seeker, classes, lanes);
        let now = tx.now();
        let neglected = queues.uncovered.iter().filter(|class| !self.in_good_hands.has(class, now));
        let unroutable: Vec<Index> = neglected.map(eligible_index).collect();
        let nobody_waits_in_vain = unroutable.is_empty() || tx.list(&unroutable, &Bounds::first(1)).await?.is_empty();
        Ok((queues.gates().is_empty() && nobody_waits_in_vain).then(|| queues.indexes(&BTreeSet::new())))
    }

    async fn take(&self, tx: &mut dyn Tx, indexes: &[Index]) -> Result<Vec<Catch>> {
        let mut caught = Vec::new();
        let mut fruitless = 0;
        let mut after = None;
        while caught.len() < self.ids.len() && fruitless < FRUITLESS_MAX && !indexes.is_empty() {
            let bounds = Bounds::first(self.ids.len() - caught.len()).after(after);
            let heads = match tx.list(indexes, &bounds).await {
                Err(EngineError::Validation { .. }) => return Ok(caught),
                heads => heads?,
            };
            after = heads.last().map(|head| head.position.clone());
            if after.is_none() {
                break;
            }
            for head in heads {
                let Ok(candidate) = Execution::try_from(head.record) else { return Ok(caught) };
                if candidate.is_lost() || candidate.needs_admission() {
                    return Ok(caught);
                }
                match self.secure(tx, &candidate, self.ids[caught.len()]).await? {
                    Some(catch) => caught.push(catch),
                    None => fruitless += 1,
                }
            }
        }
        Ok(caught)
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
