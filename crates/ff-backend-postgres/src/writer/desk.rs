//! A place where operations come together: those that wait are decided side by side and committed as one.
//!
//! The first try trusts what the process remembers and takes the partitions only for the commit itself, which fails if anything turned out
//! to be old. The next one takes the partitions first, and then nothing can change under it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ff_core::error::ContentionKind;
use ff_core::{EngineError, Result};
use ff_engine::store::Reach;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::sync::mpsc;
use tokio_postgres::error::Severity;

use super::Shared;
use super::batch::{Batch, Decision};
use super::plan::{self, Places, Plan};
use super::work::Work;
use crate::error::{explain, is_conflict, is_stale};
use crate::session::{Frame, Session};
use crate::tables;

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 128;

/// How often a group is tried before it gives up.
const ATTEMPTS: u32 = 12;

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(50);

pub(super) type Group = Vec<Box<dyn Work>>;

/// Why a group was not committed.
enum Failure {
    /// Somebody else was faster; it is to be tried again with these partitions taken first.
    Stale(Places),
    /// It could not be written.
    Refused(EngineError),
    /// The connection does not work, so nothing is known.
    Lost(EngineError),
}

pub(super) struct Desk {
    shared: Arc<Shared>,
}

impl Desk {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Serves what comes, until nobody can send any more.
    pub(super) async fn serve(self, mut jobs: mpsc::UnboundedReceiver<Box<dyn Work>>) {
        let mut group = Vec::new();
        while jobs.recv_many(&mut group, GROUP_MAX).await > 0 {
            group.retain(|work| work.is_wanted());
            let group = std::mem::take(&mut group);
            if !group.is_empty() {
                self.run(group).await;
            }
        }
    }

    /// Decides and commits a group; everybody is answered when it is durable.
    async fn run(&self, mut group: Group) {
        match self.try_hard(&mut group).await {
            Ok(()) => answer(group, &Ok(())),
            Err(Failure::Refused(_)) if group.len() > 1 => self.run_singly(group).await,
            Err(Failure::Refused(error) | Failure::Lost(error)) => answer(group, &Err(error)),
            Err(Failure::Stale(_)) => answer(group, &Err(EngineError::Contention(ContentionKind::RetryExhausted))),
        }
    }

    /// One after another, so that nobody pays for another's trouble.
    async fn run_singly(&self, group: Group) {
        for work in group {
            Box::pin(self.run(vec![work])).await;
        }
    }

    async fn try_hard(&self, group: &mut Group) -> Result<(), Failure> {
        let mut taken = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 1 {
                tokio::time::sleep(pause(attempt)).await;
            }
            match self.attempt(group, taken.as_ref()).await {
                Err(Failure::Stale(places)) => plan::add(taken.get_or_insert_default(), places),
                done => return done,
            }
        }
        Err(Failure::Stale(Places::new()))
    }

    /// Tries once; with `taken`, after these partitions were taken.
    async fn attempt(&self, group: &mut Group, taken: Option<&Places>) -> Result<(), Failure> {
        let session = self.shared.session().await.map_err(Failure::Lost)?;
        if let Some(places) = taken {
            begin(&session, places).await?;
        }
        let outcome = decide_and_commit(&self.shared, &session, group, taken).await;
        if outcome.is_err() && taken.is_some() {
            // What cannot even be rolled back ends with its connection.
            let _ = session.end("ROLLBACK").await;
        }
        outcome
    }
}

async fn begin(session: &Session, places: &Places) -> Result<(), Failure> {
    session.begin("BEGIN").await.map_err(|error| Failure::Lost(explain(error)))?;
    match session.query(&plan::lock(places)).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let failure = failure(error, places.clone());
            // What cannot even be rolled back ends with its connection.
            let _ = session.end("ROLLBACK").await;
            Err(failure)
        }
    }
}

