//! The logs of events, one per shard. An entry holds the events of a commit; its id is the number of the last of them.

use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::codec::decode_event;
use ff_engine::event::Event;
use redis::{Cmd, Value};

use super::{array, bytes, list, number, unexpected};
use crate::address::{Layout, Shard};
use crate::schema::function;

const TAG: BackendTag = BackendTag::Valkey;

/// What there is of a log.
pub(crate) struct Extent {
    /// The number of the last event.
    pub(crate) last: u64,
    /// The highest number that an event can have had by now.
    highest: u64,
    /// The number of the last event that was dropped.
    trimmed: u64,
}

/// Where a reader is in each of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) Vec<u64>);

impl Places {
    /// The places that a cursor tells.
    pub(crate) fn of(cursor: &EventCursor, shards: usize) -> Result<Self> {
        let [first, rest @ ..] = cursor.as_bytes() else { return Err(foreign()) };
        if *first != TAG.wire_byte() {
            return Err(foreign());
        }
        let (numbers, left) = rest.as_chunks();
        if numbers.len() != shards || !left.is_empty() {
            return Err(EngineError::invalid("event cursor has the wrong length"));
        }
        Ok(Self(numbers.iter().map(|number| u64::from_be_bytes(*number)).collect()))
    }

    /// The cursor of these places.
    pub(crate) fn cursor(&self) -> EventCursor {
        let mut bytes = vec![TAG.wire_byte()];
        bytes.extend(self.0.iter().flat_map(|number| number.to_be_bytes()));
        EventCursor::from_bytes(bytes)
    }

    /// Refuses places outside of what is left of the logs. One behind the last event may be that of an event which a replica did not have when
    /// it took over.
    pub(crate) fn check(&self, extents: &[Extent]) -> Result<()> {
        if self.0.iter().zip(extents).any(|(place, extent)| *place > extent.highest) {
            return Err(EngineError::invalid("event cursor is ahead of the log, so it belongs to another one"));
        }
        if self.0.iter().zip(extents).all(|(place, extent)| *place >= extent.trimmed) {
            return Ok(());
        }
        let resume = self.0.iter().zip(extents).map(|(place, extent)| (*place).max(extent.trimmed)).collect();
        Err(EngineError::CursorExpired { resume_from: Self(resume).cursor() })
    }
}

fn foreign() -> EngineError {
    EngineError::invalid("event cursor of another backend")
}

/// Reads a log behind a number.
pub(crate) fn after(layout: &Layout, shard: Shard, number: u64, entries: usize) -> Cmd {
    let mut command = log_command("FCALL_RO", "events", layout, shard);
    command.arg(format!("{}-0", number.saturating_add(1))).arg(entries);
    command
}

/// Drops the oldest events of a log.
pub(crate) fn trim(layout: &Layout, shard: Shard, before: TimestampMs, limit: usize) -> Cmd {
    let mut command = log_command("FCALL", "trim", layout, shard);
    command.arg(before.0).arg(limit);
    command
}

fn log_command(call: &str, name: &str, layout: &Layout, shard: Shard) -> Cmd {
    let mut command = redis::cmd(call);
    let keys = [layout.event_number(shard), layout.event_log(shard), layout.events_dropped(shard)];
    command.arg(function(name)).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    command
}

/// What is left of a log, and the events behind a number.
pub(crate) fn read(answer: Value, behind: u64) -> Result<(Extent, Vec<(u64, Event)>)> {
    let [last, highest, trimmed, entries] = array(answer)?;
    let extent = Extent { last: count(&last)?, highest: count(&highest)?, trimmed: count(&trimmed)? };
    let mut events = Vec::new();
    for entry in list(entries)? {
        let [id, fields] = array(entry)?;
        let id = String::from_utf8(bytes(id)?).map_err(|_| unexpected("an id is no text"))?;
        let last: u64 = id
            .split('-')
            .next()
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| unexpected("an id is no number"))?;
        let fields = list(fields)?;
        // The time of the latest comes first, then the events.
        let bodies: Vec<Value> = fields.into_iter().skip(3).step_by(2).collect();
        let first = last.saturating_sub(bodies.len() as u64) + 1;
        for (number, body) in (first..).zip(bodies) {
            if number > behind {
                events.push((number, decode_event(&bytes(body)?)?));
            }
        }
    }
    Ok((extent, events))
}

fn count(value: &Value) -> Result<u64> {
    u64::try_from(number(value)?).map_err(|_| unexpected("a number is negative"))
}
