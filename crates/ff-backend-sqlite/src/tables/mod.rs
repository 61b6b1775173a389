//! The tables, one file each: statements and nothing else.

pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod execution;
pub(crate) mod journal;
pub(crate) mod record;
pub(crate) mod satellite;

use ff_core::Result;
use ff_engine::codec::{KeyRange, decode_key};
use ff_engine::index::{Bounds, Index, Listed, Position, merge_listed};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::error::corrupt;
use crate::indexes::Place;
use crate::young::View;
use satellite::Satellite;

/// The record of a key. Ownership is read out of its execution.
pub(crate) fn load(view: View<'_>, key: &Key) -> Result<Option<Record>> {
    match (key.name.clone(), Satellite::of(key)) {
        (Name::Execution(id), _) => execution::load_record(view, id),
        (Name::Fence(id), _) => Ok(execution::load_record(view, id)?.map(Record::ownership)),
        (_, Some((id, satellite))) => satellite::load(view, id, satellite),
        _ => record::load(view.db, key),
    }
}

/// The records that stand in an index, within bounds.
pub(crate) fn list(view: View<'_>, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
    let listed = |(position, record)| Listed { index: index.clone(), position, record };
    match Place::of(index) {
        Place::Columns(columns) => {
            Ok(execution::list(view, index, &columns, bounds)?.into_iter().map(listed).collect())
        }
        Place::Keys(range) => Ok(list_keys(view, &range, bounds)?.into_iter().map(listed).collect()),
        Place::Rows(list) => {
            let mut out = Vec::new();
            for (position, bytes) in entry::list(view.db, &list, bounds)? {
                if let Some(record) = load(view, &readable(&bytes)?)? {
                    out.push(listed((position, record)));
                }
            }
            Ok(out)
        }
    }
}

/// The records of several indexes in one order.
pub(crate) fn list_merged(view: View<'_>, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
    let lists = indexes.iter().map(|index| list(view, index, bounds)).collect::<Result<_>>()?;
    Ok(merge_listed(lists, bounds))
}

/// The keys that stand in an index, within bounds; no record is read.
pub(crate) fn keys(view: View<'_>, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
    match Place::of(index) {
        Place::Columns(columns) => execution::keys(view, index, &columns, bounds),
        Place::Keys(range) => {
            let listed = list_keys(view, &range, bounds)?;
            Ok(listed.into_iter().map(|(position, record)| (position, record.key())).collect())
        }
        Place::Rows(list) => entry::list(view.db, &list, bounds)?
            .into_iter()
            .map(|(position, bytes)| Ok((position, readable(&bytes)?)))
            .collect(),
    }
}

/// Records in the order of their keys, with the first one out of the row of its execution.
fn list_keys(view: View<'_>, range: &KeyRange, bounds: &Bounds) -> Result<Vec<(Position, Record)>> {
    let mut listed = record::list(view.db, range, bounds)?;
    if let Some(first) = first_of(view, range)?.filter(|(position, _)| bounds.contains(position)) {
        let at = if bounds.reverse { listed.len() } else { 0 };
        listed.insert(at, first);
        listed.truncate(bounds.limit);
    }
    Ok(listed)
}

/// The record of a list that stands in the row of its execution.
fn first_of(view: View<'_>, range: &KeyRange) -> Result<Option<(Position, Record)>> {
    let Some((position, key)) = &range.first else { return Ok(None) };
    let Some((id, satellite)) = Satellite::of(key) else { return Ok(None) };
    let Some(stored) = execution::load(view, id)? else { return Ok(None) };
    let cell = &stored.cells[satellite as usize];
    if !cell.is_here() {
        return Ok(None);
    }
    Ok(satellite::decode(view.db, key, cell)?.map(|record| (position.clone(), record)))
}

/// How many entries stand in an index.
pub(crate) fn count(view: View<'_>, index: &Index) -> Result<u64> {
    match Place::of(index) {
        Place::Columns(columns) => execution::count(view, index, &columns),
        Place::Keys(range) => Ok(record::count(view.db, &range)? + u64::from(first_of(view, &range)?.is_some())),
        Place::Rows(list) => entry::count(view.db, &list),
    }
}

/// A key that a row refers to.
pub(crate) fn readable(bytes: &[u8]) -> Result<Key> {
    decode_key(bytes).ok_or_else(|| corrupt("an index refers to a key of no known kind"))
}

fn number(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
