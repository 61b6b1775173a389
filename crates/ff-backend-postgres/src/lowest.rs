//! When something comes due: one statement, however many indexes may tell.

use ff_core::Result;
use ff_engine::index::{Bounds, Index, Position};

use crate::error::explain;
use crate::indexes::{Place, Query};
use crate::session::Step;
use crate::store::PostgresStore;
use crate::tables;
use crate::value::Value;

/// The lowest number above a given one at which an entry of any of some indexes stands.
pub(crate) async fn lowest(store: &PostgresStore, indexes: &[Index], above: Option<i64>) -> Result<Option<i64>> {
    let bounds = Bounds::first(1).after(above.map(Position::end_of));
    let view = store.view().await?;
    let mut query = Query::new(String::new());
    let mut lowest = None;
    for index in indexes {
        if matches!(Place::of(index), Place::Keys(_)) {
            let first = view.keys(index, &bounds).await?.first().map(|(position, _)| position.major);
            lowest = lowest.into_iter().chain(first).min();
        } else {
            add(&mut query, Place::of(index), above, &bounds);
        }
    }
    if query.sql.is_empty() {
        return Ok(lowest);
    }
    let step = Step::new(format!("SELECT min(major) FROM ({}) AS firsts", query.sql)).with_all(query.values);
    let rows = view.session.query(&step).await.map_err(explain)?;
    let found: Option<i64> = rows.first().map_or(Ok(None), |row| tables::cell(row, 0))?;
    Ok(lowest.into_iter().chain(found).min())
}

/// Asks for the first entry of one more index.
fn add(query: &mut Query, place: Place, above: Option<i64>, bounds: &Bounds) {
    query.push(if query.sql.is_empty() { "(" } else { " UNION ALL (" }, []);
    match place {
        Place::Columns(columns) => {
            query.push(&format!("SELECT {} AS major FROM {{s}}.{} i", columns.number(), columns.table), []);
            columns.select(query, bounds);
        }
        Place::Rows(list) => query.push(
            "SELECT major FROM {s}.entry WHERE list = ? AND major > ? ORDER BY major LIMIT 1",
            // No entry stands at the lowest number.
            [Value::Bytes(list), Value::Big(above.unwrap_or(i64::MIN))],
        ),
        Place::Keys(_) => query.push("SELECT NULL::bigint AS major", []),
    }
    query.push(")", []);
}
