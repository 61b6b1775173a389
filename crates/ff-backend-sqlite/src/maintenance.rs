//! Care of the file: backups, checks, repairs, giving space back. None of it holds the writer for longer than a page of records and
//! what is young.

use std::path::{Path, PathBuf};

use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use ff_core::{EngineError, Result};
use ff_engine::codec::{decode_record, encode_index, encode_key, key_prefix};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use rusqlite::Connection;

use crate::connection::{blocking, open_copier};
use crate::error::{Trouble, corrupt, explain};
use crate::indexes::Place;
use crate::options::Location;
use crate::store::SqliteStore;
use crate::tables::entry::RawEntry;
use crate::tables::execution::{Shadow, Stored};
use crate::tables::satellite::{self, Cell, Satellite};
use crate::tables::{self, entry, execution, record};
use crate::young::View;

/// Records looked at in one go.
const PAGE: usize = 500;

/// Pages given back to the file system in one go.
const FREED_AT_ONCE: u32 = 64;

/// Free pages that are not worth giving back.
const FREE_MIN: i64 = 4_096;

/// Steps of one tidying.
const STEPS_MAX: usize = 1_024;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Records that were read.
    pub records: u64,
    /// What is wrong, one line each; empty when all is well.
    pub problems: Vec<String>,
}

impl CheckReport {
    /// Whether all is well.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

impl SqliteStore {
    /// Writes a consistent copy to a new file while everything goes on. The copy appears under its name only when it is complete and on the
    /// disk.
    ///
    /// # Errors
    /// `InvalidInput` when there is a file of that name; `Transport` when it cannot be written.
    pub async fn backup_to(&self, path: impl Into<PathBuf>) -> Result<()> {
        let path = path.into();
        if path.exists() {
            return Err(EngineError::invalid(format_args!(
                "{} exists; give the name of a new file for the backup",
                path.display()
            )));
        }
        match self.options().location.clone() {
            Location::File(source) => {
                let patience = self.options().busy_timeout;
                blocking(move || copy_to(&open_copier(&source, patience)?, &path)).await
            }
            Location::Memory => self.writer.alone(move |desk| copy_to(&desk.db, &path)).await,
        }
    }

    /// Reads the whole file: its structure, every record, every index entry. Bytes that changed inside of a payload look like any
    /// others.
    ///
    /// # Errors
    /// `Transport` when it cannot be read at all; what is wrong with it is in the report.
    pub async fn check(&self) -> Result<CheckReport> {
        match self.reading(check).await {
            // What is young cannot be read, and so nothing can.
            Err(error @ EngineError::Validation { kind: ValidationKind::Corruption, .. }) => {
                Ok(CheckReport { records: 0, problems: vec![error.to_string()] })
            }
            report => report,
        }
    }

    /// Gives free pages back to the file system, a few at a time; says how many.
    ///
    /// # Errors
    /// Whatever the database answers.
    pub async fn shrink(&self) -> Result<u64> {
        let mut freed = 0;
        loop {
            let step = self.writer.alone(|desk| free_some(&desk.db)).await?;
            freed += step;
            if step == 0 {
                return Ok(freed);
            }
        }
    }
}

/// Gives some free pages back when there are many: more than a busy file soon needs again.
pub(crate) async fn tidy(store: &SqliteStore) -> Result<()> {
    for _ in 0..STEPS_MAX {
        let step =
            store.writer.alone(|desk| if has_many_free(&desk.db)? { free_some(&desk.db) } else { Ok(0) }).await?;
        if step == 0 {
            break;
        }
    }
    Ok(())
}

/// Whether more than a quarter of the file is free, and enough to matter.
fn has_many_free(db: &Connection) -> Result<bool> {
    let ask = |pragma| db.query_row(pragma, [], |row| row.get::<_, i64>(0)).map_err(explain);
    let free = ask("PRAGMA freelist_count")?;
    Ok(free > FREE_MIN && free > ask("PRAGMA page_count")? / 4)
}

fn free_some(db: &Connection) -> Result<u64> {
    let free = || db.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0)).map_err(explain);
    let before = free()?;
    if before == 0 {
        return Ok(0);
    }
    db.execute_batch(&format!("PRAGMA incremental_vacuum({FREED_AT_ONCE})")).map_err(explain)?;
    Ok(u64::try_from(before - free()?).unwrap_or(0))
}

