//! Any store can be played on, and two stores are compared answer by answer.

mod support;

use std::sync::Arc;

use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::memory::MemoryStore;
use ff_sim::{Agreement, Difference, Plan, compare, run_on};
use support::{Flaw, OtherStore};

const STEPS: usize = 250;

async fn memory(clock: Arc<dyn Clock>) -> Result<MemoryStore> {
    Ok(MemoryStore::new(clock))
}

fn compare_with(seed: u64, flaw: Flaw) -> std::result::Result<Agreement, Box<Difference>> {
    compare(Plan::new(seed, STEPS), memory, async |clock| Ok(OtherStore::new(clock, flaw)))
}

#[test]
fn the_model_agrees_with_itself() {
    for seed in 0..4 {
        let agreement = compare(Plan::new(seed, STEPS), memory, memory);

        let agreement = agreement.unwrap_or_else(|difference| panic!("{difference}"));
        assert!(agreement.answers > STEPS && agreement.transactions > STEPS, "seed {seed}: {agreement:?}");
    }
}

#[test]
fn a_store_may_answer_later_and_under_another_name() {
    for seed in 0..8 {
        let agreement = compare_with(seed, Flaw::None);

        assert!(agreement.is_ok(), "{}", agreement.expect_err("a difference"));
    }
}

#[test]
fn stores_that_span_partitions_are_compared_with_each_other() {
    let spanning = async |clock| Ok(MemoryStore::new(clock).spanning_partitions());
    for seed in 0..4 {
        let agreement =
            compare(Plan::new(seed, STEPS), spanning, async |clock| Ok(OtherStore::spanning_partitions(clock)));

        assert!(agreement.is_ok(), "{}", agreement.expect_err("a difference"));
    }
    assert!(compare(Plan::new(0, 1), memory, spanning).expect_err("a difference").call.contains("span partitions"));
}

#[test]
fn a_wrong_store_is_noticed() {
    for flaw in
        [Flaw::ShortLists, Flaw::LosesCompletions, Flaw::ForgetsProgress, Flaw::StopsTheClock, Flaw::ReadsNothing]
    {
        let noticed = (0..12).find_map(|seed| compare_with(seed, flaw).err());

        assert!(noticed.is_some(), "nobody notices {flaw:?}");
    }
}

#[test]
fn a_difference_says_where_it_is_and_how_to_see_it_again() {
    let difference = compare_with(1, Flaw::ReadsNothing).expect_err("a difference");

    let text = difference.to_string();
    assert_ne!(difference.reference, difference.other, "{text}");
    for part in [&difference.call, &difference.reference, &difference.other, "seed 1", "--steps 250"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn every_invariant_holds_on_a_store_that_answers_later() {
    for seed in 20..24 {
        let report = run_on(Plan::new(seed, STEPS), async |clock| Ok(OtherStore::new(clock, Flaw::None)));

        let report = report.expect("the store opens");
        assert!(report.violation.is_none(), "seed {seed}: {:?}\n{}", report.violation, report.history.join("\n"));
    }
}

#[test]
fn a_store_that_does_not_open_is_told() {
    let closed = async |_| Err::<MemoryStore, _>(ff_core::EngineError::invalid("closed"));

    assert!(run_on(Plan::new(0, 1), closed).is_err());
    assert!(compare(Plan::new(0, 1), memory, closed).expect_err("a difference").other.contains("closed"));
}
