//! Which SQL answers which index.
//!
//! The hot indexes of executions are SQL indexes over columns; lists whose order is that of their keys are ranges of keys; all
//! others are rows of the `entry` table.

use std::cmp::Ordering;

use ff_core::partition::Partition;
use ff_core::state::PublicState;
use ff_engine::codec::{KeyRange, encode_index};
use ff_engine::index::{Bounds, DueKind, Index, Position};
use uuid::Uuid;

use crate::column;
use crate::short::short;
use crate::value::Value;

/// Where the entries of an index are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// In columns of a table of executions.
    Columns(Columns),
    /// In the order of the keys of what is listed.
    Keys(KeyRange),
    /// In rows of their own.
    Rows(Vec<u8>),
}

/// An index over columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Columns {
    /// The table that the columns are in.
    pub(crate) table: &'static str,
    /// The column that the number of a position stands in; none where only the id decides.
    pub(crate) major: Option<&'static str>,
    /// Whether the number is stored with the opposite sign, so that the newest come first.
    pub(crate) newest_first: bool,
    /// Conditions that select the list, with `?` for each of the values.
    pub(crate) filter: &'static str,
    pub(crate) values: Vec<Value>,
    pub(crate) spread: Spread,
}

/// Over how many ranges of SQL indexes a list is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    /// One.
    One,
    /// Besides, what fits these conditions, which take the same values.
    And(&'static str),
    /// One for each namespace.
    Namespaces,
}

/// All namespaces of a table of executions, each found by looking behind the one before it.
const NAMESPACES: &str = "WITH RECURSIVE n (namespace) AS (
    (SELECT c.namespace FROM {s}.created c ORDER BY c.namespace LIMIT 1)
    UNION ALL
    SELECT later.namespace FROM n CROSS JOIN LATERAL
      (SELECT c.namespace FROM {s}.created c WHERE c.namespace > n.namespace ORDER BY c.namespace LIMIT 1) later
  )";

const NAMESPACE: &str = "i.namespace = n.namespace";

const NAMESPACE_WITH_ROWS: &str = "i.namespace = n.namespace
  AND EXISTS (SELECT FROM {s}.execution e WHERE e.partition = i.partition AND e.uuid = i.uuid)";

/// The end of a range of columns: the number, the partition, the uuid.
struct End {
    major: i64,
    partition: i32,
    uuid: Uuid,
    /// Whether the position stands at these columns, or just before them because its tie is too short to name an execution.
    is_exact: bool,
}

impl End {
    fn of(position: &Position) -> Self {
        let mut tie = [0; 18];
        let length = position.tie.len().min(tie.len());
        tie[..length].copy_from_slice(&position.tie[..length]);
        let (partition, uuid) = tie.split_at(2);
        Self {
            major: position.major,
            partition: partition.iter().fold(0, |number, byte| number << 8 | i32::from(*byte)),
            uuid: Uuid::from_slice(uuid).unwrap_or_default(),
            is_exact: position.tie.len() >= tie.len(),
        }
    }

    /// How columns compare that lie behind it, or up to it.
    const fn side(&self, is_lower: bool) -> &'static str {
        match (is_lower, self.is_exact) {
            (true, true) => ">",
            (true, false) => ">=",
            (false, true) => "<=",
            (false, false) => "<",
        }
    }
}

/// A query that grows, with its parameters.
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

impl Query {
    pub(crate) fn new(sql: String) -> Self {
        Self { sql, values: Vec::new() }
    }

    /// Adds conditions, with `?` for each of the values.
    pub(crate) fn push(&mut self, conditions: &str, values: impl IntoIterator<Item = Value>) {
        let mut values = values.into_iter();
        for (at, part) in conditions.split('?').enumerate() {
            if at > 0 {
                self.values.extend(values.next());
                self.sql.push_str(&format!("${}", self.values.len()));
            }
            self.sql.push_str(part);
        }
    }
}