async fn decide_and_commit(
    shared: &Shared,
    session: &Session,
    group: &mut Group,
    taken: Option<&Places>,
) -> Result<(), Failure> {
    let newborn: HashSet<_> = group.iter().filter_map(|work| work.newborn()).collect();
    let seekers = group.iter().filter(|work| work.reach() == Reach::Everywhere).count();
    let cache = taken.is_none().then(|| Arc::clone(&shared.cache));
    let batch = Arc::new(Batch::new(shared.clock.now(), cache, newborn, seekers));
    decide(&batch, session, group).await.map_err(Failure::Lost)?;
    let Some(batch) = Arc::into_inner(batch) else { return Ok(()) };
    let (facts, accepted, newborn) = batch.finish();
    let plan = Plan::new(&facts, &accepted, &newborn, shared.version()).map_err(Failure::Refused)?;
    commit(shared, session, plan, group, taken).await
}

async fn commit(
    shared: &Shared,
    session: &Session,
    mut plan: Plan,
    group: &Group,
    taken: Option<&Places>,
) -> Result<(), Failure> {
    let homes = group.iter().filter(|work| work.reach() == Reach::Home).map(|work| (work.home(), true));
    let mut places = plan.places.clone();
    plan::add(&mut places, homes);
    if let Some(taken) = taken
        && !take_more(session, plan::missing(&plan.places, taken)).await?
    {
        return Err(Failure::Stale(places));
    }
    let (news, after) = (std::mem::take(&mut plan.news), std::mem::take(&mut plan.after));
    let expected = plan.addresses();
    let frame = match (taken.is_some(), plan.writes()) {
        (true, _) => Frame::End,
        (false, true) => Frame::Whole,
        (false, false) if expected.is_empty() => return Ok(()),
        (false, false) => Frame::None,
    };
    match session.run(frame, &plan.into_steps()).await {
        Ok(rows) => {
            if let Some(time) = rows.first().and_then(|rows| rows.first()) {
                shared.clock.observe(tables::cell(time, 0).map_err(Failure::Refused)?);
            }
            shared.committed(after, &news);
            Ok(())
        }
        Err(error) => {
            for address in expected.iter().chain(after.iter().map(|(address, _)| address)) {
                shared.cache.forget(address);
            }
            Err(failure(error, places))
        }
    }
}

/// Takes partitions beside those that are taken, if nobody else has them. To wait for one outside of the order that all keep would be
/// a deadlock sooner or later.
async fn take_more(session: &Session, places: Places) -> Result<bool, Failure> {
    if places.is_empty() {
        return Ok(true);
    }
    let rows = session.query(&plan::lock_at_once(&places)).await.map_err(|error| failure(error, places))?;
    rows.first().map_or(Ok(false), |row| tables::cell(row, 0)).map_err(Failure::Refused)
}

fn failure(error: tokio_postgres::Error, places: Places) -> Failure {
    if is_stale(&error) || is_conflict(&error) {
        return Failure::Stale(places);
    }
    // A session that the server ends may have committed just before.
    let is_refused = error.as_db_error().is_some_and(|told| told.parsed_severity() == Some(Severity::Error));
    let error = explain(error);
    if is_refused { Failure::Refused(error) } else { Failure::Lost(error) }
}

/// Has every operation decide. Those that look for work, and those that others overtook, go one after another.
async fn decide(batch: &Arc<Batch>, session: &Session, group: &mut Group) -> Result<()> {
    let (mut together, mut one_by_one): (Vec<_>, Vec<_>) =
        group.iter_mut().partition(|work| work.reach() == Reach::Home);
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
                let (decision, is_refused) = work.run(batch).await?;
                Ok::<_, EngineError>((work, decision, is_refused))
            }
        })
        .collect();
    loop {
        let step = futures_util::future::poll_fn(|cx| {
            std::task::Poll::Ready(match running.poll_next_unpin(cx) {
                std::task::Poll::Ready(next) => Some(next),
                std::task::Poll::Pending => None,
            })
        });
        match step.await {
            Some(Some(decided)) => decisions.push(decided?),
            Some(None) => return Ok(()),
            None if batch.wants() => batch.read(session).await?,
            // Somebody waits for something else than the store.
            None => match running.next().await {
                Some(decided) => decisions.push(decided?),
                None => return Ok(()),
            },
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
