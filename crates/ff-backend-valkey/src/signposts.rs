//! Signposts: which shards may hold something of a queue. A claim on an idle lane reads them in one command, instead of asking every shard.
//!
//! Each queue has a sorted set of shards, all of them in one slot, with the server's time as the score. A process puts a sign up before the
//! commit that enters the queue, unless it did so a moment ago; so there may be a sign without work, but no work without a sign. Who follows
//! an old sign and finds nothing takes it down. A failover can lose the latest signs, as it can lose the latest commits: therefore every
//! process looks everywhere once in a while, and puts up what is missing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ff_core::{EngineError, Result};
use ff_engine::hash::HashMap;
use ff_engine::index::Index;
use ff_engine::recent::Recent;
use redis::{Cmd, Value};

use crate::address::{Layout, Shard};
use crate::connection::Link;
use crate::schema::function;
use crate::tables::{array, bytes, list, number, unexpected};

/// For how long a process relies on a sign that it has put up.
const GOOD_FOR: Duration = Duration::from_secs(20);

/// From what age on a sign is taken down by those whom it leads to nothing. No commit takes so long that it relies on one of this age.
const OLD_MS: i64 = 120_000;

/// How often a process looks everywhere.
const ROUND_EVERY: Duration = Duration::from_secs(30);

/// For how long a commit or a claim is held up while the server that has the signs does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// For how long no signs are put up after that has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether an index has signposts: what workers look through while there is nothing for them.
pub(crate) const fn has_signs(index: &Index) -> bool {
    matches!(
        index,
        Index::Eligible(..)
            | Index::Reclaimable(..)
            | Index::RouteParked(..)
            | Index::RouteHeld(..)
            | Index::BudgetParked(_)
            | Index::QuotaParked(_)
            | Index::WorkersOf(..)
    )
}

/// A sign that somebody has put up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    pub(crate) shard: Shard,
    /// When, by the server's time.
    at: i64,
    /// Whether it is to be taken down if it leads to nothing.
    pub(crate) is_old: bool,
}

/// What a process knows about signs of its own.
#[derive(Debug, Default)]
pub(crate) struct Signposts {
    /// When they were put up.
    ours: Recent<(Shard, Index), Instant>,
    /// When this process has looked everywhere.
    rounds: Recent<Index, Instant>,
    /// When no sign could be put up.
    failed_at: Mutex<Option<Instant>>,
}

impl Signposts {
    /// Puts signs up for what is about to enter queues of a shard. If that fails, others find it when they look everywhere.
    pub(crate) async fn put_up(&self, link: &Link, layout: &Layout, shard: Shard, indexes: Vec<Index>) {
        let is_up = |index: &Index| {
            let at = self.ours.get(&(shard, index.clone()));
            at.is_some_and(|at| at.elapsed() < GOOD_FOR)
        };
        let missing: Vec<Index> = indexes.into_iter().filter(|index| has_signs(index) && !is_up(index)).collect();
        if missing.is_empty() || self.has_just_failed() {
            return;
        }
        let began = Instant::now();
        let mut command = call("FCALL", "put_up", layout, &missing);
        command.arg(shard.0);
        match within_patience(link.ask(&command)).await {
            Ok(_) => missing.into_iter().for_each(|index| self.ours.put((shard, index), began)),
            Err(error) => {
                *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                tracing::warn!(%error, "others are not told at once where there is work");
            }
        }
    }

    /// Whether the server that has the signs is away, so that nobody need wait for it at every commit.
    fn has_just_failed(&self) -> bool {
        let failed_at = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.is_some_and(|at| at.elapsed() < PAUSE)
    }

    /// The signs of queues, in their order.
    pub(crate) async fn read(&self, link: &Link, layout: &Layout, indexes: &[Index]) -> Result<Vec<Vec<Sign>>> {
        let answer = within_patience(link.ask(&call("FCALL_RO", "signs", layout, indexes))).await?;
        let [now, queues] = array(answer)?;
        let now = number(&now)?;
        list(queues)?.into_iter().map(|signs| read_signs(signs, now)).collect()
    }

    /// Takes down signs that led to nothing, unless somebody has put them up again.
    pub(crate) async fn take_down(&self, link: &Link, layout: &Layout, signs: &HashMap<Index, Vec<Sign>>) {
        for (index, signs) in signs {
            let mut command = call("FCALL", "take_down", layout, std::slice::from_ref(index));
            for sign in signs {
                command.arg(sign.shard.0).arg(sign.at);
            }
            if let Err(error) = within_patience(link.ask(&command)).await {
                tracing::debug!(%error, "signs that lead to nothing stay for a while");
            }
        }
    }

    /// Whether it is time to look for a queue in every shard; notes that somebody does.
    pub(crate) fn is_round_due(&self, index: &Index) -> bool {
        let is_due = self.rounds.get(index).is_none_or(|at| at.elapsed() >= ROUND_EVERY);
        if is_due {
            self.rounds.put(index.clone(), Instant::now());
        }
        is_due
    }
}

async fn within_patience(answer: impl Future<Output = Result<Value>>) -> Result<Value> {
    let timeout = |_| EngineError::Timeout { op: "signposts", elapsed: PATIENCE };
    tokio::time::timeout(PATIENCE, answer).await.map_err(timeout)?
}

fn call(how: &str, name: &str, layout: &Layout, indexes: &[Index]) -> Cmd {
    let mut command = redis::cmd(how);
    command.arg(function(name)).arg(indexes.len());
    for index in indexes {
        command.arg(layout.signs(index));
    }
    command
}

/// Shards and times in turn.
fn read_signs(signs: Value, now: i64) -> Result<Vec<Sign>> {
    let numbers: Vec<i64> = list(signs)?.into_iter().map(|value| parsed(&bytes(value)?)).collect::<Result<_>>()?;
    let (pairs, _) = numbers.as_chunks();
    let sign = |[shard, at]: &[i64; 2]| {
        let shard = Shard(u16::try_from(*shard).map_err(|_| unexpected("a shard has no such number"))?);
        Ok(Sign { shard, at: *at, is_old: now - at > OLD_MS })
    };
    pairs.iter().map(sign).collect()
}

fn parsed(text: &[u8]) -> Result<i64> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| unexpected("a sign is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn signs_tell_their_shard_and_whether_they_are_old() {
        let told = Value::Array(vec![text("3"), text("1000"), text("0"), text("121000")]);
        let signs = read_signs(told, 121_001).unwrap();
        assert_eq!(
            signs.iter().map(|sign| (sign.shard, sign.is_old)).collect::<Vec<_>>(),
            [(Shard(3), true), (Shard(0), false)]
        );
        assert!(read_signs(Value::Array(vec![text("x"), text("1")]), 0).is_err());
    }

    #[test]
    fn everywhere_is_looked_once_in_a_while() {
        let signposts = Signposts::default();
        assert!(signposts.is_round_due(&Index::Created));
        assert!(!signposts.is_round_due(&Index::Created));
        assert!(signposts.is_round_due(&Index::Lanes));
    }
}
