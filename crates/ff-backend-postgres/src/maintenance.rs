//! Comparing index entries with what records declare, and repairing them. A page of records at a time, with their partition taken for a
//! handful of round trips.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::error::ContentionKind;
use ff_core::partition::{Partition, PartitionFamily};
use ff_core::{EngineError, Result};
use ff_engine::codec::{encode_key, key_prefix};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::address::{Address, Cell, Satellite};
use crate::error::{corrupt, explain};
use crate::indexes::Place;
use crate::session::{Frame, Step};
use crate::store::{PlainTables, PostgresStore};
use crate::tables::created::{self, Created, Creation};
use crate::tables::entry::{self, RawEntry};
use crate::tables::execution::{self, Shadow};
use crate::tables::{self, Facts, journal, record};
use crate::view::{self, View};
use crate::writer::plan;

/// Records looked at in one go.
const PAGE: usize = 100;

/// Rows looked at in one go that are small, while nobody waits.
const SMALL_PAGE: usize = 1_000;

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
    let mut restoring = Restoring { tables: store.plain_tables().await?, partition, looked_at: 0, repaired: 0 };
    if partition.family() == PartitionFamily::Flow {
        restoring.executions().await?;
    }
    restoring.records_under(vec![key_prefix(partition)]).await?;
    Ok((counted(restoring.looked_at), counted(restoring.repaired)))
}

fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A walk over the records of a partition that adds the entries they declare and that are missing.
struct Restoring {
    tables: PlainTables,
    partition: Partition,
    looked_at: usize,
    repaired: usize,
}

impl Restoring {
    /// Executions, and all that belongs to them.
    async fn executions(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let bounds = Bounds::first(PAGE).after(after);
            let page = self.tables.view.keys(&Index::ExecutionsIn(self.partition), &bounds).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            let executions: Vec<Key> = page.into_iter().map(|(_, key)| key).collect();
            self.look_at(in_rows_of(&self.tables.view, &executions).await?).await?;
            self.records_under(executions.iter().map(prefix_of).collect()).await?;
        }
    }

    /// Records whose keys begin so: some of each beginning at a time, in one round trip.
    async fn records_under(&mut self, prefixes: Vec<Vec<u8>>) -> Result<()> {
        let mut ranges: Vec<(Vec<u8>, Vec<u8>)> =
            prefixes.into_iter().map(|prefix| (prefix.clone(), [&*prefix, &[0xff; 64]].concat())).collect();
        while !ranges.is_empty() {
            let steps: Vec<Step> = ranges.iter().map(|(after, end)| record::keys(after, end, PAGE as i64)).collect();
            let pages = self.tables.view.session.run(Frame::None, &steps).await.map_err(explain)?;
            let (mut keys, mut unfinished) = (Vec::new(), Vec::new());
            for ((_, end), page) in ranges.into_iter().zip(pages) {
                for row in &page {
                    keys.push(record::read_key(row)?);
                }
                if let Some(last) = page.get(PAGE - 1) {
                    unfinished.push((tables::cell(last, 0)?, end));
                }
            }
            self.look_at(keys).await?;
            ranges = unfinished;
        }
        Ok(())
    }

    /// Repairs the entries of records, a page at a time, while nobody else writes in their partition.
    async fn look_at(&mut self, keys: Vec<Key>) -> Result<()> {
        self.looked_at += keys.len();
        let listed: Vec<Key> = keys.into_iter().filter(Key::may_be_listed).collect();
        for page in listed.chunks(PAGE) {
            let places = BTreeMap::from([(self.partition, true)]);
            self.repaired += in_transaction(&self.tables, &places, repair(&self.tables.view, page)).await?;
        }
        Ok(())
    }
}

