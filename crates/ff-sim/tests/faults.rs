//! Every deliberate fault is noticed: a check that cannot fail proves nothing.

// Which seed noticed what is worth a look.
#![allow(clippy::print_stdout)]

use ff_core::fault::{self, Fault};
use ff_sim::{Plan, run};

const SEEDS: u64 = 50;
const STEPS: usize = 600;

/// Plays seeds with a fault switched on until something is violated.
#[track_caller]
fn assert_noticed(fault: Fault) {
    fault::set(Some(fault));
    let noticed = (0..SEEDS).find_map(|seed| run(Plan::new(seed, STEPS)).violation.map(|violation| (seed, violation)));
    fault::set(None);
    match noticed {
        Some((seed, violation)) => println!("{fault}: seed {seed}: {}: {}", violation.invariant, violation.detail),
        None => panic!("{fault} went unnoticed in {SEEDS} seeds"),
    }
}

macro_rules! noticed {
    ($($name:ident => $fault:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                assert_noticed(Fault::$fault);
            }
        )+

        #[test]
        fn no_fault_is_left_out() {
            let tested = [$(Fault::$fault),+];
            for fault in Fault::ALL {
                assert!(tested.contains(fault), "{fault} has no test");
            }
        }
    };
}

noticed! {
    a_fence_that_is_not_compared_is_noticed => FenceNotCompared,
    an_ignored_expiry_is_noticed => ExpiryIgnored,
    an_epoch_that_stays_is_noticed => EpochKept,
    a_start_that_moves_is_noticed => StartMoves,
    a_reused_attempt_index_is_noticed => AttemptIndexReused,
    a_grant_that_stays_is_noticed => GrantKept,
    a_completion_nobody_is_told_of_is_noticed => CompletionUntold,
    a_completion_time_that_stays_is_noticed => CompletionTimeKept,
    a_retried_permanent_failure_is_noticed => PermanentRetried,
    retries_beyond_the_policy_are_noticed => RetriesUncounted,
    reclaims_beyond_the_cap_are_noticed => ReclaimsUncapped,
    a_delay_cut_short_is_noticed => DelayCutShort,
    waitpoints_left_open_are_noticed => WaitpointsLeftOpen,
    a_forgotten_signal_key_is_noticed => SignalKeyForgotten,
    a_revision_that_stays_is_noticed => RevisionKept,
    a_cycle_is_noticed => CycleAccepted,
    a_skip_that_is_not_passed_on_is_noticed => SkipNotPassedOn,
    an_ignored_hard_limit_is_noticed => HardLimitIgnored,
    a_forgotten_usage_key_is_noticed => UsageKeyForgotten,
    a_ledger_that_outlives_a_reset_is_noticed => LedgerOutlivesReset,
    a_slot_that_is_kept_is_noticed => SlotKept,
    frame_ids_that_repeat_are_noticed => FrameIdsRepeat,
    a_summary_version_that_stays_is_noticed => SummaryVersionKept,
}
