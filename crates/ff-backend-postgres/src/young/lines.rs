//! What a line of the journal says: which young executions a commit wrote, and what changed of their rows.
//!
//! How lines are laid out is a part of the layout of the schema: it must not change without a migration.

use std::sync::Arc;

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::hash::HashMap;
use ff_engine::key::Key;

use super::Birth;
use crate::address::{Cell, Satellite, Stored};
use crate::error::corrupt;

const ROW: u8 = 1;
const GONE: u8 = 2;

/// The bit of a row's body beside those of its cells.
const BODY: u8 = 1 << Satellite::ALL.len();

/// The length of a cell that is absent.
const ABSENT: u32 = u32::MAX;

/// A line that is being written.
#[derive(Debug, Default)]
pub(crate) struct Line(Vec<u8>);

impl Line {
    /// An execution was created or changed; of what it was before, only the difference is written.
    pub(crate) fn write(&mut self, id: ExecutionId, birth: Birth, before: Option<&Stored>, after: &Stored) {
        self.begin(ROW, id, birth);
        let cells = Satellite::ALL.map(|satellite| satellite as usize);
        let has_changed = |at: &usize| {
            let before = before.map_or(&Cell::Absent, |before| &before.cells[*at]);
            before.column() != after.cells[*at].column()
        };
        let body = before.is_none_or(|before| before.body != after.body);
        let changed: Vec<usize> = cells.into_iter().filter(has_changed).collect();
        let mask = changed.iter().fold(if body { BODY } else { 0 }, |mask, at| mask | 1 << at);
        self.0.push(mask);
        if body {
            self.push(Some(&after.body));
        }
        for at in changed {
            self.push(after.cells[at].column());
        }
    }

    /// A young execution was removed.
    pub(crate) fn write_gone(&mut self, id: ExecutionId, birth: Birth) {
        self.begin(GONE, id, birth);
    }

    fn begin(&mut self, what: u8, id: ExecutionId, birth: Birth) {
        self.0.push(what);
        self.0.extend_from_slice(&id.to_bytes());
        self.0.extend_from_slice(&birth.0.to_be_bytes());
    }

    fn push(&mut self, bytes: Option<&[u8]>) {
        let length = bytes.map_or(ABSENT, |bytes| u32::try_from(bytes.len()).unwrap_or(ABSENT));
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes.unwrap_or_default());
    }

    /// The bytes; none if it says nothing.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The columns of a young execution, as lines tell.
#[derive(Debug, Default)]
struct Told {
    birth: Birth,
    body: Vec<u8>,
    cells: [Option<Vec<u8>>; Satellite::ALL.len()],
}

/// What a whole journal tells.
#[derive(Debug, Default)]
pub(crate) struct Tale {
    /// Executions born up to here have settled.
    settled: Birth,
    young: HashMap<ExecutionId, Told>,
}

impl Tale {
    /// One that begins after these have settled.
    pub(crate) fn after(settled: Birth) -> Self {
        Self { settled, ..Self::default() }
    }

    /// Hears the next line.
    ///
    /// # Errors
    /// `Corruption` for what is no line.
    pub(crate) fn hear(&mut self, line: &[u8]) -> Result<()> {
        let mut rest = Rest(line);
        while !rest.0.is_empty() {
            self.hear_one(&mut rest).ok_or_else(|| corrupt("a line of the journal cannot be read"))?;
        }
        Ok(())
    }

    fn hear_one(&mut self, rest: &mut Rest<'_>) -> Option<()> {
        let [what] = rest.array()?;
        let (id, birth) = (ExecutionId::from_bytes(rest.array()?), Birth(u64::from_be_bytes(rest.array()?)));
        match what {
            ROW => {
                let [mask] = rest.array()?;
                let body = if mask & BODY == 0 { None } else { rest.bytes()? };
                let mut changed: [Option<Option<&[u8]>>; Satellite::ALL.len()] = Default::default();
                for (at, cell) in changed.iter_mut().enumerate() {
                    if mask & 1 << at != 0 {
                        *cell = Some(rest.bytes()?);
                    }
                }
                if birth > self.settled {
                    let told = self.young.entry(id).or_default();
                    told.take(birth, body, changed);
                }
            }
            GONE => {
                self.young.remove(&id);
            }
            _ => return None,
        }
        Some(())
    }

    /// The rows of executions that are not in their table, in the order of their birth.
    ///
    /// # Errors
    /// `Corruption` for an execution whose creation no line tells.
    pub(crate) fn into_rows(self, version: i64) -> Result<Vec<(ExecutionId, Arc<Stored>)>> {
        let mut young: Vec<_> = self.young.into_iter().collect();
        young.sort_unstable_by_key(|(_, told)| told.birth);
        young.into_iter().map(|(id, told)| Ok((id, Arc::new(told.into_row(id, version)?)))).collect()
    }
}

