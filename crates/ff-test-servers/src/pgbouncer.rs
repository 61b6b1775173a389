//! A pooler in front of a server.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Attempted, ServerError};
use crate::guardian::Guardian;
use crate::place::{Place, free_port};
use crate::postgres::PostgresServer;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether it listens.
const GLANCE: Duration = Duration::from_millis(10);
/// How many ports are tried.
const PORTS_TRIED: usize = 20;

/// A PgBouncer of its own in front of a server: a directory in a temporary place and a free port of 127.0.0.1, everybody trusted.
///
/// It is stopped and removed when this is dropped, and also when this process ends in any other way, be it killed.
pub struct PgBouncer {
    port: u16,
    program: PathBuf,
    process: Option<Child>,
    guardian: Guardian,
    place: Place,
}

impl PgBouncer {
    /// Starts one and waits until it listens. Settings are those of its section `[pgbouncer]`, such as `pool_mode`.
    ///
    /// # Errors
    /// When it is not installed, or does not start; the end of its log tells why.
    pub fn start(server: &PostgresServer, settings: &[(&str, &str)]) -> Result<Self, ServerError> {
        let program = program().ok_or(ServerError::NoPooler)?;
        let place = Place::make(&std::env::temp_dir(), "ff-pgbouncer-")?;
        let guardian = Guardian::start(&place, &place.home, std::slice::from_ref(&program));
        let guardian = guardian.attempted("start the guardian of the pooler")?;
        let mut pooler = Self { port: 0, program, process: None, guardian, place };
        pooler.start_on_a_free_port(server, settings)?;
        Ok(pooler)
    }

    /// Where to connect: `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Somebody else may take a port that was free a moment ago.
    fn start_on_a_free_port(&mut self, server: &PostgresServer, settings: &[(&str, &str)]) -> Result<(), ServerError> {
        let mut outcome = Ok(());
        for _ in 0..PORTS_TRIED {
            self.port = free_port();
            outcome = self.launch(&self.configuration(server, settings));
            let is_taken =
                |told: &str| told.contains("Address already in use") || told.contains("cannot listen on any address");
            if !matches!(&outcome, Err(ServerError::Failed { told, .. }) if is_taken(told)) {
                break;
            }
        }
        outcome
    }

    fn configuration(&self, server: &PostgresServer, settings: &[(&str, &str)]) -> String {
        let mut lines = vec![
            "[databases]".to_owned(),
            format!("* = host=127.0.0.1 port={}", server.port()),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", self.port),
            "unix_socket_dir =".to_owned(),
            "auth_type = trust".to_owned(),
            format!("auth_file = {}", self.users().display()),
        ];
        lines.extend(settings.iter().map(|(name, value)| format!("{name} = {value}")));
        lines.join("\n") + "\n"
    }

    fn users(&self) -> PathBuf {
        self.place.home.join("users.txt")
    }

    fn launch(&mut self, configuration: &str) -> Result<(), ServerError> {
        let file = self.place.home.join("pgbouncer.ini");
        fs::write(&file, configuration).attempted("write the configuration of the pooler")?;
        fs::write(self.users(), "\"postgres\" \"\"\n").attempted("write the users of the pooler")?;
        let log = File::create(self.place.log()).attempted("write the log of the pooler")?;
        let errors = log.try_clone().attempted("write the log of the pooler")?;
        // By its directory the guardian knows it; in a group of its own it is not ended before those that use it.
        let mut command = self.place.program(&self.program);
        command.arg(file).process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
        self.process = Some(command.spawn().attempted("start pgbouncer")?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.has_ended().attempted("ask for the state of pgbouncer")? {
                return Err(ServerError::Failed { program: "pgbouncer", told: self.place.end_of_log() });
            }
            if began.elapsed() > PATIENCE {
                return Err(ServerError::TooSlow { seconds: PATIENCE.as_secs(), told: self.place.end_of_log() });
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    fn has_ended(&mut self) -> std::io::Result<bool> {
        self.process.as_mut().map_or(Ok(true), |process| Ok(process.try_wait()?.is_some()))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // If the guardian cannot be waited for, it is gone, and the pooler is the only one left to end.
        if self.guardian.dismiss().is_err() {
            let _ = self.process.as_mut().map(Child::kill);
        }
        if let Some(mut process) = self.process.take() {
            // It is dead, and nobody else waits for it.
            let _ = process.wait();
        }
        // What its user may not remove: an entry of a directory of ours.
        let _ = fs::remove_dir_all(&self.place.home);
    }
}

/// Debian puts it where only administrators look.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::iter::once(PathBuf::from("/usr/sbin")).chain(std::env::split_paths(&path));
    places.map(|place| place.join("pgbouncer")).find(|program| program.is_file())
}
