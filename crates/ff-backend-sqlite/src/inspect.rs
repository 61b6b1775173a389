//! Looking at everything, and breaking things on purpose: for checkers and tests.

use ff_core::Result;
use ff_engine::codec::{decode_record, encode_key};
use ff_engine::event::Event;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use ff_engine::store::Inspect;
use rusqlite::Connection;

use crate::error::explain;
use crate::indexes::Place;
use crate::store::SqliteStore;
use crate::tables::{self, entry, execution, record};

/// Records read at a time.
const PAGE: i64 = 1_000;

/// After every key.
const END: [u8; 1] = [0xff];

impl Inspect for SqliteStore {
    async fn records(&self) -> Result<Vec<Record>> {
        self.reading(all_records).await
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        self.reading(|db| {
            let events = tables::event::after(db, 0, usize::MAX)?;
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
        self.change_behind_the_back(move |db| match key.name {
            Name::Execution(id) => {
                let (partition, uuid) = (i64::from(id.partition().index()), *id.uuid().as_bytes());
                let sql = "UPDATE execution SET body = x'c1' WHERE partition = ? AND uuid = ?";
                db.execute(sql, rusqlite::params![partition, uuid]).map(drop).map_err(explain)
            }
            _ => {
                let sql = "UPDATE record SET body = x'c1' WHERE key = ?";
                db.execute(sql, [encode_key(&key)]).map(drop).map_err(explain)
            }
        })
        .await
    }

    /// Removes the index entries of a record behind its back, as a lost write would.
    ///
    /// # Errors
    /// Whatever the database answers.
    pub async fn lose_index_entries(&self, key: Key) -> Result<()> {
        self.change_behind_the_back(move |db| {
            let Some(found) = tables::load(db, &key)? else { return Ok(()) };
            if let Some(row) = found.row {
                execution::restore(db, row, &execution::Shadow::default()).map_err(explain)?;
            }
            for entry in found.record.entries().iter().filter(|entry| Place::is_rows(&entry.index)) {
                entry::delete(db, entry).map_err(explain)?;
            }
            Ok(())
        })
        .await
    }

    async fn change_behind_the_back(
        &self,
        change: impl FnOnce(&Connection) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.writer.alone(move |desk| desk.alone(change)).await
    }
}

fn all_records(db: &Connection) -> Result<Vec<Record>> {
    let mut out = Vec::new();
    let mut row = 0;
    loop {
        let page = execution::page(db, row, PAGE)?;
        let Some((last, _, _)) = page.last() else { break };
        row = *last;
        for (_, id, body) in &page {
            out.push(decode_record(&Key::execution(*id), body)?);
        }
    }
    let mut key = Vec::new();
    loop {
        let page = record::page(db, &key, &END, PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(out) };
        key.clone_from(last);
        for (bytes, body) in &page {
            out.push(decode_record(&tables::readable(bytes)?, body)?);
        }
    }
}
