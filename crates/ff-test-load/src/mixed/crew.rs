//! Several processes that work at the same time, seen from outside.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use super::report::{Line, Report};

/// Starts processes that [`work`](super::work) and waits until all of them are done.
///
/// # Errors
/// Processes that do not start, or fail.
///
/// # Panics
/// When there are no threads left.
pub fn work_together(commands: Vec<Command>) -> Result<Vec<Report>, String> {
    let (tell, finished) = channel();
    let mut crew = Vec::new();
    for command in commands {
        crew.push(Member::start(command, tell.clone())?);
    }
    drop(tell);
    // Nobody ever sends: it ends when the last one lets go, having finished or died.
    let _ = finished.recv();
    crew.iter_mut().for_each(|member| member.input = None);
    crew.into_iter().map(Member::end).collect()
}

struct Member {
    process: Child,
    /// Closed when nobody changes anything any more.
    input: Option<ChildStdin>,
    lines: std::thread::JoinHandle<Vec<String>>,
}

impl Member {
    fn start(mut command: Command, finished: Sender<Infallible>) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("a process does not start: {error}"))?;
        let (input, out) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let lines = std::thread::spawn(move || {
            let mut lines = Vec::new();
            let mut finished = Some(finished);
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if matches!(serde_json::from_str(&line), Ok(Line::Finished)) {
                    finished = None;
                }
                lines.push(line);
            }
            drop(finished);
            lines
        });
        Ok(Self { process, input, lines })
    }

    fn end(mut self) -> Result<Report, String> {
        let lines = self.lines.join().map_err(|_| "nobody listened")?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        let report = Report::read(&lines)?;
        if status.success() { Ok(report) } else { Err(format!("a process failed: {status}")) }
    }
}