/// Executions, and what stands in their rows.
async fn in_rows_of(view: &View, executions: &[Key]) -> Result<Vec<Key>> {
    let facts = view.facts(executions).await?;
    let mut keys = executions.to_vec();
    for key in executions {
        if let Name::Execution(id) = key.name
            && let Some(Some(row)) = facts.get(&Address::Execution(id))
        {
            let is_here = |satellite: &Satellite| matches!(row.cells[*satellite as usize], Cell::Here(_));
            keys.extend(Satellite::ALL.into_iter().filter(is_here).map(|satellite| satellite.key(id)));
        }
    }
    Ok(keys)
}

/// What the keys of all that belongs to an execution begin with.
fn prefix_of(execution: &Key) -> Vec<u8> {
    let mut prefix = encode_key(execution);
    prefix.pop();
    prefix
}

/// Works while nobody else writes in these partitions, and everything of theirs is in the tables, unless another owner keeps it elsewhere.
async fn in_transaction<T>(
    tables: &PlainTables,
    places: &BTreeMap<Partition, bool>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let session = &tables.view.session;
    let alone = async {
        session.query(&plan::lock(places)).await.map_err(explain)?;
        if session.query(&journal::is_owner(tables.owner)).await.map_err(explain)?.is_empty() {
            tables.shared.standing.dispossess(tables.owner);
            return Err(EngineError::Contention(ContentionKind::RetryExhausted));
        }
        work.await
    };
    session.transaction(Box::pin(alone)).await
}

async fn repair(view: &View, keys: &[Key]) -> Result<usize> {
    let facts = view.facts(keys).await?;
    let (mut entries, mut creations, mut shadows) = (entry::Rows::default(), created::Rows::default(), Vec::new());
    for key in keys {
        // One that does not decode declares nothing.
        let Ok(Some(record)) = view::record(&facts, key) else { continue };
        let declared = record.entries();
        if let Record::Execution(found) = &record {
            shadows.push((found.id, Shadow::of(&declared)));
            Creation::of(&declared).into_iter().for_each(|creation| creations.push(found.id, creation));
        }
        let bytes = encode_key(key);
        for entry in declared.iter().filter(|entry| Place::is_rows(&entry.index)) {
            entries.push(RawEntry::of(entry), &bytes);
        }
    }
    let steps = [execution::restore(&shadows), entries.restore(), creations.restore()];
    let steps: Vec<Step> = steps.into_iter().flatten().collect();
    let answers = view.session.run(Frame::None, &steps).await.map_err(explain)?;
    let mut repaired = 0;
    for row in answers.iter().flatten() {
        repaired += usize::try_from(tables::cell::<i32>(row, 0)?).unwrap_or(0);
    }
    Ok(repaired)
}

/// Removes entries that no record declares, of one partition or of all; says how many.
async fn remove_undeclared(store: &PostgresStore, of: Option<Partition>) -> Result<u32> {
    let tables = store.plain_tables().await?;
    Ok(counted(remove_entries(&tables, of).await? + remove_creations(&tables, of).await?))
}

async fn remove_entries(tables: &PlainTables, of: Option<Partition>) -> Result<usize> {
    let view = &tables.view;
    let mut removed = 0;
    let mut after = RawEntry::default();
    loop {
        let rows = view.session.query(&entry::page(&after, PAGE as i64)).await.map_err(explain)?;
        let page = rows.iter().map(RawEntry::read).collect::<Result<Vec<_>>>()?;
        let Some((last, _)) = page.last() else { return Ok(removed) };
        if *last <= after {
            return Err(corrupt("index entries are out of order"));
        }
        after = last.clone();
        let readable = page.into_iter().filter_map(|(raw, key)| Some((raw, tables::readable(&key).ok()?)));
        let meant = readable.filter(|(_, key)| of.is_none_or(|of| key.partition == of)).collect();
        let stale = undeclared(view, meant).await?;
        if !stale.is_empty() {
            removed += remove_stale_entries(tables, stale).await?;
        }
    }
}

type EntryWithKey = (RawEntry, Key);

