//! Creating executions and flows in a transaction of the caller's own: they come to be if and only if that transaction commits.
//!
//! The transaction only notes what is to be created, under keys that nobody else has, so that it takes no lock that anybody waits for, and
//! appends no event, so that the log goes on without it, however long it stays open. Its commit tells the timers of all processes, and one of
//! them takes the note in.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use deadpool_postgres::tokio_postgres as driver;
use driver::types::{ToSql, Type};
use driver::{Error, GenericClient};
use ff_core::backend::flows::CreateFlowArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::{EngineError, Result};
use ff_engine::codec::{encode_key, encode_record};
use ff_engine::records::{Intake, Record};

use crate::error::explain;
use crate::news;
use crate::session::{Session, Step};
use crate::store::PostgresStore;
use crate::tables::entry::RawEntry;
use crate::tables::{cell, record};
use crate::{PostgresBackend, SchemaName};

/// Notes a submission and tells those who take it in once it is committed; gives no row, and does nothing, in any other database than ours. The
/// session may have any settings, so everything is named in full; of `unnest` with several arguments there is only one.
const NOTE: &str = "
    WITH here AS (
      SELECT FROM {s}.deployment AS noted, pg_catalog.pg_database AS database
      WHERE noted.name OPERATOR(pg_catalog.=) 'identity' AND noted.value OPERATOR(pg_catalog.=) $7
        AND database.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND database.oid OPERATOR(pg_catalog.=) $8
    ), written AS (
      INSERT INTO {s}.record (key, version, body) SELECT $1, $2, $3 FROM here
    ), entered AS (
      INSERT INTO {s}.entry (list, major, tie, key)
      SELECT entries.list, entries.major, entries.tie, $1 FROM here, unnest($4, $5, $6) AS entries (list, major, tie)
    )
    SELECT pg_catalog.pg_notify($9, $10) FROM here";

/// Executions and flows that are created in a transaction of the caller's own.
///
/// ```
/// # use ff_backend_postgres::{CreateIn, PostgresBackend, deadpool_postgres};
/// # use ff_core::backend::ingress::CreateExecutionArgs;
/// # async fn demo(
/// #     engine: &PostgresBackend, client: &mut deadpool_postgres::Client, ship: CreateExecutionArgs,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let order = client.transaction().await?;
/// order.execute("INSERT INTO orders (number) VALUES ($1)", &[&7_i64]).await?;
/// let id = engine.create_execution_in(&order, ship).await?;
/// order.commit().await?;
/// # let _ = id;
/// # Ok(())
/// # }
/// ```
///
/// Everything that can be refused is refused before anything is written, with the errors of `create_execution` and `create_flow`: the transaction
/// is as it was then. Once it is committed, the [timers](ff_engine::Timers) of any process take in what it noted: at once where they hear of it, and
/// within half a minute where they do not (on a pool of the caller's, without a URL). Until then `await_outcome` waits for the execution, and all other
/// operations do not find it. What one transaction creates is taken in in any order. Nothing is lost, and nothing is created twice.
///
/// What is decided only then:
///
/// - An id that the caller gives or an idempotency key may be known. It is as with two calls of `create_execution` at that moment: the earlier
///   execution stands, and no other one comes to be. The id that was answered here names an execution only if it was given, or if the key was new; to call
///   `create_execution` with the same key finds the one that stands.
/// - The execution is created at that moment: relative deadlines and the memory of its key begin there, and it has the budgets and quotas that are
///   attached to its namespace, lane and tags by then.
///
/// What has changed otherwise, such as a lane that was closed or a budget that was removed, came too late for it.
///
/// The transaction must be in the database of the store, and its user needs `USAGE` of the schema, `SELECT` on `deployment` and `INSERT` on `record` and
/// `entry` there. It cannot be prepared for two-phase commit, because it notifies. If many of them run at once on the pool that the store uses as well
/// ([`PostgresStore::from_pool`]), each holds a connection while the check waits for another one: then let
/// [`Engine::admit_execution`](ff_engine::Engine::admit_execution) check before the transaction begins, and write with [`PostgresStore::put_in`].
pub trait CreateIn {
    /// Has an execution created if the transaction commits; gives its id, minted unless the caller gives one.
    ///
    /// # Errors
    /// Those of `create_execution`; `InvalidInput` when the transaction is in another database. An error of the server, `Transport`, ends the transaction.
    fn create_execution_in<T: OwnTransaction>(
        &self,
        tx: &T,
        args: CreateExecutionArgs,
    ) -> impl Future<Output = Result<ExecutionId>> + Send;

    /// Has a flow created if the transaction commits.
    ///
    /// # Errors
    /// Those of `create_flow`; `InvalidInput` when the transaction is in another database. An error of the server, `Transport`, ends the transaction.
    fn create_flow_in<T: OwnTransaction>(
        &self,
        tx: &T,
        args: CreateFlowArgs,
    ) -> impl Future<Output = Result<FlowId>> + Send;
}

impl CreateIn for PostgresBackend {
    async fn create_execution_in<T: OwnTransaction>(&self, tx: &T, args: CreateExecutionArgs) -> Result<ExecutionId> {
        let (id, intake) = self.admit_execution(args).await?;
        self.store().put_in(tx, &intake).await?;
        Ok(id)
    }

    async fn create_flow_in<T: OwnTransaction>(&self, tx: &T, args: CreateFlowArgs) -> Result<FlowId> {
        let flow = args.flow_id;
        let intake = self.admit_flow(args).await?;
        self.store().put_in(tx, &intake).await?;
        Ok(flow)
    }
}

