//! A bare queue on Valkey: a hash per job, a sorted set of those that wait and one of those that run, and one call of a function per step.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use ff_backend_valkey::redis::aio::MultiplexedConnection;
use ff_backend_valkey::redis::{Cmd, cmd};

use super::{Comparison, InFlight, Yardstick};
use crate::latency::Latencies;
use crate::settings::{CALLERS, PAYLOAD_BYTES, RESULT_BYTES};
use crate::valkey::{Prefix, Prefixes, connect};
use crate::work::{Measured, Stopwatch, priority, timed, together};

/// Of both queues.
const CONNECTIONS: usize = 16;

/// Pops that may lose to others before something must be wrong.
const POPS_MAX: u32 = 10_000;

const FUNCTIONS: &str = "#!lua name=bare
local function insert(keys, args)
  local id = redis.call('INCR', keys[1])
  redis.call('HSET', keys[2] .. id, 'payload', args[2], 'state', '0')
  redis.call('ZADD', keys[3], args[1], id)
  return id
end
local function pop(keys)
  local id = redis.call('ZPOPMIN', keys[3])[1]
  if not id then return false end
  redis.call('ZADD', keys[4], '0', id)
  redis.call('HSET', keys[2] .. id, 'state', '1')
  return { tonumber(id), redis.call('HGET', keys[2] .. id, 'payload') }
end
local function finish(keys, args)
  if redis.call('ZREM', keys[4], args[1]) == 0 then return 0 end
  redis.call('HSET', keys[2] .. args[1], 'state', '2', 'result', args[2])
  return 1
end
redis.register_function('bare_insert', insert)
redis.register_function('bare_pop', pop)
redis.register_function('bare_finish', finish)";

/// Bare queues on a server.
#[derive(Clone, Debug)]
pub struct ValkeyYardstick {
    prefixes: Prefixes,
}

impl ValkeyYardstick {
    /// Queues on this server, each with a prefix of its own.
    pub async fn new(prefixes: Prefixes) -> Result<Self> {
        let mut load = cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(FUNCTIONS);
        load.exec_async(&mut connect(prefixes.url()).await?).await?;
        Ok(Self { prefixes })
    }

    async fn queue_on(&self, prefix: &Prefix, connection: MultiplexedConnection) -> Queue {
        let key = |name: &str| format!("{{{}}}{name}", prefix.name());
        let keys = ["last", "job:", "waiting", "running"].map(key);
        Queue { connection, keys, inserted: 0 }
    }

    async fn one(&self, prefix: &Prefix) -> Result<Queue> {
        Ok(self.queue_on(prefix, connect(self.prefixes.url()).await?).await)
    }
}

#[async_trait]
impl Yardstick for ValkeyYardstick {
    fn comparisons(&self) -> [Comparison; CALLERS.len()] {
        // Calls of one connection are sent without waiting for each other.
        let in_flight = |calls: usize| InFlight { calls, group_max: 1 };
        [
            Comparison { key: "16", name: "bare queue, 16 connections, one call", in_flight: in_flight(CALLERS[0]) },
            Comparison {
                key: "256",
                name: "bare queue, 16 connections, 16 calls each",
                in_flight: in_flight(CALLERS[1]),
            },
        ]
    }

    async fn queue(&self, in_flight: InFlight, warm_up: Duration, measured: Duration) -> Result<Measured> {
        let prefix = self.prefixes.fresh().await?;
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            connections.push(connect(self.prefixes.url()).await?);
        }
        let mut queues = Vec::with_capacity(in_flight.calls);
        for call in 0..in_flight.calls {
            queues.push(self.queue_on(&prefix, connections[call % CONNECTIONS].clone()).await);
        }
        let (queues, _) = serve(queues, warm_up).await?;
        Ok(serve(queues, measured).await?.1)
    }

    async fn commit(&self, warm_up: Duration, measured: Duration) -> Result<Measured> {
        let prefix = self.prefixes.fresh().await?;
        let mut queue = self.one(&prefix).await?;
        queue.inserts(warm_up).await?;
        queue.inserts(measured).await
    }

    async fn rested_commits(&self, count: usize, rest: Duration) -> Result<Measured> {
        let prefix = self.prefixes.fresh().await?;
        let mut queue = self.one(&prefix).await?;
        queue.insert().await?;
        let (mut calls, watch) = (Latencies::default(), Stopwatch::start());
        for _ in 0..count {
            tokio::time::sleep(rest).await;
            timed(&mut calls, queue.insert()).await?;
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }
}

