//! Records, index entries, versions and the event log behind one lock.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use ff_core::cursor::EventCursor;
use ff_core::error::ValidationKind;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result, TimestampMs};

use crate::alarms::awaited_at;
use crate::event::{Event, EventPage, numbered};
use crate::index::{Bounds, Entry, Index, Listed, Position, Topic};
use crate::key::{Key, Name};
use crate::records::Record;

use super::tx::Writes;

/// Version of a record that does not exist.
pub(super) const ABSENT: u64 = 0;

/// What a commit tells.
#[derive(Default)]
pub(super) struct News {
    pub(super) topics: Vec<Topic>,
    /// When the earliest of the new entries comes due.
    pub(super) due_at: Option<TimestampMs>,
}

#[derive(Default)]
pub(super) struct State {
    revision: u64,
    latest: TimestampMs,
    records: BTreeMap<Key, (u64, Record)>,
    /// Versions of ownership, which change only with the owner.
    fences: HashMap<Key, u64>,
    /// Versions of the ranges a record owns.
    ranges: HashMap<Key, u64>,
    indexes: BTreeMap<Index, BTreeMap<Position, Key>>,
    changed: BTreeMap<Key, u64>,
    damaged: HashSet<Key>,
    events: VecDeque<(u64, Event)>,
    last_sequence: u64,
    trimmed: u64,
}

impl State {
    /// Takes the clock's time, never backwards.
    pub(super) fn observe(&mut self, now: TimestampMs) -> TimestampMs {
        self.latest = self.latest.max(now);
        self.latest
    }

    pub(super) fn records(&self) -> Vec<Record> {
        self.records.values().map(|(_, record)| record.clone()).collect()
    }

    pub(super) fn event_log(&self) -> Vec<Event> {
        self.events.iter().map(|(_, event)| event.clone()).collect()
    }

    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn changed_since(&self, revision: u64) -> Vec<Key> {
        self.changed.iter().filter(|(_, at)| **at > revision).map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn damage(&mut self, key: Key) {
        self.damaged.insert(key);
    }

    pub(super) fn lose_index_entries(&mut self, key: &Key) {
        if let Some((_, record)) = self.records.get(key) {
            for entry in record.entries() {
                if let Some(index) = self.indexes.get_mut(&entry.index) {
                    index.remove(&entry.position);
                }
            }
        }
    }

    /// A record with its version; ownership is read out of its execution.
    pub(super) fn get(&self, key: &Key) -> Result<Option<(u64, Record)>> {
        let stored = match key.name {
            Name::Fence(execution) => Key::execution(execution),
            _ => key.clone(),
        };
        if self.damaged.contains(&stored) {
            return Err(EngineError::validation(ValidationKind::Corruption, format!("{stored:?}: record: damaged")));
        }
        Ok(match (&key.name, self.records.get(&stored)) {
            (Name::Fence(_), Some((_, Record::Execution(execution)))) => {
                Some((self.version(key), execution.ownership().into()))
            }
            (_, found) => found.cloned(),
        })
    }

    pub(super) fn version(&self, key: &Key) -> u64 {
        match key.name {
            Name::Fence(_) => self.fences.get(key).copied().unwrap_or(ABSENT),
            _ => self.records.get(key).map_or(ABSENT, |(version, _)| *version),
        }
    }

    pub(super) fn range_version(&self, owner: &Key) -> u64 {
        self.ranges.get(owner).copied().unwrap_or(ABSENT)
    }

    pub(super) fn keys(&self, index: &Index, bounds: &Bounds) -> Vec<(Position, Key)> {
        let Some(entries) = self.indexes.get(index) else { return Vec::new() };
        let low = bounds.after.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let high = bounds.until.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Included);
        if let (Some(after), Some(until)) = (&bounds.after, &bounds.until)
            && after >= until
        {
            return Vec::new();
        }
        let found = entries.range((low, high)).map(|(position, key)| (position.clone(), key.clone()));
        if bounds.reverse { found.rev().take(bounds.limit).collect() } else { found.take(bounds.limit).collect() }
    }

    pub(super) fn range(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, u64, Record)>> {
        let mut out = Vec::new();
        for (position, key) in self.keys(index, bounds) {
            if let Some((version, record)) = self.get(&key)? {
                out.push((position, version, record));
            }
        }
        Ok(out)
    }

