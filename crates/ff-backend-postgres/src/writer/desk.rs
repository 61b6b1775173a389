//! A place where operations come together: those that wait are decided side by side and committed as one.
//!
//! The first try trusts what the process remembers and takes the partitions only for the commit itself, which fails if anything turned out
//! to be old. The next one takes the partitions first, and then nothing in the tables can change under it.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ff_core::error::ContentionKind;
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result};
use ff_engine::hash::HashSet;
use ff_engine::index::Topic;
use ff_engine::store::Reach;
use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};

use super::Shared;
use super::batch::{Batch, Decision, Known};
use super::foresight::Foresight;
use super::hand::Hands;
use super::locks::{Hold, Places};
use super::plan::{self, Plan, Signature};
use super::queue::Queue;
use super::work::Work;
use crate::address::Stored;
use crate::error::{Trouble, explain, is_conflict, is_dispossession, is_refusal, is_stale, is_surely_undone};
use crate::session::{BEGIN, Frame, Session};
use crate::standing::NOBODY;
use crate::tables;
use crate::young::{Pass, Taken};

/// How often a group is tried before it gives up.
const ATTEMPTS: u32 = 12;

/// From which try on nobody else commits. Those who look for work find other work each time, and so may come to need other partitions
/// each time: where many processes contend for it, no choice of partitions is ever enough.
const ALONE_FROM: u32 = 4;

/// How long a group is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(50);

pub(super) type Group = Vec<Box<dyn Work>>;

/// Why a group was not committed.
enum Failure {
    /// Somebody else was faster; it is to be tried again with these partitions taken first, for writing or not.
    Stale(Places),
    /// Another desk decides about one of these; it is to be tried again when they are free.
    Busy(Vec<ExecutionId>),
    /// Something in it cannot be written.
    Refused(EngineError),
    /// Nothing of it could be written, or nobody knows whether it was.
    Lost(EngineError),
}

