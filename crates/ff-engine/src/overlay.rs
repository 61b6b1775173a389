//! What a transaction wants to write, laid over what is stored.

use std::collections::BTreeMap;

use crate::event::Event;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::Record;

/// The writes of one attempt at a commit.
#[derive(Debug, Default)]
pub struct Overlay {
    /// What each key is to hold; `None` means nothing.
    pub changes: BTreeMap<Key, Option<Record>>,
    /// What is to be appended to the log.
    pub events: Vec<Event>,
}

impl Overlay {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.events.is_empty()
    }

    /// Bounds that fetch enough from the store: own writes may have taken entries out of the range.
    #[must_use]
    pub fn widen(&self, bounds: &Bounds) -> Bounds {
        Bounds { limit: bounds.limit.saturating_add(self.changes.len()), ..bounds.clone() }
    }

    /// What a range holds in the end: `found` are the stored records within widened bounds.
    #[must_use]
    pub fn merge(&self, index: &Index, bounds: &Bounds, found: Vec<(Position, Record)>) -> Vec<Record> {
        let untouched = found.into_iter().filter(|(_, record)| !self.changes.contains_key(&record.key()));
        let mut merged: BTreeMap<Position, Record> = untouched.collect();
        for record in self.changes.values().flatten() {
            for entry in record.entries() {
                if entry.index == *index && bounds.contains(&entry.position) {
                    merged.insert(entry.position, record.clone());
                }
            }
        }
        let records = merged.into_values();
        if bounds.reverse { records.rev().take(bounds.limit).collect() } else { records.take(bounds.limit).collect() }
    }
}
