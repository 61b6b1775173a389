//! Invariants of what a store holds, when nobody has seen how it came about.

use ff_core::TimestampMs;
use ff_engine::event::Event;
use ff_engine::records::Record;

use crate::checker::Checker;
use crate::invariants::Violation;

/// Checks everything that a store holds at one moment: all its records, and all events it was ever given.
///
/// Judged are the invariants that show in a state, be it after a crash, between two commits or at the end:
/// 0 (every key once), 1 (leases are not shared, none is granted twice), 2, 5, 6, 8 (no grant beside an owner), 9,
/// 10 (states derived, no two records in one place of an index), 11, 16 (completion times), 17, 21 (of grants), 22, 25,
/// 26 (open suspensions are not satisfied), 32, 34, 35 (settled edges), 36 (who waits has something to wait for), 42, 43 (ledgers),
/// 46, 48 (frames and heads), 49, 50 and 52 (nothing is left of executions that are gone).
/// The others are about changes, answers or time. That a store's indexes are those its records imply is for the store to say.
#[must_use]
pub fn check_dump(records: &[Record], events: &[Event]) -> Vec<Violation> {
    let mut checker = Checker::of_dump(records, events);
    checker.scan();
    checker.into_violations()
}

/// As [`check_dump`], for a store in which everything had its chance to finish and whose time is `now`: judges also
/// 14, 15, 37, 41, 46 (nobody holds a slot) and 53 (nothing is owed).
#[must_use]
pub fn check_dump_at_rest(records: &[Record], events: &[Event], now: TimestampMs) -> Vec<Violation> {
    let mut checker = Checker::of_dump(records, events);
    checker.rest_at(now);
    checker.into_violations()
}
