//! The store on a file.

use std::path::PathBuf;

use anyhow::{Context, Result};
use async_trait::async_trait;
use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_engine::{Engine, Settings};

use super::{Opened, Subject};
use crate::disk::{Scratch, require_disk};
use crate::settings::{Options, Synchronous};
use crate::yardsticks::Yardstick;
use crate::yardsticks::sqlite::SqliteYardstick;

/// Engines on SQLite files below a folder.
pub struct Sqlite {
    folder: PathBuf,
    file_system: String,
    synchronous: ff_backend_sqlite::Synchronous,
    fast_paths: bool,
    yardstick: SqliteYardstick,
}

impl Sqlite {
    /// Files below the folder of the options, which is on a disk.
    pub fn new(options: &Options) -> Result<Self> {
        let synchronous = match options.synchronous {
            Synchronous::Full => ff_backend_sqlite::Synchronous::Full,
            Synchronous::Normal => ff_backend_sqlite::Synchronous::Normal,
        };
        let pragmas = ff_backend_sqlite::settings(&SqliteOptions::memory().synchronous(synchronous));
        Ok(Self {
            folder: options.dir.clone(),
            file_system: require_disk(&options.dir).context("choose another folder with --dir")?,
            synchronous,
            fast_paths: !options.no_fast_paths,
            yardstick: SqliteYardstick::new(&options.dir, pragmas),
        })
    }
}

#[async_trait]
impl Subject for Sqlite {
    async fn open(&self) -> Result<Opened> {
        let files = Scratch::new(&self.folder)?;
        let options = SqliteOptions::file(files.file("ff.db"));
        let store = SqliteStore::open(options.synchronous(self.synchronous).fast_paths(self.fast_paths)).await?;
        let backend = Engine::open(store, Settings::default()).await?;
        Ok(Opened::new(backend, files))
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
