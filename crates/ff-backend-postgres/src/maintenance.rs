//! Comparing index entries with what records declare, and repairing them. A page of records at a time, with their partition taken.

use std::collections::BTreeMap;

use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use ff_core::{EngineError, Result};
use ff_engine::codec::{encode_key, key_prefix};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::address::{Address, Cell, Satellite};
use crate::error::{corrupt, explain};
use crate::indexes::Place;
use crate::session::{BEGIN, Session, Step};
use crate::store::PostgresStore;
use crate::tables::created::{self, Creation};
use crate::tables::entry::{self, RawEntry};
use crate::tables::execution::{self, Shadow};
use crate::tables::{self, record};
use crate::view::View;
use crate::writer::plan;

/// Records looked at in one go.
const PAGE: usize = 500;

/// Compares the entries of a partition with what its records declare and repairs them; says how many records there are and how many
/// entries were repaired. Entries that no record declares are removed for the partition `of`, or for all of them.
pub(crate) async fn reindex(store: &PostgresStore, partition: Partition, of: Option<Partition>) -> Result<(u32, u32)> {
    let (looked_at, restored) = restore(store, partition).await?;
    let removed = remove_undeclared(store, of).await?;
    Ok((looked_at, restored.saturating_add(removed)))
}

/// The same in a round over all partitions. Entries lie by list, not by partition: to find those of one partition takes a look at all of them,
/// so that is done once per round, for everybody.
pub(crate) async fn reindex_in_round(
    store: &PostgresStore,
    partition: Partition,
    is_first: bool,
) -> Result<(u32, u32)> {
    if is_first { reindex(store, partition, None).await } else { restore(store, partition).await }
}

async fn restore(store: &PostgresStore, partition: Partition) -> Result<(u32, u32)> {
    let keys = keys_in(store, partition).await?;
    let mut repaired = 0;
    for page in keys.chunks(PAGE) {
        repaired += alone_in(store, partition, page).await?;
    }
    Ok((counted(keys.len()), counted(repaired)))
}

fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

async fn keys_in(store: &PostgresStore, partition: Partition) -> Result<Vec<Key>> {
    let view = store.view().await?;
    let mut keys = Vec::new();
    if partition.family() == PartitionFamily::Flow {
        let mut after = None;
        loop {
            let bounds = Bounds::first(PAGE).after(after);
            let page = view.keys(&Index::ExecutionsIn(partition), &bounds).await?;
            after = page.last().map(|(position, _)| position.clone());
            if after.is_none() {
                break;
            }
            for (_, key) in page {
                keys.extend(beside(&view, &key).await?);
                keys.push(key);
            }
        }
    }
    let prefix = key_prefix(partition);
    let (mut after, end) = (prefix.clone(), [&*prefix, &[0xff; 64]].concat());
    loop {
        let rows = view.session.query(&record::page(&after, &end, PAGE as i64)).await.map_err(explain)?;
        let Some(last) = rows.last() else { return Ok(keys) };
        after = tables::cell(last, 0)?;
        for row in &rows {
            keys.push(record::key(row)?);
        }
    }
}

/// What stands in the row of an execution.
async fn beside(view: &View, execution: &Key) -> Result<Vec<Key>> {
    let Name::Execution(id) = execution.name else { return Ok(Vec::new()) };
    let address = Address::Execution(id);
    let facts = tables::load(&view.session, std::slice::from_ref(&address)).await?;
    let Some(Some(row)) = facts.get(&address) else { return Ok(Vec::new()) };
    let is_here = |satellite: &Satellite| matches!(row.cells[*satellite as usize], Cell::Here(_));
    Ok(Satellite::ALL.into_iter().filter(is_here).map(|satellite| satellite.key(id)).collect())
}

/// Repairs the entries of some records while nobody else writes in their partition; says how many.
async fn alone_in(store: &PostgresStore, partition: Partition, keys: &[Key]) -> Result<usize> {
    let view = store.view().await?;
    in_transaction(&view.session, &BTreeMap::from([(partition, true)]), repair(&view, keys)).await
}

async fn in_transaction<T>(
    session: &Session,
    places: &BTreeMap<Partition, bool>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    session.begin(BEGIN).await.map_err(explain)?;
    let done = async {
        session.query(&plan::lock(places)).await.map_err(explain)?;
        work.await
    };
    let done = done.await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    session.end(end).await.map_err(explain)?;
    done
}

