//! A place where operations come together: those that wait are decided side by side and committed as one.
//!
//! The next group is decided while a commit is on its way, as if that had succeeded already: the server does first what is sent first. If it
//! did not succeed, what relies on it does not either, and is decided again.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use ff_core::error::ContentionKind;
use ff_core::{EngineError, Result};
use ff_engine::hash::HashSet;
use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Shared;
use super::batch::{Batch, Decision, Outcome};
use super::plan::{Plan, Sender};
use super::queue::{Group, Queue, Round};
use super::work::Work;
use crate::address::Shard;
use crate::connection::pause;
use crate::error::Trouble;
use crate::tables::{self, array};

/// Commits that are on their way at once.
const UNDER_WAY: u8 = 3;

/// How often a group is tried before it gives up.
const TRIES_MAX: u32 = 40;

/// From which try on operations go alone, so that each is in the way of fewer.
const ALONE_FROM: u32 = 3;

/// How long a group is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Desk {
    shared: Arc<Shared>,
    shard: Shard,
    /// Which one of the shard.
    number: u8,
    queue: Arc<Queue>,
    commits: AtomicU64,
}

/// One of the commits that may be on their way at once. The server remembers the latest commit of each place, so the next one takes it only when
/// nothing of that is under way any more: the place is free again when this is dropped.
struct Place {
    number: u8,
    free: UnboundedSender<u8>,
}

