//! What our functions on the server promise to writers and to readers of the event log.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ff_backend_postgres::{Client, SchemaName};
use server::{number, options, prepared, run};
use tokio_postgres::Error;
use uuid::Uuid;

/// What a transaction commits with.
#[derive(Default)]
struct Entry {
    places: Vec<(i32, bool)>,
    executions: Vec<(i32, Uuid, i64)>,
    records: Vec<(&'static [u8], i64)>,
    events: i64,
}

impl Entry {
    async fn enter(&self, client: &Client, schema: &SchemaName) -> Result<i64, Error> {
        let (places, shared): (Vec<_>, Vec<_>) = self.places.iter().copied().unzip();
        let partitions: Vec<i32> = self.executions.iter().map(|execution| execution.0).collect();
        let uuids: Vec<Uuid> = self.executions.iter().map(|execution| execution.1).collect();
        let versions: Vec<i64> = self.executions.iter().map(|execution| execution.2).collect();
        let (keys, key_versions): (Vec<_>, Vec<_>) = self.records.iter().copied().unzip();
        let sql = "SELECT {schema}.commit($1, $2, TRUE,
             ARRAY(SELECT w::{schema}.execution_seen FROM unnest($3::integer[], $4::uuid[], $5::bigint[]) AS w),
             ARRAY(SELECT w::{schema}.record_seen FROM unnest($6::bytea[], $7::bigint[]) AS w),
             1, '{}', '{}', '{}', ARRAY(SELECT ROW(0, 1, '')::{schema}.event_write FROM generate_series(1, $8::bigint)), 0, NULL, '{}')";
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
            [&places, &shared, &partitions, &uuids, &versions, &keys, &key_versions, &self.events];
        client.query_one(&sql.replace("{schema}", &schema.quoted()), &parameters).await?.try_get(0)
    }
}

const HORIZON: &str = "SELECT {schema}.event_horizon()";

/// Writes events.
const fn events(count: i64) -> Entry {
    Entry { places: vec![], executions: vec![], records: vec![], events: count }
}

fn code(error: &Error) -> &str {
    error.code().unwrap().code()
}

/// Asks until the answer is large enough.
async fn wait_for(client: &Client, schema: &SchemaName, sql: &str, wanted: i64) {
    let began = Instant::now();
    while number(client, schema, sql).await < wanted {
        assert!(began.elapsed() < Duration::from_secs(30), "not after 30 s: {sql}");
    }
}

#[tokio::test]
async fn entering_tells_the_time_of_the_server() {
    let (pool, schema) = prepared().await;
    let now = || i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let before = now();
    let told = Entry::default().enter(&pool.get().await.unwrap(), &schema).await.unwrap();
    assert!((before..=now()).contains(&told), "{told}");
}

#[tokio::test]
async fn only_the_versions_that_were_read_let_a_writer_in() {
    let (pool, schema) = prepared().await;
    let client = pool.get().await.unwrap();
    run(
        &pool,
        &schema,
        "INSERT INTO {schema}.execution (partition, uuid, version, body) VALUES (3, '00000000-0000-0000-0000-000000000001', 7, '');
         INSERT INTO {schema}.record VALUES ('there', 5, '')",
    )
    .await;
    let (there, absent) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for (executions, records, enters) in [
        (vec![], vec![], true),
        (vec![(3, there, 7)], vec![(b"there".as_slice(), 5)], true),
        (vec![(3, there, 7), (3, absent, 0), (4, there, 0)], vec![(b"there".as_slice(), 5), (b"absent", 0)], true),
        (vec![(3, there, 6)], vec![], false),
        (vec![(3, there, 0)], vec![], false),
        (vec![(3, there, 7), (4, there, 7)], vec![], false),
        (vec![], vec![(b"there".as_slice(), 4)], false),
        (vec![], vec![(b"there".as_slice(), 0)], false),
        (vec![(3, there, 7)], vec![(b"absent".as_slice(), 5)], false),
    ] {
        let entry = Entry { executions, records, ..Entry::default() };
        let entered = entry.enter(&client, &schema).await;
        assert_eq!(entered.is_ok(), enters, "{:?} {:?}", entry.executions, entry.records);
        assert!(entered.is_ok() || entered.is_err_and(|error| code(&error) == "FF001"));
    }
}

#[tokio::test]
async fn a_place_lets_many_share_it_and_one_alone() {
    let (pool, schema) = prepared().await;
    let (_, elsewhere) = prepared().await;
    let [one, other] = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    other.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
    let at = |place, shared| Entry { places: vec![(place, shared)], ..Entry::default() };

    one.batch_execute("BEGIN").await.unwrap();
    at(1, true).enter(&one, &schema).await.unwrap();
    at(1, true).enter(&other, &schema).await.unwrap();
    at(2, false).enter(&other, &schema).await.unwrap();
    at(1, false).enter(&other, &elsewhere).await.unwrap();
    let refused = at(1, false).enter(&other, &schema).await.unwrap_err();
    assert_eq!(code(&refused), "55P03");

    one.batch_execute("ROLLBACK").await.unwrap();
    at(1, false).enter(&other, &schema).await.unwrap();
}

#[tokio::test]
async fn who_waited_for_a_place_sees_what_its_owner_wrote() {
    let (pool, schema) = prepared().await;
    let [owner, waiter] = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    let entry = || Entry { places: vec![(1, false)], records: vec![(b"key", 0)], ..Entry::default() };
    owner.batch_execute("BEGIN").await.unwrap();
    entry().enter(&owner, &schema).await.unwrap();
    let waiting = tokio::spawn({
        let schema = schema.clone();
        async move { entry().enter(&waiter, &schema).await }
    });
    let blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
                   AND classid = '{schema}'::regnamespace::oid";
    wait_for(&owner, &schema, blocked, 1).await;
    let insert = "INSERT INTO {schema}.record VALUES ('key', 1, '')".replace("{schema}", &schema.quoted());
    owner.batch_execute(&insert).await.unwrap();
    owner.batch_execute("COMMIT").await.unwrap();
    assert_eq!(code(&waiting.await.unwrap().unwrap_err()), "FF001");
}

