//! Finding and taking in one step.

use ff_core::backend::claims::ClaimPolicy;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::LaneId;
use ff_core::{Result, TimestampMs};
use futures_util::FutureExt;

use super::check_offer;
use crate::engine::Engine;
use crate::index::Topic;
use crate::ops::check_duration;
use crate::ops::waiting::closing;
use crate::scheduler::grants::Holder;
use crate::scheduler::hunt::{Catch, Haul, Prize, Seeker, hunt};
use crate::scheduler::turnstile::{News, Place, Turn, old_news};
use crate::store::Store;

/// Whoever has the turn begins to look within this time after news, or somebody else does.
const UNHEARD_MS: u64 = 50;

/// A look that takes longer counts as one that nobody goes on with.
const STUCK_MS: u64 = 1_000;

/// For so long a claim that waits relies on what another one saw that looks for the same, unless there are news.
const FRESH_MS: u64 = 30_000;

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
    let deadline = match policy.max_wait_ms.filter(|ms| *ms > 0) {
        Some(ms) => Some(engine.store.now().await?.plus(ms)),
        None => None,
    };
    let claim = Claim { engine, seeker, holder, prize, count, deadline };
    let caught = match claim.deadline {
        Some(deadline) => Box::pin(claim.look_and_wait(deadline)).await?,
        // Who does not wait needs no news.
        None => match claim.look(old_news()).await? {
            Look::Caught(caught) => caught,
            Look::Nothing { .. } => Vec::new(),
        },
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
        news: News,
    },
}

/// How standing in line ended.
enum Line {
    /// It is its turn.
    Turn(Turn),
    /// It found something out of turn.
    Caught(Vec<Catch>),
    /// There is no time left.
    Left,
}

/// What those in line wait for.
enum Event {
    Turn(Turn),
    /// Nobody looks although there are news. This was the latest look.
    Unheard(u64),
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
    /// News from now on.
    fn listen(&self) -> News {
        self.engine.store.listen(&Topic::Lane(self.seeker.lane.clone())).shared()
    }

    async fn look(&self, news: News) -> Result<Look> {
        let Haul { caught, is_cut_short } =
            hunt(self.engine, self.seeker, &self.holder, self.prize, self.count).await?;
        if !caught.is_empty() {
            return Ok(Look::Caught(caught));
        }
        // No news tells of work that stood behind what this hunt put aside.
        Ok(Look::Nothing { news: if is_cut_short { old_news() } else { news } })
    }

    /// A look that those in line know of. Out of turn (`after` the look that was the latest) only if nobody else began one since.
    async fn look_from(&self, place: &Place<'_>, after: Option<u64>) -> Result<Option<Look>> {
        let news = self.listen();
        let Some(number) = place.begin(after) else { return Ok(None) };
        let fresh_until = self.engine.store.now().await?.plus(FRESH_MS);
        let look = self.look(news).await?;
        let left = match &look {
            Look::Caught(_) => old_news(),
            Look::Nothing { news } => news.clone(),
        };
        place.finish(number, left, fresh_until);
        Ok(Some(look))
    }

    /// Looks once, unless somebody has just done so who looks for the same, then waits.
    async fn look_and_wait(&self, deadline: TimestampMs) -> Result<Vec<Catch>> {
        let now = self.engine.store.now().await?;
        let place = self.engine.turnstile.join(self.seeker);
        if let Some(news) = place.quiet_since(now) {
            return self.wait(place, news, deadline).await;
        }
        match self.look(self.listen()).await? {
            Look::Caught(caught) => Ok(caught),
            Look::Nothing { news } => {
                place.saw_nothing(&news, now.plus(FRESH_MS));
                self.wait(place, news, deadline).await
            }
        }
    }

    /// Waits as long as there is time. Of all who wait for the same work only one hunts at each news; when it leaves, the next one
    /// looks at once if anything has happened since the latest look, and so misses nothing that came in between.
    async fn wait(&self, place: Place<'_>, mut news: News, deadline: TimestampMs) -> Result<Vec<Catch>> {
        let _turn = match place.turn_now() {
            Some(turn) => turn,
            None => match self.stand_in_line(&place, deadline).await? {
                Line::Turn(turn) => {
                    let now = self.engine.store.now().await?;
                    news = place.quiet_since(now).unwrap_or_else(old_news);
                    turn
                }
                Line::Caught(caught) => return Ok(caught),
                Line::Left => return Ok(Vec::new()),
            },
        };
        while !deadline.is_due(self.engine.store.now().await?) {
            match self.until(news.clone(), deadline).await {
                Wait::Closing => return Err(closing::<S>()),
                // Without news there is nothing that the latest look did not see.
                Wait::TimeOut if news.now_or_never().is_none() => return Ok(Vec::new()),
                Wait::TimeOut | Wait::Over(()) => {}
            }
            news = match self.look_from(&place, None).await? {
                Some(Look::Caught(caught)) => return Ok(caught),
                Some(Look::Nothing { news }) => news,
                None => old_news(),
            };
        }
        Ok(Vec::new())
    }

    /// Waits for the turn. A caller may keep the claim that has it and not poll it: when news stay unheard, somebody in line looks.
    async fn stand_in_line(&self, place: &Place<'_>, deadline: TimestampMs) -> Result<Line> {
        let mut turn = std::pin::pin!(place.turn());
        loop {
            let event = async {
                tokio::select! {
                    biased;
                    turn = &mut turn => Ok(Event::Turn(turn)),
                    latest = self.unheard(place) => latest.map(Event::Unheard),
                }
            };
            let event = match self.until(event, deadline).await {
                Wait::Over(event) => event?,
                Wait::TimeOut => return Ok(Line::Left),
                Wait::Closing => return Err(closing::<S>()),
            };
            let latest = match event {
                Event::Turn(turn) => return Ok(Line::Turn(turn)),
                Event::Unheard(latest) => latest,
            };
            if let Some(Look::Caught(caught)) = self.look_from(place, Some(latest)).await? {
                return Ok(Line::Caught(caught));
            }
        }
    }

    /// Ends when there are news and nobody looks. Looks at most once in a while, however many news there are.
    async fn unheard(&self, place: &Place<'_>) -> Result<u64> {
        loop {
            let seen = place.looks();
            if seen.finished < seen.begun {
                self.pause(STUCK_MS).await?;
                let looks = place.looks();
                if looks.finished < seen.begun {
                    return Ok(looks.begun);
                }
                continue;
            }
            if let Some(news) = seen.news {
                news.await;
            }
            self.pause(UNHEARD_MS).await?;
            if place.looks().begun == seen.begun {
                return Ok(seen.begun);
            }
        }
    }

    async fn pause(&self, ms: u64) -> Result<()> {
        let until = self.engine.store.now().await?.plus(ms);
        self.engine.store.sleep_until(until).await;
        Ok(())
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
