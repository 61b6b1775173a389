//! The store on a file.

use anyhow::Result;
use async_trait::async_trait;

use super::{Opened, Subject};
use crate::disk::require_disk;
use crate::settings::{Options, Synchronous};
use crate::yardsticks::Yardstick;
use crate::yardsticks::sqlite::SqliteYardstick;

/// Engines on SQLite files below a folder.
pub struct Sqlite {
    file_system: String,
    yardstick: SqliteYardstick,
}

impl Sqlite {
    /// Files below the folder of the options, which is on a disk.
    pub fn new(options: &Options) -> Result<Self> {
        let file_system = require_disk(&options.dir)?;
        let synchronous = match options.synchronous {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        };
        Ok(Self { file_system, yardstick: SqliteYardstick::new(&options.dir, synchronous) })
    }
}

#[async_trait]
impl Subject for Sqlite {
    async fn open(&self) -> Result<Opened> {
        anyhow::bail!("this build has no engine on SQLite, only its yardstick")
    }

    fn engine(&self) -> Option<String> {
        Some(format!("SQLite {}", rusqlite::version()))
    }

    fn file_system(&self) -> Option<String> {
        Some(self.file_system.clone())
    }

    fn yardstick(&self) -> Option<&dyn Yardstick> {
        Some(&self.yardstick)
    }
}
