//! A bare queue on SQLite: one thread, one connection, one table, prepared statements.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_trait::async_trait;
use rusqlite::{Connection, Statement};

use super::{Comparison, InFlight, Yardstick};
use crate::disk::Scratch;
use crate::latency::Latencies;
use crate::settings::{CALLERS, PAYLOAD_BYTES, RESULT_BYTES};
use crate::work::{Measured, Stopwatch, priority};

const SCHEMA: &str = "
    CREATE TABLE job (id INTEGER PRIMARY KEY, priority INTEGER NOT NULL, state INTEGER NOT NULL, payload BLOB, result BLOB);
    CREATE INDEX waiting ON job (priority DESC, id) WHERE state = 0;";
const INSERT: &str = "INSERT INTO job (priority, state, payload) VALUES (?1, 0, ?2)";
const POP: &str = "
    UPDATE job SET state = 1
    WHERE id = (SELECT id FROM job WHERE state = 0 ORDER BY priority DESC, id LIMIT 1)
    RETURNING id, payload";
const FINISH: &str = "UPDATE job SET state = 2, result = ?2 WHERE id = ?1 AND state = 1";

/// Most calls of one transaction.
const GROUP_MAX: usize = 100;

/// Bare queues in files below a folder.
#[derive(Clone, Debug)]
pub struct SqliteYardstick {
    folder: PathBuf,
    pragmas: String,
}

impl SqliteYardstick {
    /// Queues below `folder`, on connections with these settings.
    pub fn new(folder: &Path, pragmas: String) -> Self {
        Self { folder: folder.to_owned(), pragmas }
    }

    fn open(&self, file: &Path) -> Result<Connection> {
        let connection = Connection::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        connection.execute_batch(&self.pragmas)?;
        connection.execute_batch(SCHEMA)?;
        Ok(connection)
    }

    /// Runs on a thread and a fresh file of its own.
    async fn apart(&self, measure: impl FnOnce(&Connection) -> Result<Measured> + Send + 'static) -> Result<Measured> {
        let yardstick = self.clone();
        let run = move || {
            let scratch = Scratch::new(&yardstick.folder)?;
            let connection = yardstick.open(&scratch.file("bare.db"))?;
            measure(&connection)
        };
        tokio::task::spawn_blocking(run).await?
    }
}

#[async_trait]
impl Yardstick for SqliteYardstick {
    fn comparisons(&self) -> [Comparison; CALLERS.len()] {
        let [few, many] = CALLERS.map(|calls| InFlight { calls, group_max: GROUP_MAX });
        [
            Comparison { key: "16", name: "bare queue, 16 in flight, one call", in_flight: few },
            Comparison { key: "256", name: "bare queue, 256 in flight, one call", in_flight: many },
        ]
    }

    async fn queue(&self, in_flight: InFlight, warm_up: Duration, measured: Duration) -> Result<Measured> {
        self.apart(move |connection| {
            let mut queue = BareQueue::new(connection)?;
            let mut callers = queue.callers(in_flight.calls)?;
            queue.serve(&mut callers, in_flight.group_max, warm_up)?;
            queue.serve(&mut callers, in_flight.group_max, measured)
        })
        .await
    }

    async fn commit(&self, warm_up: Duration, measured: Duration) -> Result<Measured> {
        self.apart(move |connection| {
            let mut queue = BareQueue::new(connection)?;
            queue.commits(warm_up)?;
            queue.commits(measured)
        })
        .await
    }

    async fn rested_commits(&self, count: usize, rest: Duration) -> Result<Measured> {
        self.apart(move |connection| BareQueue::new(connection)?.rested_commits(count, rest)).await
    }
}

/// What a caller asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Insert,
    Pop,
    Finish(i64),
}

struct BareQueue<'c> {
    begin: Statement<'c>,
    commit: Statement<'c>,
    insert: Statement<'c>,
    pop: Statement<'c>,
    finish: Statement<'c>,
    inserted: usize,
}

