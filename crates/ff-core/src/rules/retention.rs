//! How long a finished execution is kept.

use crate::time::TimestampMs;

/// Retention unless the caller or the execution's policy says otherwise: 24 hours.
pub const DEFAULT_RETENTION_MS: u64 = 24 * 60 * 60 * 1000;

/// When an execution that ended at `completed_at` may go. Its own retention wins over the general one.
#[must_use]
pub fn purge_at(completed_at: TimestampMs, retention_ms: u64, own_retention_ms: Option<u64>) -> TimestampMs {
    completed_at.plus(own_retention_ms.unwrap_or(retention_ms))
}

/// Whether that time has come.
#[must_use]
pub fn is_purge_due(
    completed_at: TimestampMs,
    retention_ms: u64,
    own_retention_ms: Option<u64>,
    now: TimestampMs,
) -> bool {
    purge_at(completed_at, retention_ms, own_retention_ms).is_due(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: TimestampMs = TimestampMs(1_000_000);

    #[test]
    fn a_finished_execution_goes_when_its_retention_is_over() {
        assert!(!is_purge_due(DONE, DEFAULT_RETENTION_MS, None, DONE.plus(DEFAULT_RETENTION_MS - 1)));
        assert!(is_purge_due(DONE, DEFAULT_RETENTION_MS, None, DONE.plus(DEFAULT_RETENTION_MS)));
    }

    #[test]
    fn its_own_retention_wins_in_both_directions() {
        assert!(is_purge_due(DONE, DEFAULT_RETENTION_MS, Some(5), DONE.plus(5)));
        assert!(!is_purge_due(DONE, 5, Some(10), DONE.plus(9)));
        assert!(is_purge_due(DONE, 5, Some(0), DONE));
    }

    #[test]
    fn endless_retention_saturates() {
        assert_eq!(purge_at(DONE, u64::MAX, None), TimestampMs(i64::MAX));
        assert!(!is_purge_due(DONE, u64::MAX, None, TimestampMs(i64::MAX - 1)));
    }
}
