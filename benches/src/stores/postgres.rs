//! The store on a server.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use ff_backend_postgres::{PostgresOptions, PostgresStore};
use ff_engine::{Engine, Settings};

use super::{Busy, Counter, Opened, Subject};
use crate::postgres::{Schemas, Server, connect, count};
use crate::settings::Options;
use crate::yardsticks::Yardstick;
use crate::yardsticks::postgres::PostgresYardstick;

/// Engines on schemas of a server that was started for this run.
pub struct Postgres {
    fast_paths: bool,
    schemas: Schemas,
    yardstick: PostgresYardstick,
    server: Server,
}

impl Postgres {
    /// Starts a server.
    pub async fn start(options: &Options) -> Result<Self> {
        let server = Server::start().await?;
        let schemas = Schemas::new(server.url());
        let yardstick = PostgresYardstick::new(schemas.clone());
        Ok(Self { fast_paths: !options.no_fast_paths, schemas, yardstick, server })
    }
}

#[async_trait]
impl Subject for Postgres {
    async fn open(&self) -> Result<Opened> {
        let schema = self.schemas.fresh().await?;
        let options = PostgresOptions::new(self.schemas.url())?.schema(schema.name())?.fast_paths(self.fast_paths);
        let store = PostgresStore::connect(options).await?;
        let engine = Engine::open(store, Settings::default()).await?;
        Ok(Opened::new(engine, schema))
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

    fn counter(&self) -> Option<&dyn Counter> {
        Some(self)
    }

    async fn settle(&self) -> Result<()> {
        Ok(connect(self.schemas.url()).await?.batch_execute("CHECKPOINT").await?)
    }
}

#[async_trait]
impl Counter for Postgres {
    async fn count(&self, time: Duration) -> Result<Vec<Busy>> {
        count(self.schemas.url(), time).await
    }
}
