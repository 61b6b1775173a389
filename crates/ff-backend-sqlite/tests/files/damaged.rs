//! Files with bytes that nobody wrote.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ff_core::EngineError;
use ff_core::backend::Inspection;
use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use libtest_mimic::{Failed, Trial};

use crate::kit::{Outcome, create, filled, finish, open, payload, place, says};

const EXECUTIONS: usize = 120;

const PAGE: u64 = 4_096;

/// Files with damage anywhere.
const ROUNDS: usize = 60;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("damage_in_the_middle_hides_nothing_else", in_the_middle),
        Trial::test("damage_anywhere_is_an_error_and_never_a_panic", anywhere),
        Trial::test("a_damaged_log_ends_before_the_damage", in_the_log),
    ]
}

/// What became of the executions of a damaged file.
#[derive(Default)]
struct Readable {
    intact: usize,
    /// Bytes that nobody but their owner can tell from others: SQLite keeps no checksums in its pages.
    altered: usize,
    told: BTreeSet<String>,
}

/// Reads everything; whatever is not as it was must be told as corruption.
async fn read_all(path: &Path, ids: &[ExecutionId]) -> Result<Readable, Failed> {
    let mut readable = Readable::default();
    let backend = match open(path).await {
        Ok(backend) => backend,
        Err(error) => {
            is_corruption(&error, &mut readable)?;
            return Ok(readable);
        }
    };
    for (nth, id) in ids.iter().enumerate() {
        match backend.read_execution_context(*id).await {
            Ok(context) if context.input_payload == payload(nth) => readable.intact += 1,
            Ok(_) => readable.altered += 1,
            // An entry that cannot be found is missing as far as a reader can tell; the check tells more.
            Err(EngineError::Validation { kind: ValidationKind::InvalidInput, .. }) => {}
            Err(error) => is_corruption(&error, &mut readable)?,
        }
    }
    if let Err(error) = create(&backend, payload(0)).await {
        is_corruption(&error, &mut readable)?;
    }
    let problems = match backend.store().check().await {
        Ok(report) => report.problems,
        Err(error) => {
            is_corruption(&error, &mut readable)?;
            return Ok(readable);
        }
    };
    readable.told.extend(problems);
    Ok(readable)
}

fn is_corruption(error: &EngineError, readable: &mut Readable) -> Outcome {
    let EngineError::Validation { kind: ValidationKind::Corruption, .. } = error else {
        return Err(format!("another error: {error:?}").into());
    };
    readable.told.insert(error.to_string());
    says(&error.to_string(), &[])
}

fn overwrite(path: &Path, at: u64, length: usize) -> Outcome {
    std::fs::File::options().write(true).open(path)?.write_all_at(&vec![0x5a; length], at)?;
    Ok(())
}

/// The page that bytes stand in.
fn page_of(file: &[u8], bytes: &[u8]) -> Result<u64, Failed> {
    let at = file.windows(bytes.len()).rposition(|window| window == bytes).ok_or("not in the file")?;
    Ok(at as u64 / PAGE)
}

fn in_the_middle() -> Outcome {
    let (_directory, path) = place()?;
    let ids = filled(&path, EXECUTIONS)?;
    // A page with keys: what is content alone nobody can tell from other content.
    let key = ids[EXECUTIONS / 2].uuid();
    overwrite(&path, page_of(&std::fs::read(&path)?, key.as_bytes())? * PAGE + 300, 3_000)?;
    let readable = finish(read_all(&path, &ids))?;
    if readable.intact < EXECUTIONS / 2 || readable.told.is_empty() {
        return Err(format!("{} of {EXECUTIONS} are readable: {:?}", readable.intact, readable.told).into());
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "how bad it was is worth knowing")]
fn anywhere() -> Outcome {
    let (_directory, path) = place()?;
    let ids = filled(&path, EXECUTIONS)?;
    let whole = std::fs::read(&path)?;
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut intact, mut altered, mut told) = (0, 0, 0);
    for _ in 0..ROUNDS {
        std::fs::write(&path, &whole)?;
        for _ in 0..rng.usize(1..4) {
            overwrite(&path, rng.u64(..whole.len() as u64 - 600), rng.usize(1..600))?;
        }
        let readable = finish(read_all(&path, &ids))?;
        intact += readable.intact;
        altered += readable.altered;
        told += usize::from(!readable.told.is_empty());
    }
    let all = ROUNDS * EXECUTIONS;
    println!(
        "{ROUNDS} damaged files: {told} tell of it; of {all} executions {intact} are intact, {altered} have other bytes"
    );
    if told < ROUNDS / 5 || intact < all / 2 {
        Err("damage is hardly ever told, or takes everything with it".into())
    } else {
        Ok(())
    }
}

/// The log is checked frame by frame: what follows a damaged one has not happened.
fn in_the_log() -> Outcome {
    let (directory, path) = place()?;
    let ids = filled(&path, 10)?;
    let (log, copy) = (directory.path().join("flow.db-wal"), directory.path().join("copy.db"));
    finish(async {
        let backend = open(&path).await?;
        for nth in 10..30 {
            create(&backend, payload(nth)).await?;
        }
        // As a crash would leave them.
        std::fs::copy(&path, &copy)?;
        std::fs::copy(&log, directory.path().join("copy.db-wal"))?;
        Ok::<_, Failed>(())
    })?;
    let length = std::fs::metadata(&log).map_or(0, |log| log.len());
    let damaged = directory.path().join("copy.db-wal");
    let kept = std::fs::metadata(&damaged)?.len();
    overwrite(&damaged, kept / 2, 64)?;
    let readable = finish(read_all(&copy, &ids))?;
    if length == 0 && readable.intact == ids.len() && readable.told.is_empty() {
        return Ok(());
    }
    Err(format!("{} of {} are readable: {:?}", readable.intact, ids.len(), readable.told).into())
}
