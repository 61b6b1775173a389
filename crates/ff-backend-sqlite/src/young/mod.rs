//! Young executions: the newest ones, which live in memory and in the journal, and come to their table later.
//!
//! Most executions are claimed and completed soon after they were created. In the table each step moves them through a dozen indexes; in
//! the journal it is a few bytes at the end of a line that is written once for the whole group. Executions settle in the order of their
//! creation, many at a time: those numbered up to the mark that the journal carries are in the table, those above are young, and none is
//! in both. So a list is the table's and the young ones', merged.
//!
//! What is in memory follows from the journal: a reader, another process, or this one after a crash reads the lines it has not seen.

mod lines;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::codec::decode_record;
use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Entry, Index, Position};
use ff_engine::key::Key;
use ff_engine::queues::Queues;
use rusqlite::Connection;

use crate::error::explain;
use crate::tables::event::{self, Appended};
use crate::tables::execution::{self, Change, Shadow, Stored};
use crate::tables::satellite::{Cell, Satellite};
use lines::{Deed, Marks, Told};
use stream::{CAPACITY, Found, Stream, Unread};

/// Events that wait in the journal at most.
const EVENTS_MAX: usize = 4_096;

/// One young execution.
#[derive(Debug)]
struct Youth {
    /// Where the line of the journal begins that tells of its creation.
    born: u64,
    /// Its columns as they are to be stored.
    body: Vec<u8>,
    cells: [Option<Vec<u8>>; Satellite::ALL.len()],
    /// The same, readable.
    stored: Stored,
}

impl Youth {
    /// One of which nothing is known but the line.
    fn new(born: u64) -> Self {
        Self { born, body: Vec::new(), cells: Default::default(), stored: Stored::missing() }
    }

    fn take(&mut self, change: Change) {
        if let Some(body) = change.body {
            self.body = body;
        }
        for (cell, new) in self.cells.iter_mut().zip(change.cells) {
            if let Some(new) = new {
                *cell = new;
            }
        }
    }

    /// Reads the columns.
    fn read(&mut self, id: ExecutionId) {
        let record = decode_record(&Key::execution(id), &self.body);
        self.stored.entries = record.as_ref().ok().map(|record| Arc::new(record.entries()));
        self.stored.record = record;
        self.stored.cells = self.cells.clone().map(Cell::read);
    }
}

/// Whether any of those that came to the table waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Settled {
    NoneInQueues,
    SomeInQueues,
}

/// The young executions of one moment.
#[derive(Debug, Default)]
pub(crate) struct Young {
    rows: HashMap<ExecutionId, Youth>,
    /// By the number of their rows, which is the order of their creation.
    order: BTreeMap<i64, ExecutionId>,
    /// Those that can be claimed, in the order of each queue. Other lists are gathered when somebody asks.
    queues: Queues,
    /// The journal, up to what is known of it.
    journal: Stream,
    /// The row that was numbered last.
    latest: i64,
    /// Up to where rows and events are in their tables.
    marks: Marks,
    /// The events after that one, each with where the line begins that tells of it.
    events: VecDeque<(u64, Appended)>,
    /// What the open group has to tell.
    line: Vec<u8>,
    /// Whether the marks have moved since the last line.
    has_settled: bool,
}

impl Young {
    /// A young execution, with what stands beside it.
    pub(crate) fn get(&self, id: ExecutionId) -> Option<&Stored> {
        self.rows.get(&id).map(|youth| &youth.stored)
    }

    /// The last row that is in the table.
    pub(crate) const fn settled_to(&self) -> i64 {
        self.marks.row
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExecutionId, &Stored)> {
        self.rows.iter().map(|(id, youth)| (*id, &youth.stored))
    }

    /// Where the young ones stand in an index.
    pub(crate) fn list(&self, index: &Index, bounds: &Bounds) -> Vec<(Position, ExecutionId)> {
        self.queues.list(index, bounds, self.entries())
    }

    fn entries(&self) -> impl Iterator<Item = (&Entry, ExecutionId)> {
        self.rows.iter().flat_map(|(id, youth)| known(&youth.stored.entries).iter().map(move |entry| (entry, *id)))
    }

    /// How many young ones stand in an index.
    pub(crate) fn count(&self, index: &Index) -> u64 {
        self.entries().filter(|(entry, _)| entry.index == *index).count() as u64
    }

