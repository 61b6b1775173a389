//! What has not been flushed is not told, whoever asks.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

use ff_engine::clock::SystemClock;
use ff_engine::hash::HashSet;
use ff_engine::topics::Topics;

use super::checkpointer::Growth;
use super::flusher::{Committed, Flusher, Log};
use super::*;
use crate::connection::{Statements, open_writer};
use crate::options::{FlushedLog, SqliteOptions};

struct Told(mpsc::Sender<Result<()>>);

impl Work for Told {
    fn is_wanted(&self) -> bool {
        true
    }

    fn run(&mut self, _: &mut Desk) -> Result<()> {
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        self.0.send(outcome).unwrap();
    }
}

fn group(told: &mpsc::Sender<Result<()>>) -> Vec<Box<dyn Work>> {
    vec![Box::new(Told(told.clone()))]
}

#[test]
fn after_a_failed_flush_no_group_is_answered_with_success() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let (log, topics) = (Log::new(path.clone()), Arc::new(Topics::default()));
    let flusher = Flusher::start(log, Durability::new(), topics, Growth::unheard()).unwrap();
    let (told, answers) = mpsc::channel();
    let answer_to = |number, has_written| {
        let news = HashSet::default();
        flusher.take_over(Committed { number, has_written, group: group(&told), news, due_at: None });
        answers.recv().unwrap()
    };
    assert!(answer_to(1, true).is_err(), "there is no log to flush");
    File::create(&path).unwrap();
    assert!(answer_to(2, true).is_err(), "it was committed behind what is lost");
    assert!(answer_to(3, false).is_err(), "it may have seen what is lost");
}

#[test]
fn a_group_that_wrote_nothing_waits_for_the_flush_of_those_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let (database, pipe) = (directory.path().join("flow.db"), directory.path().join("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let options = SqliteOptions::file(&database);
    // A pipe in place of the log: it opens when somebody opens its other end, and it cannot be flushed.
    let statements = Statements::new(false);
    let log = FlushedLog { path: pipe.clone(), database, busy_timeout: options.busy_timeout, statements };
    let db = open_writer(&options).unwrap();
    let (clock, topics) = (StoreClock::new(Arc::new(SystemClock::default())), Arc::new(Topics::default()));
    let (committed, durability) = (Arc::new(AtomicU64::new(0)), Durability::new());
    let mut desk = Desk::new(db, clock, topics, Some(&log), committed, &durability, 100).unwrap();
    let (told, answers) = mpsc::channel();
    let mut commit = |wrote: bool, nobody_waits: bool| {
        desk.begin().unwrap();
        if wrote {
            desk.wrote();
        }
        desk.commit().unwrap();
        desk.make_durable(group(&told), nobody_waits);
    };
    commit(true, false);
    commit(false, true);
    assert!(answers.try_recv().is_err(), "nothing is on the disk yet");
    drop(File::options().write(true).open(&pipe).unwrap());
    assert!(answers.recv().unwrap().is_err() && answers.recv().unwrap().is_err(), "the flush failed");
}
