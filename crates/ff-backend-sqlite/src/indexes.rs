//! Which SQL answers which index.
//!
//! The hot indexes of executions are SQL indexes over columns; lists whose order is that of their keys are ranges of keys; all
//! others are rows of the `entry` table.

use std::cmp::Ordering;

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_engine::codec::{KeyRange, encode_index, encode_queue};
use ff_engine::index::{Bounds, DueKind, Index, Position};
use rusqlite::types::Value;

/// Where the entries of an index are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// In columns of the execution table.
    Columns(Columns),
    /// In the order of the keys of what is listed.
    Keys(KeyRange),
    /// In rows of their own.
    Rows(Vec<u8>),
}

/// An index over columns of the execution table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Columns {
    /// The column that the number of a position stands in; none where only the id decides.
    pub(crate) major: Option<&'static str>,
    /// Whether the number is stored with the opposite sign, so that the newest come first.
    pub(crate) newest_first: bool,
    /// Conditions that select the list, with `?` for each of the values.
    pub(crate) filter: &'static str,
    pub(crate) values: Vec<Value>,
}

/// A position as the columns hold it: the number, the partition, the uuid.
fn bound(position: &Position) -> [Value; 3] {
    let [high, low] = [0, 1].map(|at| position.tie.get(at).copied().unwrap_or(0));
    let uuid = position.tie.get(2..).unwrap_or_default().to_vec();
    [Value::Integer(position.major), Value::Integer(i64::from(u16::from_be_bytes([high, low]))), Value::Blob(uuid)]
}

impl Columns {
    /// The rest of a query after its select list, and its parameters.
    pub(crate) fn query(&self, bounds: &Bounds) -> (String, Vec<Value>) {
        let mut sql = format!(" FROM execution WHERE {}", self.filter);
        let mut values = self.values.clone();
        if let Some(after) = &bounds.after {
            self.limit_side(&mut sql, &mut values, after, ">");
        }
        if let Some(until) = &bounds.until {
            self.limit_side(&mut sql, &mut values, until, "<=");
        }
        let (forth, back) = if bounds.reverse { ("DESC", "ASC") } else { ("ASC", "DESC") };
        let by_major = self.major.map(|column| format!("{column} {}, ", if self.newest_first { back } else { forth }));
        sql.push_str(&format!(
            " ORDER BY {}partition {forth}, uuid {forth} LIMIT ?",
            by_major.as_deref().unwrap_or_default()
        ));
        values.push(Value::Integer(i64::try_from(bounds.limit).unwrap_or(i64::MAX)));
        (sql, values)
    }

    fn limit_side(&self, sql: &mut String, values: &mut Vec<Value>, position: &Position, side: &str) {
        let [major, partition, uuid] = bound(position);
        match (self.major, self.newest_first) {
            (None, _) => match position.major.cmp(&0) {
                Ordering::Equal => {
                    sql.push_str(&format!(" AND (partition, uuid) {side} (?, ?)"));
                    values.extend([partition, uuid]);
                }
                // All stand at number 0: before or after every one of them.
                before => {
                    let all = (before == Ordering::Less) == (side == ">");
                    sql.push_str(if all { "" } else { " AND FALSE" });
                }
            },
            (Some(column), false) => {
                sql.push_str(&format!(" AND ({column}, partition, uuid) {side} (?, ?, ?)"));
                values.extend([major, partition, uuid]);
            }
            (Some(column), true) => {
                // The number runs the other way, so the tuple is taken apart.
                let (loose, strict) = if side == ">" { ("<=", "<") } else { (">=", ">") };
                let created = Value::Integer(position.major.saturating_neg());
                sql.push_str(&format!(
                    " AND {column} {loose} ? AND ({column} {strict} ? OR (partition, uuid) {side} (?, ?))"
                ));
                values.extend([created.clone(), created, partition, uuid]);
            }
        }
    }

    /// The expression that gives the number of a position.
    pub(crate) fn number(&self) -> String {
        match self.major {
            None => "0".to_owned(),
            Some(column) if self.newest_first => format!("-{column}"),
            Some(column) => column.to_owned(),
        }
    }
}

/// The position of an execution.
pub(crate) fn position_of(major: i64, execution: ExecutionId) -> Position {
    Position::new(major, execution.to_bytes())
}

fn text(value: &impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn partition(partition: Partition) -> Value {
    Value::Integer(i64::from(partition.index()))
}

const fn columns(major: Option<&'static str>, filter: &'static str, values: Vec<Value>) -> Place {
    Place::Columns(Columns { major, newest_first: false, filter, values })
}

const fn newest(filter: &'static str, values: Vec<Value>) -> Place {
    Place::Columns(Columns { major: Some("created_at"), newest_first: true, filter, values })
}

impl Place {
    /// Where the entries of an index are.
    pub(crate) fn of(index: &Index) -> Self {
        match index {
            Index::ExecutionsIn(home) => columns(None, "partition = ?", vec![partition(*home)]),
            Index::Eligible(namespace, lane, class) => {
                columns(Some("rank"), "queue = ?", vec![Value::Blob(encode_queue(namespace, lane, class))])
            }
            Index::EligibleIn(home, lane) => columns(
                Some("rank"),
                "partition = ? AND lane = ? AND queue IS NOT NULL",
                vec![partition(*home), text(lane)],
            ),
            Index::Created => newest("created_at IS NOT NULL", vec![]),
            Index::CreatedIn(namespace) => newest("namespace = ?", vec![text(namespace)]),
            Index::LaneState(lane, state) => newest("lane = ? AND state = ?", vec![text(lane), text(state)]),
            Index::KindState(kind, state) => newest("kind = ? AND state = ?", vec![text(kind), text(state)]),
            Index::Due(DueKind::LeaseExpiry) => {
                columns(Some("lease_expires_at"), "lease_expires_at IS NOT NULL", vec![])
            }
            Index::TerminalIn(home, lane) => columns(
                Some("completed_at"),
                "partition = ? AND lane = ? AND completed_at IS NOT NULL",
                vec![partition(*home), text(lane)],
            ),
            Index::Terminal => columns(Some("sweep_from"), "sweep_from IS NOT NULL", vec![]),
            Index::AttemptsOf(execution) => Self::Keys(KeyRange::attempts(*execution)),
            Index::FramesOf(execution, attempt) => Self::Keys(KeyRange::frames(*execution, *attempt)),
            other => Self::Rows(encode_index(other)),
        }
    }

    /// Whether the entries are rows of their own.
    pub(crate) const fn is_rows(index: &Index) -> bool {
        !matches!(
            index,
            Index::ExecutionsIn(_)
                | Index::Eligible(..)
                | Index::EligibleIn(..)
                | Index::Created
                | Index::CreatedIn(_)
                | Index::LaneState(..)
                | Index::KindState(..)
                | Index::Due(DueKind::LeaseExpiry)
                | Index::TerminalIn(..)
                | Index::Terminal
                | Index::AttemptsOf(_)
                | Index::FramesOf(..)
        )
    }
}
