//! The journal as a stream of lines, cut into slots that are used again and again.
//!
//! A slot holds its number in the stream, where the oldest line begins that is still needed, how many bytes of it are filled, and these
//! bytes. A line is its length and what it says, and may go on in the next slots.

use ff_core::Result;
use rusqlite::Connection;

use crate::error::corrupt;
use crate::tables::journal;

// How the stream is laid out is a part of the layout of the file: it must not change without a migration.

/// How many slots there are.
const SLOTS: u64 = 512;

/// Bytes of a slot: about what a page takes beside what SQLite adds.
const SLOT_BYTES: usize = 4_032;

const HEAD_BYTES: usize = 18;

/// Bytes of the stream in one slot.
const FILL: u64 = (SLOT_BYTES - HEAD_BYTES) as u64;

/// Bytes of the stream that may be needed at a time; one slot is always half written.
pub(super) const CAPACITY: u64 = (SLOTS - 1) * FILL;

/// What a slot says of itself.
struct Head {
    number: u64,
    needed_from: u64,
    filled: u64,
}

impl Head {
    fn read(slot: &[u8]) -> Result<Self> {
        let broken = || corrupt("a slot of the journal has another size");
        let (head, rest) = slot.split_first_chunk::<HEAD_BYTES>().ok_or_else(broken)?;
        let (number, head) = head.split_first_chunk().ok_or_else(broken)?;
        let (needed_from, head) = head.split_first_chunk().ok_or_else(broken)?;
        let (filled, _) = head.split_first_chunk().ok_or_else(broken)?;
        let head = Self {
            number: u64::from_be_bytes(*number),
            needed_from: u64::from_be_bytes(*needed_from),
            filled: u64::from(u16::from_be_bytes(*filled)),
        };
        if rest.len() as u64 == FILL && head.filled <= FILL { Ok(head) } else { Err(broken()) }
    }
}

/// A reader of the stream, or its one writer.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Where the next line begins.
    end: u64,
    /// What is filled of the slot that `end` is in.
    filled: Vec<u8>,
    /// Whether the slots have been looked at.
    has_begun: bool,
    /// Where the first reading has to arrive; a slot that was damaged may look like the end.
    must_reach: Option<u64>,
}

/// What became of the reader.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// Lines after those that were known.
    More,
    /// Lines from the oldest that is needed: those before are forgotten.
    Anew,
}

impl Stream {
    /// Where the next line begins.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Goes to the oldest line that is needed, if this is the first look or what is next has been overwritten.
    pub(super) fn resume(&mut self, db: &Connection) -> Result<Found> {
        if self.has_begun && !self.was_overtaken(db)? {
            return Ok(Found::More);
        }
        self.has_begun = true;
        self.filled.clear();
        let newest = newest(db)?;
        self.end = newest.as_ref().map_or(0, |head| head.needed_from);
        self.must_reach = newest.map(|head| head.number * FILL + head.filled);
        if !self.end.is_multiple_of(FILL) {
            let before = self.slot(db)?.ok_or_else(|| corrupt("the journal has lost a slot"))?;
            self.filled = before[HEAD_BYTES..][..(self.end % FILL) as usize].to_vec();
        }
        Ok(Found::Anew)
    }

    fn was_overtaken(&self, db: &Connection) -> Result<bool> {
        let slot = journal::read(db, place(self.end / FILL))?;
        Ok(slot.map(|slot| Head::read(&slot)).transpose()?.is_some_and(|head| head.number > self.end / FILL))
    }

    /// The slot that `end` is in, if it has been written.
    fn slot(&self, db: &Connection) -> Result<Option<Vec<u8>>> {
        let number = self.end / FILL;
        let Some(slot) = journal::read(db, place(number))? else { return Ok(None) };
        Ok((Head::read(&slot)?.number == number).then_some(slot))
    }

    /// The next line, if there is one.
    pub(super) fn next(&mut self, db: &Connection, unread: &mut Unread) -> Result<Option<Vec<u8>>> {
        let Some(length) = self.take(db, unread, 4)? else { return self.arrive() };
        let length = <[u8; 4]>::try_from(length).map_or(0, u32::from_be_bytes);
        if u64::from(length) > CAPACITY {
            return Err(corrupt("a line of the journal is longer than the journal"));
        }
        let line = self.take(db, unread, length as usize)?;
        line.map(Some).ok_or_else(|| corrupt("a line of the journal has no end"))
    }

    /// The end of the stream, if it is one.
    fn arrive(&mut self) -> Result<Option<Vec<u8>>> {
        match self.must_reach.take() {
            Some(end) if end != self.end => Err(corrupt("the journal ends too early")),
            _ => Ok(None),
        }
    }

    fn take(&mut self, db: &Connection, unread: &mut Unread, count: usize) -> Result<Option<Vec<u8>>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let here = unread.rest(self, db)?;
            if here.is_empty() {
                return if taken.is_empty() { Ok(None) } else { Err(corrupt("the journal breaks off")) };
            }
            let some = &here[..here.len().min(count - taken.len())];
            taken.extend_from_slice(some);
            let length = some.len();
            self.advance(&taken[taken.len() - length..]);
        }
        Ok(Some(taken))
    }

    fn advance(&mut self, bytes: &[u8]) {
        self.filled.extend_from_slice(bytes);
        self.end += bytes.len() as u64;
        if self.end.is_multiple_of(FILL) {
            self.filled.clear();
        }
    }

    /// Appends a line; nothing before `needed_from` is read again.
    pub(super) fn append(&mut self, db: &Connection, needed_from: u64, line: &[u8]) -> rusqlite::Result<()> {
        let length = u32::try_from(line.len()).unwrap_or(u32::MAX).to_be_bytes();
        let bytes = [&length, line].concat();
        let mut rest = bytes.as_slice();
        let mut slot = Vec::with_capacity(SLOT_BYTES);
        while !rest.is_empty() {
            let (number, room) = (self.end / FILL, FILL as usize - self.filled.len());
            let (here, later) = rest.split_at(rest.len().min(room));
            slot.clear();
            slot.extend_from_slice(&number.to_be_bytes());
            slot.extend_from_slice(&needed_from.to_be_bytes());
            slot.extend_from_slice(&((self.filled.len() + here.len()) as u16).to_be_bytes());
            slot.extend_from_slice(&self.filled);
            slot.extend_from_slice(here);
            slot.resize(SLOT_BYTES, 0);
            journal::write(db, place(number), &slot)?;
            self.advance(here);
            rest = later;
        }
        Ok(())
    }
}

