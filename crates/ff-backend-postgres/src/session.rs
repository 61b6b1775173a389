//! One connection, and the statements that run on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ff_core::Result;
use futures_util::future::{join_all, join3};
use postgres_types::ToSql;
use tokio_postgres::{Error, Row};

use crate::connection::Client;
use crate::error::explain;

type Parameter = Box<dyn ToSql + Sync + Send>;

/// A statement with its parameters; `{s}` stands for the schema.
pub(crate) struct Step {
    sql: String,
    parameters: Vec<Parameter>,
}

impl Step {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: Vec::new() }
    }

    #[must_use]
    pub(crate) fn with(mut self, parameter: impl ToSql + Sync + Send + 'static) -> Self {
        self.parameters.push(Box::new(parameter));
        self
    }

    /// Goes on with more of the statement.
    #[must_use]
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.sql.push(' ');
        self.sql.push_str(more);
        self
    }

    /// Adds parameters that are known by their number only.
    #[must_use]
    pub(crate) fn with_all<T: ToSql + Sync + Send + 'static>(mut self, parameters: Vec<T>) -> Self {
        self.parameters.extend(parameters.into_iter().map(|parameter| Box::new(parameter) as Parameter));
        self
    }

    fn references(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect()
    }
}

/// How a transaction that writes begins: its checks must see what the locks before them waited for.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// How a transaction begins and ends around its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Each statement for itself.
    None,
    /// All or nothing.
    Whole,
    /// All or nothing, in a transaction that has begun.
    End,
}

/// A connection of our own for a while.
pub(crate) struct Session {
    /// Gone only while it is dropped.
    client: Option<Client>,
    schema: Arc<str>,
    /// Whether a transaction may be open. Its caller may stop waiting at any time, and nobody else must get into it.
    is_open: AtomicBool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_open.load(Ordering::Relaxed)
            && let Some(client) = self.client.take()
        {
            // Out of the pool and closed, which ends the transaction.
            drop(Client::take(client));
        }
    }
}

impl Session {
    pub(crate) const fn new(client: Client, schema: Arc<str>) -> Self {
        Self { client: Some(client), schema, is_open: AtomicBool::new(false) }
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("a session has its connection until it is dropped")
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self, how: &str) -> Result<(), Error> {
        self.is_open.store(true, Ordering::Relaxed);
        self.client().batch_execute(how).await
    }

    /// Ends a transaction.
    pub(crate) async fn end(&self, how: &str) -> Result<(), Error> {
        self.client().batch_execute(how).await?;
        self.is_open.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Works in a transaction, which is undone when that fails.
    pub(crate) async fn transaction<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.begin(BEGIN).await.map_err(explain)?;
        let done = work.await;
        self.end(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.map_err(explain)?;
        done
    }

    /// Runs one statement.
    pub(crate) async fn query(&self, step: &Step) -> Result<Vec<Row>, Error> {
        let statement = self.client().prepare_cached(&self.named(&step.sql)).await?;
        self.client().query(&statement, &step.references()).await
    }

    /// Sends all steps at once and waits for all of them; the first error counts. After an error inside a transaction nothing of it is
    /// left.
    pub(crate) async fn run(&self, frame: Frame, steps: &[Step]) -> Result<Vec<Vec<Row>>, Error> {
        let client = self.client();
        let mut statements = Vec::with_capacity(steps.len());
        for step in steps {
            // What is known already takes no time, and what is not must not be sent between the others.
            statements.push(client.prepare_cached(&self.named(&step.sql)).await?);
        }
        let is_broken = AtomicBool::new(false);
        let all = join_all(steps.iter().zip(&statements).map(|(step, statement)| {
            let is_broken = &is_broken;
            async move {
                let answer = client.query(statement, &step.references()).await;
                if answer.is_err() {
                    is_broken.store(true, Ordering::Relaxed);
                }
                answer
            }
        }));
        // Sent in this order, all of them before the first answer.
        let begin = async { if frame == Frame::Whole { self.begin(BEGIN).await } else { Ok(()) } };
        let end = async {
            match (frame, is_broken.load(Ordering::Relaxed)) {
                (Frame::None, _) => Ok(()),
                // A step that could not even be sent: the others must not stand without it.
                (_, true) => self.end("ROLLBACK").await,
                (_, false) => self.end("COMMIT").await,
            }
        };
        let (begun, rows, ended) = join3(begin, all, end).await;
        begun?;
        let rows = rows.into_iter().collect::<Result<_, _>>()?;
        // To commit what has failed is no error but a rollback, so this comes last.
        ended?;
        Ok(rows)
    }

    fn named(&self, sql: &str) -> String {
        sql.replace("{s}", &self.schema)
    }
}
