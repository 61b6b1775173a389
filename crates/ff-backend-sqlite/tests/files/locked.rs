//! Files that somebody else keeps locked.

use ff_core::error::ErrorClass;
use libtest_mimic::Trial;

use crate::kit::{Outcome, create, filled, finish, lock, open, payload, place, says};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("a_file_that_is_locked_for_too_long_is_told", opening),
        Trial::test("a_call_that_waits_too_long_can_be_repeated", calling),
    ]
}

const BUSY: [&str; 3] = ["kept the database locked for too long", "try again", "stop the process that holds it"];

fn opening() -> Outcome {
    let (_directory, path) = place()?;
    filled(&path, 1)?;
    let mut other = lock(&path)?;
    let refused = finish(open(&path)).err().ok_or("a locked file was opened")?;
    says(&refused.to_string(), &BUSY)?;
    // Its input ends, so it ends.
    drop(other.stdin.take());
    other.wait()?;
    finish(open(&path))?;
    Ok(())
}

fn calling() -> Outcome {
    let (_directory, path) = place()?;
    filled(&path, 1)?;
    finish(async {
        let backend = open(&path).await?;
        let mut other = lock(&path)?;
        let refused = create(&backend, payload(1)).await.err().ok_or("a locked file was written")?;
        says(&refused.to_string(), &BUSY)?;
        if refused.class() != ErrorClass::Retryable {
            return Err(format!("not said to be worth a repetition: {refused:?}").into());
        }
        drop(other.stdin.take());
        other.wait()?;
        create(&backend, payload(1)).await?;
        Ok(())
    })
}
