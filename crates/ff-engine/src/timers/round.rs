//! A round over due work: from the first entry to the last, in as many passes as it takes.

use std::time::Duration;

use ff_core::TimestampMs;

use crate::index::Position;

/// The shortest time until failed items are tried again, for each entry that was looked at in vain: several times as long as the look.
const REST_PER_LOOK: Duration = Duration::from_micros(50);

/// One round over some indexes.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// The store's time when it began.
    pub(crate) began_at: TimestampMs,
    /// Entries it looked at so far.
    pub(crate) looked_at: usize,
    /// Whether any item changed on the way.
    pub(crate) has_changed: bool,
    /// When to look again at what was left to others.
    pub(crate) look_at: Option<TimestampMs>,
    /// How far it got.
    pub(super) place: Option<Position>,
}

impl Round {
    pub(crate) fn begin(now: TimestampMs) -> Self {
        Self { began_at: now, looked_at: 0, has_changed: false, look_at: None, place: None }
    }

    /// How long to leave alone what failed: items that fail take no more than a part of the time, however many there are.
    pub(crate) fn rest(&self) -> Duration {
        REST_PER_LOOK.saturating_mul(u32::try_from(self.looked_at).unwrap_or(u32::MAX))
    }
}