/// A transaction that the caller has begun: one of `tokio_postgres` or of `deadpool_postgres`, or a client of theirs on which it was begun by hand.
/// Without a transaction a client commits at once.
pub trait OwnTransaction: Sync {
    /// What statements run on.
    type Client: GenericClient + Sync;

    /// What statements run on.
    fn client(&self) -> &Self::Client;
}

impl OwnTransaction for driver::Client {
    type Client = Self;

    fn client(&self) -> &Self {
        self
    }
}

impl OwnTransaction for driver::Transaction<'_> {
    type Client = Self;

    fn client(&self) -> &Self {
        self
    }
}

impl OwnTransaction for deadpool_postgres::Client {
    type Client = driver::Client;

    fn client(&self) -> &driver::Client {
        self
    }
}

impl<'t> OwnTransaction for deadpool_postgres::Transaction<'t> {
    type Client = driver::Transaction<'t>;

    fn client(&self) -> &driver::Transaction<'t> {
        self
    }
}

impl PostgresStore {
    /// Writes a submission that was admitted, in one statement, and has those told who take it in once the transaction is committed.
    /// [`CreateIn`] says what becomes of it.
    ///
    /// # Errors
    /// `InvalidInput` when the transaction is in another database than the store; `Transport` for whatever the server answers.
    pub async fn put_in(&self, tx: &impl OwnTransaction, intake: &Intake) -> Result<()> {
        let schema = self.options().schema_name();
        let note = Note::new(&intake.clone().into(), schema)?;
        let expected = self.identity.expected();
        if note.write(tx, expected).await.map_err(|error| explain_note(error, schema))? {
            return Ok(());
        }
        // It may be ours all the same: moved to another server while this process lives.
        let actual = Identity::read(&self.shared.session().await?, schema).await?;
        if actual != expected && note.write(tx, actual).await.map_err(explain)? {
            self.identity.expect(actual);
            return Ok(());
        }
        Err(elsewhere(schema, "a schema of that name is there, and is another one"))
    }
}

fn elsewhere(schema: &SchemaName, told: &str) -> EngineError {
    EngineError::invalid(format_args!(
        "the transaction is not in the database of the store, whose schema is {}: {told}. Begin it on a connection to the store's own database",
        schema.as_str()
    ))
}

fn explain_note(error: Error, schema: &SchemaName) -> EngineError {
    match error.code().map(driver::error::SqlState::code) {
        Some("3F000" | "42P01") => elsewhere(schema, "there is no such schema"),
        _ => explain(error),
    }
}

/// A submission as rows.
struct Note {
    sql: String,
    channel: String,
    key: Vec<u8>,
    version: i64,
    body: Vec<u8>,
    lists: Vec<Vec<u8>>,
    majors: Vec<i64>,
    ties: Vec<Vec<u8>>,
}

impl Note {
    fn new(record: &Record, schema: &SchemaName) -> Result<Self> {
        let schema = schema.quoted();
        let mut note = Self {
            sql: NOTE.replace("{s}", &schema),
            channel: news::channel(&schema),
            key: encode_key(&record.key()),
            version: record::new_version(),
            body: encode_record(record)?,
            lists: Vec::new(),
            majors: Vec::new(),
            ties: Vec::new(),
        };
        for entry in record.entries().iter().map(RawEntry::of) {
            note.lists.push(entry.list);
            note.majors.push(entry.major);
            note.ties.push(entry.tie);
        }
        Ok(note)
    }

    /// Says whether it was written, and not for want of our database.
    async fn write(&self, tx: &impl OwnTransaction, place: Identity) -> Result<bool, Error> {
        // Types are told, so that nothing is prepared: it is one round trip, and poolers of any kind pass it.
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&self.key, Type::BYTEA),
            (&self.version, Type::INT8),
            (&self.body, Type::BYTEA),
            (&self.lists, Type::BYTEA_ARRAY),
            (&self.majors, Type::INT8_ARRAY),
            (&self.ties, Type::BYTEA_ARRAY),
            (&place.number, Type::INT8),
            (&place.database, Type::OID),
            (&self.channel, Type::TEXT),
            (&news::SOMETHING_IS_DUE, Type::TEXT),
        ];
        Ok(!tx.client().query_typed(&self.sql, &parameters).await?.is_empty())
    }
}

/// Tells the schema of a store from all others: a number that was drawn with its layout, and the database, because copies have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    number: i64,
    database: u32,
}

impl Identity {
    pub(crate) async fn read(session: &Session, schema: &SchemaName) -> Result<Self> {
        let step = Step::new(
            "SELECT noted.value, database.oid FROM {s}.deployment AS noted, pg_database AS database
             WHERE noted.name = 'identity' AND database.datname = current_database()",
        );
        let rows = session.query(&step).await.map_err(explain)?;
        let row = rows.first().ok_or_else(|| crate::schema::incomplete(schema))?;
        Ok(Self { number: cell(row, 0)?, database: cell(row, 1)? })
    }
}

/// The schema that transactions of callers are expected to see.
#[derive(Debug)]
pub(crate) struct ExpectedIdentity(Mutex<Identity>);

impl ExpectedIdentity {
    pub(crate) const fn new(identity: Identity) -> Self {
        Self(Mutex::new(identity))
    }

    fn expected(&self) -> Identity {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, identity: Identity) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = identity;
    }
}
