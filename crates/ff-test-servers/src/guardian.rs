//! A process of its own that outlives whoever started a server, for as long as it takes to remove that server.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::place::Place;

/// Watches over a server: at the end of the pipe between the two, however it comes, it ends the server and removes its directory.
pub(crate) struct Guardian {
    process: Child,
    /// Closed to dismiss it.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Guardian {
    /// For a server that works in its home or in `data`, by these programs.
    pub(crate) fn start(place: &Place, data: &Path, programs: &[PathBuf]) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("guardian.sh")).arg("guardian");
        command.arg(&place.home).arg(data).args(programs).current_dir("/");
        place.account.apply(&mut command);
        // A group of its own: what ends a test with all its processes must not end this one.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let answers = BufReader::new(answers.ok_or_else(|| io::Error::other("the guardian has no output"))?);
        Ok(Self { process, orders, answers })
    }

    /// Kills all processes of the server at once, and returns when they are gone.
    pub(crate) fn cut_power(&mut self) -> io::Result<()> {
        let gone = || io::Error::other("the guardian of the server is gone");
        self.orders.as_mut().ok_or_else(gone)?.write_all(b"kill\n")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer == "done\n" { Ok(()) } else { Err(gone()) }
    }

    /// Ends the server, removes its directory, and returns when that is done.
    pub(crate) fn dismiss(&mut self) -> io::Result<()> {
        self.orders = None;
        self.process.wait().map(drop)
    }
}
