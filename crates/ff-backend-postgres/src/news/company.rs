//! Whether there are others to tell. A process that is alone on its schema tells nothing.
//!
//! Whoever listens to a channel holds a lock, shared, that everybody can see and that ends with its connection. A process that comes does four
//! things, each after the one before: it listens, takes the lock, says hello, and asks who else has the lock. If nobody has, it is alone, until
//! it hears somebody or, now and then, asks again. While it does not listen it counts as in company.
//!
//! Nobody is overlooked, whoever comes when:
//! - A process that does not see the lock of another asked before that one took it, so also before that one said hello; and it listened before
//!   it asked. So it hears that hello.
//! - An answer may be looked at after a hello that is younger. So it counts only if nobody was heard since it was asked for.
//!
//! And nothing is missed: whoever stops being alone, for whatever reason, tells "everything". A newcomer has listened before it could be noticed,
//! so it hears that. What was committed until then and not told, it finds when it looks; and what is committed later is told. Who is alone and
//! leaves, or loses its connection, may just have missed a hello; so that is a reason, too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ff_core::Result;
use tokio_postgres::{Client, Error};

use crate::error::{Trouble, explain};

/// How long an answer may take on a connection that lives.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Takes the lock and says hello, which is heard when the statement ends, and so after that.
const COME: &str = "SELECT pg_catalog.pg_advisory_lock_shared($1), pg_catalog.pg_notify($2, $3)";

/// Whether another session has the lock.
const IS_ANYBODY_HERE: &str = "
    SELECT EXISTS (
      SELECT FROM pg_catalog.pg_locks AS held
      WHERE held.locktype = 'advisory'
        AND held.database = (SELECT here.oid FROM pg_catalog.pg_database AS here WHERE here.datname = pg_catalog.current_database())
        AND held.classid = $1
        AND held.objid = $2
        AND held.objsubid = 1
        AND held.granted
        AND held.pid <> pg_catalog.pg_backend_pid()
    )";

/// What a process knows of others. Whoever changes it holds the lock of what is untold, so that nobody sees one without the other.
#[derive(Debug, Default)]
pub(super) struct Company {
    is_alone: AtomicBool,
    /// How often there was a sign of others.
    signs: AtomicU64,
}

/// A moment before a question, by the signs that there had been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(u64);

impl Company {
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::SeqCst)
    }

    pub(super) fn moment(&self) -> Moment {
        Moment(self.signs.load(Ordering::SeqCst))
    }

    /// Others are there, or may be. Says whether there was nobody before.
    #[must_use = "whoever was alone has something to tell"]
    pub(super) fn expect(&self) -> bool {
        self.signs.fetch_add(1, Ordering::SeqCst);
        self.is_alone.swap(false, Ordering::SeqCst)
    }

    /// Nobody else was there at a moment. Counts only if there was no sign of others since.
    pub(super) fn miss(&self, asked: Moment) {
        if asked.0 == self.signs.load(Ordering::SeqCst) {
            self.is_alone.store(true, Ordering::SeqCst);
        }
    }
}

/// A connection that listens, and the number of its lock. It is the number of the channel: so those who hear each other are those who see each
/// other, whatever becomes of the schema. No place, execution or event has it: their locks have two short numbers, this one has a long one,
/// which the server keeps apart (`objsubid`).
pub(super) struct Presence<'c> {
    pub(super) client: &'c Client,
    pub(super) number: u64,
}

impl Presence<'_> {
    /// Listens from now on, and shows itself to others.
    pub(super) async fn come(&self, channel: &str, hello: &str) -> Result<()> {
        in_time(self.client.batch_execute(&format!("LISTEN {channel}"))).await?;
        let number = i64::from_be_bytes(self.number.to_be_bytes());
        in_time(self.client.query_one(COME, &[&number, &channel, &hello])).await.map(drop)
    }

    /// Whether somebody else is there.
    pub(super) async fn has_company(&self) -> Result<bool> {
        let [a, b, c, d, e, f, g, h] = self.number.to_be_bytes();
        let (high, low) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let row = in_time(self.client.query_one(IS_ANYBODY_HERE, &[&high, &low])).await?;
        row.try_get(0).map_err(explain)
    }
}

/// An answer, unless the connection only seems to live.
async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T> {
    let too_slow = |_| Trouble::Lost(format!("it did not answer for {ANSWER_MAX:?}"));
    tokio::time::timeout(ANSWER_MAX, answer).await.map_err(too_slow)?.map_err(explain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_asked_is_not_alone() {
        let company = Company::default();
        assert!(!company.is_alone() && !company.expect());
    }

    #[test]
    fn who_finds_nobody_is_alone_until_somebody_comes() {
        let company = Company::default();
        company.miss(company.moment());
        assert!(company.is_alone());
        assert!(company.expect(), "there was nobody");
        assert!(!company.is_alone());
        assert!(!company.expect(), "somebody was there before");
    }

    #[test]
    fn an_answer_does_not_count_when_somebody_came_after_the_question() {
        let company = Company::default();
        let asked = company.moment();
        let _ = company.expect();
        company.miss(asked);
        assert!(!company.is_alone());
        company.miss(company.moment());
        assert!(company.is_alone(), "the next one does");
    }
}
