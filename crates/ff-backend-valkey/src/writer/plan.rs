//! From decisions to one command.

use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::awaited_at;
use ff_engine::codec::{encode_event, encode_record};
use ff_engine::event::Event;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Entry, Index, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use redis::Cmd;

use super::batch::{Accepted, Change, Facts, Outcome};
use super::cache::Row;
use crate::address::{Layout, Shard, stored_key};
use crate::indexes;
use crate::schema::function;
use crate::tables::record::{Stored, new_version, value};
use crate::tables::{Page, limit};

/// For how long the server remembers the latest commit of a process, in seconds: longer than anybody waits for an answer.
const REMEMBERED_S: u32 = 600;

/// Events that one entry of the log holds at most.
const EVENTS_MAX: usize = 1_000;

/// What is told after a commit.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) topics: HashSet<Topic>,
    /// When the earliest new entry comes due.
    pub(crate) due_at: Option<TimestampMs>,
}

/// Members by list.
type Members = HashMap<Index, Vec<Vec<u8>>>;

/// The keys of lists that get the same members, and these.
type Bundle<'m> = (Vec<Vec<u8>>, &'m [Vec<u8>]);

/// One commit.
#[derive(Default)]
pub(super) struct Plan {
    /// Keys, and the versions that they must have.
    expected: Vec<(Vec<u8>, Vec<u8>)>,
    put: Vec<(Vec<u8>, Vec<u8>)>,
    gone: Vec<Vec<u8>>,
    /// Parts of lists that must look as they did.
    ranges: Vec<(Vec<u8>, Bounds, Index, Arc<Page>)>,
    entered: Members,
    left: Members,
    /// Events that happened at the same time, one after another.
    events: Vec<(TimestampMs, Vec<Vec<u8>>)>,
    pub(super) news: News,
    /// What keys hold after the commit.
    pub(super) after: Vec<(Key, Row)>,
    /// What the decisions depend on.
    pub(super) read: Vec<Key>,
    /// Executions that it creates.
    pub(super) born: Vec<ExecutionId>,
}

/// Who sends a commit, and which one it is.
pub(super) struct Sender<'a> {
    pub(super) name: &'a [u8],
    pub(super) number: u64,
    /// What is to be told to others.
    pub(super) message: Vec<u8>,
}

impl Plan {
    /// The plan for decisions that are based on these facts.
    pub(super) fn new(layout: &Layout, shard: Shard, outcome: Outcome) -> Result<Self> {
        let Outcome { facts, accepted, pages, newborn, .. } = outcome;
        let Accepted { changes, events, read, ranges, .. } = accepted;
        let mut plan = Self::default();
        let replaced = changes.keys().filter(|key| key.may_be_listed());
        let is_new = |key: &Key| key.execution_id().is_some_and(|id| newborn.contains(&id));
        let read: HashSet<Key> = read.into_iter().chain(replaced.cloned()).filter(|key| !is_new(key)).collect();
        plan.expect(layout, &facts, read);
        for part in ranges {
            if let Some(page) = pages.get(&part) {
                let (index, bounds) = part;
                plan.ranges.push((layout.list(shard, &index), bounds, index, Arc::clone(page)));
            }
        }
        let version = new_version();
        for (key, change) in changes {
            plan.change(layout, &facts, key, change, version)?;
        }
        for event in &events {
            plan.append(event)?;
        }
        plan.born = newborn.into_iter().collect();
        Ok(plan)
    }

    fn expect(&mut self, layout: &Layout, facts: &Facts, read: HashSet<Key>) {
        for key in &read {
            let stored = stored_key(key);
            let is_ownership = stored != *key;
            // Where the execution counts as a whole, its owner is a part of it.
            if is_ownership && read.contains(&stored) {
                continue;
            }
            let Some(known) = facts.get(&stored) else { continue };
            let expected = match known {
                None => Vec::new(),
                Some(known) if is_ownership => [b"f", &known.fence.to_be_bytes()[..]].concat(),
                Some(known) => known.version.to_be_bytes().to_vec(),
            };
            self.expected.push((layout.record(&stored), expected));
        }
        self.read = read.into_iter().map(|key| stored_key(&key)).collect();
    }

