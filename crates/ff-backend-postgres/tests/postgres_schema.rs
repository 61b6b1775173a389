//! The layout is made once, by whoever comes first; what is not ours stays as it is.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::fmt::Write as _;

use ff_backend_postgres::{Client, Pool, PostgresOptions, SCHEMA_VERSION, SchemaName, check, prepare};
use ff_test_servers::postgres::PostgresServerOptions;
use server::{fresh_name, number, pool, prepared, run};

const VERSION: &str = "SELECT value FROM {schema}.deployment WHERE name = 'schema_version'";

/// Both refuse with a message that has these words in it.
async fn assert_refused(pool: &Pool, schema: &SchemaName, words: &str) {
    for refused in [prepare(pool, schema).await, check(pool, schema).await] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(schema.as_str()), "{error}");
    }
}

/// Everything that the schema has, with its rows counted where that says something.
async fn contents(client: &Client, schema: &SchemaName) -> Vec<String> {
    let sql = "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1) ORDER BY 1";
    client.query(sql, &[&schema.quoted()]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_checked_in_layout_is_what_the_migrations_make() {
    let (pool, schema) = (pool().await, SchemaName::default());
    prepare(&pool, &schema).await.unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
    let made = dump(&pool.get().await.unwrap(), &schema).await;
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(stored, made, "run the tests once with UPDATE_SCHEMA=1 and look at the difference");
}

#[tokio::test]
async fn preparing_twice_changes_nothing() {
    let (pool, schema) = prepared().await;
    prepare(&pool, &schema).await.unwrap();
    check(&pool, &schema).await.unwrap();
    assert_eq!(number(&pool.get().await.unwrap(), &schema, VERSION).await, SCHEMA_VERSION);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_start_together_all_succeed() {
    let schema = fresh_name();
    let starts = (0..12).map(|_| {
        let schema = schema.clone();
        tokio::spawn(async move { prepare(&pool().await, &schema).await })
    });
    for started in starts.collect::<Vec<_>>() {
        started.await.unwrap().unwrap();
    }
    check(&pool().await, &schema).await.unwrap();
}

#[tokio::test]
async fn deployments_in_schemas_of_their_own_live_side_by_side() {
    let (pool, one) = prepared().await;
    let (_, other) = prepared().await;
    run(&pool, &one, "INSERT INTO {schema}.record VALUES ('a', 1, 'b')").await;
    assert_eq!(number(&pool.get().await.unwrap(), &other, "SELECT count(*) FROM {schema}.record").await, 0);
}

#[tokio::test]
async fn an_empty_schema_is_filled_by_a_user_who_may_create_no_schema() {
    let (admin, schema) = (pool().await, fresh_name());
    let role = format!("user_{}", schema.as_str());
    run(&admin, &schema, &format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {{schema}} AUTHORIZATION {role}")).await;
    let limited = Pool::connect(&as_user(&role)).await.unwrap();

    prepare(&limited, &schema).await.unwrap();

    let denied = prepare(&limited, &fresh_name()).await.unwrap_err().to_string();
    assert!(denied.contains("may not") && denied.contains("Grant it"), "{denied}");
}

fn as_user(role: &str) -> PostgresOptions {
    let url = server::url().replace("//postgres@", &format!("//{role}@"));
    PostgresOptions::new(&url).unwrap()
}

#[tokio::test]
async fn a_newer_layout_that_we_may_use_is_left_alone() {
    let (pool, schema) = prepared().await;
    run(&pool, &schema, "UPDATE {schema}.deployment SET value = 99 WHERE name = 'schema_version'").await;
    prepare(&pool, &schema).await.unwrap();
    assert_eq!(number(&pool.get().await.unwrap(), &schema, VERSION).await, 99);
}

#[tokio::test]
async fn a_layout_for_newer_programs_only_is_refused() {
    let (pool, schema) = prepared().await;
    run(&pool, &schema, "UPDATE {schema}.deployment SET value = 99").await;
    assert_refused(&pool, &schema, "has layout 99").await;
}

#[tokio::test]
async fn a_layout_from_before_is_refused_and_left_as_it_was() {
    let (pool, schema) = prepared().await;
    run(&pool, &schema, "UPDATE {schema}.deployment SET value = 0").await;
    assert_refused(&pool, &schema, "the program that made it").await;
    assert_eq!(number(&pool.get().await.unwrap(), &schema, VERSION).await, 0);
}

#[tokio::test]
async fn a_part_of_a_layout_is_refused_and_left_as_it_was() {
    for damage in [
        "DELETE FROM {schema}.deployment",
        "DELETE FROM {schema}.deployment WHERE name = 'min_compatible'",
        "DROP TABLE {schema}.deployment",
    ] {
        let (pool, schema) = prepared().await;
        run(&pool, &schema, damage).await;
        let client = pool.get().await.unwrap();
        let before = contents(&client, &schema).await;
        assert_refused(&pool, &schema, "not the note of their layout").await;
        assert_eq!(contents(&client, &schema).await, before);
    }
}

#[tokio::test]
async fn a_schema_of_another_application_is_refused_and_left_as_it_was() {
    for theirs in [
        "CREATE TABLE {schema}.diary (entry text)",
        "CREATE TABLE {schema}.deployment (name text, at timestamptz)",
        "CREATE FUNCTION {schema}.one() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ] {
        let (pool, schema) = (pool().await, fresh_name());
        run(&pool, &schema, &format!("CREATE SCHEMA {{schema}}; {theirs}")).await;
        let client = pool.get().await.unwrap();
        let before = contents(&client, &schema).await;
        assert_refused(&pool, &schema, "another application").await;
        assert_eq!(contents(&client, &schema).await, before);
    }
}

#[tokio::test]
async fn a_step_that_fails_leaves_nothing_behind() {
    let schema = fresh_name();
    // Of the whole server, so on one of its own.
    let refuse = "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%event_horizon%')
                    THEN RAISE EXCEPTION 'not today' USING ERRCODE = '53100'; END IF; END $$;
                  CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN tag IN ('CREATE FUNCTION') EXECUTE FUNCTION public.refuse()";
    let own = server::start(PostgresServerOptions::default());
    let here = Pool::connect(&PostgresOptions::new(&own.url()).unwrap()).await.unwrap();
    run(&here, &schema, refuse).await;

    let error = prepare(&here, &schema).await.unwrap_err().to_string();

    assert!(error.contains("not today"), "{error}");
    assert!(contents(&here.get().await.unwrap(), &schema).await.is_empty());
    run(&here, &schema, "DROP EVENT TRIGGER refuse").await;
    prepare(&here, &schema).await.unwrap();
}

/// The layout as SQL, in a fixed order.
async fn dump(client: &Client, schema: &SchemaName) -> String {
    let mut out =
        format!("-- Layout {SCHEMA_VERSION} of the Postgres store, generated from the migrations; do not edit.\n");
    for statements in [TABLES, INDEXES, SEQUENCES, FUNCTIONS] {
        for row in client.query(statements, &[&schema.as_str()]).await.unwrap() {
            write!(out, "\n{};\n", row.get::<_, String>(0).trim_end()).unwrap();
        }
    }
    out
}

const TABLES: &str = "
SELECT format(E'CREATE TABLE %s.%s (\\n%s\\n)%s', $1::text, t.relname,
  concat_ws(E',\\n',
    (SELECT string_agg('  ' || concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attcollation <> y.typcollation THEN 'COLLATE ' || a.attcollation::regcollation END,
       CASE WHEN a.attnotnull THEN 'NOT NULL' END), E',\\n' ORDER BY a.attnum)
     FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT string_agg('  ' || pg_get_constraintdef(c.oid), E',\\n' ORDER BY c.conname) FROM pg_constraint c WHERE c.conrelid = t.oid)),
  CASE WHEN t.reloptions IS NOT NULL THEN E' WITH (\\n  ' || array_to_string(t.reloptions, E',\\n  ') || E'\\n)' END)
FROM pg_class t WHERE t.relnamespace = to_regnamespace($1::text) AND t.relkind = 'r' ORDER BY t.relname";

const INDEXES: &str = "
SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = to_regnamespace($1::text) AND NOT i.indisprimary ORDER BY c.relname";

const SEQUENCES: &str = "
SELECT format('CREATE SEQUENCE %s.%s AS %s START %s INCREMENT %s CACHE %s', schemaname, sequencename, data_type, start_value,
  increment_by, cache_size)
FROM pg_sequences WHERE schemaname = $1::text ORDER BY sequencename";

const FUNCTIONS: &str = "
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace($1::text) ORDER BY proname, oid";
