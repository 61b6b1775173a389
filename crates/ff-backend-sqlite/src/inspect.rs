//! Looking at everything, and breaking things on purpose: for checkers and tests.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::codec::{decode_record, encode_key};
use ff_engine::event::Event;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use ff_engine::store::Inspect;
use rusqlite::Connection;

use crate::error::explain;
use crate::indexes::Place;
use crate::store::SqliteStore;
use crate::tables::execution::Stored;
use crate::tables::satellite::{self, Satellite};
use crate::tables::{self, entry, execution, record};
use crate::young::View;

/// Records read at a time.
const PAGE: i64 = 1_000;

/// After every key.
const END: [u8; 1] = [0xff];

impl Inspect for SqliteStore {
    async fn records(&self) -> Result<Vec<Record>> {
        self.reading(all_records).await
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        self.reading(|view| {
            let events = tables::event::after(view, 0, usize::MAX)?;
            Ok(events.into_iter().map(|(_, event)| event).collect())
        })
        .await
    }
}

impl SqliteStore {
    /// Makes a record unreadable, as a damaged disk would.
    ///
    /// # Errors
    /// Whatever the database answers.
    pub async fn damage(&self, key: Key) -> Result<()> {
        self.change_behind_the_back(move |View { db, .. }| match key.name {
            Name::Execution(id) => {
                let (partition, uuid) = execution::address(id);
                let sql = "UPDATE execution SET body = x'c1' WHERE partition = ? AND uuid = ?";
                db.execute(sql, rusqlite::params![partition, uuid]).map(drop).map_err(explain)
            }
            _ => {
                let sql = "UPDATE record SET body = x'c1' WHERE key = ?";
                db.execute(sql, [encode_key(&key)]).map_err(explain)?;
                let Some((id, satellite)) = Satellite::of(&key) else { return Ok(()) };
                let (partition, uuid) = execution::address(id);
                let column = satellite.column();
                let sql = format!(
                    "UPDATE execution SET {column} = x'c1' WHERE partition = ? AND uuid = ? AND length({column}) > 0"
                );
                db.execute(&sql, rusqlite::params![partition, uuid]).map(drop).map_err(explain)
            }
        })
        .await
    }

    /// Removes the index entries of a record behind its back, as a lost write would.
    ///
    /// # Errors
    /// Whatever the database answers.
    pub async fn lose_index_entries(&self, key: Key) -> Result<()> {
        self.change_behind_the_back(move |view| {
            let db = view.db;
            let Some(record) = tables::load(view, &key)? else { return Ok(()) };
            if let Record::Execution(found) = &record {
                execution::restore(db, found.id, &execution::Shadow::default()).map_err(explain)?;
            }
            for entry in record.entries().iter().filter(|entry| Place::is_rows(&entry.index)) {
                entry::delete(db, entry).map_err(explain)?;
            }
            Ok(())
        })
        .await
    }

    async fn change_behind_the_back(&self, change: impl FnOnce(View<'_>) -> Result<()> + Send + 'static) -> Result<()> {
        self.writer.alone(move |desk| desk.alone_and_settled(change)).await
    }
}

fn all_records(view: View<'_>) -> Result<Vec<Record>> {
    let mut out = Vec::new();
    for (id, stored) in view.young.iter() {
        add_row(view.db, id, stored, &mut out)?;
    }
    let mut row = 0;
    loop {
        let page = execution::page(view.db, row, PAGE)?;
        let Some((_, last)) = page.last() else { break };
        row = last.row;
        for (id, stored) in &page {
            add_row(view.db, *id, stored, &mut out)?;
        }
    }
    let mut key = Vec::new();
    loop {
        let page = record::page(view.db, &key, &END, PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(out) };
        key.clone_from(last);
        for (bytes, body) in &page {
            out.push(decode_record(&tables::readable(bytes)?, body)?);
        }
    }
}

fn add_row(db: &Connection, id: ExecutionId, stored: &Stored, out: &mut Vec<Record>) -> Result<()> {
    out.push(stored.record.clone()?);
    for satellite in Satellite::ALL {
        // What stands elsewhere is found there.
        let cell = &stored.cells[satellite as usize];
        if cell.is_here() {
            out.extend(satellite::decode(db, &satellite.key(id), cell)?);
        }
    }
    Ok(())
}