    /// An execution was created or changed.
    pub(crate) fn put(&mut self, id: ExecutionId, mut stored: Stored, change: Change) {
        let is_new = stored.row == Stored::NO_ROW;
        if is_new {
            self.latest += 1;
            stored.row = self.latest;
            self.order.insert(stored.row, id);
        }
        lines::write(&mut self.line, stored.row, id, is_new, &change);
        let born = self.journal.end();
        let youth = self.rows.entry(id).or_insert_with(|| Youth::new(born));
        self.queues.shift(id, known(&youth.stored.entries), known(&stored.entries));
        youth.take(change);
        youth.stored = stored;
    }

    /// An execution was removed; says whether it was young.
    pub(crate) fn remove(&mut self, id: ExecutionId) -> bool {
        let Some(gone) = self.forget(id) else { return false };
        lines::write_gone(&mut self.line, gone.stored.row, id);
        true
    }

    fn forget(&mut self, id: ExecutionId) -> Option<Youth> {
        let gone = self.rows.remove(&id)?;
        self.order.remove(&gone.stored.row);
        self.queues.shift(id, known(&gone.stored.entries), &[]);
        Some(gone)
    }

    /// An event was appended to the log.
    pub(crate) fn append(&mut self, event: Appended) {
        lines::write_event(&mut self.line, &event);
        self.events.push_back((self.journal.end(), event));
    }

    /// The events that are not in the table yet, after one.
    pub(crate) fn events_after(&self, sequence: u64) -> impl Iterator<Item = &Appended> {
        let from = self.events.partition_point(|(_, event)| event.sequence <= sequence);
        self.events.range(from..).map(|(_, event)| event)
    }

    /// The last event that is not in the table yet.
    pub(crate) fn last_event(&self) -> Option<u64> {
        self.events.back().map(|(_, event)| event.sequence)
    }

    /// Reads the lines that are not known yet. Half of them would be worse than none, so after an error nothing is known.
    pub(crate) fn catch_up(&mut self, db: &Connection) -> Result<()> {
        self.read_on(db).inspect_err(|_| *self = Self::default())
    }

