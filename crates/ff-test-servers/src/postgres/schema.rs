//! Many tests on one server, each in a schema of its own.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::PostgresServer;
use crate::error::{Attempted, ServerError};

static NAMED: AtomicU64 = AtomicU64::new(0);

/// The name of a schema that nobody else has. Whoever gets it creates the schema; when this is dropped, it is removed in the
/// background.
pub struct Schema {
    name: String,
    sweeper: Arc<Sweeper>,
}

impl Schema {
    pub(super) fn new(sweeper: Arc<Sweeper>) -> Self {
        Self { name: format!("case_{}", NAMED.fetch_add(1, Ordering::Relaxed)), sweeper }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name alone; the schema stays as long as the server.
    #[must_use]
    pub fn keep(mut self) -> String {
        std::mem::take(&mut self.name)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            self.sweeper.sweep(&self.name);
        }
    }
}

/// A session that drops schemas, one after the other, so that nobody waits for it.
pub(super) struct Sweeper {
    process: Mutex<Child>,
    statements: Mutex<Option<ChildStdin>>,
}

impl Sweeper {
    pub(super) fn start(server: &PostgresServer) -> Result<Self, ServerError> {
        let mut command: Command = server.psql();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().attempted("start psql")?;
        let statements = Mutex::new(process.stdin.take());
        let sweeper = Self { process: Mutex::new(process), statements };
        sweeper.tell("SET lock_timeout = '10s';");
        Ok(sweeper)
    }

    fn sweep(&self, schema: &str) {
        self.tell(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE;"));
    }

    /// What cannot be told, because the server is gone, is gone with the server.
    fn tell(&self, statement: &str) {
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        if statements.as_mut().is_some_and(|pipe| writeln!(pipe, "{statement}").is_err()) {
            *statements = None;
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It has nothing to lose; failing means that it is gone.
        let _ = process.kill();
        let _ = process.wait();
    }
}