impl Place {
    /// All places, to be taken one by one.
    fn all() -> (UnboundedSender<u8>, UnboundedReceiver<u8>) {
        let (free, places) = unbounded_channel();
        for number in 0..UNDER_WAY {
            // Nobody has closed the way that was just made.
            let _ = free.send(number);
        }
        (free, places)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A desk that is gone needs no places.
        let _ = self.free.send(self.number);
    }
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, shard: Shard, number: u8, queue: Arc<Queue>) -> Self {
        Self { shared, shard, number, queue, commits: AtomicU64::new(1) }
    }

    /// Serves what comes, for as long as the writer lives.
    pub(super) async fn serve(self) {
        let (free, mut places) = Place::all();
        while let Some(number) = places.recv().await {
            let place = Place { number, free: free.clone() };
            let round = self.queue.next().await;
            if AssertUnwindSafe(self.run(round, place)).catch_unwind().await.is_err() {
                // Those who waited have been told by the loss of their way back.
                tracing::error!("a commit panicked; its operations are answered as if the store were closed");
            }
        }
    }

    /// Decides a group and sends its commit; everybody is answered when that is done.
    async fn run(&self, mut round: Round, place: Place) {
        if round.tries >= ALONE_FROM {
            tokio::time::sleep(pause(round.tries)).await;
        }
        let decided = match self.decide(&mut round).await {
            Ok(decided) => decided,
            Err(error) => return answer(round.group, &Err(error)),
        };
        let is_of_one_moment = decided.is_of_one_moment;
        let plan = match Plan::new(&self.shared.layout, self.shard, decided) {
            Ok(plan) => plan,
            Err(error) if round.group.len() == 1 => return answer(round.group, &Err(error)),
            // One that cannot be stored must not cost the others.
            Err(_) => return self.queue.push_singly(round),
        };
        if !plan.writes() && (is_of_one_moment || !plan.depends()) {
            return answer(round.group, &Ok(()));
        }
        self.point_out(&plan).await;
        self.send(plan, round, place);
    }

    /// Tells where there will be work before there is. Who has one shard need not be told.
    async fn point_out(&self, plan: &Plan) {
        let Shared { link, layout, signposts, .. } = &*self.shared;
        if layout.count() > 1 {
            signposts.put_up(link, layout, self.shard, plan.entered().cloned().collect()).await;
        }
    }

    async fn decide(&self, round: &mut Round) -> Result<Outcome> {
        let shared = &self.shared;
        let group = &mut round.group;
        let newborn: HashSet<_> = group.iter().filter_map(|work| work.newborn()).collect();
        let seekers = group.iter().filter(|work| work.seeks()).count();
        let memory = (round.tries == 0).then(|| Arc::clone(&shared.memory));
        let batch = Arc::new(Batch::new(shared.clock.now(), self.shard, memory, newborn, seekers));
        self.decide_all(&batch, group).await?;
        // Those who shared it are done.
        Arc::into_inner(batch).map(Batch::finish).ok_or_else(|| Trouble::Closed.into())
    }

    /// Has every operation decide. Those that look for work, and those that others overtook, go one after another.
    async fn decide_all(&self, batch: &Arc<Batch>, group: &mut Group) -> Result<()> {
        let (mut together, mut one_by_one): (Vec<_>, Vec<_>) = group.iter_mut().partition(|work| !work.seeks());
        let mut decisions = Vec::with_capacity(together.len());
        self.drive(batch, together.drain(..), &mut decisions).await?;
        for (work, decision, is_refused) in decisions {
            if batch.is_fresh(&decision) {
                batch.accept(decision, is_refused);
            } else {
                one_by_one.push(work);
            }
        }
        for work in one_by_one {
            let mut decisions = Vec::with_capacity(1);
            self.drive(batch, std::iter::once(work), &mut decisions).await?;
            for (_, decision, is_refused) in decisions {
                batch.accept(decision, is_refused);
            }
        }
        Ok(())
    }

    /// Runs operations side by side; reads for all of them whenever none can go on without.
    async fn drive<'w>(
        &self,
        batch: &Arc<Batch>,
        works: impl Iterator<Item = &'w mut Box<dyn Work>>,
        decisions: &mut Vec<(&'w mut Box<dyn Work>, Decision, bool)>,
    ) -> Result<()> {
        let mut running: FuturesOrdered<_> = works
            .map(|work| {
                let batch = Arc::clone(batch);
                async move {
                    let (decision, is_refused) = work.run(batch).await;
                    (work, decision, is_refused)
                }
            })
            .collect();
        loop {
            // Wherever somebody waits for anything else than a read, the task is woken as usual.
            let step = poll_fn(|cx| match running.poll_next_unpin(cx) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending if batch.wants() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            match step.await {
                Some(Some(decided)) => decisions.push(decided),
                Some(None) => return Ok(()),
                None => {
                    let time = batch.read(&self.shared.link, &self.shared.layout).await?;
                    self.shared.clock.observe(time.0);
                }
            }
        }
    }

    /// Sends a commit and goes on; what becomes of it is seen to elsewhere.
    fn send(&self, mut plan: Plan, round: Round, place: Place) {
        let (shared, queue, shard) = (Arc::clone(&self.shared), Arc::clone(&self.queue), self.shard);
        let number = self.commits.fetch_add(1, Ordering::Relaxed);
        let name = [&shared.process.as_bytes()[..], &[self.number, place.number]].concat();
        let sender = Sender { name: &name, number, message: shared.herald.message(&plan.news) };
        let command = plan.command(&shared.layout, self.shard, &sender);
        for (key, row) in std::mem::take(&mut plan.after) {
            plan.read.push(key.clone());
            shared.memory.put(key, row);
        }
        plan.born.iter().for_each(|id| shared.memory.note_birth(*id));
        let mut committed = Box::pin(async move {
            let told = shared.link.commit(command, shared.layout.slot(shard), shared.replicas).await;
            let outcome = told.and_then(|told| {
                let [time, differs] = array(told)?;
                shared.clock.observe(tables::number(&time)?);
                Ok(tables::number(&differs)? == 0)
            });
            if !matches!(outcome, Ok(true)) {
                plan.read.iter().for_each(|key| shared.memory.forget(key));
                plan.parts().for_each(|part| shared.memory.forget_page(&part));
            }
            drop(place);
            match outcome {
                Ok(true) => {
                    shared.tell(&plan.news);
                    answer(round.group, &Ok(()));
                }
                Ok(false) => try_again(&queue, round),
                Err(error) => {
                    // Nobody knows whether it is stored, so those who wait for it had better look.
                    shared.tell(&plan.news);
                    answer(round.group, &Err(error));
                }
            }
        });
        // It is on its way when it was polled once, and so before everything that comes after.
        if (&mut committed).now_or_never().is_none() {
            tokio::spawn(committed);
        }
    }
}

fn try_again(queue: &Queue, mut round: Round) {
    round.tries += 1;
    if round.tries >= TRIES_MAX || round.began.elapsed() > PATIENCE {
        answer(round.group, &Err(EngineError::Contention(ContentionKind::RetryExhausted)));
    } else if round.tries == ALONE_FROM {
        queue.push_singly(round);
    } else {
        queue.push_again(round);
    }
}

fn answer(group: Group, outcome: &Result<()>) {
    for work in group {
        work.answer(outcome.clone());
    }
}
