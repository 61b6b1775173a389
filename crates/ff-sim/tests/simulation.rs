//! Histories hold every invariant, and a seed is a history.

use ff_sim::{Plan, run};

#[test]
fn a_few_dozen_seeds_hold_every_invariant() {
    for seed in 100..136 {
        let report = run(Plan::new(seed, 500));

        assert!(report.violation.is_none(), "seed {seed}: {:?}\n{}", report.violation, report.history.join("\n"));
    }
}

#[test]
fn a_seed_replays_to_the_identical_history() {
    for seed in [3, 7, 11] {
        let plan = Plan { seed, steps: 400, whole: true };
        let (first, second) = (run(plan), run(plan));

        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.history, second.history, "seed {seed}");
    }
}

#[test]
fn different_seeds_are_different_histories() {
    assert_ne!(run(Plan::new(1, 50)).digest, run(Plan::new(2, 50)).digest);
}

#[test]
fn almost_every_operation_is_done_by_somebody() {
    let mut done = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let tally = run(Plan::new(seed, 500)).tally;
        done.extend(tally.into_iter().filter(|(_, tally)| tally.done > 0).map(|(op, _)| op));
    }

    assert!(done.len() >= 85, "only {}: {done:?}", done.len());
}
