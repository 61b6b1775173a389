//! What timers tell about themselves: metrics by the facade of the `metrics` crate, and lines in the log.

use crate::index::DueKind;
use crate::key::Key;
use crate::service::TimerLoop;

/// Seconds from the time an item was due to the end of its handling, by kind.
const LATENESS: &str = "ff_timer_lateness_seconds";
/// Items that this process handled, by kind.
const HANDLED: &str = "ff_timer_handled_total";
/// Tries that failed, by kind.
const FAILED: &str = "ff_timer_failed_total";
/// How often a loop was started again after a panic or an error.
const RESTARTS: &str = "ff_timer_restarts_total";
/// Items that failed several times in a row.
const POISONED: &str = "ff_timer_poisoned_items";
/// How often the loop of due work woke.
const WAKEUPS: &str = "ff_timer_wakeups_total";

pub(crate) fn handled(kind: DueKind, late_ms: u64) {
    #[allow(clippy::cast_precision_loss, reason = "a lateness of 2^53 milliseconds is late enough")]
    let seconds = late_ms as f64 / 1_000.0;
    metrics::histogram!(LATENESS, "kind" => kind.as_str()).record(seconds);
    metrics::counter!(HANDLED, "kind" => kind.as_str()).increment(1);
}

pub(crate) fn failed(kind: DueKind, key: &Key, why: &str) {
    metrics::counter!(FAILED, "kind" => kind.as_str()).increment(1);
    tracing::warn!(kind = kind.as_str(), ?key, why, "due item failed");
}

pub(super) fn restarted(which: TimerLoop, why: &str, pause_ms: u64) {
    metrics::counter!(RESTARTS, "loop" => which.as_str()).increment(1);
    tracing::error!(which = which.as_str(), why, pause_ms, "timer loop ended, is started again");
}

pub(super) fn poisoned(items: usize) {
    #[allow(clippy::cast_precision_loss, reason = "few are remembered")]
    metrics::gauge!(POISONED).set(items as f64);
}

pub(super) fn woke() {
    metrics::counter!(WAKEUPS).increment(1);
}