impl<'c> BareQueue<'c> {
    fn new(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            insert: connection.prepare(INSERT)?,
            pop: connection.prepare(POP)?,
            finish: connection.prepare(FINISH)?,
            inserted: 0,
        })
    }

    /// Callers in all three places of the loop, so that every group is a mix of calls.
    fn callers(&mut self, count: usize) -> Result<VecDeque<Call>> {
        let mut callers = VecDeque::with_capacity(count);
        for caller in 0..count {
            let mut next = Call::Insert;
            for _ in 0..caller % 3 {
                next = self.call(next)?;
            }
            callers.push_back(next);
        }
        Ok(callers)
    }

    fn serve(&mut self, callers: &mut VecDeque<Call>, group_max: usize, time: Duration) -> Result<Measured> {
        let mut calls = Latencies::default();
        let watch = Stopwatch::start();
        while watch.elapsed() < time {
            let group = callers.len().min(group_max);
            let took = self.group(callers, group)?;
            calls.note_many(took, group);
        }
        Ok(watch.measured(calls.count() as f64 / 3.0, calls))
    }

    /// Serves those who have waited longest and puts them behind the others.
    fn group(&mut self, callers: &mut VecDeque<Call>, size: usize) -> Result<Duration> {
        let begin = Instant::now();
        self.begin.execute([])?;
        for call in callers.iter_mut().take(size) {
            *call = self.call(*call)?;
        }
        self.commit.execute([])?;
        callers.rotate_left(size);
        Ok(begin.elapsed())
    }

    /// Does what one caller asks for; answers what it asks for next.
    fn call(&mut self, call: Call) -> Result<Call> {
        match call {
            Call::Insert => {
                self.inserted += 1;
                self.insert.execute((priority(self.inserted), [7_u8; PAYLOAD_BYTES]))?;
                Ok(Call::Pop)
            }
            Call::Pop => {
                let job = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?));
                let (id, payload) = self.pop.query_row([], job).context("every caller inserts before it pops")?;
                std::hint::black_box(payload);
                Ok(Call::Finish(id))
            }
            Call::Finish(id) => {
                let finished = self.finish.execute((id, [7_u8; RESULT_BYTES]))?;
                anyhow::ensure!(finished == 1, "job {id} is not running");
                Ok(Call::Insert)
            }
        }
    }

    fn commits(&mut self, time: Duration) -> Result<Measured> {
        let mut calls = Latencies::default();
        let watch = Stopwatch::start();
        while watch.elapsed() < time {
            let one = Instant::now();
            self.call(Call::Insert)?;
            calls.note(one.elapsed());
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }

    fn rested_commits(&mut self, count: usize, rest: Duration) -> Result<Measured> {
        let (mut calls, watch) = (Latencies::default(), Stopwatch::start());
        for _ in 0..count {
            std::thread::sleep(rest);
            let one = Instant::now();
            self.call(Call::Insert)?;
            calls.note(one.elapsed());
        }
        Ok(watch.measured(calls.count() as f64, calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yardstick() -> (Scratch, SqliteYardstick) {
        let scratch = Scratch::new(&std::env::temp_dir().join("ff-bench-test")).unwrap();
        let yardstick = SqliteYardstick::new(&scratch.file("bare"), "PRAGMA synchronous = OFF;".to_owned());
        (scratch, yardstick)
    }

    fn memory() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection
    }

    fn states(connection: &Connection) -> Vec<i64> {
        let mut statement = connection.prepare("SELECT state FROM job ORDER BY id").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn callers_begin_at_all_three_calls() {
        let connection = memory();
        let callers = BareQueue::new(&connection).unwrap().callers(4).unwrap();

        assert_eq!(callers, [Call::Insert, Call::Pop, Call::Finish(callers_job(&callers)), Call::Insert]);
        assert_eq!(states(&connection).iter().sum::<i64>(), 1);
    }

    fn callers_job(callers: &VecDeque<Call>) -> i64 {
        callers.iter().find_map(|call| if let Call::Finish(id) = call { Some(*id) } else { None }).unwrap()
    }

    #[test]
    fn the_best_job_is_popped_first_and_the_older_of_equals() {
        let connection = memory();
        connection.execute_batch("INSERT INTO job (priority, state) VALUES (1, 0), (5, 0), (5, 0)").unwrap();
        connection.execute_batch("UPDATE job SET payload = x'00'").unwrap();
        let mut queue = BareQueue::new(&connection).unwrap();

        let popped: Vec<Call> = (0..3).map(|_| queue.call(Call::Pop).unwrap()).collect();

        assert_eq!(popped, [Call::Finish(2), Call::Finish(3), Call::Finish(1)]);
        assert!(queue.call(Call::Pop).is_err());
        assert!(queue.call(Call::Finish(7)).is_err());
    }

    #[test]
    fn a_pop_walks_the_index_of_waiting_jobs() {
        let connection = memory();
        let plan = |row: &rusqlite::Row<'_>| row.get::<_, String>(3);
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {POP}")).unwrap();
        let steps: Vec<String> = explain.query_map([], plan).unwrap().map(Result::unwrap).collect();

        assert!(steps.iter().any(|step| step.contains("INDEX waiting")), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{steps:?}");
    }

    #[test]
    fn a_group_serves_those_who_waited_longest() {
        let connection = memory();
        let mut queue = BareQueue::new(&connection).unwrap();
        let mut callers = VecDeque::from([Call::Insert; 3]);

        queue.group(&mut callers, 2).unwrap();
        assert_eq!(callers, [Call::Insert, Call::Pop, Call::Pop]);
        queue.group(&mut callers, 2).unwrap();
        assert_eq!(callers[0], Call::Pop);
        // The third submission has the highest priority.
        assert_eq!(states(&connection), [0, 0, 1]);
    }

    #[tokio::test]
    async fn a_measurement_has_a_rate_and_latencies() {
        let (_scratch, yardstick) = yardstick();
        let time = Duration::from_millis(20);
        let in_flight = InFlight { calls: 16, group_max: 10 };

        for measured in
            [yardstick.queue(in_flight, time, time).await.unwrap(), yardstick.commit(time, time).await.unwrap()]
        {
            assert!(measured.per_s > 0.0);
            assert!(measured.calls.p50_ms > 0.0);
            assert!(measured.calls.p99_ms >= measured.calls.p50_ms);
        }
    }
}