impl Columns {
    /// Everything behind a select list: the table or what is found in it, called `i`, what is joined to that, conditions, order and limit.
    pub(crate) fn select(&self, query: &mut Query, join: &str, bounds: &Bounds) {
        query.push(" FROM ", []);
        match self.spread {
            Spread::One => {
                query.push(&format!("{{s}}.{} i {join}", self.table), []);
                self.conditions(query, self.filter, bounds);
            }
            Spread::And(other) => {
                query.push("(", []);
                self.part(query, self.filter, bounds);
                query.push(" UNION ALL ", []);
                self.part(query, other, bounds);
                query.push(&format!(") i {join}"), []);
            }
            Spread::Namespaces => {
                query.push(&format!("({NAMESPACES} "), []);
                // What a join would drop must not count towards the limit.
                self.merged(query, if join.is_empty() { NAMESPACE } else { NAMESPACE_WITH_ROWS }, bounds);
                query.push(&format!(") i {join}"), []);
            }
        }
        self.order(query, bounds);
    }

    /// The first ones of all namespaces. They can only be in those whose own first ones are among the first, so no more is read than as many
    /// from as many namespaces as are wanted, however many there are.
    fn merged(&self, query: &mut Query, filter: &str, bounds: &Bounds) {
        query.push("SELECT i.* FROM (SELECT n.namespace FROM n CROSS JOIN LATERAL ", []);
        self.part(query, filter, &Bounds { limit: bounds.limit.min(1), ..bounds.clone() });
        query.push(" i", []);
        self.order(query, bounds);
        query.push(") n CROSS JOIN LATERAL ", []);
        self.part(query, filter, bounds);
        query.push(" i", []);
        self.order(query, bounds);
    }

    /// As many of one range as may be wanted of all.
    fn part(&self, query: &mut Query, filter: &str, bounds: &Bounds) {
        query.push(&format!("(SELECT i.* FROM {{s}}.{} i", self.table), []);
        self.conditions(query, filter, bounds);
        self.order(query, bounds);
        query.push(")", []);
    }

    fn conditions(&self, query: &mut Query, filter: &str, bounds: &Bounds) {
        query.push(" WHERE ", []);
        query.push(filter, self.values.clone());
        if let Some(after) = &bounds.after {
            self.limit_side(query, &End::of(after), true);
        }
        if let Some(until) = &bounds.until {
            self.limit_side(query, &End::of(until), false);
        }
    }

    fn order(&self, query: &mut Query, bounds: &Bounds) {
        let (forth, back) = if bounds.reverse { ("DESC", "ASC") } else { ("ASC", "DESC") };
        let by_major =
            self.major.map(|column| format!("i.{column} {}, ", if self.newest_first { back } else { forth }));
        let limit = i64::try_from(bounds.limit).unwrap_or(i64::MAX);
        query.push(
            &format!(
                " ORDER BY {}i.partition {forth}, i.uuid {forth} LIMIT ?",
                by_major.as_deref().unwrap_or_default()
            ),
            [Value::Big(limit)],
        );
    }

    /// How many there are.
    pub(crate) fn count(&self) -> Query {
        let mut query = Query::new("SELECT count(*) FROM (".to_owned());
        let mut part = |filter, before| {
            query.push(&format!("{before}SELECT FROM {{s}}.{} i WHERE ", self.table), []);
            query.push(filter, self.values.clone());
        };
        part(self.filter, "");
        if let Spread::And(other) = self.spread {
            part(other, " UNION ALL ");
        }
        query.push(") AS i", []);
        query
    }

    fn limit_side(&self, query: &mut Query, end: &End, is_lower: bool) {
        let side = end.side(is_lower);
        let (major, place) = (Value::Big(end.major), [Value::Int(end.partition), Value::Id(end.uuid)]);
        match (self.major, self.newest_first) {
            (None, _) => match end.major.cmp(&0) {
                Ordering::Equal => query.push(&format!(" AND (i.partition, i.uuid) {side} (?, ?)"), place),
                // All stand at number 0: before or after every one of them.
                before if (before == Ordering::Less) == is_lower => {}
                _ => query.push(" AND FALSE", []),
            },
            (Some(column), false) => {
                let [partition, uuid] = place;
                query.push(
                    &format!(" AND (i.{column}, i.partition, i.uuid) {side} (?, ?, ?)"),
                    [major, partition, uuid],
                );
            }
            (Some(column), true) => {
                // The number runs the other way, so the tuple is taken apart.
                let (loose, strict) = if is_lower { ("<=", "<") } else { (">=", ">") };
                let number = Value::Big(end.major.saturating_neg());
                let [partition, uuid] = place;
                query.push(
                    &format!(
                        " AND i.{column} {loose} ? AND (i.{column} {strict} ? OR (i.partition, i.uuid) {side} (?, ?))"
                    ),
                    [number.clone(), number, partition, uuid],
                );
            }
        }
    }