pub(super) struct Desk {
    shared: Arc<Shared>,
    hands: Hands,
    foresight: Foresight,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, hands: Hands) -> Self {
        Self { shared, hands, foresight: Foresight::default() }
    }

    /// Serves what comes, for as long as the writer lives.
    pub(super) async fn serve(self, queue: Arc<Queue>) {
        loop {
            let mut round = queue.next().await;
            let group = std::mem::take(&mut round.group);
            if AssertUnwindSafe(self.run(group)).catch_unwind().await.is_err() {
                // Those who waited have been told by the loss of their way back.
                tracing::error!("a commit panicked; its operations are answered as if the store were closed");
            }
        }
    }

    /// Decides and commits a group; everybody is answered when it is durable.
    async fn run(&self, mut group: Group) {
        match self.try_hard(&mut group).await {
            Ok(()) => answer(group, &Ok(())),
            Err(Failure::Refused(_)) if group.len() > 1 => self.run_singly(group).await,
            Err(Failure::Refused(error) | Failure::Lost(error)) => answer(group, &Err(error)),
            Err(Failure::Stale(_) | Failure::Busy(_)) => {
                answer(group, &Err(EngineError::Contention(ContentionKind::RetryExhausted)));
            }
        }
    }

    /// One after another, so that nobody pays for another's trouble.
    async fn run_singly(&self, group: Group) {
        for work in group {
            Box::pin(self.run(vec![work])).await;
        }
    }

    async fn try_hard(&self, group: &mut Group) -> Result<(), Failure> {
        let began = Instant::now();
        let mut hold = Hold::Nothing;
        for attempt in 0..ATTEMPTS {
            if attempt > 1 {
                tokio::time::sleep(pause(attempt)).await;
            }
            match self.attempt(group, &hold).await {
                Err(Failure::Stale(_)) if attempt + 1 >= ALONE_FROM && began.elapsed() < PATIENCE => {
                    hold = Hold::Everything;
                }
                Err(Failure::Stale(places)) if began.elapsed() < PATIENCE => hold.widen(places),
                Err(Failure::Busy(ids)) if began.elapsed() < PATIENCE => {
                    // Whoever waits in vain is told at the end.
                    let _ = tokio::time::timeout(PATIENCE, self.shared.young.until_free(&ids)).await;
                }
                done => return done,
            }
        }
        Err(Failure::Stale(Places::new()))
    }

    /// Tries once, after what is to be held was taken.
    async fn attempt(&self, group: &mut Group, hold: &Hold) -> Result<(), Failure> {
        let owner = self.shared.standing.owner(&self.shared).await.map_err(Failure::Lost)?;
        let session = self.shared.session().await.map_err(Failure::Lost)?;
        begin(&session, hold).await?;
        let outcome = self.decide_and_commit(&session, group, hold, owner).await;
        if outcome.is_err() && !hold.is_nothing() {
            // What cannot even be rolled back ends with its connection.
            let _ = session.end("ROLLBACK").await;
        }
        outcome
    }

    async fn decide_and_commit(
        &self,
        session: &Session,
        group: &mut Group,
        hold: &Hold,
        owner: i64,
    ) -> Result<(), Failure> {
        let shared = &self.shared;
        let newborn: HashSet<_> = group.iter().filter_map(|work| work.newborn()).collect();
        let seekers = group.iter().filter(|work| work.reach() == Reach::Everywhere && work.newborn().is_none()).count();
        let memory = hold.is_nothing().then(|| Arc::clone(&shared.memory));
        let known = Known { memory, young: (owner != NOBODY).then(|| Arc::clone(&shared.young)) };
        let hand = self.hands.open();
        let batch = Arc::new(Batch::new(
            shared.clock.now(),
            known,
            hold.clone(),
            newborn,
            seekers,
            hand,
            self.foresight.brings_rows(),
        ));
        let spoiled = |error| match error {
            EngineError::Transport { .. } => Failure::Lost(error),
            _ => Failure::Refused(error),
        };
        if seekers > 0 && batch.foresee(&self.foresight) {
            batch.read(session).await.map_err(spoiled)?;
        }
        decide(&batch, session, group).await.map_err(spoiled)?;
        // Those who shared it are done.
        let Some(batch) = Arc::into_inner(batch) else { return Err(Failure::Lost(Trouble::Closed.into())) };
        if seekers > 0 {
            self.foresight.learn(&batch);
        }
        let (is_guess, is_mirrored) = (batch.is_guess(), batch.is_mirrored());
        // What was chosen stays in hand until it is known what became of it.
        let (facts, accepted, newborn, hand) = batch.finish();
        let pass = shared.young.pass(owner);
        let plan = Plan::new(&facts, accepted, &newborn, shared.version(), pass.as_ref()).map_err(Failure::Refused)?;
        let mut places = plan.places.clone();
        for (home, is_written) in homes(group) {
            places.entry(home).or_insert(is_written);
        }
        if is_guess {
            return Err(Failure::Stale(places));
        }
        let way = match Way::reserve(owner, pass, &plan) {
            Ok(way) => way,
            Err(Taken::ForNow(ids)) => return Err(Failure::Busy(ids)),
            Err(Taken::ForGood) => return Err(Failure::Stale(places)),
        };
        let committed = commit(shared, session, plan, places, hold, way).await;
        match &committed {
            Ok(()) => hand.succeed(),
            Err(Failure::Stale(_)) if is_mirrored => shared.memory.mirrors.put_away(),
            Err(Failure::Lost(_)) => shared.memory.mirrors.forget(),
            Err(_) => {}
        }
        committed
    }
}

/// In whose name a commit is made, and what it has reserved.
struct Way {
    owner: i64,
    pass: Option<Pass>,
}

impl Way {
    fn reserve(owner: i64, mut pass: Option<Pass>, plan: &Plan) -> Result<Self, Taken> {
        let absent = plan.youth.absent.iter().map(|id| (*id, Stored::NO_VERSION));
        let seen = plan.youth.seen.iter().copied().chain(absent);
        match &mut pass {
            Some(pass) => pass.reserve(seen, plan.youth.touched.iter().copied())?,
            None if owner == NOBODY && plan.youth.seen.is_empty() => {}
            None => return Err(Taken::ForGood),
        }
        Ok(Self { owner, pass })
    }

    fn signature(&self) -> Signature {
        Signature { owner: self.owner, line: self.pass.as_ref().map(Pass::line) }
    }
}

async fn begin(session: &Session, hold: &Hold) -> Result<(), Failure> {
    let (lock, places) = match hold {
        Hold::Nothing => return Ok(()),
        Hold::Partitions(places) => (plan::lock(places), places.clone()),
        Hold::Everything => (plan::lock_journal(), Places::new()),
    };
    session.begin(BEGIN).await.map_err(|error| Failure::Lost(explain(error)))?;
    match session.query(&lock).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let failure = failure(error, places);
            // What cannot even be rolled back ends with its connection.
            let _ = session.end("ROLLBACK").await;
            Err(failure)
        }
    }
}

