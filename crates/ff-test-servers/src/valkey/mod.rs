//! A Valkey or Redis server of one's own, or a cluster of them.

mod cluster;
mod options;
mod slots;
mod talk;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub use cluster::ValkeyCluster;
pub use options::ValkeyServerOptions;

use crate::error::{Attempted, ServerError};
use crate::guardian::Guardian;
use crate::place::{Place, free_port};

/// How long a server may take to start, loading its data included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it answers.
const GLANCE: Duration = Duration::from_millis(10);
/// How many ports are tried.
const PORTS_TRIED: usize = 20;

/// A Valkey of its own, or a Redis where there is no Valkey: a directory in a temporary place and a free port of 127.0.0.1.
///
/// It is stopped and removed when this is dropped, and also when this process ends in any other way, be it killed.
pub struct ValkeyServer {
    port: u16,
    /// Where connections are encrypted, if they are anywhere.
    tls_port: Option<u16>,
    settings: Vec<(String, String)>,
    program: PathBuf,
    process: Option<Child>,
    guardian: Guardian,
    place: Place,
}

impl ValkeyServer {
    /// Makes a server and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not start; the end of its log tells why.
    pub fn start(options: ValkeyServerOptions) -> Result<Self, ServerError> {
        let program = program().ok_or(ServerError::NoValkey)?;
        let place = Place::make_own(options.parent(), "ff-valkey-")?;
        let guardian = Guardian::start(&place, &place.home, std::slice::from_ref(&program));
        let guardian = guardian.attempted("start the guardian of the server")?;
        let tls_port = options.is_encrypted().then_some(0);
        let settings = options.into_settings();
        let mut server = Self { port: 0, tls_port, settings, program, process: None, guardian, place };
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// Where to connect: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The port for encrypted connections.
    ///
    /// # Panics
    /// Unless the server was asked for [encryption](ValkeyServerOptions::encrypted).
    #[must_use]
    pub const fn tls_port(&self) -> u16 {
        self.tls_port.expect("the server has a port for encrypted connections")
    }

    /// The directory of its data.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.place.home
    }

    /// What the server answers to a command, as text.
    ///
    /// # Errors
    /// When it does not answer, or answers that something is wrong.
    pub fn ask(&self, command: &[&str]) -> io::Result<String> {
        talk::ask(self.port, command)
    }

    /// What the server answers to a command, part by part.
    ///
    /// # Errors
    /// When it does not answer, or answers that something is wrong.
    pub fn ask_bytes(&self, command: &[&[u8]]) -> io::Result<Vec<Vec<u8>>> {
        talk::ask_bytes(self.port, command)
    }

    /// Kills the server at once, as a power cut would, and returns when it is gone. What it handed to the operating system is kept.
    ///
    /// # Panics
    /// When somebody else ended the process that does it.
    pub fn kill(&mut self) {
        self.guardian.cut_power().expect("the guardian kills the server");
        self.reap();
    }

    /// Starts the server again, in the same directory and on the same port, and waits until it answers. One that still runs is killed first.
    ///
    /// # Errors
    /// When it does not start; the end of its log tells why.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        self.launch()
    }

    /// Somebody else may take a port that was free a moment ago.
    fn start_on_a_free_port(&mut self) -> Result<(), ServerError> {
        for _ in 1..PORTS_TRIED {
            self.take_ports();
            match self.launch() {
                Err(ServerError::Failed { told, .. }) if told.contains("Address already in use") => {}
                other => return other,
            }
        }
        self.take_ports();
        self.launch()
    }

    fn take_ports(&mut self) {
        self.port = free_port();
        self.tls_port = self.tls_port.map(|_| free_port());
    }

    fn launch(&mut self) -> Result<(), ServerError> {
        let log = File::create(self.place.log()).attempted("write the log of the server")?;
        let errors = log.try_clone().attempted("write the log of the server")?;
        let mut command = self.place.program(&self.program);
        command.arg("--port").arg(self.port.to_string()).arg("--dir").arg(&self.place.home);
        if let Some(port) = self.tls_port {
            command.arg("--tls-port").arg(port.to_string());
        }
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).arg(value);
        }
        // By its directory the guardian knows it; in a group of its own it is not ended before those that use it.
        command.process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
        self.process = Some(command.spawn().attempted("start the server")?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let began = Instant::now();
        while self.ask(&["PING"]).ok().as_deref() != Some("PONG") {
            if self.has_ended().attempted("ask for the state of the server")? {
                return Err(self.failure());
            }
            if began.elapsed() > PATIENCE {
                self.kill();
                return Err(ServerError::TooSlow { seconds: PATIENCE.as_secs(), told: self.place.end_of_log() });
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    fn failure(&self) -> ServerError {
        let told = self.place.end_of_log();
        if self.tls_port.is_some() && told.contains("Bad directive") {
            return ServerError::NoEncryption { program: self.program.clone(), told };
        }
        ServerError::Failed { program: "the server", told }
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        self.process.as_mut().map_or(Ok(true), |process| Ok(process.try_wait()?.is_some()))
    }

    fn reap(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It is dead, and nobody else waits for it.
            let _ = process.wait();
        }
    }
}

impl Drop for ValkeyServer {
    fn drop(&mut self) {
        // If the guardian cannot be waited for, it is gone, and the server is the only one left to end.
        if self.guardian.dismiss().is_err() {
            let _ = self.process.as_mut().map(Child::kill);
        }
        self.reap();
        let _ = fs::remove_dir_all(&self.place.home);
    }
}

/// Valkey if it is there, else Redis.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let find = |name: &str| places.iter().map(|place| place.join(name)).find(|program| program.is_file());
    find("valkey-server").or_else(|| find("redis-server"))
}
