//! One list as a process knows it.

use std::collections::BTreeMap;
use std::time::Instant;

use ff_engine::index::Position;
use ff_engine::key::Key;
use ff_engine::records::rank_floor;

use crate::tables::Along;

/// Heads of one list that are kept.
pub(super) const HEADS_MAX: usize = 4_096;

/// Priorities of one list whose taken beginnings are remembered.
const PRIORITIES_MAX: usize = 32;

/// The first entries of one list.
pub(super) struct Mirror {
    pub(super) heads: BTreeMap<Position, (Key, Along)>,
    /// Behind which position nothing is known.
    pub(super) known_until: Option<Position>,
    pub(super) good_until: Instant,
    /// The same where others tell what they put there.
    pub(super) told_until: Instant,
    /// Until when nobody looks for what others put where everything had been taken.
    pub(super) whole_until: Instant,
    /// By the lowest rank of a priority, up to where everything had been taken, but for heads that are known. None lies where nothing is known.
    pub(super) passed: BTreeMap<i64, Position>,
    /// The read that it comes from.
    pub(super) reading: u64,
}

/// A part of a list: behind one position, up to another.
pub(super) type Part = (Option<Position>, Option<Position>);

impl Mirror {
    pub(super) fn leave(&mut self, position: &Position) {
        self.heads.remove(position);
        if !self.is_known(position) {
            return;
        }
        let (lowest, has_room) = (rank_floor(position.major), self.passed.len() < PRIORITIES_MAX);
        match self.passed.get_mut(&lowest) {
            Some(passed) if *passed < *position => *passed = position.clone(),
            None if has_room => drop(self.passed.insert(lowest, position.clone())),
            _ => {}
        }
    }

    /// Everything behind a position but what had been taken.
    pub(super) fn parts(&self, after: Option<&Position>) -> Vec<Part> {
        let (mut parts, mut after) = (Vec::with_capacity(self.passed.len() + 1), after.cloned());
        for (lowest, passed) in &self.passed {
            let begin = before_all(*lowest);
            let first = self.heads.range(&begin..=passed).next().map(|(first, _)| before_all(first.major));
            let resumed = Some(first.unwrap_or_else(|| passed.clone()));
            if after.as_ref().is_none_or(|after| *after < begin) {
                parts.push((after, Some(begin)));
                after = resumed;
            } else {
                after = after.max(resumed);
            }
        }
        parts.push((after, None));
        parts
    }

    /// Whether it lies where everything is known.
    pub(super) fn is_known(&self, position: &Position) -> bool {
        self.known_until.as_ref().is_none_or(|until| position <= until)
    }

    pub(super) fn enter(&mut self, position: &Position, key: &Key) {
        if self.is_known(position) {
            self.heads.insert(position.clone(), (key.clone(), Along::Nothing));
        }
        if self.heads.len() > HEADS_MAX {
            self.heads.pop_last();
            self.known_until = self.heads.last_key_value().map(|(last, _)| last.clone());
            let Self { known_until, passed, .. } = self;
            passed.retain(|_, passed| Some(&*passed) <= known_until.as_ref());
        }
    }
}

/// Before everything at a number.
pub(super) fn before_all(major: i64) -> Position {
    Position::new(major, [])
}