async fn commit(
    shared: &Shared,
    session: &Session,
    mut plan: Plan,
    places: Places,
    hold: &Hold,
    way: Way,
) -> Result<(), Failure> {
    let (mut news, after) = (std::mem::take(&mut plan.news), std::mem::take(&mut plan.after));
    let (moved, youth) = (std::mem::take(&mut plan.moved), std::mem::take(&mut plan.youth));
    let expected = plan.expected();
    if hold.is_nothing() && !plan.writes() && expected.is_empty() && youth.seen.is_empty() {
        return Ok(());
    }
    let alarm = shared.herald.alarm_for(news.due_at, shared.clock.now());
    let mut steps = plan.into_steps(hold, way.signature());
    steps.extend(alarm.map(|at| shared.herald.alarm(&shared.schema, at)));
    let frame = match (hold.is_nothing(), steps.len()) {
        (false, _) => Frame::End,
        // A statement alone is a transaction of its own.
        (true, 1) => Frame::None,
        (true, _) => Frame::Whole,
    };
    let sent = Instant::now();
    match session.run(frame, &steps).await {
        Ok(rows) => {
            shared.standing.assure(way.owner, sent);
            // What is committed is committed: a time that cannot be read changes nothing.
            if let Some(Ok(time)) = rows.first().and_then(|rows| rows.first()).map(|row| tables::cell(row, 0)) {
                shared.clock.observe(time);
            }
            if let Some(pass) = way.pass {
                pass.succeed(youth.after);
            }
            alarm.into_iter().for_each(|at| shared.herald.has_set(at));
            shared.committed(after, &moved, &news);
            Ok(())
        }
        Err(error) => {
            for address in expected.iter().map(|(address, _)| address).chain(after.iter().map(|(address, _)| address)) {
                shared.memory.rows.forget(address);
            }
            if is_dispossession(&error) {
                shared.standing.dispossess(way.owner);
            }
            if let (Some(pass), true) = (way.pass, is_surely_undone(&error)) {
                pass.fail();
            }
            let failure = failure(error, places);
            if !matches!(failure, Failure::Lost(_)) {
                // Nothing happened; but readers of the log may have stayed behind it.
                news.topics.retain(|topic| *topic == Topic::Events);
                news.due_at = None;
            }
            shared.tell(&news);
            Err(failure)
        }
    }
}

/// Where the operations of a group write.
fn homes(group: &Group) -> Places {
    group.iter().filter(|work| work.reach() == Reach::Home).map(|work| (work.home(), true)).collect()
}

fn failure(error: tokio_postgres::Error, places: Places) -> Failure {
    if is_stale(&error) || is_dispossession(&error) || is_conflict(&error) {
        return Failure::Stale(places);
    }
    let is_refused = is_refusal(&error);
    let error = explain(error);
    if is_refused { Failure::Refused(error) } else { Failure::Lost(error) }
}

/// Has every operation decide. Those that look for work, and those that others overtook, go one after another.
async fn decide(batch: &Arc<Batch>, session: &Session, group: &mut Group) -> Result<()> {
    let (mut together, mut one_by_one): (Vec<_>, Vec<_>) =
        group.iter_mut().partition(|work| work.reach() == Reach::Home || work.newborn().is_some());
    let mut decisions = Vec::with_capacity(together.len());
    drive(batch, session, together.drain(..), &mut decisions).await?;
    for (work, decision, is_refused) in decisions {
        if batch.is_fresh(&decision) {
            batch.accept(decision, is_refused);
        } else {
            one_by_one.push(work);
        }
    }
    for work in one_by_one {
        let mut decisions = Vec::with_capacity(1);
        drive(batch, session, std::iter::once(work), &mut decisions).await?;
        for (_, decision, is_refused) in decisions {
            batch.accept(decision, is_refused);
        }
    }
    Ok(())
}

type Decided<'w> = (&'w mut Box<dyn Work>, Decision, bool);

/// Runs operations side by side; reads for all of them whenever none can go on without.
async fn drive<'w>(
    batch: &Arc<Batch>,
    session: &Session,
    works: impl Iterator<Item = &'w mut Box<dyn Work>>,
    decisions: &mut Vec<Decided<'w>>,
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
            None => batch.read(session).await?,
        }
    }
}

fn answer(group: Group, outcome: &Result<()>) {
    for work in group {
        work.answer(outcome.clone());
    }
}

/// Longer after each try, and never the same for two who meet.
fn pause(attempt: u32) -> Duration {
    let most = Duration::from_millis(1 << attempt.min(6)).min(PAUSE_MAX);
    most.mul_f64(fastrand::f64())
}
