//! Who owns the journal, and what that allows.
//!
//! A process that is alone on its schema owns the journal: its newest executions live there and in its memory, see [`young`](crate::young). Everybody
//! else is a guest, for whom everything is in the tables.
//!
//! Nobody is deceived, whoever comes when, and whoever hangs or loses its connections:
//! - **Commits** carry the number of the owner that they take for granted, 0 for none, and hold the place of the journal, shared, while the server
//!   compares it. Whoever changes the owner takes that place for itself. So no commit of a former owner, or of a guest that was forgotten, comes through.
//! - **Reads of an owner** ask afterwards whether it still is the owner, unless a commit or an answer has told so within the last half second. Each time
//!   it begins under a new number, so it was all the time before. Whoever takes over from another process waits for that long before it serves
//!   anybody, and so does whoever comes meanwhile.
//! - **Reads of a guest** need no such question, because nobody becomes the owner while there is another guest; they only count if the process was a
//!   guest all the time. A guest is here for a minute and a half at a
//!   time, by the clock of the server; it stays on every half minute, and reads nothing when it could not for longer than that.
//! - **Whoever takes over** first brings what the journal tells to the tables, in the transaction that changes the owner. So it does not matter
//!   whether the former owner has left, was killed, or is about to find out.
//!
//! An owner that hears of others becomes a guest by itself, and so does one that was dispossessed; who is alone again becomes the owner again.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ff_core::Result;

use crate::error::{corrupt, explain};
use crate::news::SWEEP;
use crate::session::Session;
use crate::tables::journal::Found;
use crate::tables::record::new_version;
use crate::tables::{self, journal};
use crate::writer::Shared;
use crate::writer::locks::Hold;
use crate::writer::plan::{self, Plan, Signature};
use crate::young::{Birth, Tale, Young};

/// For how long a guest is here, by the clock of the server.
const STAY: Duration = Duration::from_secs(90);

/// For how long it relies on that, by its own clock, counted from before it asked.
const RELIABLE: Duration = Duration::from_secs(75);

/// For how long an owner relies on being the owner, by its own clock, counted from before it asked or committed.
const ASSURED: Duration = Duration::from_millis(500);

/// For how long others wait who take over from it: clocks do not run quite alike.
const OTHERS_WAIT: Duration = Duration::from_millis(550);

/// The number of an owner that is none.
pub(crate) const NOBODY: i64 = 0;

/// What a process is to the journal.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// It has to find out.
    Outside,
    Owner {
        number: i64,
        /// Until when nobody else can have served anybody.
        assured_until: Instant,
    },
    /// Up to a moment.
    Guest(Instant),
}

/// The standing of a process.
#[derive(Debug)]
pub(crate) struct Standing {
    role: Mutex<Role>,
    /// Its number among guests.
    guest: i64,
    /// Whether it would own the journal at all.
    is_ambitious: bool,
    /// Whether somebody else took the journal from it, so that there is somebody else.
    was_dispossessed: AtomicBool,
    /// One finds out at a time.
    joining: tokio::sync::Mutex<()>,
    /// Under which number this process owned the journal last.
    own: AtomicI64,
    /// How often it became something else.
    turns: AtomicU64,
    young: Arc<Young>,
}

impl Standing {
    /// One that has yet to find out what it is.
    pub(crate) fn new(young: Arc<Young>, is_ambitious: bool) -> Self {
        Self {
            role: Mutex::new(Role::Outside),
            guest: new_version(),
            is_ambitious,
            was_dispossessed: AtomicBool::new(false),
            joining: tokio::sync::Mutex::default(),
            own: AtomicI64::new(NOBODY),
            turns: AtomicU64::new(0),
            young,
        }
    }