#[tokio::test]
async fn the_horizon_stays_behind_writers_of_events_and_nobody_else() {
    let (pool, schema) = prepared().await;
    let [reader, slow, fast, foreign] =
        [pool.get().await.unwrap(), pool.get().await.unwrap(), pool.get().await.unwrap(), pool.get().await.unwrap()];
    assert_eq!(number(&reader, &schema, HORIZON).await, 0);
    // Somebody else's long transaction, with a number of its own and locks of another kind.
    foreign.batch_execute("BEGIN; CREATE TEMP TABLE theirs (a int); SELECT pg_advisory_xact_lock(1)").await.unwrap();

    slow.batch_execute("BEGIN").await.unwrap();
    events(1).enter(&slow, &schema).await.unwrap();
    fast.batch_execute("BEGIN").await.unwrap();
    events(1).enter(&fast, &schema).await.unwrap();
    fast.batch_execute("COMMIT").await.unwrap();
    assert_eq!(number(&reader, &schema, HORIZON).await, 0, "the first event may still come");

    slow.batch_execute("COMMIT").await.unwrap();
    assert_eq!(number(&reader, &schema, HORIZON).await, 2);
    slow.batch_execute("BEGIN").await.unwrap();
    events(1).enter(&slow, &schema).await.unwrap();
    assert_eq!(number(&reader, &schema, HORIZON).await, 2);
    slow.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(number(&reader, &schema, HORIZON).await, 3, "who rolled back will never commit");
}

#[tokio::test]
async fn the_horizon_is_right_where_the_numbers_of_locks_begin_anew() {
    let (pool, schema) = prepared().await;
    let [reader, writer] = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    for round in [1_i64, 2, 1 << 20] {
        let edge = round << 31;
        for start in [edge - 2, edge - 1, edge, edge + 1] {
            run(&pool, &schema, &format!("SELECT setval('{{schema}}.event_sequence', {start})")).await;
            writer.batch_execute("BEGIN").await.unwrap();
            events(4).enter(&writer, &schema).await.unwrap();
            assert_eq!(number(&reader, &schema, HORIZON).await, start);
            writer.batch_execute("ROLLBACK").await.unwrap();
            assert_eq!(number(&reader, &schema, HORIZON).await, start + 4);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_behind_the_horizon_misses_nothing_while_many_write() {
    const WRITERS: i64 = 8;
    const COMMITS: i64 = 150;
    let (_, schema) = prepared().await;
    let pool = ff_backend_postgres::Pool::connect(&options()).await.unwrap();
    let writers = (0..WRITERS).map(|writer| {
        let (pool, schema) = (pool.clone(), schema.clone());
        tokio::spawn(async move {
            let client = pool.get().await.unwrap();
            for commit in 0..COMMITS {
                client.batch_execute("BEGIN").await.unwrap();
                events(2).enter(&client, &schema).await.unwrap();
                let end = if (commit + writer) % 10 == 0 { "ROLLBACK" } else { "COMMIT" };
                client.batch_execute(end).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let reader = pool.get().await.unwrap();
    let page =
        format!("SELECT sequence FROM {}.event WHERE sequence > $1 AND sequence <= $2 ORDER BY 1", schema.quoted());
    let (mut seen, mut last) = (Vec::new(), 0);
    loop {
        let are_done = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let horizon = number(&reader, &schema, HORIZON).await;
        let rows = reader.query(&page, &[&last, &horizon]).await.unwrap();
        seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        last = seen.last().copied().unwrap_or(0);
        if are_done {
            break;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let all = reader.query(&page, &[&0_i64, &i64::MAX]).await.unwrap();
    let all: Vec<i64> = all.iter().map(|row| row.get(0)).collect();
    assert_eq!(i64::try_from(all.len()).unwrap(), WRITERS * COMMITS * 2 * 9 / 10);
    assert_eq!(seen, all);
}

#[tokio::test]
async fn versions_are_found_by_key_however_large_the_tables_are() {
    let (pool, schema) = prepared().await;
    let client = pool.get().await.unwrap();
    let entry = || Entry {
        executions: vec![(1, Uuid::from_u128(u128::MAX), 0)],
        records: vec![(b"absent", 0)],
        ..Entry::default()
    };
    // Plans are made now, while there is nothing in the tables, and kept.
    for _ in 0..10 {
        entry().enter(&client, &schema).await.unwrap();
    }
    run(
        &pool,
        &schema,
        "INSERT INTO {schema}.execution (partition, uuid, version, body) SELECT 1, gen_random_uuid(), 1, '' FROM generate_series(1, 20000);
         INSERT INTO {schema}.record SELECT sha256(n::text::bytea), 1, '' FROM generate_series(1, 20000) n",
    )
    .await;
    for _ in 0..10 {
        entry().enter(&client, &schema).await.unwrap();
    }
    let scans = "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables
                 WHERE relid IN ('{schema}.execution'::regclass, '{schema}.record'::regclass)";
    // The session tells its numbers when it ends.
    drop(client);
    pool.close();
    let watcher = server::pool().await;
    let told =
        "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_tables WHERE relid = '{schema}.record'::regclass";
    let client = watcher.get().await.unwrap();
    wait_for(&client, &schema, told, 20).await;
    assert_eq!(number(&client, &schema, scans).await, 0);
}
