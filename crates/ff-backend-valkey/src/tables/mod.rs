//! What is asked of the server, and how its answers are read.

pub(crate) mod event;
pub(crate) mod record;

use std::collections::BTreeSet;

use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::index::{Bounds, Index, Position};
use ff_engine::key::{Key, Name};
use redis::{Cmd, Value};

use crate::address::{BESIDE, Layout, Shard, beside};
use crate::error::corrupt;
use crate::indexes;
use crate::schema::function;
use record::Stored;

/// What comes along with a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bring {
    /// Names alone.
    Nothing,
    /// The records.
    Records,
    /// The records, and what stands beside executions.
    Beside,
}

/// Something that stands in an index.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) position: Position,
    pub(crate) key: Key,
}

/// A part of an index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) entered: Vec<Entered>,
    /// Tells whether the same part still looks the same.
    pub(crate) digest: Vec<u8>,
    /// What came along.
    pub(crate) records: Vec<(Key, Option<Stored>)>,
}

impl Page {
    /// Those whose records did not come along, because they are gone.
    pub(crate) fn dangling(&self) -> impl Iterator<Item = &Key> {
        self.records.iter().filter(|(_, stored)| stored.is_none()).map(|(key, _)| key)
    }

    /// Leaves out those whose records did not come along, and what is beyond a limit.
    pub(crate) fn keep_found(&mut self, bring: Bring, limit: usize) {
        if bring == Bring::Records {
            let gone: BTreeSet<Key> = self.dangling().cloned().collect();
            self.entered.retain(|entered| !gone.contains(&entered.key));
        }
        self.entered.truncate(limit);
    }

    /// Adds the record of the list that is found by its key, if it is there.
    pub(crate) fn add_unlisted(&mut self, entered: Entered, bounds: &Bounds) {
        if bounds.contains(&entered.position) {
            // It is the first one of all.
            let place = if bounds.reverse { self.entered.len() } else { 0 };
            self.entered.insert(place, entered);
            self.entered.truncate(bounds.limit);
        }
    }
}

/// One look at a shard.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) keys: Vec<Key>,
    pub(crate) pages: Vec<(Index, Bounds, Bring)>,
}

/// What a look has shown, in the order of its questions.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) time: TimestampMs,
    pub(crate) records: Vec<Option<Stored>>,
    pub(crate) pages: Vec<Page>,
}

impl Look {
    /// The command for it.
    pub(crate) fn command_at(&self, layout: &Layout, shard: Shard) -> Cmd {
        let mut command = redis::cmd("FCALL_RO");
        command.arg(function("look")).arg(self.keys.len() + self.pages.len());
        for key in &self.keys {
            command.arg(layout.record(key));
        }
        for (index, ..) in &self.pages {
            command.arg(layout.list(shard, index));
        }
        command.arg(self.keys.len()).arg(self.pages.len()).arg(layout.records(shard));
        for (index, bounds, bring) in &self.pages {
            let (low, high) = indexes::ends(index, bounds);
            command.arg(low).arg(high).arg(limit(bounds)).arg(u8::from(bounds.reverse));
            match bring {
                Bring::Nothing => command.arg("-"),
                Bring::Records => command.arg(""),
                Bring::Beside => command.arg(&BESIDE[..]),
            };
        }
        command
    }

    /// Reads the answer.
    pub(crate) fn read(&self, answer: Value) -> Result<Seen> {
        let [time, records, pages] = array(answer)?;
        let found = list(records)?;
        if found.len() != self.keys.len() {
            return Err(unexpected("a record is missing"));
        }
        let mut seen = Seen { time: TimestampMs(number(&time)?), records: Vec::new(), pages: Vec::new() };
        for (key, value) in self.keys.iter().zip(found) {
            seen.records.push(stored(key, value)?);
        }
        for (page, (_, _, bring)) in list(pages)?.into_iter().zip(&self.pages) {
            seen.pages.push(read_page(page, *bring)?);
        }
        if seen.pages.len() != self.pages.len() {
            return Err(unexpected("a list is missing"));
        }
        Ok(seen)
    }
}

fn read_page(page: Value, bring: Bring) -> Result<Page> {
    let [digest, members, brought] = array(page)?;
    let mut out = Page { digest: bytes(digest)?, ..Page::default() };
    let mut brought = list(brought)?.into_iter();
    for member in list(members)? {
        let (position, key) =
            indexes::place(&bytes(member)?).ok_or_else(|| corrupt("an entry of a list cannot be read"))?;
        if bring != Bring::Nothing {
            out.records.push((key.clone(), stored(&key, brought.next().unwrap_or(Value::Nil))?));
        }
        if bring == Bring::Beside
            && let Name::Execution(id) = key.name
        {
            for beside in beside(id) {
                let stored = stored(&beside, brought.next().unwrap_or(Value::Nil))?;
                out.records.push((beside, stored));
            }
        }
        out.entered.push(Entered { position, key });
    }
    Ok(out)
}

/// So many that the server can count them.
pub(crate) fn limit(bounds: &Bounds) -> i64 {
    i64::try_from(bounds.limit).unwrap_or(i64::MAX)
}

fn stored(key: &Key, value: Value) -> Result<Option<Stored>> {
    match value {
        Value::Nil => Ok(None),
        value => Stored::read(key, &bytes(value)?).map(Some),
    }
}

/// An answer that no version of our functions gives.
pub(crate) fn unexpected(what: &str) -> EngineError {
    corrupt(format_args!("the server's answer is not understood, {what}"))
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(values) | Value::Set(values) => Ok(values),
        Value::Nil => Ok(Vec::new()),
        _ => Err(unexpected("it should be a list")),
    }
}

pub(crate) fn array<const N: usize>(value: Value) -> Result<[Value; N]> {
    list(value)?.try_into().map_err(|_| unexpected("it has another length"))
}

pub(crate) fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::VerbatimString { text, .. } => Ok(text.into_bytes()),
        _ => Err(unexpected("it should be bytes")),
    }
}

pub(crate) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(bytes) => std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unexpected("it should be a number")),
        _ => Err(unexpected("it should be a number")),
    }
}
