//! The server of its own, and the queue written by hand on it.

use anyhow::{Result, bail};
use async_trait::async_trait;

use super::{Opened, Subject};
use crate::postgres::{Schemas, Server, connect};
use crate::settings::{Options, Scenario};
use crate::yardsticks::Yardstick;
use crate::yardsticks::postgres::PostgresYardstick;

/// A server that was started for this run.
pub struct Postgres {
    server: Server,
    schemas: Schemas,
    yardstick: PostgresYardstick,
}

impl Postgres {
    /// Starts a server.
    pub async fn start(_: &Options) -> Result<Self> {
        let server = Server::start().await?;
        let schemas = Schemas::new(server.url());
        Ok(Self { yardstick: PostgresYardstick::new(schemas.clone()), schemas, server })
    }
}

#[async_trait]
impl Subject for Postgres {
    fn offers(&self, scenario: Scenario) -> bool {
        scenario == Scenario::Bare
    }

    async fn open(&self) -> Result<Opened> {
        bail!("on Postgres only the yardsticks can be measured")
    }

    fn engine(&self) -> Option<String> {
        Some(format!("PostgreSQL {}", self.server.version()))
    }

    fn file_system(&self) -> Option<String> {
        Some(self.server.file_system().to_owned())
    }

    fn yardstick(&self) -> Option<&dyn Yardstick> {
        Some(&self.yardstick)
    }

    fn postgres(&self) -> Option<&str> {
        Some(self.schemas.url())
    }

    async fn settle(&self) -> Result<()> {
        Ok(connect(self.schemas.url()).await?.batch_execute("CHECKPOINT").await?)
    }
}
