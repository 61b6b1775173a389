//! The simulation notices what it is there to notice: every deliberate fault breaks an invariant within a few seeds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ff_core::fault::{self, Fault};
use ff_sim::{Plan, run};

/// Within so many seeds a fault must show.
const SEEDS: u64 = 50;

/// Steps of a seed.
const STEPS: usize = 500;

/// The first seed that notices a fault, and which invariant breaks.
fn noticed(fault: Option<Fault>) -> Option<String> {
    fault::set(fault);
    let found = (0..SEEDS).find_map(|seed| {
        let violation = run(Plan::new(seed, STEPS)).violation?;
        Some(format!("seed {seed}: {:?}", violation.invariant))
    });
    fault::set(None);
    found
}

#[test]
fn every_fault_is_noticed() {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(fault) = Fault::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if noticed(Some(*fault)).is_none() {
                        missed.lock().unwrap_or_else(PoisonError::into_inner).push(*fault);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);

    assert!(missed.is_empty(), "nobody notices {missed:?}");
}

#[test]
fn without_faults_the_same_seeds_pass() {
    assert_eq!(noticed(None), None);
}
