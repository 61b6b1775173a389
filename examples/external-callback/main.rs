//! A task hands a callback to a payment provider and waits for its answer. Whoever does not have the token is refused.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use flowfabric::core::error::{EngineError, ValidationKind};
use flowfabric::core::token::WaitpointToken;
use flowfabric::{Callback, Context, Error, FlowFabric, Task, TaskResult, Wait};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Serialize, Deserialize)]
struct Receipt {
    cents: u32,
}

/// The way to the provider.
type Provider = UnboundedSender<Callback>;

async fn charge(context: Context, cents: u32) -> TaskResult<String> {
    let provider = context.state::<Provider>()?;
    let callback = context.callback("payment", Duration::from_secs(3600)).await?;
    // The handler runs again after the wait, but the provider is asked once.
    context.step("ask", async || provider.send(callback.clone())).await?;
    let receipt: Receipt = context.wait_for(Wait::callback(&callback)).await?.body()?;
    Ok(format!("paid {} of {cents} cents", receipt.cents))
}

#[tokio::main]
async fn main() -> flowfabric::Result<()> {
    // Any other store as well, say postgres://user:password@host/database.
    let address = std::env::var("FLOWFABRIC_STORE").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let fabric = FlowFabric::open(&address).await?;
    let (provider, mut asked) = unbounded_channel::<Callback>();
    let worker = fabric.worker().state::<Provider>(provider).on("charge", charge).start().await?;
    let client = fabric.client();
    let run = client.submit(Task::new("charge", &250)).await?;

    let callback = asked.recv().await.expect("the provider is asked");
    let token = WaitpointToken::new(format!("{}0", callback.token.expose()));
    let tampered = Callback { token, ..callback.clone() };
    let refusal = client.answer(&tampered, "paid", &Receipt { cents: 1 }).await;
    println!("tampered token: {}", refusal.as_ref().expect_err("a tampered token is refused"));
    let is_refused = |error: &Error| {
        matches!(error, Error::Engine(EngineError::Validation { kind: ValidationKind::InvalidToken, .. }))
    };
    assert!(refusal.is_err_and(|error| is_refused(&error)));

    client.answer(&callback, "paid", &Receipt { cents: 250 }).await?;
    let report: String = run.result().await?;
    println!("{report}");
    assert_eq!(report, "paid 250 of 250 cents");
    worker.stop().await;
    fabric.close().await
}
