//! Finding and taking in one step.

use ff_core::Result;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::LaneId;

use super::check_offer;
use crate::engine::Engine;
use crate::index::Topic;
use crate::ops::check_duration;
use crate::ops::waiting::wait;
use crate::scheduler::grants::Holder;
use crate::scheduler::hunt::{Catch, Haul, Prize, Seeker, hunt};
use crate::store::Store;

/// Takes up to `count` executions; waits as long as the policy says while there is none.
pub(super) async fn claim<S: Store>(
    engine: &Engine<S>,
    lane: &LaneId,
    capabilities: &CapabilitySet,
    policy: ClaimPolicy,
    count: usize,
) -> Result<Vec<Handle>> {
    check_duration("lease_ttl_ms", policy.lease_ttl_ms)?;
    check_offer(&capabilities.tokens)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let seeker = Seeker { lane, capabilities: &capabilities.tokens, namespaces: policy.namespaces.as_ref() };
    let holder = Holder {
        worker_id: policy.worker_id,
        worker_instance_id: policy.worker_instance_id,
        capabilities: capabilities.tokens.clone(),
    };
    let prize = Prize::Lease { ttl_ms: policy.lease_ttl_ms };
    let deadline = match policy.max_wait_ms {
        Some(ms) => Some(engine.store.now().await?.plus(ms)),
        None => None,
    };
    loop {
        let news = engine.store.listen(&Topic::Lane(lane.clone()));
        let Haul { caught, is_cut_short } = hunt(engine, seeker, &holder, prize, count).await?;
        if !caught.is_empty() {
            return handles(engine, caught);
        }
        // No news tells of work that stood behind what this hunt put aside.
        let news = async {
            if !is_cut_short {
                news.await;
            }
        };
        let Some(deadline) = deadline else { return Ok(Vec::new()) };
        if !wait(engine, news, deadline, deadline).await? {
            return Ok(Vec::new());
        }
    }
}

fn handles<S: Store>(engine: &Engine<S>, caught: Vec<Catch>) -> Result<Vec<Handle>> {
    let handle = |catch| match catch {
        Catch::Owned(owned) => Some(engine.handle_of(&owned.execution, owned.kind)),
        Catch::Granted(_) => None,
    };
    caught.into_iter().filter_map(handle).collect()
}