fn copy_to(db: &Connection, path: &Path) -> Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let io = |error: std::io::Error| Trouble::Io(format!("{}: {error}", path.display()));
    if unfinished.exists() {
        std::fs::remove_file(&unfinished).map_err(io)?;
    }
    let text = unfinished
        .to_str()
        .ok_or_else(|| EngineError::invalid(format_args!("{} is not valid UTF-8", path.display())))?;
    db.execute("VACUUM INTO ?", [text]).map_err(explain)?;
    std::fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(io)?;
    std::fs::rename(&unfinished, path).map_err(io)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(io)?;
    Ok(())
}

fn check(view: View<'_>) -> Result<CheckReport> {
    let db = view.db;
    let mut report = CheckReport::default();
    let mut lines = db.prepare("PRAGMA integrity_check").map_err(explain)?;
    let found = lines.query_map([], |row| row.get::<_, String>(0)).map_err(explain)?;
    for line in found {
        match line.map_err(explain)? {
            line if line == "ok" => {}
            line => report.problems.push(line),
        }
    }
    check_young(view, &mut report)?;
    check_executions(view, &mut report)?;
    check_records(view, &mut report)?;
    check_entries(view, &mut report)?;
    Ok(report)
}

/// No execution is young and in the table.
fn check_young(view: View<'_>, report: &mut CheckReport) -> Result<()> {
    if execution::last_row(view.db)? > view.young.settled_to() {
        report.problems.push("an execution stands in the table that the journal does not know to be there".to_owned());
    }
    for (id, _) in view.young.iter() {
        if execution::load_settled(view.db, id)?.is_some() {
            report.problems.push(format!("{:?}: stands both in the journal and in the table", Key::execution(id)));
        }
    }
    Ok(())
}

fn check_executions(view: View<'_>, report: &mut CheckReport) -> Result<()> {
    for (id, stored) in view.young.iter() {
        check_row(view, id, stored, report)?;
    }
    let mut after = 0;
    loop {
        let page = execution::page(view.db, after, PAGE as i64)?;
        let Some((_, last)) = page.last() else { return Ok(()) };
        after = last.row;
        for (id, stored) in &page {
            check_row(view, *id, stored, report)?;
        }
    }
}

fn check_row(view: View<'_>, id: ExecutionId, stored: &Stored, report: &mut CheckReport) -> Result<()> {
    check_one(view, &Key::execution(id), stored.record.clone(), report)?;
    for satellite in Satellite::ALL {
        let (key, cell) = (satellite.key(id), &stored.cells[satellite as usize]);
        match satellite::decode(view.db, &key, cell).transpose() {
            // What stands elsewhere is looked at there.
            Some(Ok(_)) if *cell == Cell::Elsewhere => {}
            Some(record) => check_one(view, &key, record, report)?,
            None if *cell == Cell::Absent => {}
            None => report.problems.push(format!("{key:?}: is said to stand among the records and does not")),
        }
    }
    Ok(())
}

fn check_records(view: View<'_>, report: &mut CheckReport) -> Result<()> {
    let mut after = Vec::new();
    loop {
        let page = record::page(view.db, &after, &[0xff], PAGE as i64)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after.clone_from(last);
        for (bytes, body) in &page {
            match tables::readable(bytes) {
                Ok(key) => check_one(view, &key, decode_record(&key, body), report)?,
                Err(error) => report.problems.push(error.to_string()),
            }
        }
    }
}

