//! A PostgreSQL server of one's own.

mod options;
mod programs;
mod schema;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub use options::PostgresServerOptions;
pub use schema::Schema;

use crate::error::{Attempted, ServerError};
use crate::guardian::Guardian;
use crate::place::{Place, end_of, free_port};
use schema::Sweeper;

/// How long a server may take to start, crash recovery included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the state of a starting server is looked at.
const GLANCE: Duration = Duration::from_millis(10);
/// How many ports are tried.
const PORTS_TRIED: usize = 20;

/// A PostgreSQL of its own: a data directory in a temporary place, a free port of 127.0.0.1 and a unix socket, everybody trusted.
///
/// It is stopped and removed when this is dropped, and also when this process ends in any other way, be it killed.
pub struct PostgresServer {
    port: u16,
    settings: Vec<(String, String)>,
    sweeper: OnceLock<Arc<Sweeper>>,
    process: Option<Child>,
    guardian: Guardian,
    place: Place,
    /// In its place.
    data: PathBuf,
    /// Where its programs are.
    programs: PathBuf,
}

impl PostgresServer {
    /// Makes a server and waits until it accepts connections.
    ///
    /// # Errors
    /// When it is not installed, or does not start; the end of its log tells why.
    pub fn start(options: PostgresServerOptions) -> Result<Self, ServerError> {
        let programs = programs::directory().ok_or(ServerError::NotInstalled)?;
        let place = Place::make(options.parent(), "ff-postgres-")?;
        let data = place.home.join("data");
        let watched = ["postgres", "initdb"].map(|name| programs.join(name));
        let guardian = Guardian::start(&place, &data, &watched).attempted("start the guardian of the server")?;
        let (settings, sweeper) = (options.into_settings(), OnceLock::new());
        let mut server = Self { port: 0, settings, sweeper, process: None, guardian, place, data, programs };
        server.initialize()?;
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// Where to connect: `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the unix socket.
    #[must_use]
    pub fn socket_directory(&self) -> &Path {
        &self.place.home
    }

    /// The data directory.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        &self.data
    }

    /// The name of a schema for one test, which is removed when the name is dropped.
    ///
    /// # Errors
    /// When `psql` does not start.
    pub fn schema(&self) -> Result<Schema, ServerError> {
        if self.sweeper.get().is_none() {
            // Of two that come first together, one keeps its session and the other's ends.
            let _ = self.sweeper.set(Arc::new(Sweeper::start(self)?));
        }
        Ok(Schema::new(Arc::clone(self.sweeper.wait())))
    }

    /// Runs statements as `psql` does, and returns what it prints: a line for each row, columns parted by `|`.
    ///
    /// # Errors
    /// What the server says against one of them; those after it are not run.
    pub fn run(&self, statements: &str) -> Result<String, ServerError> {
        let mut command = self.psql();
        command.args(["--set", "ON_ERROR_STOP=1", "--command", statements]).stdin(Stdio::null());
        told("psql", &mut command)
    }

    /// Kills the server and all its processes at once, as a power cut would, and returns when they are gone. What the server handed
    /// to the operating system is kept, flushed or not.
    ///
    /// # Panics
    /// When somebody else ended the process that does it.
    pub fn kill(&mut self) {
        self.guardian.cut_power().expect("the guardian kills the server");
        self.reap();
    }

    /// Starts the server again, on the same data directory and the same port, and waits until it accepts connections. One that still
    /// runs is killed first.
    ///
    /// # Errors
    /// When it does not start; the end of its log tells why.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        self.sweeper = OnceLock::new();
        self.launch()
    }

    /// Ends the server at once and removes its directory, as dropping it does.
    pub fn stop(self) {
        drop(self);
    }

    fn initialize(&self) -> Result<(), ServerError> {
        let mut command = self.program("initdb");
        command.arg("--pgdata").arg(&self.data);
        command.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        command.args(["--no-sync", "--no-instructions"]).process_group(0).stdin(Stdio::null());
        told("initdb", &mut command).map(drop)
    }

    /// Somebody else may take a port that was free a moment ago.
    fn start_on_a_free_port(&mut self) -> Result<(), ServerError> {
        for _ in 1..PORTS_TRIED {
            self.port = free_port();
            match self.launch() {
                Err(ServerError::Failed { told, .. }) if told.contains("Address already in use") => {}
                other => return other,
            }
        }
        self.port = free_port();
        self.launch()
    }

    fn launch(&mut self) -> Result<(), ServerError> {
        let log = File::create(self.place.log()).attempted("write the log of the server")?;
        let errors = log.try_clone().attempted("write the log of the server")?;
        let mut command = self.program("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.place.home).arg("-p").arg(self.port.to_string());
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // By its directory the guardian knows it; in a group of its own it is not ended before those that use it.
        command.current_dir(&self.data).process_group(0);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.process = Some(command.spawn().attempted("start postgres")?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let began = Instant::now();
        while !self.is_ready() {
            if self.has_ended().attempted("ask for the state of postgres")? {
                return Err(ServerError::Failed { program: "postgres", told: self.place.end_of_log() });
            }
            if began.elapsed() > PATIENCE {
                self.kill();
                return Err(ServerError::TooSlow { seconds: PATIENCE.as_secs(), told: self.place.end_of_log() });
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Its lock file begins with its process id, and says in line 8 whether connections are accepted. A killed server leaves its own.
    fn is_ready(&self) -> bool {
        let lock = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        let mut lines = lock.lines();
        let is_ours = lines.next().and_then(|line| line.parse().ok()) == self.process.as_ref().map(Child::id);
        is_ours && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    fn has_ended(&mut self) -> std::io::Result<bool> {
        self.process.as_mut().map_or(Ok(true), |process| Ok(process.try_wait()?.is_some()))
    }

    fn program(&self, name: &str) -> Command {
        self.place.program(&self.programs.join(name))
    }

    fn psql(&self) -> Command {
        let mut command = self.program("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--dbname"]).arg(self.url());
        command
    }

    fn reap(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It is dead, and nobody else waits for it.
            let _ = process.wait();
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // If the guardian cannot be waited for, it is gone, and the server is the only one left to end.
        if self.guardian.dismiss().is_err() {
            let _ = self.process.as_mut().map(Child::kill);
        }
        self.reap();
        // What its user may not remove: an entry of a directory of ours.
        let _ = fs::remove_dir_all(&self.place.home);
    }
}

/// Runs a program to its end and returns what it prints.
fn told(program: &'static str, command: &mut Command) -> Result<String, ServerError> {
    let output = command.output().attempted(format!("start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    Err(ServerError::Failed { program, told: end_of(&[output.stdout, output.stderr].concat()) })
}
