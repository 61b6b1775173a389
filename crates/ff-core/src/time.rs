//! Points in time as the store tells them.

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct TimestampMs(pub i64);

impl TimestampMs {
    /// The Unix epoch.
    pub const ZERO: Self = Self(0);

    /// This time plus `ms`, saturating at the end of time.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Milliseconds from `earlier` to this time, zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// A deadline at this time has passed once `now` reaches it.
    #[must_use]
    pub fn is_due(self, now: Self) -> bool {
        self <= now
    }
}

impl std::fmt::Display for TimestampMs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}