fn check_one(view: View<'_>, key: &Key, record: Result<Record>, report: &mut CheckReport) -> Result<()> {
    report.records += 1;
    match record {
        Ok(record) => {
            let wrong = missing(view, key, &record)?;
            if wrong > 0 {
                report.problems.push(format!("{key:?}: {wrong} index entries are missing or wrong"));
            }
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    Ok(())
}

fn check_entries(view: View<'_>, report: &mut CheckReport) -> Result<()> {
    let mut after = RawEntry::default();
    loop {
        let page = entry::page(view.db, &after, PAGE as i64)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = last.clone();
        for (raw, bytes) in &page {
            if !is_declared(view, raw, bytes)? {
                report.problems.push("an index entry refers to a record that does not declare it".to_owned());
            }
        }
    }
}

/// How many entries of a record are not stored as declared.
fn missing(view: View<'_>, key: &Key, record: &Record) -> Result<usize> {
    let entries = record.entries();
    let bytes = encode_key(key);
    let mut wrong = 0;
    // The young have no columns: their entries are what their records say.
    if let Record::Execution(found) = record
        && view.young.get(found.id).is_none()
    {
        let stored = execution::stored_values(view.db, found.id)?.unwrap_or_default();
        wrong += execution::wrong_columns(&stored, &Shadow::of(&entries));
    }
    for entry in entries.iter().filter(|entry| Place::is_rows(&entry.index)) {
        wrong += usize::from(!entry::is_present(view.db, entry, &bytes)?);
    }
    Ok(wrong)
}

/// Whether the record that an entry refers to declares it. One that does not decode is given the benefit of the doubt.
fn is_declared(view: View<'_>, raw: &RawEntry, key: &[u8]) -> Result<bool> {
    let Ok(key) = tables::readable(key) else { return Ok(false) };
    match tables::load(view, &key) {
        Ok(Some(record)) => Ok(record.entries().iter().any(|entry| RawEntry::of(entry) == *raw)),
        Ok(None) => Ok(false),
        Err(EngineError::Validation { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Compares the entries of a partition with what its records declare and repairs them, a page at a time.
pub(crate) async fn reindex(store: &SqliteStore, partition: Partition) -> Result<(u32, u32)> {
    let (looked_at, restored) = restore(store, partition).await?;
    let removed = remove_undeclared(store, Some(partition)).await?;
    Ok((looked_at, restored.saturating_add(removed)))
}

/// The same in a round over all partitions. Entries lie by list, not by partition: to find those of one partition takes a look at all of them,
/// so that is done once per round, for everybody.
pub(crate) async fn reindex_in_round(store: &SqliteStore, partition: Partition, is_first: bool) -> Result<(u32, u32)> {
    let (looked_at, restored) = restore(store, partition).await?;
    let removed = if is_first { remove_undeclared(store, None).await? } else { 0 };
    Ok((looked_at, restored.saturating_add(removed)))
}

/// Adds the entries that records of a partition declare and that are missing; says how many records there are and how many entries were
/// missing.
async fn restore(store: &SqliteStore, partition: Partition) -> Result<(u32, u32)> {
    let keys = store.reading(move |view| keys_in(view, partition)).await?;
    let mut repaired = 0;
    for page in keys.chunks(PAGE) {
        let page = page.to_vec();
        repaired += store.writer.alone(move |desk| desk.alone_and_settled(|view| repair(view, &page))).await?;
    }
    Ok((counted(keys.len()), counted(repaired)))
}

/// Removes entries that no record declares, of one partition or of all, with a look at every entry; says how many. Each page is read by itself,
/// so that no reader keeps an old state of the file.
async fn remove_undeclared(store: &SqliteStore, of: Option<Partition>) -> Result<u32> {
    let mut removed = 0;
    let mut after = RawEntry::default();
    loop {
        let from = after.clone();
        let (last, stale) = store.reading(move |view| stale_page(view, &from, of)).await?;
        if !stale.is_empty() {
            removed +=
                store.writer.alone(move |desk| desk.alone_and_settled(|view| remove_stale(view, &stale))).await?;
        }
        match last {
            Some(last) if last <= after => return Err(corrupt("index entries are out of order")),
            Some(last) => after = last,
            None => return Ok(counted(removed)),
        }
    }
}

fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn keys_in(view: View<'_>, partition: Partition) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    if partition.family() == PartitionFamily::Flow {
        let mut after = None;
        loop {
            let page = tables::keys(view, &Index::ExecutionsIn(partition), &Bounds::first(PAGE).after(after))?;
            after = page.last().map(|(position, _)| position.clone());
            if after.is_none() {
                break;
            }
            for (_, key) in page {
                belongings(view, &key, &mut keys)?;
                keys.push(key);
            }
        }
    }
    let prefix = key_prefix(partition);
    pages(view.db, &prefix, &mut keys)?;
    Ok(keys)
}

/// What lies beside an execution.
fn belongings(view: View<'_>, execution: &Key, keys: &mut Vec<Key>) -> Result<()> {
    if let Name::Execution(id) = execution.name
        && let Some(stored) = execution::load(view, id)?
    {
        let here = |satellite: &Satellite| stored.cells[*satellite as usize].is_here();
        keys.extend(Satellite::ALL.into_iter().filter(here).map(|satellite| satellite.key(id)));
    }
    let mut prefix = encode_key(execution);
    prefix.pop();
    pages(view.db, &prefix, keys)
}

fn pages(db: &Connection, prefix: &[u8], keys: &mut Vec<Key>) -> Result<()> {
    let mut after = prefix.to_vec();
    let end = [prefix, &[0xff; 64]].concat();
    loop {
        let page = record::page(db, &after, &end, PAGE as i64)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after.clone_from(last);
        for (bytes, _) in &page {
            keys.push(tables::readable(bytes)?);
        }
    }
}

fn repair(view: View<'_>, keys: &[Key]) -> Result<usize> {
    let mut repaired = 0;
    for key in keys {
        // One that does not decode declares nothing; it is for the check to report.
        let Ok(Some(record)) = tables::load(view, key) else { continue };
        let wrong = missing(view, key, &record)?;
        if wrong == 0 {
            continue;
        }
        repaired += wrong;
        let entries = record.entries();
        if let Record::Execution(found) = &record {
            execution::restore(view.db, found.id, &Shadow::of(&entries)).map_err(explain)?;
        }
        let bytes = encode_key(key);
        for entry in entries.iter().filter(|entry| Place::is_rows(&entry.index)) {
            entry::insert(view.db, &encode_index(&entry.index), &entry.position, &bytes).map_err(explain)?;
        }
    }
    Ok(repaired)
}

/// An entry and the key it refers to, as they are stored.
type EntryWithKey = (RawEntry, Vec<u8>);

/// Where a page of entries ends, and which of them are stale; no end where there are none.
fn stale_page(
    view: View<'_>,
    after: &RawEntry,
    of: Option<Partition>,
) -> Result<(Option<RawEntry>, Vec<EntryWithKey>)> {
    let page = entry::page(view.db, after, PAGE as i64)?;
    let last = page.last().map(|(last, _)| last.clone());
    let mut stale = Vec::new();
    for (raw, bytes) in page {
        let is_meant = tables::readable(&bytes).is_ok_and(|key| of.is_none_or(|of| key.partition == of));
        if is_meant && !is_declared(view, &raw, &bytes)? {
            stale.push((raw, bytes));
        }
    }
    Ok((last, stale))
}

fn remove_stale(view: View<'_>, stale: &[EntryWithKey]) -> Result<usize> {
    let mut removed = 0;
    for (raw, key) in stale {
        if !is_declared(view, raw, key)? {
            removed += entry::delete_raw(view.db, raw, key).map_err(explain)?;
        }
    }
    Ok(removed)
}
