//! Submitting in a transaction of the caller's own.

use std::future::Future;

use ff_backend_postgres::{CreateIn, OwnTransaction, PostgresBackend};

use crate::{Client, Error, Result, Run, Task};

/// Submits work in a transaction of the caller's own, on Postgres: what is submitted comes to be if and only if the transaction commits.
///
/// ```no_run
/// # async fn demo(
/// #     fabric: flowfabric::FlowFabric, application: &mut flowfabric::postgres::tokio_postgres::Client,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use flowfabric::{SubmitIn, Task};
///
/// let tx = application.transaction().await?;
/// tx.execute("INSERT INTO orders (number) VALUES ($1)", &[&7_i64]).await?;
/// let run = fabric.client().submit_in(&tx, Task::new("ship", &7)).await?;
/// tx.commit().await?;
/// let receipt: String = run.result().await?;
/// # let _ = receipt;
/// # Ok(())
/// # }
/// ```
///
/// [`CreateIn`] tells the rules, and what a transaction needs for it. Layers around the backend are passed by.
pub trait SubmitIn {
    /// Submits one task with a transaction. Until that commits, nobody finds the execution. With an idempotency key that is known by the time
    /// it is taken in, the execution that was submitted first stands, and the one that is answered here never comes to be.
    ///
    /// # Errors
    /// When the task is malformed, or the engine refuses it or cannot be reached: the transaction is as it was then, unless its own server refused the
    /// statement. [`Error::Setup`] on any other store than Postgres.
    fn submit_in<T: OwnTransaction>(&self, tx: &T, task: Task) -> impl Future<Output = Result<Run>> + Send;
}

impl SubmitIn for Client {
    async fn submit_in<T: OwnTransaction>(&self, tx: &T, task: Task) -> Result<Run> {
        let engine: &PostgresBackend = self.backend().as_any().downcast_ref().ok_or_else(no_transactions)?;
        let args = self.submission(task).await?;
        Ok(self.run(engine.create_execution_in(tx, args).await?))
    }
}

fn no_transactions() -> Error {
    Error::Setup("work can be submitted in a transaction of your own only on a store on Postgres".to_owned())
}
