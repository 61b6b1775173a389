//! A bare queue on Postgres: one table, prepared statements, each a transaction of its own, on a connection per caller.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::{Comparison, InFlight, Yardstick};
use crate::latency::Latencies;
use crate::postgres::{Schema, Schemas, connect};
use crate::settings::{CALLERS, PAYLOAD_BYTES, RESULT_BYTES};
use crate::work::{Measured, Stopwatch, priority, timed, together};

/// Jobs per statement of the queue in batches.
const BATCH: usize = 50;

/// Of both queues.
const CONNECTIONS: usize = 16;

/// Pops that may lose to others before something must be wrong.
const POPS_MAX: u32 = 10_000;

const TABLE: &str = "
    CREATE TABLE job (
        id bigserial PRIMARY KEY, priority integer NOT NULL, state integer NOT NULL, payload bytea, result bytea,
        created timestamptz NOT NULL DEFAULT now());
    CREATE INDEX waiting ON job (priority DESC, id) WHERE state = 0;";

/// Plans are made while the table is empty and stay when it grows: they must not be scans.
const SESSION: &str = "
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off;
    SET jit = off;";

const INSERT: &str = "INSERT INTO job (priority, state, payload) VALUES ($1, 0, $2)";
const POP: &str = "
    UPDATE job SET state = 1
    WHERE id = (
        SELECT id FROM job WHERE state = 0 ORDER BY priority DESC, id FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING id, payload";
const FINISH: &str = "UPDATE job SET state = 2, result = $2 WHERE id = $1 AND state = 1";

const INSERT_BATCH: &str = "
    INSERT INTO job (priority, state, payload)
    SELECT priority, 0, payload FROM unnest($1::integer[], $2::bytea[]) AS new (priority, payload)";
const POP_BATCH: &str = "
    UPDATE job SET state = 1
    WHERE id = ANY (ARRAY(
        SELECT id FROM job WHERE state = 0 ORDER BY priority DESC, id FOR UPDATE SKIP LOCKED LIMIT $1))
    RETURNING id, payload";
const FINISH_BATCH: &str = "
    UPDATE job SET state = 2, result = done.result
    FROM unnest($1::bigint[], $2::bytea[]) AS done (id, result)
    WHERE job.id = done.id AND job.state = 1";

/// Bare queues on a server.
#[derive(Clone, Debug)]
pub struct PostgresYardstick {
    schemas: Schemas,
}

impl PostgresYardstick {
    /// Queues on this server, each in a schema of its own.
    pub const fn new(schemas: Schemas) -> Self {
        Self { schemas }
    }

    async fn fresh(&self) -> Result<Schema> {
        let schema = self.schemas.fresh().await?;
        let client = connect(self.schemas.url()).await?;
        client.batch_execute(&format!("CREATE SCHEMA {0}; SET search_path = {0}; {TABLE}", schema.name())).await?;
        Ok(schema)
    }

    async fn session(&self, schema: &Schema) -> Result<Client> {
        let client = connect(self.schemas.url()).await?;
        client.batch_execute(&format!("SET search_path = {}; {SESSION}", schema.name())).await?;
        Ok(client)
    }

    async fn measure<Q: Queue>(&self, connections: usize, warm_up: Duration, measured: Duration) -> Result<Measured> {
        let schema = self.fresh().await?;
        let mut queues = Vec::with_capacity(connections);
        for _ in 0..connections {
            queues.push(Q::prepare(self.session(&schema).await?).await?);
        }
        let (queues, _) = serve(queues, warm_up).await?;
        Ok(serve(queues, measured).await?.1)
    }
}

#[async_trait]
impl Yardstick for PostgresYardstick {
    fn comparisons(&self) -> [Comparison; CALLERS.len()] {
        let in_flight = |group_max: usize| InFlight { calls: CONNECTIONS * group_max, group_max };
        [
            Comparison { key: "single", name: "bare queue, 16 connections, one call", in_flight: in_flight(1) },
            Comparison {
                key: "batched",
                name: "bare queue, 16 connections, batches of 50, one batch",
                in_flight: in_flight(BATCH),
            },
        ]
    }

    async fn queue(&self, in_flight: InFlight, warm_up: Duration, measured: Duration) -> Result<Measured> {
        let connections = in_flight.calls.div_ceil(in_flight.group_max);
        match in_flight.group_max {
            1 => self.measure::<OneByOne>(connections, warm_up, measured).await,
            BATCH => self.measure::<Batches>(connections, warm_up, measured).await,
            other => bail!("no queue has batches of {other}"),
        }
    }

    async fn commit(&self, warm_up: Duration, measured: Duration) -> Result<Measured> {
        let schema = self.fresh().await?;
        let mut queue = OneByOne::prepare(self.session(&schema).await?).await?;
        queue.commits(warm_up).await?;
        queue.commits(measured).await
    }

    async fn rested_commits(&self, count: usize, rest: Duration) -> Result<Measured> {
        let schema = self.fresh().await?;
        let mut queue = OneByOne::prepare(self.session(&schema).await?).await?;
        queue.insert().await?;
        let (mut calls, watch) = (Latencies::default(), Stopwatch::start());
        for _ in 0..count {
            tokio::time::sleep(rest).await;
            timed(&mut calls, queue.insert()).await?;
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }
}

/// One connection and its statements.
trait Queue: Send + Sized + 'static {
    fn prepare(client: Client) -> impl Future<Output = Result<Self>> + Send;

    /// Inserts, pops by priority, finishes; says how many jobs it finished.
    fn go_round(&mut self, calls: &mut Latencies) -> impl Future<Output = Result<usize>> + Send;
}

/// Lets all connections go round until the time is over, then lets each end the round it is in.
async fn serve<Q: Queue>(queues: Vec<Q>, time: Duration) -> Result<(Vec<Q>, Measured)> {
    let watch = Stopwatch::start();
    let until = watch.after(time);
    let tasks = queues.into_iter().map(|mut queue| async move {
        let (mut finished, mut calls) = (0, Latencies::default());
        while Instant::now() < until {
            finished += queue.go_round(&mut calls).await?;
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

/// A statement per job.
struct OneByOne {
    client: Client,
    insert: Statement,
    pop: Statement,
    finish: Statement,
    inserted: usize,
}

impl Queue for OneByOne {
    async fn prepare(client: Client) -> Result<Self> {
        Ok(Self {
            insert: client.prepare(INSERT).await?,
            pop: client.prepare(POP).await?,
            finish: client.prepare(FINISH).await?,
            inserted: 0,
            client,
        })
    }

    async fn go_round(&mut self, calls: &mut Latencies) -> Result<usize> {
        timed(calls, self.insert()).await?;
        let id = timed(calls, self.pop()).await?;
        timed(calls, self.finish(id)).await?;
        Ok(1)
    }
}

impl OneByOne {
    async fn insert(&mut self) -> Result<()> {
        self.inserted += 1;
        let payload: &[u8] = &[7; PAYLOAD_BYTES];
        self.client.execute(&self.insert, &[&priority(self.inserted), &payload]).await?;
        Ok(())
    }

    /// Everyone inserts before they pop; who lost the job to others, whose own one is too new to be seen, looks again.
    async fn pop(&self) -> Result<i64> {
        for _ in 0..POPS_MAX {
            if let Some(job) = self.client.query_opt(&self.pop, &[]).await? {
                std::hint::black_box(job.try_get::<_, Vec<u8>>(1)?);
                return Ok(job.try_get(0)?);
            }
        }
        bail!("{POPS_MAX} pops found nothing although jobs are waiting")
    }

    async fn finish(&self, id: i64) -> Result<()> {
        let result: &[u8] = &[7; RESULT_BYTES];
        let finished = self.client.execute(&self.finish, &[&id, &result]).await?;
        ensure!(finished == 1, "job {id} is not running");
        Ok(())
    }

    async fn commits(&mut self, time: Duration) -> Result<Measured> {
        let mut calls = Latencies::default();
        let watch = Stopwatch::start();
        while watch.elapsed() < time {
            timed(&mut calls, self.insert()).await?;
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }
}

/// A statement per batch of jobs. A pop may find fewer than a batch; the others go to the next one.
struct Batches {
    client: Client,
    insert: Statement,
    pop: Statement,
    finish: Statement,
    inserted: usize,
}

impl Queue for Batches {
    async fn prepare(client: Client) -> Result<Self> {
        Ok(Self {
            insert: client.prepare(INSERT_BATCH).await?,
            pop: client.prepare(POP_BATCH).await?,
            finish: client.prepare(FINISH_BATCH).await?,
            inserted: 0,
            client,
        })
    }

    async fn go_round(&mut self, calls: &mut Latencies) -> Result<usize> {
        timed(calls, self.insert()).await?;
        let ids = timed(calls, self.pop()).await?;
        timed(calls, self.finish(&ids)).await?;
        Ok(ids.len())
    }
}

impl Batches {
    async fn insert(&mut self) -> Result<()> {
        let priorities: Vec<i32> = (1..=BATCH).map(|nth| priority(self.inserted + nth)).collect();
        self.inserted += BATCH;
        let payloads: Vec<&[u8]> = vec![&[7; PAYLOAD_BYTES]; BATCH];
        self.client.execute(&self.insert, &[&priorities, &payloads]).await?;
        Ok(())
    }

    async fn pop(&self) -> Result<Vec<i64>> {
        let limit = i64::try_from(BATCH)?;
        for _ in 0..POPS_MAX {
            let jobs = self.client.query(&self.pop, &[&limit]).await?;
            if !jobs.is_empty() {
                jobs.iter().try_for_each(|job| {
                    job.try_get::<_, Vec<u8>>(1).map(|payload| drop(std::hint::black_box(payload)))
                })?;
                return Ok(jobs.iter().map(|job| job.try_get(0)).collect::<Result<_, _>>()?);
            }
        }
        bail!("{POPS_MAX} pops found nothing although jobs are waiting")
    }

    async fn finish(&self, ids: &[i64]) -> Result<()> {
        let results: Vec<&[u8]> = vec![&[7; RESULT_BYTES]; ids.len()];
        let finished = self.client.execute(&self.finish, &[&ids, &results]).await?;
        ensure!(finished == ids.len() as u64, "{finished} jobs of {} were running", ids.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Server;

    async fn waiting(client: &Client, priorities: &[i32]) {
        let sql = "INSERT INTO job (priority, state, payload) SELECT p, 0, 'x' FROM unnest($1::integer[]) AS p";
        client.execute(sql, &[&priorities]).await.unwrap();
    }

    async fn plan(client: &Client, statement: &str, parameters: &str) -> String {
        client.batch_execute("SET plan_cache_mode = force_generic_plan").await.unwrap();
        client.batch_execute(&format!("PREPARE planned AS {statement}")).await.unwrap();
        let rows = client.query(&format!("EXPLAIN EXECUTE planned{parameters}"), &[]).await.unwrap();
        client.batch_execute("DEALLOCATE planned").await.unwrap();
        rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
    }

    /// One server for all of it: it takes seconds to start.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_bare_queue_pops_by_priority_finishes_once_and_walks_indexes() {
        let server = Server::start().await.unwrap();
        let yardstick = PostgresYardstick::new(Schemas::new(server.url()));

        let first_schema = yardstick.fresh().await.unwrap();
        let one = OneByOne::prepare(yardstick.session(&first_schema).await.unwrap()).await.unwrap();
        waiting(&one.client, &[1, 5, 5]).await;
        let popped = [one.pop().await.unwrap(), one.pop().await.unwrap(), one.pop().await.unwrap()];
        assert_eq!(popped, [2, 3, 1]);
        one.finish(2).await.unwrap();
        assert!(one.finish(2).await.is_err());

        let schema = yardstick.fresh().await.unwrap();
        let batches = Batches::prepare(yardstick.session(&schema).await.unwrap()).await.unwrap();
        waiting(&batches.client, &[0; BATCH]).await;
        waiting(&batches.client, &[1, 1]).await;
        let first = batches.pop().await.unwrap();
        let second = batches.pop().await.unwrap();
        assert_eq!((first.len(), second.len()), (BATCH, 2));
        assert!(first.contains(&51) && first.contains(&52));
        batches.finish(&first).await.unwrap();
        assert!(batches.finish(&first).await.is_err());

        for (statement, parameters) in
            [(POP, ""), (POP_BATCH, "(50)"), (FINISH, "(1, 'x')"), (FINISH_BATCH, "('{1}', '{x}')")]
        {
            let plan = plan(&one.client, statement, parameters).await;
            assert!(plan.contains("Index Scan using job_pkey"), "{plan}");
            assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
        }

        drop((first_schema, schema));
        let time = Duration::from_millis(50);
        for comparison in yardstick.comparisons() {
            let measured = yardstick.queue(comparison.in_flight, time, time).await.unwrap();
            assert!(measured.per_s > 0.0 && measured.calls.p99_ms >= measured.calls.p50_ms, "{measured:?}");
        }
        assert!(yardstick.commit(time, time).await.unwrap().calls.p50_ms > 0.0);
        let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'bench%'";
        assert_eq!(one.client.query_one(schemas, &[]).await.unwrap().get::<_, i64>(0), 1, "the last one is left");
    }
}