    fn change(&mut self, layout: &Layout, facts: &Facts, key: Key, change: Change, version: u64) -> Result<()> {
        let Change { new, before, after } = change;
        self.news.topics.extend(new.iter().flat_map(Record::topics));
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            add(&mut self.left, entry, &key);
        }
        for entry in after.iter().filter(|entry| !before.contains(entry)) {
            add(&mut self.entered, entry, &key);
            self.news.due_at = self.news.due_at.into_iter().chain(awaited_at(entry)).min();
        }
        match new {
            None => {
                self.gone.push(layout.record(&key));
                self.after.push((key, None));
            }
            Some(record) => {
                let body = encode_record(&record)?;
                let known = facts.get(&key).and_then(Option::as_deref);
                let fence = known.filter(|known| same_owner(known, &record)).map_or(version, |known| known.fence);
                self.put.push((layout.record(&key), value(&key, version, fence, &body)));
                let stored = Stored::written(version, fence, record, body.len(), after);
                self.after.push((key, Some(Arc::new(stored))));
            }
        }
        Ok(())
    }

    fn append(&mut self, event: &Event) -> Result<()> {
        self.news.topics.insert(Topic::Events);
        let body = encode_event(event)?;
        match self.events.last_mut() {
            Some((at, bodies)) if *at == event.at && bodies.len() < EVENTS_MAX => bodies.push(body),
            _ => self.events.push((event.at, vec![body])),
        }
        Ok(())
    }

    /// Whether anything is to be written.
    pub(super) fn writes(&self) -> bool {
        !(self.put.is_empty() && self.gone.is_empty() && self.events.is_empty())
    }

    /// Whether anything must be as it was read.
    pub(super) fn depends(&self) -> bool {
        !(self.expected.is_empty() && self.ranges.is_empty())
    }

    /// The command for it.
    pub(super) fn command(&self, layout: &Layout, shard: Shard, sender: &Sender<'_>) -> Cmd {
        let mut command = redis::cmd("FCALL");
        let (entered, left) = (bundles(&self.entered, layout, shard), bundles(&self.left, layout, shard));
        let sections =
            [self.expected.len(), self.put.len(), self.gone.len(), self.ranges.len(), entered.len(), left.len()];
        let lists: Vec<&Vec<u8>> = entered.iter().chain(&left).flat_map(|(lists, _)| lists).collect();
        let records = self.expected.len() + self.put.len() + self.gone.len();
        command.arg(function("commit")).arg(3 + records + self.ranges.len() + lists.len());
        command.arg(layout.sender(shard, sender.name)).arg(layout.event_number(shard)).arg(layout.event_log(shard));
        for key in self.keys().chain(lists) {
            command.arg(key);
        }
        command.arg(sender.number).arg(REMEMBERED_S).arg(&sections[..]);
        command.arg(self.events.len()).arg(layout.channel()).arg(&sender.message);
        for (_, given) in self.expected.iter().chain(&self.put) {
            command.arg(given);
        }
        for (_, bounds, index, page) in &self.ranges {
            let (low, high) = indexes::ends(index, bounds);
            command.arg(low).arg(high).arg(limit(bounds)).arg(u8::from(bounds.reverse)).arg(&page.digest);
        }
        for (lists, members) in entered.iter().chain(&left) {
            command.arg(lists.len()).arg(members.len()).arg(*members);
        }
        for (at, bodies) in &self.events {
            command.arg(at.0).arg(bodies.len()).arg(bodies);
        }
        command
    }

    /// The keys of records, and of lists that were read, in the order of their sections.
    fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        let records = self.expected.iter().chain(&self.put).map(|(key, _)| key).chain(&self.gone);
        records.chain(self.ranges.iter().map(|(key, ..)| key))
    }

    /// The lists that records enter.
    pub(super) fn entered(&self) -> impl Iterator<Item = &Index> {
        self.entered.keys()
    }

    /// Parts of lists that the decisions depend on.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Index, Bounds)> {
        self.ranges.iter().map(|(_, bounds, index, _)| (index.clone(), bounds.clone()))
    }
}

fn add(members: &mut Members, entry: &Entry, key: &Key) {
    let member = indexes::member(entry, key);
    match members.get_mut(&entry.index) {
        Some(members) => members.push(member),
        None => drop(members.insert(entry.index.clone(), vec![member])),
    }
}

/// Many lists get the same members: they are sent once.
fn bundles<'m>(members: &'m Members, layout: &Layout, shard: Shard) -> Vec<Bundle<'m>> {
    let mut bundles: HashMap<&[Vec<u8>], Vec<Vec<u8>>> = HashMap::default();
    for (index, members) in members {
        bundles.entry(members).or_default().push(layout.list(shard, index));
    }
    bundles.into_iter().map(|(members, lists)| (lists, members)).collect()
}

/// Whether an execution has the owner that it had.
fn same_owner(known: &Stored, record: &Record) -> bool {
    match (&known.record, record) {
        (Ok(Record::Execution(before)), Record::Execution(after)) => before.ownership().same_owner(&after.ownership()),
        _ => false,
    }
}