    /// The expression that gives the number of a position.
    pub(crate) fn number(&self) -> String {
        match self.major {
            None => "0::bigint".to_owned(),
            Some(column) if self.newest_first => format!("-i.{column}"),
            Some(column) => format!("i.{column}"),
        }
    }
}

fn text(value: &impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn partition(partition: Partition) -> Value {
    Value::Int(i32::from(partition.index()))
}

const fn columns(major: Option<&'static str>, filter: &'static str, values: Vec<Value>) -> Place {
    Place::Columns(Columns { table: "execution", major, newest_first: false, filter, values, spread: Spread::One })
}

const fn newest(table: &'static str, spread: Spread, filter: &'static str, values: Vec<Value>) -> Place {
    Place::Columns(Columns { table, major: Some("created_at"), newest_first: true, filter, values, spread })
}

/// Those who are worked on come and go and are few: they stand only in the index of leases.
fn in_state(state: PublicState, others: &'static str, leased: &'static str, name: Value) -> Place {
    let spread = if state == PublicState::Active { Spread::And(leased) } else { Spread::One };
    newest("execution", spread, others, vec![name, Value::Letter(column::letter(state))])
}

impl Place {
    /// Where the entries of an index are.
    pub(crate) fn of(index: &Index) -> Self {
        match index {
            Index::ExecutionsIn(home) => columns(None, "i.partition = ?", vec![partition(*home)]),
            Index::Eligible(namespace, lane, class) => {
                columns(Some("rank"), "i.queue = ?", vec![Value::Id(column::queue(namespace, lane, class))])
            }
            Index::EligibleIn(home, lane) => columns(
                Some("rank"),
                "i.partition = ? AND i.lane = ? AND i.queue IS NOT NULL",
                vec![partition(*home), text(lane)],
            ),
            Index::Created => newest("created", Spread::Namespaces, "TRUE", vec![]),
            Index::CreatedIn(namespace) => newest("created", Spread::One, "i.namespace = ?", vec![text(namespace)]),
            Index::LaneState(lane, state) => in_state(
                *state,
                "i.lane = ? AND i.state = ? AND (i.lease_expires_at IS NULL OR i.state <> 'a')",
                "i.lane = ? AND i.state = ? AND i.lease_expires_at IS NOT NULL",
                text(lane),
            ),
            Index::KindState(kind, state) => in_state(
                *state,
                "i.kind = ? AND i.state = ? AND (i.lease_expires_at IS NULL OR i.state <> 'a')",
                "i.kind = ? AND i.state = ? AND i.lease_expires_at IS NOT NULL",
                text(kind),
            ),
            Index::Due(DueKind::LeaseExpiry) => {
                columns(Some("lease_expires_at"), "i.lease_expires_at IS NOT NULL", vec![])
            }
            Index::TerminalIn(home, lane) => columns(
                Some("completed_at"),
                "i.partition = ? AND i.lane = ? AND i.completed_at IS NOT NULL",
                vec![partition(*home), text(lane)],
            ),
            Index::Terminal => columns(Some("sweep_from"), "i.sweep_from IS NOT NULL", vec![]),
            Index::AttemptsOf(execution) => Self::Keys(KeyRange::attempts(*execution)),
            Index::FramesOf(execution, attempt) => Self::Keys(KeyRange::frames(*execution, *attempt)),
            other => Self::Rows(short(encode_index(other))),
        }
    }

    /// Whether the entries are in columns of a table of executions.
    pub(crate) const fn is_columns(index: &Index) -> bool {
        !Self::is_rows(index) && !matches!(index, Index::AttemptsOf(_) | Index::FramesOf(..))
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
