//! An order and its shipment, both or neither: the task is submitted in the transaction that stores the order. Needs Postgres.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use flowfabric::postgres::tokio_postgres::{self, NoTls, Transaction};
use flowfabric::{Context, FlowFabric, Run, SubmitIn, Task, TaskResult};

async fn ship(_context: Context, order: i64) -> TaskResult<String> {
    Ok(format!("order {order} is on its way"))
}

/// Stores an order and submits its shipment; both wait for the commit.
async fn order(fabric: &FlowFabric, tx: &Transaction<'_>) -> Result<(i64, Run), Box<dyn Error>> {
    let number: i64 = tx.query_one("INSERT INTO orders DEFAULT VALUES RETURNING number", &[]).await?.get(0);
    let run = fabric.client().submit_in(tx, Task::new("ship", &number)).await?;
    Ok((number, run))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::var("FLOWFABRIC_STORE").map_err(|_| "FLOWFABRIC_STORE must name a Postgres database")?;
    let fabric = FlowFabric::open(&address).await?;
    let worker = fabric.worker().on("ship", ship).start().await?;

    // The connection of the application, which knows nothing of our parameters.
    let server = address.split_once('?').map_or(&*address, |(server, _)| server);
    let (mut application, connection) = tokio_postgres::connect(server, NoTls).await?;
    tokio::spawn(connection);
    let table = "CREATE TABLE IF NOT EXISTS orders (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)";
    application.batch_execute(table).await?;

    let tx = application.transaction().await?;
    let (_, regretted) = order(&fabric, &tx).await?;
    tx.rollback().await?;

    let tx = application.transaction().await?;
    let (number, run) = order(&fabric, &tx).await?;
    tx.commit().await?;

    let receipt: String = run.result().await?;
    println!("{receipt}");
    assert_eq!(receipt, format!("order {number} is on its way"));
    assert_eq!(regretted.state().await?, None, "neither the order nor its shipment");
    worker.stop().await;
    Ok(fabric.close().await?)
}
