//! The store on a server in memory.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_engine::{Engine, Settings};

use super::{Busy, Counter, Opened, Subject};
use crate::settings::Options;
use crate::valkey::{Prefixes, Server};
use crate::yardsticks::Yardstick;
use crate::yardsticks::valkey::ValkeyYardstick;

/// Engines with prefixes of their own on a server that was started for this run.
pub struct Valkey {
    fast_paths: bool,
    prefixes: Prefixes,
    yardstick: ValkeyYardstick,
    server: Server,
}

impl Valkey {
    /// Starts a server.
    pub async fn start(options: &Options) -> Result<Self> {
        let server = Server::start().await?;
        let prefixes = Prefixes::new(server.url());
        let yardstick = ValkeyYardstick::new(prefixes.clone()).await?;
        Ok(Self { fast_paths: !options.no_fast_paths, prefixes, yardstick, server })
    }
}

#[async_trait]
impl Subject for Valkey {
    async fn open(&self) -> Result<Opened> {
        let prefix = self.prefixes.fresh().await?;
        let options = ValkeyOptions::new(self.prefixes.url())?.prefix(prefix.name())?.fast_paths(self.fast_paths);
        let engine = Engine::open(ValkeyStore::connect(options).await?, Settings::default()).await?;
        Ok(Opened::new(engine, prefix))
    }

    fn engine(&self) -> Option<String> {
        Some(self.server.version().to_owned())
    }

    fn file_system(&self) -> Option<String> {
        Some(self.server.file_system().to_owned())
    }

    fn yardstick(&self) -> Option<&dyn Yardstick> {
        Some(&self.yardstick)
    }

    fn counter(&self) -> Option<&dyn Counter> {
        Some(self)
    }
}

#[async_trait]
impl Counter for Valkey {
    async fn count(&self, time: Duration) -> Result<Vec<Busy>> {
        self.server.count(time).await
    }
}