async fn undeclared(view: &View, entries: Vec<EntryWithKey>) -> Result<Vec<EntryWithKey>> {
    let keys: BTreeSet<Key> = entries.iter().map(|(_, key)| key.clone()).collect();
    let facts = view.facts(&Vec::from_iter(keys)).await?;
    Ok(entries.into_iter().filter(|(raw, key)| !is_declared(&facts, raw, key)).collect())
}

/// Whether the record that an entry refers to declares it. One that does not decode is given the benefit of the doubt.
fn is_declared(facts: &Facts, raw: &RawEntry, key: &Key) -> bool {
    match view::record(facts, key) {
        Ok(Some(record)) => record.entries().iter().any(|entry| RawEntry::of(entry) == *raw),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Looks once more while nobody writes, and removes.
async fn remove_stale_entries(tables: &PlainTables, stale: Vec<EntryWithKey>) -> Result<usize> {
    let view = &tables.view;
    let places = stale.iter().map(|(_, key)| (key.partition, true)).collect();
    let work = async {
        let mut rows = entry::Rows::default();
        for (raw, key) in undeclared(view, stale).await? {
            rows.push(raw, &encode_key(&key));
        }
        let count = rows.len();
        if let Some(step) = rows.delete() {
            view.session.query(&step).await.map_err(explain)?;
        }
        Ok(count)
    };
    in_transaction(tables, &places, work).await
}

/// The same for when executions were created, which only partitions of flows have.
async fn remove_creations(tables: &PlainTables, of: Option<Partition>) -> Result<usize> {
    let view = &tables.view;
    if of.is_some_and(|of| of.family() != PartitionFamily::Flow) {
        return Ok(0);
    }
    let mut removed = 0;
    let mut after: Option<Created> = None;
    loop {
        let step = created::page(after.as_ref(), SMALL_PAGE as i64);
        let rows = view.session.query(&step).await.map_err(explain)?;
        let mut page = rows.iter().map(Created::read).collect::<Result<Vec<_>>>()?;
        let Some(last) = page.last() else { return Ok(removed) };
        after = Some(last.clone());
        page.retain(|row| row.is_doubtful && of.is_none_or(|of| row.id.partition() == of));
        for doubtful in page.chunks(PAGE) {
            removed += remove_stale_creations(tables, doubtful).await?;
        }
    }
}

/// Asks the records while nobody writes, because columns may be what is wrong, and removes.
async fn remove_stale_creations(tables: &PlainTables, doubtful: &[Created]) -> Result<usize> {
    let view = &tables.view;
    let places = doubtful.iter().map(|row| (row.id.partition(), true)).collect();
    let work = async {
        let keys: Vec<Key> = doubtful.iter().map(|row| Key::execution(row.id)).collect();
        let facts = view.facts(&keys).await?;
        let mut rows = created::Rows::default();
        for (row, key) in doubtful.iter().zip(&keys) {
            let is_declared = match view::record(&facts, key) {
                Ok(found) => found.and_then(|record| Creation::of(&record.entries())).as_ref() == Some(&row.creation),
                Err(_) => true,
            };
            if !is_declared {
                rows.push(row.id, row.creation.clone());
            }
        }
        let count = rows.len();
        if let Some(step) = rows.delete() {
            view.session.query(&step).await.map_err(explain)?;
        }
        Ok(count)
    };
    in_transaction(tables, &places, work).await
}

/// Breaks things on purpose: for tests.
pub(crate) async fn behind_the_back(store: &PostgresStore, partition: Partition, steps: Vec<Step>) -> Result<()> {
    let tables = store.plain_tables().await?;
    let work = async {
        for step in &steps {
            tables.view.session.query(step).await.map_err(explain)?;
        }
        Ok(())
    };
    let done = in_transaction(&tables, &BTreeMap::from([(partition, true)]), work).await;
    store.shared.memory.mirrors.forget();
    done
}