/// Lets all callers go round until the time is over, then lets each end the round it is in.
async fn serve(queues: Vec<Queue>, time: Duration) -> Result<(Vec<Queue>, Measured)> {
    let watch = Stopwatch::start();
    let until = watch.after(time);
    let tasks = queues.into_iter().map(|mut queue| async move {
        let (mut finished, mut calls) = (0_usize, Latencies::default());
        while Instant::now() < until {
            timed(&mut calls, queue.insert()).await?;
            let id = timed(&mut calls, queue.pop()).await?;
            timed(&mut calls, queue.finish(id)).await?;
            finished += 1;
        }
        Ok((queue, finished, calls))
    });
    let (mut queues, mut finished, mut calls) = (Vec::new(), 0, Latencies::default());
    for (queue, some, noted) in together(tasks).await? {
        queues.push(queue);
        finished += some;
        calls.merge(noted);
    }
    Ok((queues, watch.measured(finished as f64, calls)))
}

/// One caller.
struct Queue {
    connection: MultiplexedConnection,
    keys: [String; 4],
    inserted: usize,
}

impl Queue {
    fn call(&self, function: &str) -> Cmd {
        let mut call = cmd("FCALL");
        call.arg(function).arg(self.keys.len()).arg(&self.keys);
        call
    }

    async fn insert(&mut self) -> Result<()> {
        self.inserted += 1;
        // The highest priority first, and of one priority the oldest.
        let rank = i64::from(9 - priority(self.inserted)) * 1_000_000_000 + i64::try_from(self.inserted)?;
        let mut call = self.call("bare_insert");
        call.arg(rank).arg(&[7_u8; PAYLOAD_BYTES][..]);
        let _: i64 = call.query_async(&mut self.connection).await?;
        Ok(())
    }

    async fn pop(&mut self) -> Result<i64> {
        let call = self.call("bare_pop");
        for _ in 0..POPS_MAX {
            if let Some((id, payload)) = call.query_async::<Option<(i64, Vec<u8>)>>(&mut self.connection).await? {
                std::hint::black_box(payload);
                return Ok(id);
            }
        }
        bail!("{POPS_MAX} pops found nothing although jobs are waiting")
    }

    async fn finish(&mut self, id: i64) -> Result<()> {
        let mut call = self.call("bare_finish");
        call.arg(id).arg(&[7_u8; RESULT_BYTES][..]);
        let finished: i64 = call.query_async(&mut self.connection).await?;
        ensure!(finished == 1, "job {id} is not running");
        Ok(())
    }

    async fn inserts(&mut self, time: Duration) -> Result<Measured> {
        let mut calls = Latencies::default();
        let watch = Stopwatch::start();
        while watch.elapsed() < time {
            timed(&mut calls, self.insert()).await?;
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::valkey::Server;

    /// One server for all of it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_bare_queue_pops_by_priority_and_finishes_once() {
        let server = Server::start().await.unwrap();
        let yardstick = ValkeyYardstick::new(Prefixes::new(server.url())).await.unwrap();
        let prefix = yardstick.prefixes.fresh().await.unwrap();
        let mut queue = yardstick.one(&prefix).await.unwrap();
        for _ in 0..3 {
            queue.insert().await.unwrap();
        }
        assert_eq!(
            [queue.pop().await.unwrap(), queue.pop().await.unwrap()],
            [3, 2],
            "later ones have higher priorities"
        );
        queue.finish(3).await.unwrap();
        assert!(queue.finish(3).await.is_err());
        let time = Duration::from_millis(50);
        for comparison in yardstick.comparisons() {
            let measured = yardstick.queue(comparison.in_flight, time, time).await.unwrap();
            assert!(measured.per_s > 0.0 && measured.calls.p99_ms >= measured.calls.p50_ms, "{measured:?}");
        }
        assert!(yardstick.commit(time, time).await.unwrap().calls.p50_ms > 0.0);
    }
}
