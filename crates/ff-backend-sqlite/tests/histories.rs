//! Simulated histories on SQLite give the same answers as on the model: in a file and in memory, with and without fast paths.
//!
//! `FF_HISTORIES` says how many seeds each form plays, `FF_HISTORY_STEPS` how long each history is.

use std::sync::Arc;

use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::memory::MemoryStore;
use ff_sim::{Agreement, Difference, Plan, compare};

/// One way to run the store.
#[derive(Clone, Copy)]
struct Form {
    in_file: bool,
    fast_paths: bool,
    /// How many executions stay young: none, a few, so that some have settled whenever anything happens, or all.
    young_max: usize,
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn model(clock: Arc<dyn Clock>, spans_partitions: bool) -> MemoryStore {
    let store = MemoryStore::new(clock);
    if spans_partitions { store.spanning_partitions() } else { store }
}

async fn store(clock: Arc<dyn Clock>, form: Form, directory: &tempfile::TempDir) -> Result<SqliteStore> {
    let options =
        if form.in_file { SqliteOptions::file(directory.path().join("history.db")) } else { SqliteOptions::memory() };
    SqliteStore::open(options.clock(clock).fast_paths(form.fast_paths).young_max(form.young_max)).await
}

fn play(seed: u64, steps: usize, form: Form) -> std::result::Result<Agreement, Box<Difference>> {
    let directory = tempfile::tempdir().expect("a directory");
    compare(
        Plan::new(seed, steps),
        async |clock| Ok(model(clock, form.fast_paths)),
        async |clock| store(clock, form, &directory).await,
    )
}

/// Plays all seeds of a form, the first of which is the same for every form.
#[allow(clippy::print_stdout, reason = "how much was compared is worth knowing")]
fn agrees(form: Form) {
    let (seeds, steps) = (number("FF_HISTORIES", 4), number("FF_HISTORY_STEPS", 100));
    let (mut answers, mut transactions) = (0, 0);
    for seed in 0..seeds as u64 {
        let agreement = play(seed, steps, form).unwrap_or_else(|difference| panic!("{difference}"));
        answers += agreement.answers;
        transactions += agreement.transactions;
    }
    println!("{seeds} histories of {steps} steps: {answers} answers and {transactions} transactions are the same");
    assert!(seeds > 0 && answers > seeds * steps, "too little was compared");
}

#[test]
fn a_file_with_fast_paths_answers_as_the_model() {
    agrees(Form { in_file: true, fast_paths: true, young_max: 8 });
}

#[test]
fn a_file_without_fast_paths_answers_as_the_model() {
    agrees(Form { in_file: true, fast_paths: false, young_max: 1_000 });
}

#[test]
fn memory_with_fast_paths_answers_as_the_model() {
    agrees(Form { in_file: false, fast_paths: true, young_max: 0 });
}

#[test]
fn memory_without_fast_paths_answers_as_the_model() {
    agrees(Form { in_file: false, fast_paths: false, young_max: 3 });
}
