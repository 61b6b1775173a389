//! Finding and taking in one step.

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::layer::BoxFuture;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::LaneId;
use ff_core::{Result, TimestampMs};

use super::check_offer;
use crate::engine::Engine;
use crate::index::Topic;
use crate::ops::check_duration;
use crate::ops::waiting::closing;
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
    check_offer(&capabilities.tokens, policy.kinds.as_ref())?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let seeker = Seeker {
        lane,
        capabilities: &capabilities.tokens,
        namespaces: policy.namespaces.as_ref(),
        kinds: policy.kinds.as_ref(),
    };
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
    let claim = Claim { engine, seeker, holder, prize, count, deadline };
    let caught = match claim.look().await? {
        Look::Caught(caught) => caught,
        Look::Nothing { news } => claim.wait(news).await?,
    };
    handles(engine, caught)
}

/// One claim, from its first try to its last.
struct Claim<'a, S> {
    engine: &'a Engine<S>,
    seeker: Seeker<'a>,
    holder: Holder,
    prize: Prize,
    count: usize,
    /// Until then it waits, if it does.
    deadline: Option<TimestampMs>,
}

/// What one hunt came to.
enum Look {
    Caught(Vec<Catch>),
    /// Nothing is there; a later hunt may find more after the news.
    Nothing {
        news: BoxFuture<'static, ()>,
    },
}

/// How a wait ended.
enum Wait<T> {
    /// What was waited for is there.
    Over(T),
    /// There is no time left.
    TimeOut,
    /// The engine closes.
    Closing,
}

impl<S: Store> Claim<'_, S> {
    async fn look(&self) -> Result<Look> {
        let news = self.engine.store.listen(&Topic::Lane(self.seeker.lane.clone()));
        let Haul { caught, is_cut_short } =
            hunt(self.engine, self.seeker, &self.holder, self.prize, self.count).await?;
        if !caught.is_empty() {
            return Ok(Look::Caught(caught));
        }
        // No news tells of work that stood behind what this hunt put aside.
        let news = if is_cut_short { Box::pin(std::future::ready(())) } else { news };
        Ok(Look::Nothing { news })
    }

    /// Waits as long as there is time. Of all who wait for the same work only one listens for news and hunts; when it leaves, the
    /// next one looks at once, and misses nothing that came in between.
    async fn wait(&self, mut news: BoxFuture<'static, ()>) -> Result<Vec<Catch>> {
        let Some(deadline) = self.deadline else { return Ok(Vec::new()) };
        let place = self.engine.turnstile.join(self.seeker);
        let _turn = match place.turn_now() {
            Some(turn) => turn,
            None => {
                let turn = match self.until(place.turn(), deadline).await {
                    Wait::Over(turn) => turn,
                    Wait::TimeOut => return Ok(Vec::new()),
                    Wait::Closing => return Err(closing::<S>()),
                };
                news = Box::pin(std::future::ready(()));
                turn
            }
        };
        while !deadline.is_due(self.engine.store.now().await?) {
            // Whoever runs out of time looks once more.
            if matches!(self.until(news, deadline).await, Wait::Closing) {
                return Err(closing::<S>());
            }
            news = match self.look().await? {
                Look::Caught(caught) => return Ok(caught),
                Look::Nothing { news } => news,
            };
        }
        Ok(Vec::new())
    }

    /// Waits for something until there is no time left.
    async fn until<T>(&self, event: impl Future<Output = T> + Send, deadline: TimestampMs) -> Wait<T> {
        let mut closes = self.engine.closing.subscribe();
        tokio::select! {
            biased;
            _ = closes.wait_for(|closes| *closes) => Wait::Closing,
            () = self.engine.store.sleep_until(deadline) => Wait::TimeOut,
            happened = event => Wait::Over(happened),
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

#[cfg(test)]
mod tests;