/// The slot that a reader has before it.
#[derive(Debug, Default)]
pub(super) struct Unread(Option<(u64, Vec<u8>)>);

impl Unread {
    /// What is left of the slot, empty at the end of the stream.
    fn rest(&mut self, stream: &Stream, db: &Connection) -> Result<&[u8]> {
        let number = stream.end / FILL;
        if self.0.as_ref().is_none_or(|(known, _)| *known != number) {
            self.0 = match stream.slot(db)? {
                Some(mut slot) => {
                    slot.truncate(HEAD_BYTES + Head::read(&slot)?.filled as usize);
                    Some((number, slot))
                }
                None => Some((number, Vec::new())),
            };
        }
        let from = HEAD_BYTES + (stream.end % FILL) as usize;
        Ok(self.0.as_ref().and_then(|(_, slot)| slot.get(from..)).unwrap_or_default())
    }
}

/// Where a slot of the stream is kept.
fn place(number: u64) -> i64 {
    (number % SLOTS).cast_signed()
}

/// The slot that was begun last. Up to it the numbers rise, behind it they are those of the last round.
fn newest(db: &Connection) -> Result<Option<Head>> {
    let head = |at: i64| -> Result<Head> {
        let slot = journal::read(db, at)?.ok_or_else(|| corrupt("the journal has lost a slot"))?;
        Head::read(&slot)
    };
    let (mut low, mut high) = (0, journal::count(db)?);
    if high == 0 {
        return Ok(None);
    }
    let first = head(0)?.number;
    while high - low > 1 {
        let middle = i64::midpoint(low, high);
        if head(middle)?.number >= first {
            low = middle;
        } else {
            high = middle;
        }
    }
    head(low).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Connection {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE journal (slot INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT").unwrap();
        db
    }

    fn read_all(stream: &mut Stream, db: &Connection) -> Vec<Vec<u8>> {
        let mut unread = Unread::default();
        std::iter::from_fn(|| stream.next(db, &mut unread).unwrap()).collect()
    }

    fn line(number: usize, length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + number) as u8).collect()
    }

    #[test]
    fn lines_of_any_length_are_read_as_they_were_written() {
        let (db, mut writer, mut reader) = (database(), Stream::default(), Stream::default());
        assert_eq!(writer.resume(&db).unwrap(), Found::Anew);
        assert_eq!(reader.resume(&db).unwrap(), Found::Anew);
        let fill = FILL as usize;
        let lengths = [0, 1, 100, fill - 5, fill - 4, fill - 3, fill, 3 * fill, 10, 3 * fill - 4];
        let lines: Vec<_> = lengths.into_iter().enumerate().map(|(at, length)| line(at, length)).collect();
        for (at, written) in lines.iter().enumerate() {
            writer.append(&db, 0, written).unwrap();
            if at % 3 == 0 {
                assert_eq!(reader.resume(&db).unwrap(), Found::More);
                read_all(&mut reader, &db);
            }
        }
        let mut late = Stream::default();
        late.resume(&db).unwrap();
        assert_eq!(read_all(&mut late, &db), lines);
        reader.resume(&db).unwrap();
        read_all(&mut reader, &db);
        assert_eq!((reader.end(), late.end()), (writer.end(), writer.end()));
    }

    #[test]
    fn a_reader_that_was_overtaken_begins_with_the_oldest_line_that_is_needed() {
        let (db, mut writer, mut reader) = (database(), Stream::default(), Stream::default());
        writer.resume(&db).unwrap();
        reader.resume(&db).unwrap();
        let mut kept = Vec::new();
        for number in 0..2 * SLOTS as usize {
            let needed_from = writer.end();
            writer.append(&db, needed_from, &line(number, 4_500)).unwrap();
            kept = vec![line(number, 4_500)];
        }
        assert_eq!(reader.resume(&db).unwrap(), Found::Anew);
        assert_eq!(read_all(&mut reader, &db), kept);
        // One that begins now sees the same, and one that goes on writing does so where the stream ends.
        let mut second = Stream::default();
        second.resume(&db).unwrap();
        assert_eq!(read_all(&mut second, &db), kept);
        second.append(&db, reader.end(), &line(1, 30)).unwrap();
        assert_eq!(reader.resume(&db).unwrap(), Found::More);
        assert_eq!(read_all(&mut reader, &db), [line(1, 30)]);
    }

    #[test]
    fn writing_a_slot_again_takes_no_new_page() {
        let db = database();
        let pages = || db.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0)).unwrap();
        journal::write(&db, 0, &[1; SLOT_BYTES]).unwrap();
        journal::write(&db, 1, &[2; SLOT_BYTES]).unwrap();
        let before = pages();
        journal::write(&db, 0, &[3; SLOT_BYTES]).unwrap();
        assert_eq!((pages(), before), (before, 4), "the schema, the root, and a page for each slot");
    }
}
