//! Simulated histories on a server and on a cluster give the same answers as on the model, with fast paths and without.
//!
//! `FF_HISTORIES` says how many seeds each form plays, `FF_HISTORY_STEPS` how long each history is.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use ff_conformance::run_trials;
use ff_engine::clock::Clock;
use ff_engine::memory::MemoryStore;
use ff_sim::{Agreement, Difference, Plan, compare};
use libtest_mimic::Trial;
use support::{CLUSTER_OF_SHARDS, FAST, Form, GENERAL};

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn model(clock: Arc<dyn Clock>, form: Form) -> MemoryStore {
    let store = MemoryStore::new(clock);
    let spans_partitions = form.fast_paths && form.cluster_shards.is_none_or(|shards| shards == 1);
    if spans_partitions { store.spanning_partitions() } else { store }
}

fn play(seed: u64, steps: usize, form: Form) -> Result<Agreement, Box<Difference>> {
    let prefix = support::fresh_prefix();
    compare(
        Plan::new(seed, steps),
        async |clock| Ok(model(clock, form)),
        async |clock| support::connect(&prefix, clock, form).await,
    )
}

/// Plays all seeds, the first of which is the same for every form.
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

fn trial(name: &str, form: Form) -> Trial {
    Trial::test(name, move || {
        agrees(form);
        Ok(())
    })
}

fn main() -> ExitCode {
    run_trials(vec![
        trial("a_server_with_fast_paths_answers_as_the_model", FAST),
        trial("a_server_without_fast_paths_answers_as_the_model", GENERAL),
        trial("a_cluster_answers_as_the_model", CLUSTER_OF_SHARDS),
    ])
}