    fn read_on(&mut self, db: &Connection) -> Result<()> {
        if self.journal.resume(db)? == Found::Anew {
            *self = Self { journal: std::mem::take(&mut self.journal), ..Self::default() };
        }
        let mut touched = Vec::new();
        let mut unread = Unread::default();
        loop {
            let begins = self.journal.end();
            let Some(line) = self.journal.next(db, &mut unread)? else { break };
            let (marks, told) = lines::read(&line)?;
            self.marks = marks;
            self.latest = self.latest.max(marks.row);
            for told in told {
                match told {
                    Told::Event(event) => self.events.push_back((begins, event)),
                    Told::Row { row, id, deed } => {
                        touched.push(id);
                        self.hear(begins, row, id, deed);
                    }
                }
            }
        }
        self.forget_settled();
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            self.reread(id);
        }
        Ok(())
    }

    /// Takes over what a line tells; the row is read later, when it is known how it ends.
    fn hear(&mut self, line: u64, row: i64, id: ExecutionId, deed: Deed) {
        match deed {
            Deed::Born(change) => {
                self.forget(id);
                let mut youth = Youth::new(line);
                youth.stored.row = row;
                youth.take(change);
                self.rows.insert(id, youth);
                self.order.insert(row, id);
                self.latest = self.latest.max(row);
            }
            // Of one that has settled since, the line that tells of its creation may be gone.
            Deed::Changed(change) => {
                if let Some(youth) = self.rows.get_mut(&id).filter(|youth| youth.stored.row == row) {
                    youth.take(change);
                }
            }
            Deed::Gone => {
                if self.order.get(&row) == Some(&id) {
                    self.forget(id);
                }
            }
        }
    }

    fn reread(&mut self, id: ExecutionId) {
        let Some(youth) = self.rows.get_mut(&id) else { return };
        let before = youth.stored.entries.take();
        youth.read(id);
        self.queues.shift(id, known(&before), known(&youth.stored.entries));
    }

    fn forget_settled(&mut self) {
        while self.events.pop_front_if(|(_, event)| event.sequence <= self.marks.event).is_some() {}
        let young = self.order.split_off(&(self.marks.row + 1));
        for (_, id) in std::mem::replace(&mut self.order, young) {
            self.forget(id);
        }
    }

    /// Ends the open group: settles some when there are more than `most` or the journal is full of them, and writes the line.
    pub(crate) fn commit(&mut self, db: &Connection, most: usize) -> Result<Settled> {
        let mut settled = Settled::NoneInQueues;
        if self.rows.len() > most || self.events.len() > EVENTS_MAX || self.needed_bytes() > CAPACITY / 4 * 3 {
            self.settle_events(db)?;
            // Many at a time share pages of the indexes.
            while self.rows.len() > most - most / 4 || self.needed_bytes() > CAPACITY / 2 {
                settled = settled.max(self.settle_oldest(db)?);
            }
        }
        if self.has_settled || !self.line.is_empty() {
            self.end_line(db).map_err(explain)?;
        }
        Ok(settled)
    }

    /// Where the oldest line begins that is not told by the tables.
    fn needed_from(&self) -> u64 {
        let row = self.order.values().next().and_then(|id| self.rows.get(id)).map(|youth| youth.born);
        let event = self.events.front().map(|(line, _)| *line);
        row.into_iter().chain(event).min().unwrap_or_else(|| self.journal.end())
    }

    /// Bytes of the journal that are needed, with the line that is about to be written.
    fn needed_bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { self.journal.end() - self.needed_from() + self.line.len() as u64 }
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.events.is_empty()
    }

    fn end_line(&mut self, db: &Connection) -> rusqlite::Result<()> {
        if self.is_empty() {
            // The tables tell everything, and all that was ever young is to be looked for there.
            self.marks.row = self.latest;
            self.line.clear();
        }
        let line = lines::whole(self.marks, &self.line);
        self.journal.append(db, self.needed_from(), &line)?;
        self.line.clear();
        self.has_settled = false;
        Ok(())
    }

    /// Moves the events to the table.
    pub(crate) fn settle_events(&mut self, db: &Connection) -> Result<()> {
        let events: Vec<Appended> = self.events.drain(..).map(|(_, event)| event).collect();
        event::append(db, &events).map_err(explain)?;
        if let Some(last) = events.last() {
            self.marks.event = last.sequence;
            self.has_settled = true;
        }
        Ok(())
    }

    /// Moves the oldest to the table.
    fn settle_oldest(&mut self, db: &Connection) -> Result<Settled> {
        let Some((row, id)) = self.order.pop_first() else { return Ok(Settled::NoneInQueues) };
        self.marks.row = row;
        self.has_settled = true;
        let Some(youth) = self.forget(id) else { return Ok(Settled::NoneInQueues) };
        let shadow = Shadow::of(&youth.stored.entries());
        execution::insert(db, row, id, &shadow, &youth.body, &youth.cells).map_err(explain)?;
        Ok(if shadow.is_queued() { Settled::SomeInQueues } else { Settled::NoneInQueues })
    }

    /// Moves all of them, and the events, to the tables.
    pub(crate) fn settle_all(&mut self, db: &Connection) -> Result<()> {
        self.settle_events(db)?;
        while !self.order.is_empty() {
            self.settle_oldest(db)?;
        }
        Ok(())
    }
}

/// The entries of an execution, as far as they are known.
fn known(entries: &Option<Arc<Vec<Entry>>>) -> &[Entry] {
    entries.as_deref().map_or(&[], Vec::as_slice)
}

/// What a moment of the file holds: the tables, and the young executions that have not come there yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'v> {
    pub(crate) db: &'v Connection,
    pub(crate) young: &'v Young,
}

/// A connection with the young executions as they were when it last looked.
#[derive(Debug)]
pub(crate) struct Watcher {
    db: Connection,
    young: Young,
}

impl Watcher {
    pub(crate) fn new(db: Connection) -> Self {
        Self { db, young: Young::default() }
    }

    /// Reads at one moment.
    pub(crate) fn at_one_moment<T>(&mut self, job: impl FnOnce(View<'_>) -> Result<T>) -> Result<T> {
        let db = self.db.unchecked_transaction().map_err(explain)?;
        self.young.catch_up(&db)?;
        job(View { db: &db, young: &self.young })
    }
}

#[cfg(test)]
mod tests;