async fn repair(view: &View, keys: &[Key]) -> Result<usize> {
    let (mut entries, mut creations) = (entry::Rows::default(), created::Rows::default());
    let mut repaired = 0;
    for key in keys {
        // One that does not decode declares nothing.
        let found = match view.load_here(std::slice::from_ref(key)).await {
            Err(EngineError::Validation { .. }) => continue,
            found => found?.into_iter().flatten().next(),
        };
        let Some(record) = found else { continue };
        let declared = record.entries();
        if let Record::Execution(found) = &record {
            repaired += restore_columns(&view.session, found.id, &Shadow::of(&declared)).await?;
            Creation::of(&declared).into_iter().for_each(|creation| creations.push(found.id, creation));
        }
        let bytes = encode_key(key);
        for entry in declared.iter().filter(|entry| Place::is_rows(&entry.index)) {
            entries.push(RawEntry::of(entry), &bytes);
        }
    }
    for step in [entries.restore(), creations.restore()].into_iter().flatten() {
        repaired += view.session.query(&step).await.map_err(explain)?.len();
    }
    Ok(repaired)
}

/// Writes the columns of an execution's indexes anew where they are wrong; says how many were.
async fn restore_columns(session: &Session, id: ExecutionId, shadow: &Shadow) -> Result<usize> {
    let rows = session.query(&execution::restore(id, shadow)).await.map_err(explain)?;
    rows.first().map_or(Ok(0), |row| tables::cell::<i32>(row, 0)).map(|wrong| usize::try_from(wrong).unwrap_or(0))
}

/// Removes entries that no record declares, of one partition or of all; says how many.
async fn remove_undeclared(store: &PostgresStore, of: Option<Partition>) -> Result<u32> {
    let view = store.view().await?;
    let mut removed = 0;
    let mut after = RawEntry::default();
    loop {
        let rows = view.session.query(&entry::page(&after, PAGE as i64)).await.map_err(explain)?;
        let page = rows.iter().map(RawEntry::read).collect::<Result<Vec<_>>>()?;
        let Some((last, _)) = page.last() else { break };
        if *last <= after {
            return Err(corrupt("index entries are out of order"));
        }
        after = last.clone();
        let stale = undeclared(&view, page, of).await?;
        if !stale.is_empty() {
            removed += remove(&view, stale).await?;
        }
    }
    let rows = view.session.query(&created::remove_undeclared(of)).await.map_err(explain)?;
    Ok(counted(removed + rows.len()))
}

type EntryWithKey = (RawEntry, Vec<u8>);

async fn undeclared(view: &View, page: Vec<EntryWithKey>, of: Option<Partition>) -> Result<Vec<EntryWithKey>> {
    let mut stale = Vec::new();
    for (raw, bytes) in page {
        let is_meant = tables::readable(&bytes).is_ok_and(|key| of.is_none_or(|of| key.partition == of));
        if is_meant && !is_declared(view, &raw, &bytes).await? {
            stale.push((raw, bytes));
        }
    }
    Ok(stale)
}

/// Whether the record that an entry refers to declares it. One that does not decode is given the benefit of the doubt.
async fn is_declared(view: &View, raw: &RawEntry, key: &[u8]) -> Result<bool> {
    let Ok(key) = tables::readable(key) else { return Ok(false) };
    match view.load_here(&[key]).await {
        Ok(found) => {
            Ok(found.iter().flatten().any(|record| record.entries().iter().any(|entry| RawEntry::of(entry) == *raw)))
        }
        Err(EngineError::Validation { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Looks once more while nobody writes, and removes.
async fn remove(view: &View, stale: Vec<EntryWithKey>) -> Result<usize> {
    let places = stale.iter().filter_map(|(_, key)| Some((tables::readable(key).ok()?.partition, true))).collect();
    let work = async {
        let mut rows = entry::Rows::default();
        for (raw, key) in undeclared(view, stale, None).await? {
            rows.push(raw, &key);
        }
        let count = rows.len();
        if let Some(step) = rows.delete() {
            view.session.query(&step).await.map_err(explain)?;
        }
        Ok(count)
    };
    in_transaction(&view.session, &places, work).await
}

/// Breaks things on purpose: for tests.
pub(crate) async fn behind_the_back(store: &PostgresStore, partition: Partition, steps: Vec<Step>) -> Result<()> {
    let view = store.view().await?;
    let work = async {
        for step in &steps {
            view.session.query(step).await.map_err(explain)?;
        }
        Ok(())
    };
    in_transaction(&view.session, &BTreeMap::from([(partition, true)]), work).await
}
