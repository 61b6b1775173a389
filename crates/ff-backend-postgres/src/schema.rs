//! The layout of the tables: made, brought up to date, or refused.

use std::collections::BTreeSet;

use deadpool_postgres::GenericClient;
use ff_core::{EngineError, Result};

use crate::connection::Pool;
use crate::error::explain;
use crate::options::SchemaName;

/// The layout this program writes. It covers the tables and the bytes of records, keys and index entries in them.
pub const SCHEMA_VERSION: i64 = 1;

/// The oldest program that can use a schema of this layout.
pub const MIN_COMPATIBLE: i64 = 1;

/// The oldest layout that this program can read.
const OLDEST_READABLE: i64 = 1;

/// A step from one layout to the next.
struct Migration {
    /// The layout it leads to.
    to: i64,
    /// The oldest program that can use that layout.
    min_compatible: i64,
    /// What to run, with `{schema}` for the name of the schema.
    sql: &'static str,
}

const MIGRATIONS: [Migration; 1] = [Migration {
    to: SCHEMA_VERSION,
    min_compatible: MIN_COMPATIBLE,
    sql: include_str!("../migrations/0001_initial.sql"),
}];

/// Tables that only we make beside each other; any of them without a version is a part of a layout.
const OURS: [&str; 3] = ["execution", "event_sequence", "deployment"];

/// Makes the layout, or brings an older one up to date. Processes that start together wait for each other.
///
/// # Errors
/// `InvalidInput` for a schema of another application, one that is incomplete, or one that only a newer or an older version can use;
/// nothing is changed then. `Transport` when the user may not create what is missing.
pub async fn prepare(pool: &Pool, schema: &SchemaName) -> Result<()> {
    let mut client = pool.get().await?;
    // Without waiting for anybody, and without a write that a standby would refuse.
    let mut version = self::version(&*client, schema).await?;
    while version < SCHEMA_VERSION {
        let tx = client.transaction().await.map_err(explain)?;
        // Another process may be at it for long, and so may the step itself.
        let alone = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL lock_timeout = '10min'; SET LOCAL statement_timeout = 0";
        tx.batch_execute(alone).await.map_err(explain)?;
        let name = format!("flowfabric layout of {}", schema.as_str());
        tx.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&name]).await.map_err(explain)?;
        let from = self::version(&tx, schema).await?;
        version = match MIGRATIONS.iter().find(|step| step.to > from) {
            Some(step) => {
                apply(&tx, schema, step).await?;
                step.to
            }
            None => from,
        };
        tx.commit().await.map_err(explain)?;
    }
    Ok(())
}

/// Refuses what is not ours or not for us, and changes nothing.
///
/// # Errors
/// `InvalidInput` for a schema of another application, one that is incomplete, or one that only a newer or an older version can use.
pub async fn check(pool: &Pool, schema: &SchemaName) -> Result<()> {
    version(&*pool.get().await?, schema).await.map(drop)
}

/// Runs a step and notes its layout, both in the transaction of the caller.
async fn apply(tx: &impl GenericClient, schema: &SchemaName, step: &Migration) -> Result<()> {
    let quoted = schema.quoted();
    // Not by IF NOT EXISTS, which asks for the right to create one even where an administrator has made it.
    let exists =
        tx.query_opt("SELECT FROM pg_namespace WHERE nspname = $1", &[&schema.as_str()]).await.map_err(explain)?;
    let create = if exists.is_none() { format!("CREATE SCHEMA {quoted};\n") } else { String::new() };
    let stamp = format!(
        "INSERT INTO {quoted}.deployment (name, value)
         VALUES ('schema_version', {}), ('min_compatible', {})
         ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value;",
        step.to, step.min_compatible
    );
    let sql = format!("{create}{}\n{stamp}", step.sql.replace("{schema}", &quoted));
    tx.batch_execute(&sql).await.map_err(explain)
}

/// The layout of the schema, 0 when it is missing or empty; refuses what is not ours or not for us.
async fn version(client: &impl GenericClient, schema: &SchemaName) -> Result<i64> {
    let found = contents(client, schema).await?;
    if found.is_empty() {
        return Ok(0);
    }
    if !found.contains("deployment") {
        return Err(if OURS.iter().any(|name| found.contains(*name)) { incomplete(schema) } else { foreign(schema) });
    }
    let (version, min_compatible) = stamps(client, schema).await?;
    let schema = schema.as_str();
    if min_compatible > SCHEMA_VERSION {
        return Err(EngineError::invalid(format_args!(
            "the schema {schema} has layout {version}, which needs a program that knows layout {min_compatible} or later; this one knows \
             {SCHEMA_VERSION}. Upgrade the program, or use another schema"
        )));
    }
    if version < OLDEST_READABLE {
        return Err(EngineError::invalid(format_args!(
            "the schema {schema} has layout {version}, which this program cannot read; it knows the layouts from {OLDEST_READABLE} to \
             {SCHEMA_VERSION}; nothing was changed. Use the program that made it, or another schema"
        )));
    }
    // A newer layout that we may use is left as it is.
    Ok(version.min(SCHEMA_VERSION))
}

/// Names of everything in the schema: tables and their like, functions.
async fn contents(client: &impl GenericClient, schema: &SchemaName) -> Result<BTreeSet<String>> {
    let sql = "SELECT relname::text FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
               UNION ALL
               SELECT proname::text FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)";
    let rows = client.query(sql, &[&schema.as_str()]).await.map_err(explain)?;
    rows.iter().map(|row| row.try_get(0).map_err(explain)).collect()
}

/// The layout that the schema notes, and the oldest program that can use it.
async fn stamps(client: &impl GenericClient, schema: &SchemaName) -> Result<(i64, i64)> {
    let columns = "SELECT count(*) FROM pg_attribute
                   WHERE attrelid = to_regclass($1) AND (attname, atttypid) IN (('name', 'text'::regtype), ('value', 'bigint'::regtype))";
    let table = format!("{}.deployment", schema.quoted());
    let known: i64 = client.query_one(columns, &[&table]).await.and_then(|row| row.try_get(0)).map_err(explain)?;
    if known < 2 {
        return Err(foreign(schema));
    }
    let sql = format!(
        "SELECT (SELECT value FROM {table} WHERE name = 'schema_version'), (SELECT value FROM {table} WHERE name = 'min_compatible')"
    );
    let row = client.query_one(&sql, &[]).await.map_err(explain)?;
    match (row.try_get(0).map_err(explain)?, row.try_get(1).map_err(explain)?) {
        (Some(version), Some(min_compatible)) => Ok((version, min_compatible)),
        _ => Err(incomplete(schema)),
    }
}

fn foreign(schema: &SchemaName) -> EngineError {
    EngineError::invalid(format_args!(
        "the schema {} belongs to another application; nothing was changed. Name a FlowFabric schema, or one that does not exist yet",
        schema.as_str()
    ))
}

/// What is said of a layout that lacks a note.
pub(crate) fn incomplete(schema: &SchemaName) -> EngineError {
    EngineError::invalid(format_args!(
        "the schema {} has tables of FlowFabric, but not the note of their layout; nothing was changed. If a backup was restored in \
         part, restore all of it; or name another schema",
        schema.as_str()
    ))
}
