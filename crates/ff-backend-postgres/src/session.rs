//! One connection, and the statements that run on it.

use std::sync::Arc;

use futures_util::future::{join_all, join3};
use postgres_types::ToSql;
use tokio_postgres::{Error, Row};

use crate::connection::Client;

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

impl Frame {
    const fn begin(self) -> Option<&'static str> {
        match self {
            Self::None | Self::End => None,
            Self::Whole => Some("BEGIN"),
        }
    }

    const fn end(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Whole | Self::End => Some("COMMIT"),
        }
    }
}

/// A connection of our own for a while.
pub(crate) struct Session {
    client: Client,
    schema: Arc<str>,
}

impl Session {
    pub(crate) const fn new(client: Client, schema: Arc<str>) -> Self {
        Self { client, schema }
    }

    /// Whether the connection can be used no longer.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs a statement that takes and gives nothing.
    pub(crate) async fn command(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Runs one statement.
    pub(crate) async fn query(&self, step: &Step) -> Result<Vec<Row>, Error> {
        let statement = self.client.prepare_cached(&self.named(&step.sql)).await?;
        self.client.query(&statement, &step.references()).await
    }

    /// Sends all steps at once and waits for all of them; the first error counts. After an error inside a transaction nothing of it is
    /// left.
    pub(crate) async fn run(&self, frame: Frame, steps: &[Step]) -> Result<Vec<Vec<Row>>, Error> {
        let mut statements = Vec::with_capacity(steps.len());
        for step in steps {
            // What is known already takes no time, and what is not must not be sent between the others.
            statements.push(self.client.prepare_cached(&self.named(&step.sql)).await?);
        }
        let begin = async {
            match frame.begin() {
                Some(begin) => self.client.batch_execute(begin).await,
                None => Ok(()),
            }
        };
        let all = join_all(
            steps
                .iter()
                .zip(&statements)
                .map(|(step, statement)| async move { self.client.query(statement, &step.references()).await }),
        );
        let end = async {
            match frame.end() {
                Some(end) => self.client.batch_execute(end).await,
                None => Ok(()),
            }
        };
        let (begun, rows, ended) = join3(begin, all, end).await;
        begun?;
        let rows = rows.into_iter().collect::<Result<_, _>>();
        // A commit of what has failed is a rollback and no error.
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    fn named(&self, sql: &str) -> String {
        sql.replace("{s}", &self.schema)
    }
}