impl Told {
    fn take(&mut self, birth: Birth, body: Option<&[u8]>, cells: [Option<Option<&[u8]>>; Satellite::ALL.len()]) {
        if self.birth != birth {
            *self = Self { birth, ..Self::default() };
        }
        if let Some(body) = body {
            self.body = body.to_vec();
        }
        for (cell, new) in self.cells.iter_mut().zip(cells) {
            if let Some(new) = new {
                *cell = new.map(<[u8]>::to_vec);
            }
        }
    }

    fn into_row(self, id: ExecutionId, version: i64) -> Result<Stored> {
        if self.body.is_empty() {
            return Err(corrupt("the journal does not tell how an execution began"));
        }
        let mut stored = Stored::read(&Key::execution(id), version, &self.body);
        stored.cells = self.cells.each_ref().map(|column| Cell::read(column.as_deref()));
        Ok(stored)
    }
}

/// What is left of a line.
struct Rest<'l>(&'l [u8]);

impl<'l> Rest<'l> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn bytes(&mut self) -> Option<Option<&'l [u8]>> {
        let length = u32::from_be_bytes(self.array()?);
        if length == ABSENT {
            return Some(None);
        }
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(3, Uuid::from_u128(number))
    }

    fn row(body: &[u8], definition: Option<&[u8]>, outcome: Option<&[u8]>) -> Stored {
        let mut stored = Stored::read(&Key::execution(id(1)), 7, body);
        stored.cells[Satellite::Definition as usize] = Cell::read(definition);
        stored.cells[Satellite::Outcome as usize] = Cell::read(outcome);
        stored
    }

    fn columns(stored: &Stored) -> (Vec<u8>, Vec<Option<Vec<u8>>>) {
        (stored.body.to_vec(), stored.cells.iter().map(|cell| cell.column().map(<[u8]>::to_vec)).collect())
    }

    fn line(write: impl FnOnce(&mut Line)) -> Vec<u8> {
        let mut line = Line::default();
        write(&mut line);
        line.bytes().to_vec()
    }

    #[test]
    fn rows_are_told_as_they_were_written_last() {
        let (first, second) = (row(b"one", Some(b"d"), None), row(b"two", None, Some(b"")));
        let lines = [
            line(|line| line.write(id(1), Birth(1), None, &first)),
            line(|line| line.write(id(2), Birth(2), None, &first)),
            line(|line| {
                line.write(id(1), Birth(1), Some(&first), &second);
                line.write_gone(id(2), Birth(2));
                line.write(id(3), Birth(3), None, &second);
            }),
        ];
        let mut tale = Tale::default();
        lines.iter().for_each(|line| tale.hear(line).unwrap());
        let rows = tale.into_rows(9).unwrap();
        assert_eq!(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(1), id(3)]);
        assert!(rows.iter().all(|(_, row)| row.version == 9 && columns(row) == columns(&second)));
    }

    #[test]
    fn only_what_changed_is_written() {
        let (before, after) = (row(b"body", Some(&[7; 100]), None), row(b"body", Some(&[7; 100]), Some(b"done")));
        let change = line(|line| line.write(id(1), Birth(1), Some(&before), &after));
        assert!(change.len() < 50, "{} bytes", change.len());
    }

    #[test]
    fn what_has_settled_is_not_told_again() {
        let before = row(b"one", None, None);
        let mut tale = Tale::after(Birth(1));
        // The line of its creation may be gone by then.
        let change = row(b"one", None, Some(b"x"));
        tale.hear(&line(|line| line.write(id(1), Birth(1), Some(&before), &change))).unwrap();
        tale.hear(&line(|line| line.write(id(2), Birth(2), None, &before))).unwrap();
        assert_eq!(tale.into_rows(1).unwrap().len(), 1);
    }

    #[test]
    fn a_change_without_a_beginning_is_damage() {
        let (before, after) = (row(b"one", None, None), row(b"one", None, Some(b"x")));
        let mut tale = Tale::default();
        tale.hear(&line(|line| line.write(id(1), Birth(1), Some(&before), &after))).unwrap();
        assert!(tale.into_rows(1).is_err());
    }

    #[test]
    fn a_line_that_breaks_off_is_refused_wherever_it_does() {
        let whole = line(|line| line.write(id(1), Birth(1), None, &row(b"body", Some(b"definition"), None)));
        for length in 1..whole.len() {
            assert!(Tale::default().hear(&whole[..length]).is_err(), "after {length} bytes");
        }
        assert!(Tale::default().hear(&[9; 60]).is_err(), "of an unknown kind");
    }
}
