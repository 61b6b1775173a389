//! A store on connections of the caller's own pool, which the caller goes on using.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool as OwnPool, Runtime};
use ff_backend_postgres::{Client, Pool, PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::backend::{Attempts, Inspection};
use ff_core::error::ErrorClass;
use ff_core::state::PublicState;
use ff_engine::{Engine, Settings};
use ff_test_servers::postgres::PostgresServerOptions;
use futures_util::future::join_all;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::server;
use crate::work::{PATIENCE, claim, create};

/// What our statements set, and what the caller has set before; nobody would guess the latter.
const SET_BY_CALLER: [(&str, &str); 10] = [
    ("application_name", "the caller's"),
    ("enable_seqscan", "on"),
    ("enable_hashjoin", "off"),
    ("enable_bitmapscan", "on"),
    ("jit", "on"),
    ("plan_cache_mode", "force_custom_plan"),
    ("lock_timeout", "77s"),
    ("idle_in_transaction_session_timeout", "78s"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
];

fn pool_at(url: &str, size: usize) -> OwnPool {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    let builder = OwnPool::builder(manager).max_size(size).runtime(Runtime::Tokio1);
    builder.wait_timeout(Some(PATIENCE)).build().unwrap()
}

/// All connections of a pool, each at once.
async fn all(pool: &OwnPool) -> Vec<deadpool_postgres::Client> {
    join_all((0..pool.status().max_size).map(|_| pool.get())).await.into_iter().map(Result::unwrap).collect()
}

/// A pool whose connections have settings that nobody else would choose.
async fn pool_of_caller(size: usize) -> OwnPool {
    let pool = pool_at(&server::url(), size);
    for client in all(&pool).await {
        for (name, value) in SET_BY_CALLER {
            client.batch_execute(&format!("SET {name} = '{}'", value.replace('\'', "''"))).await.unwrap();
        }
    }
    pool
}

/// Whether a transaction has begun before this very question.
async fn is_in_transaction(client: &deadpool_postgres::Client) -> bool {
    let answers = client.simple_query("SELECT now() <> statement_timestamp()").await.unwrap();
    let row = answers.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.unwrap() == "t"
}

async fn assert_as_the_caller_left_it(pool: &OwnPool) {
    for client in all(pool).await {
        for (name, value) in SET_BY_CALLER {
            let found: String = client.query_one(&format!("SHOW {name}"), &[]).await.unwrap().get(0);
            assert_eq!(found, value, "{name}");
        }
        assert!(!is_in_transaction(&client).await);
    }
}

async fn engine(pool: &OwnPool, options: PostgresOptions) -> PostgresBackend {
    let store = PostgresStore::from_pool(pool.clone(), options).await.unwrap();
    Engine::open(store, Settings::default()).await.unwrap()
}

async fn claim_and_complete(engine: &PostgresBackend, number: usize) {
    let handle = claim(engine, number).await;
    engine.complete(&handle, Some("done".into())).await.unwrap();
}

#[tokio::test]
async fn work_is_created_claimed_and_completed_and_the_callers_settings_stay() {
    for size in [1, 4] {
        let pool = pool_of_caller(size).await;
        let options = PostgresOptions::without_url().schema(server::fresh_name().as_str()).unwrap();
        let engine = Arc::new(engine(&pool, options).await);
        let ids = join_all((0..20).map(|_| create(&engine))).await;
        join_all((0..20).map(|number| claim_and_complete(&engine, number))).await;
        for id in ids {
            let snapshot = engine.describe_execution(id).await.unwrap().unwrap();
            assert_eq!(snapshot.public_state, PublicState::Completed);
        }
        assert_as_the_caller_left_it(&pool).await;
    }
}

#[tokio::test]
async fn who_stops_waiting_leaves_no_transaction_on_the_callers_connections() {
    let pool = pool_of_caller(1).await;
    let options = PostgresOptions::without_url().schema(server::fresh_name().as_str()).unwrap();
    let engine = engine(&pool, options).await;
    let id = create(&engine).await;
    for round in 0..60 {
        // Ended at a moment that differs from time to time: while it gets its connection, begins, reads, or ends.
        let _ = tokio::time::timeout(Duration::from_micros(40 * round), engine.describe_execution(id)).await;
        let client = pool.get().await.unwrap();
        assert!(!is_in_transaction(&client).await, "round {round}");
    }
}

async fn shown(client: &Client, name: &str) -> String {
    let show = client.prepare(&format!("SHOW {name}")).await.unwrap();
    client.query(&show, &[]).await.unwrap()[0].get(0)
}

#[tokio::test]
async fn our_statements_have_their_settings_inside_and_outside_of_transactions() {
    let own = pool_of_caller(1).await;
    let pool = Pool::from_pool(own.clone(), &PostgresOptions::without_url()).await.unwrap();
    let ours = [
        ("enable_seqscan", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("lock_timeout", "10s"),
        ("transaction_read_only", "off"),
    ];
    {
        let client = pool.get().await.unwrap();
        for (name, value) in ours {
            assert_eq!(shown(&client, name).await, value, "{name}");
        }
        for end in ["COMMIT", "ROLLBACK"] {
            client.batch_execute("BEGIN READ WRITE").await.unwrap();
            let began = client.prepare("SELECT now()::text").await.unwrap();
            let first: String = client.query(&began, &[]).await.unwrap()[0].get(0);
            for (name, value) in ours {
                assert_eq!(shown(&client, name).await, value, "{name}");
            }
            let later: String = client.query(&began, &[]).await.unwrap()[0].get(0);
            assert_eq!(first, later, "all of it is one transaction");
            client.batch_execute(end).await.unwrap();
        }
    }
    assert_as_the_caller_left_it(&own).await;
    assert!(pool.listener().await.unwrap().is_none());
}

#[tokio::test]
async fn with_a_url_the_commit_of_another_process_wakes_who_waits() {
    let options = server::options().schema(server::fresh_name().as_str()).unwrap();
    let pool = pool_of_caller(4).await;
    let engine = Arc::new(engine(&pool, options.clone()).await);
    let other = Engine::open(PostgresStore::connect(options).await.unwrap(), Settings::default()).await.unwrap();
    let waiting = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { claim_and_complete(&engine, 1).await })
    };
    create(&other).await;
    tokio::time::timeout(PATIENCE, waiting).await.expect("it is woken").unwrap();
    assert_as_the_caller_left_it(&pool).await;
}

#[tokio::test]
async fn a_url_that_leads_elsewhere_is_refused() {
    let pool = pool_at(&server::url(), 1);
    let another = server::start(PostgresServerOptions::default());
    for url in [another.url(), server::url().replace("/postgres", "/template1").replace("//template1", "//postgres")] {
        let options = PostgresOptions::new(&url).unwrap();
        let error = PostgresStore::from_pool(pool.clone(), options).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Terminal);
        assert!(error.to_string().contains("another database"), "{error}");
    }
}

#[tokio::test]
async fn without_a_url_there_is_nothing_to_connect_to() {
    let error = PostgresStore::connect(PostgresOptions::without_url()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Terminal);
    assert!(error.to_string().contains("PostgresOptions::new"), "{error}");
}
