//! Looking at everything, and breaking things on purpose: for checkers and tests.

use ff_core::Result;
use ff_engine::codec::encode_key;
use ff_engine::event::Event;
use ff_engine::hash::HashSet;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store as _};

use crate::address::{Address, Cell, Satellite};
use crate::error::explain;
use crate::indexes::Place;
use crate::maintenance::behind_the_back;
use crate::session::Step;
use crate::store::{Look, PostgresStore};
use crate::tables::created::{self, Creation};
use crate::tables::entry::{self, RawEntry};
use crate::tables::execution::{self, Shadow};
use crate::tables::{self, record};
use crate::view::View;

/// Records read at a time.
const PAGE: i64 = 1_000;

impl Inspect for PostgresStore {
    async fn records(&self) -> Result<Vec<Record>> {
        self.reading(
            Look::AtLists,
            HashSet::default(),
            |view| async move { view.at_one_moment(all_records(&view)).await },
        )
        .await
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        let everything = tables::event::after(0, i64::MAX.cast_unsigned(), usize::MAX);
        let rows = self.shared.session().await?.query(&everything).await.map_err(explain)?;
        let mut events = Vec::new();
        for row in &rows {
            events.extend(tables::event::read(row)?.into_iter().map(|(_, event)| event));
        }
        Ok(events)
    }
}

impl PostgresStore {
    /// Makes a record unreadable, as a damaged disk would.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn damage(&self, key: Key) -> Result<()> {
        let mut steps = vec![
            Step::new("UPDATE {s}.record SET body = '\\xc1', version = version + 1 WHERE key = $1")
                .with(record::stored_key(&key)),
        ];
        let column = match (&key.name, Satellite::of(&key)) {
            (Name::Execution(id), _) => Some((*id, "body")),
            (_, Some((id, satellite))) => Some((id, satellite.column())),
            _ => None,
        };
        if let Some((id, column)) = column {
            let sql = format!(
                "UPDATE {{s}}.execution SET {column} = '\\xc1', version = version + 1
                 WHERE partition = $1 AND uuid = $2 AND length({column}) > 0"
            );
            steps.push(Step::new(sql).with(i32::from(id.partition().index())).with(id.uuid()));
        }
        self.forget(&key);
        behind_the_back(self, key.partition, steps).await
    }

    /// Removes the index entries of a record behind its back, as a lost write would.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn lose_index_entries(&self, key: Key) -> Result<()> {
        let found = self.read(std::slice::from_ref(&key)).await?;
        let Some(record) = found.into_iter().flatten().next() else { return Ok(()) };
        let (mut entries, mut creations) = (entry::Rows::default(), created::Rows::default());
        let bytes = encode_key(&key);
        for entry in record.entries().iter().filter(|entry| Place::is_rows(&entry.index)) {
            entries.push(RawEntry::of(entry), &bytes);
        }
        let mut steps = Vec::new();
        if let Record::Execution(found) = &record {
            steps.extend(execution::restore(&[(found.id, Shadow::default())]));
            Creation::of(&record.entries()).into_iter().for_each(|creation| creations.push(found.id, creation));
        }
        steps.extend([entries.delete(), creations.delete()].into_iter().flatten());
        behind_the_back(self, key.partition, steps).await
    }

    fn forget(&self, key: &Key) {
        self.shared.memory.rows.forget(&Address::of(key));
        self.shared.memory.rows.forget(&Address::Record(key.clone()));
    }
}

async fn all_records(view: &View) -> Result<Vec<Record>> {
    let mut out = Vec::new();
    let mut after = None;
    loop {
        let rows = view.session.query(&execution::page(after, PAGE)).await.map_err(explain)?;
        for row in &rows {
            let (id, stored) = execution::read(row, 0)?;
            after = Some(id);
            out.push(stored.record.clone()?);
            for (satellite, cell) in Satellite::ALL.into_iter().zip(&stored.cells) {
                // What stands elsewhere is found there.
                if let Cell::Here(held) = cell {
                    out.push(held.record(&satellite.key(id))?);
                }
            }
        }
        if rows.is_empty() {
            break;
        }
    }
    let mut key = Vec::new();
    loop {
        let rows = view.session.query(&record::page(&key, &[0xff], PAGE)).await.map_err(explain)?;
        let Some(last) = rows.last() else { return Ok(out) };
        key = tables::cell(last, 0)?;
        for row in &rows {
            out.push(record::read(row)?.1.record?);
        }
    }
}
