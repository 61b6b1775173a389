//! How the journal writes down what changed of an execution.
//!
//! A line is the number of the last row and of the last event that are in their tables, then a sequence of what happened. Each begins with
//! a byte that tells what it is. A change of an execution goes on with the number of the row, the id and a byte that says what
//! follows, each with its length: bit 0 is its record, bits 1 to 6 are what stands beside it.

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};

use crate::error::corrupt;
use crate::tables::event::Appended;
use crate::tables::execution::Change;
use crate::tables::satellite::Satellite;

// Files hold these: they must not change.
const GONE: u8 = 0;
const BORN: u8 = 1;
const CHANGED: u8 = 2;
const EVENT: u8 = 3;

const BODY: u8 = 1;

/// The length of a column that holds nothing.
const NOTHING: u32 = u32::MAX;

const fn cell_bit(at: usize) -> u8 {
    1 << (at + 1)
}

/// Up to where rows and events are in their tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) row: i64,
    pub(super) event: u64,
}

/// What a change does.
#[derive(Debug, PartialEq)]
pub(super) enum Deed {
    /// A new execution.
    Born(Change),
    /// What is named is different now.
    Changed(Change),
    /// The execution is no more.
    Gone,
}

/// One thing that happened.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    /// An execution changed.
    Row {
        /// The number of its row.
        row: i64,
        id: ExecutionId,
        deed: Deed,
    },
    /// An event was appended to the log.
    Event(Appended),
}

/// Writes that an execution is no more.
pub(super) fn write_gone(line: &mut Vec<u8>, row: i64, id: ExecutionId) {
    write_head(line, GONE, row, id);
}

/// Writes what changed.
pub(super) fn write(line: &mut Vec<u8>, row: i64, id: ExecutionId, is_new: bool, change: &Change) {
    write_head(line, if is_new { BORN } else { CHANGED }, row, id);
    let mut what = if change.body.is_some() { BODY } else { 0 };
    for (at, cell) in change.cells.iter().enumerate() {
        if cell.is_some() {
            what |= cell_bit(at);
        }
    }
    line.push(what);
    if let Some(body) = &change.body {
        write_bytes(line, Some(body));
    }
    for cell in change.cells.iter().flatten() {
        write_bytes(line, cell.as_deref());
    }
}

/// Writes an event.
pub(super) fn write_event(line: &mut Vec<u8>, event: &Appended) {
    line.push(EVENT);
    line.extend_from_slice(&event.sequence.to_be_bytes());
    line.extend_from_slice(&event.at.0.to_be_bytes());
    write_bytes(line, Some(&event.body));
}

fn write_head(line: &mut Vec<u8>, tag: u8, row: i64, id: ExecutionId) {
    line.push(tag);
    line.extend_from_slice(&row.to_be_bytes());
    line.extend_from_slice(&id.to_bytes());
}

fn write_bytes(line: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let length = bytes.map_or(NOTHING, |bytes| u32::try_from(bytes.len()).unwrap_or(NOTHING));
    line.extend_from_slice(&length.to_be_bytes());
    line.extend_from_slice(bytes.unwrap_or_default());
}

/// A line of what happened.
pub(super) fn whole(marks: Marks, told: &[u8]) -> Vec<u8> {
    [&marks.row.to_be_bytes()[..], &marks.event.to_be_bytes(), told].concat()
}

/// What a line says.
pub(super) fn read(line: &[u8]) -> Result<(Marks, Vec<Told>)> {
    let broken = || corrupt("a line of the journal breaks off");
    let mut rest = Rest(line);
    let marks = rest.marks().ok_or_else(broken)?;
    let mut told = Vec::new();
    while !rest.0.is_empty() {
        told.push(rest.told().ok_or_else(broken)?);
    }
    Ok((marks, told))
}

/// What is left of a line.
struct Rest<'l>(&'l [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Bytes with their length before them; `Some(None)` is a column that holds nothing.
    fn bytes(&mut self) -> Option<Option<Vec<u8>>> {
        let length = u32::from_be_bytes(self.take()?);
        if length == NOTHING {
            return Some(None);
        }
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(Some(taken.to_vec()))
    }

    fn marks(&mut self) -> Option<Marks> {
        Some(Marks { row: i64::from_be_bytes(self.take()?), event: u64::from_be_bytes(self.take()?) })
    }

    fn told(&mut self) -> Option<Told> {
        let [tag] = self.take()?;
        if tag == EVENT {
            return self.event().map(Told::Event);
        }
        let row = i64::from_be_bytes(self.take()?);
        let id = ExecutionId::from_bytes(self.take()?);
        let deed = match tag {
            GONE => Deed::Gone,
            BORN => Deed::Born(self.change()?),
            CHANGED => Deed::Changed(self.change()?),
            _ => return None,
        };
        Some(Told::Row { row, id, deed })
    }

    fn event(&mut self) -> Option<Appended> {
        let sequence = u64::from_be_bytes(self.take()?);
        let at = TimestampMs(i64::from_be_bytes(self.take()?));
        Some(Appended { sequence, at, body: self.bytes()?? })
    }

    fn change(&mut self) -> Option<Change> {
        let [what] = self.take()?;
        let mut change = Change::default();
        if what & BODY != 0 {
            change.body = Some(self.bytes()??);
        }
        for at in 0..Satellite::ALL.len() {
            if what & cell_bit(at) != 0 {
                change.cells[at] = Some(self.bytes()?);
            }
        }
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> ExecutionId {
        ExecutionId::from_bytes([byte; 18].map(|byte| byte & 0x0f))
    }

    fn change(body: Option<&[u8]>, outcome: Option<Option<&[u8]>>) -> Change {
        let mut change = Change { body: body.map(<[u8]>::to_vec), ..Change::default() };
        change.cells[Satellite::Outcome as usize] = outcome.map(|cell| cell.map(<[u8]>::to_vec));
        change
    }

    const MARKS: Marks = Marks { row: -5, event: 9 };

    #[test]
    fn what_is_written_is_read() {
        let (born, later) = (change(Some(b"body"), Some(Some(b""))), change(None, Some(None)));
        let event = || Appended { sequence: 3, at: TimestampMs(-1), body: b"event".to_vec() };
        let mut line = Vec::new();
        write(&mut line, 1, id(1), true, &born);
        write(&mut line, 1, id(1), false, &later);
        write_event(&mut line, &event());
        write_gone(&mut line, 2, id(2));
        let told = [
            Told::Row { row: 1, id: id(1), deed: Deed::Born(born) },
            Told::Row { row: 1, id: id(1), deed: Deed::Changed(later) },
            Told::Event(event()),
            Told::Row { row: 2, id: id(2), deed: Deed::Gone },
        ];
        assert_eq!(read(&whole(MARKS, &line)).unwrap(), (MARKS, told.into()));
    }

    #[test]
    fn a_line_that_breaks_off_is_refused_wherever_it_does() {
        let mut line = Vec::new();
        write(&mut line, 7, id(1), true, &change(Some(b"body"), Some(Some(b"outcome"))));
        let line = whole(MARKS, &line);
        for length in (0..line.len()).filter(|length| *length != 16) {
            assert!(read(&line[..length]).is_err(), "after {length} bytes");
        }
    }

    #[test]
    fn a_line_of_an_unknown_kind_is_refused() {
        assert!(read(&whole(MARKS, &[9; 40])).is_err());
    }
}
