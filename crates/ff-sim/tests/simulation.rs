//! Without faults nothing is violated, and a seed decides everything.

use ff_sim::{Plan, run};

#[test]
fn histories_keep_every_invariant() {
    for seed in 0..40 {
        let report = run(Plan::new(seed, 500));
        assert!(report.violation.is_none(), "seed {seed}: {:?}", report.violation);
        assert_eq!(report.steps, 500);
    }
}

#[test]
fn a_seed_replays_to_the_same_history() {
    let (first, second) = (run(Plan::new(7, 400)), run(Plan::new(7, 400)));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.history, second.history);
    assert_ne!(first.digest, run(Plan::new(8, 400)).digest);
}
