//! Processes under load, and what they tell.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use super::{Ground, Orders};
use crate::journal::caller::{CALLERS, Manner};
use crate::journal::line::Line;
use crate::journal::model::Model;
use crate::site::{Site, command};

/// How many there are.
pub(super) const PROCESSES: usize = 2;

/// Processes that get nothing answered for so long hang.
const PATIENCE: Duration = Duration::from_secs(40);

/// Processes that work on one store.
pub(super) struct Crew {
    /// None for one that is dead.
    processes: Vec<Option<Child>>,
    lines: Receiver<(usize, Line)>,
    answers: Vec<usize>,
    /// Why calls went without an answer, and how many.
    pub(super) reasons: BTreeMap<String, usize>,
}

impl Crew {
    pub(super) fn start(site: &impl Site, manner: &Manner) -> Result<Self, Failed> {
        let (tell, lines) = channel();
        let mut processes = Vec::new();
        for number in 0..PROCESSES {
            let manner = Manner { first: number * CALLERS, ..manner.clone() };
            let mut child = command(&Orders::Work { site: site.clone(), manner })?
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()?;
            listen(number, &mut child, tell.clone());
            processes.push(Some(child));
        }
        Ok(Self { processes, lines, answers: vec![0; PROCESSES], reasons: BTreeMap::new() })
    }

    /// Follows all until everybody who lives has had so many answers more.
    pub(super) fn follow(&mut self, more: usize, model: &mut Model) -> Result<(), String> {
        let until: Vec<usize> = self.answers.iter().map(|answers| answers + more).collect();
        let began = Instant::now();
        let is_behind = |crew: &Self| {
            let lives = |number: &usize| crew.processes[*number].is_some();
            (0..PROCESSES).filter(lives).any(|number| crew.answers[number] < until[number])
        };
        while is_behind(self) {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok((number, line)) => self.hear(number, line, model)?,
                Err(RecvTimeoutError::Timeout) => {
                    let Self { answers, reasons, .. } = self;
                    return Err(format!(
                        "answers are missing for {PATIENCE:?}: {answers:?}, not {until:?}; callers were told {reasons:?}"
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err("all processes ended by themselves".to_owned()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, number: usize, line: Line, model: &mut Model) -> Result<(), String> {
        match &line {
            Line::Acknowledge { .. } => self.answers[number] += 1,
            Line::Unanswered { error, .. } => *self.reasons.entry(reason(error)).or_default() += 1,
            Line::Intend { .. } | Line::Trouble { .. } => {}
        }
        model.follow(line)
    }

    /// Kills one of them.
    pub(super) fn kill(&mut self, number: usize) -> Result<(), Failed> {
        if let Some(mut child) = self.processes[number].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Kills all; afterwards all that they said is heard, and all that they asked for is done or never will be.
    pub(super) fn end(&mut self, ground: &impl Ground, model: &mut Model) -> Result<(), Failed> {
        for number in 0..PROCESSES {
            self.kill(number)?;
        }
        while let Ok((number, line)) = self.lines.recv() {
            self.hear(number, line, model)?;
        }
        ground.outlive_the_dead()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().flatten() {
            // One that has ended by itself is as dead.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Hears a process; a line that was cut off was not said.
fn listen(number: usize, child: &mut Child, tell: Sender<(usize, Line)>) {
    let out = child.stdout.take().expect("a pipe");
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let Ok(line) = serde_json::from_str(&line) else { return };
            if tell.send((number, line)).is_err() {
                return;
            }
        }
    });
}

/// The kind of an error, without what differs from case to case.
fn reason(error: &str) -> String {
    let source = error.split_once("source: ").map_or(error, |(_, source)| source);
    source.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