    pub(super) fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let mut out = Vec::new();
        for index in indexes {
            for (position, _, record) in self.range(index, bounds)? {
                out.push(Listed { index: index.clone(), position, record });
            }
        }
        if indexes.len() > 1 {
            out.sort_by(|a, b| a.position.cmp(&b.position));
            if bounds.reverse {
                out.reverse();
            }
            out.truncate(bounds.limit);
        }
        Ok(out)
    }

    pub(super) fn count(&self, index: &Index) -> u64 {
        self.indexes.get(index).map_or(0, |entries| entries.len() as u64)
    }

    /// Applies the writes if everything that was read is still as it was read; says whom to wake.
    pub(super) fn commit(&mut self, writes: Writes) -> Option<News> {
        let unchanged = writes.read.iter().all(|(key, version)| self.version(key) == *version)
            && writes.ranges.iter().all(|(owner, version)| self.range_version(owner) == *version);
        if !unchanged {
            return None;
        }
        if writes.overlay.is_empty() {
            return Some(News::default());
        }
        self.revision += 1;
        let mut news = News::default();
        for (key, record) in writes.overlay.changes {
            if let Some(record) = &record {
                news.topics.extend(record.topics());
            }
            self.apply(key, record, &mut news);
        }
        if !writes.overlay.events.is_empty() {
            news.topics.push(Topic::Events);
        }
        for event in writes.overlay.events {
            self.last_sequence += 1;
            self.events.push_back((self.last_sequence, event));
        }
        Some(news)
    }

    fn apply(&mut self, key: Key, record: Option<Record>, news: &mut News) {
        let old = self.records.remove(&key).map(|(_, record)| record);
        self.move_entries(&key, old.as_ref(), record.as_ref(), news);
        if let Name::Execution(id) = key.name {
            let owner = |record: Option<&Record>| match record {
                Some(Record::Execution(execution)) => Some(execution.ownership()),
                _ => None,
            };
            let same = match (owner(old.as_ref()), owner(record.as_ref())) {
                (Some(before), Some(after)) => before.same_owner(&after),
                (None, None) => true,
                _ => false,
            };
            if record.is_none() {
                self.fences.remove(&Key::fence(id));
            } else if !same {
                self.fences.insert(Key::fence(id), self.revision);
            }
        }
        self.changed.insert(key.clone(), self.revision);
        if let Some(record) = record {
            self.records.insert(key, (self.revision, record));
        }
    }

    fn move_entries(&mut self, key: &Key, old: Option<&Record>, new: Option<&Record>, news: &mut News) {
        let before = old.map(Record::entries).unwrap_or_default();
        let after = new.map(Record::entries).unwrap_or_default();
        let touched = |entry: &Entry| entry.index.owner();
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            if let Some(index) = self.indexes.get_mut(&entry.index) {
                index.remove(&entry.position);
                if index.is_empty() {
                    self.indexes.remove(&entry.index);
                }
            }
            if let Some(owner) = touched(entry) {
                self.ranges.insert(owner, self.revision);
            }
        }
        for entry in after.into_iter().filter(|entry| !before.contains(entry)) {
            if let Some(owner) = touched(&entry) {
                self.ranges.insert(owner, self.revision);
            }
            news.due_at = news.due_at.into_iter().chain(awaited_at(&entry)).min();
            self.indexes.entry(entry.index).or_default().insert(entry.position, key.clone());
        }
    }

    pub(super) fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        let log = numbered::Extent { trimmed: self.trimmed, last: self.last_sequence };
        let after = numbered::resume(BackendTag::Memory, after, log)?;
        let skip = usize::try_from(after - self.trimmed).unwrap_or(usize::MAX);
        let events: Vec<_> = self
            .events
            .iter()
            .skip(skip)
            .take(limit)
            .map(|(sequence, event)| (cursor(*sequence), event.clone()))
            .collect();
        let next = events.last().map_or_else(|| cursor(after), |(last, _)| last.clone());
        Ok(EventPage { events, next })
    }

    pub(super) fn trim_events(&mut self, before: TimestampMs, limit: usize) -> usize {
        let mut dropped = 0;
        while dropped < limit && self.events.front().is_some_and(|(_, event)| event.at < before) {
            self.events.pop_front();
            self.trimmed += 1;
            dropped += 1;
        }
        dropped
    }

    pub(super) fn reindex(&mut self, partition: Partition) -> (u32, u32) {
        let mut looked_at = 0;
        let mut repaired = 0;
        let mut implied: HashMap<Index, BTreeMap<Position, Key>> = HashMap::new();
        for (key, (_, record)) in self.records.iter().filter(|(key, _)| key.partition == partition) {
            looked_at += 1;
            for entry in record.entries() {
                implied.entry(entry.index).or_default().insert(entry.position, key.clone());
            }
        }
        for (index, entries) in &mut self.indexes {
            let wanted = implied.get(index);
            let before = entries.len();
            entries.retain(|position, key| {
                key.partition != partition || wanted.is_some_and(|wanted| wanted.get(position) == Some(key))
            });
            repaired += u32::try_from(before - entries.len()).unwrap_or(u32::MAX);
        }
        for (index, wanted) in implied {
            let entries = self.indexes.entry(index).or_default();
            for (position, key) in wanted {
                if entries.insert(position, key.clone()).as_ref() != Some(&key) {
                    repaired += 1;
                }
            }
        }
        (looked_at, repaired)
    }
}

fn cursor(sequence: u64) -> EventCursor {
    numbered::cursor(BackendTag::Memory, sequence)
}