    fn role(&self) -> Role {
        *self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_role(&self, role: Role) {
        self.turns.fetch_add(1, Ordering::SeqCst);
        *self.role.lock().unwrap_or_else(PoisonError::into_inner) = role;
    }

    /// How often it became something else: what was read in between two turns was read as one.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// The owner that commits and reads of this process may take for granted, if that is known.
    fn current(&self) -> Option<i64> {
        match self.role() {
            Role::Owner { number, .. } if self.young.is_open(number) => Some(number),
            Role::Guest(until) if Instant::now() < until => Some(NOBODY),
            _ => None,
        }
    }

    /// The same; finds out if it must.
    pub(crate) async fn owner(&self, shared: &Shared) -> Result<i64> {
        if let Some(owner) = self.current() {
            return Ok(owner);
        }
        let _joining = self.joining.lock().await;
        match self.current() {
            Some(owner) => Ok(owner),
            None => self.join(shared).await,
        }
    }

    /// The journal belongs to somebody else than was taken for granted.
    pub(crate) fn dispossess(&self, owner: i64) {
        if self.step_aside(owner) && owner != NOBODY {
            self.was_dispossessed.store(true, Ordering::Relaxed);
        }
    }

    /// Has to find out again what it is, if it still takes this for granted; says whether it did.
    fn step_aside(&self, owner: i64) -> bool {
        self.young.close(owner);
        let mut role = self.role.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = match *role {
            Role::Owner { number, .. } => number == owner,
            Role::Guest(_) => owner == NOBODY,
            Role::Outside => false,
        };
        if is_meant {
            self.turns.fetch_add(1, Ordering::SeqCst);
            *role = Role::Outside;
        }
        is_meant
    }

    /// Something that was sent at a moment told that this was the owner.
    pub(crate) fn assure(&self, owner: i64, sent: Instant) {
        let mut role = self.role.lock().unwrap_or_else(PoisonError::into_inner);
        if let Role::Owner { number, assured_until } = &mut *role
            && *number == owner
        {
            *assured_until = (*assured_until).max(sent + ASSURED);
        }
    }

    fn is_assured(&self, owner: i64) -> bool {
        let now = Instant::now();
        matches!(self.role(), Role::Owner { number, assured_until } if number == owner && now < assured_until)
    }

    /// Whether what was read until now was all there is.
    pub(crate) async fn is_confirmed(&self, session: &Session, owner: i64) -> Result<bool> {
        if self.current() != Some(owner) {
            return Ok(false);
        }
        if owner == NOBODY || self.is_assured(owner) {
            return Ok(true);
        }
        let sent = Instant::now();
        let is_owner = !session.query(&journal::is_owner(owner)).await.map_err(explain)?.is_empty();
        if is_owner {
            self.assure(owner, sent);
        } else {
            self.dispossess(owner);
        }
        Ok(is_owner && self.current() == Some(owner))
    }

    /// Finds out what it is, and brings what the journal tells to the tables.
    async fn join(&self, shared: &Shared) -> Result<i64> {
        let session = shared.session().await?;
        let (began, owner) = (Instant::now(), new_version());
        let joined = session.transaction(self.join_here(shared, &session, owner)).await?;
        drop(session);
        let Joined { is_owner, quiet } = joined;
        if is_owner {
            self.own.store(owner, Ordering::Relaxed);
        }
        tokio::time::sleep(quiet).await;
        let (owner, role) = if is_owner {
            (owner, Role::Owner { number: owner, assured_until: began + ASSURED })
        } else {
            (NOBODY, Role::Guest(began + RELIABLE))
        };
        if is_owner {
            self.young.open(owner);
        } else {
            self.young.close_any();
        }
        self.take_role(role);
        // Whoever looked while it was not known who owns the journal may not have seen what another owner kept there.
        shared.memory.mirrors.forget();
        shared.topics.wake_all();
        Ok(owner)
    }

    async fn join_here(&self, shared: &Shared, session: &Session, new: i64) -> Result<Joined> {
        session.query(&plan::lock_journal()).await.map_err(explain)?;
        session.query(&journal::forget_guests(self.guest)).await.map_err(explain)?;
        let found = find(session).await?;
        let is_alone = !found.has_guests && shared.herald.is_alone() && !self.was_dispossessed.load(Ordering::Relaxed);
        let is_owner = self.is_ambitious && is_alone;
        let harmless = [Some(NOBODY), Some(self.own.load(Ordering::Relaxed))];
        let quiet = if harmless.contains(&found.owner) { found.quiet } else { OTHERS_WAIT };
        hand_over(session, &found, if is_owner { new } else { NOBODY }, quiet).await?;
        if !is_owner {
            session.query(&journal::receive_guest(self.guest, STAY)).await.map_err(explain)?;
        }
        Ok(Joined { is_owner, quiet })
    }

    /// Stays what it is, or becomes what its circumstances demand. Who is nothing finds out when it has to.
    async fn look_at_circumstances(&self, shared: &Shared) -> Result<()> {
        let _joining = self.joining.lock().await;
        if shared.herald.is_alone() {
            self.was_dispossessed.store(false, Ordering::Relaxed);
        }
        match self.role() {
            Role::Owner { number, .. } if shared.herald.has_company() => self.dispossess(number),
            Role::Guest(_) if self.stay(shared).await? => return Ok(()),
            Role::Guest(_) => drop(self.step_aside(NOBODY)),
            Role::Owner { .. } | Role::Outside => return Ok(()),
        }
        self.join(shared).await.map(drop)
    }

    /// Stays a guest, unless it was forgotten or is the only one and wants more; says whether it does.
    async fn stay(&self, shared: &Shared) -> Result<bool> {
        let began = Instant::now();
        let rows = shared.session().await?.query(&journal::stay(self.guest, STAY)).await.map_err(explain)?;
        let Some(row) = rows.first() else { return Ok(false) };
        let is_only_guest: bool = tables::cell(row, 0)?;
        let stays = !(is_only_guest && shared.herald.is_alone() && self.is_ambitious);
        if stays && let Role::Guest(until) = &mut *self.role.lock().unwrap_or_else(PoisonError::into_inner) {
            *until = began + RELIABLE;
        }
        Ok(stays)
    }

    /// Does so for as long as the process lives.
    pub(crate) async fn keep(shared: Arc<Shared>) {
        loop {
            // Whatever is missed here is noticed half a minute later.
            let _ = tokio::time::timeout(SWEEP, shared.herald.circumstances()).await;
            if let Err(error) = shared.standing.look_at_circumstances(&shared).await {
                tracing::debug!(%error, "nobody knows who owns the journal");
            }
        }
    }

    /// Leaves: everything is in the tables, and the next one need not wait.
    pub(crate) async fn leave(&self, shared: &Arc<Shared>) -> Result<()> {
        let _joining = self.joining.lock().await;
        match self.role() {
            Role::Owner { number, .. } => {
                // Most of it while others go on.
                let _plain = shared.settle_all(number).await?;
                let _ = self.step_aside(number);
                let session = shared.session().await?;
                session.transaction(resign(&session, number)).await
            }
            Role::Guest(_) => {
                self.take_role(Role::Outside);
                shared.session().await?.query(&journal::leave(self.guest)).await.map(drop).map_err(explain)
            }
            Role::Outside => Ok(()),
        }
    }
}

/// Gives the journal up, if it is still this owner's.
async fn resign(session: &Session, owner: i64) -> Result<()> {
    session.query(&plan::lock_journal()).await.map_err(explain)?;
    let found = find(session).await?;
    if found.owner == Some(owner) { hand_over(session, &found, NOBODY, found.quiet).await } else { Ok(()) }
}

async fn find(session: &Session) -> Result<Found> {
    let rows = session.query(&journal::find()).await.map_err(explain)?;
    Found::read(rows.first().ok_or_else(|| corrupt("nothing tells up to where the journal has settled"))?)
}

/// What became of a process that joined.
struct Joined {
    is_owner: bool,
    /// For how long another process may still rely on having the journal.
    quiet: Duration,
}

/// Makes somebody the owner, or nobody, and brings what the journal tells to the tables. To be called with the journal taken.
async fn hand_over(session: &Session, found: &Found, owner: i64, quiet: Duration) -> Result<()> {
    if found.owner != Some(owner) {
        session.query(&journal::appoint(owner, quiet)).await.map_err(explain)?;
    }
    if found.has_lines {
        let mut tale = Tale::after(Birth(found.settled));
        for row in session.query(&journal::lines()).await.map_err(explain)? {
            tale.hear(tables::cell(&row, 0)?)?;
        }
        let version = new_version();
        let plan = Plan::settling(&tale.into_rows(version)?, version);
        for step in plan.into_steps(&Hold::Everything, Signature { owner, line: None }) {
            session.query(&step).await.map_err(explain)?;
        }
        session.query(&journal::clear()).await.map_err(explain)?;
    }
    // Births begin anew, with no line that could be taken for one of them.
    if found.settled > 0 {
        session.query(&journal::mark(0)).await.map_err(explain)?;
    }
    Ok(())
}
