//! Search by what users remember: the most selective of a few named indexes, everything else filtered within a scan budget.

use std::collections::BTreeMap;

use ff_core::backend::inspection::{ExecutionSummary, PAGE_LIMIT_MAX, SearchArgs, SearchCursor, SearchPage};
use ff_core::ids::ExecutionKind;
use ff_core::partition::fnv1a64;
use ff_core::state::PublicState;
use ff_core::tag::validate_tag_key;
use ff_core::{EngineError, Result};

use crate::index::{Bounds, Index, Listed, Position};
use crate::key::Key;
use crate::records::{Execution, ExecutionTags, Record};
use crate::store::Store;

/// Rows one call may look at.
const SCAN_BUDGET: usize = 1000;

/// Rows loaded at once.
const PAGE: usize = 200;

/// Bytes of an execution inside a position.
const TIE_BYTES: usize = 18;

/// Executions that pass every filter, newest first.
pub(super) async fn search<S: Store>(store: &S, args: &SearchArgs) -> Result<SearchPage> {
    if let Some(tag) = &args.tag {
        validate_tag_key(&tag.key)?;
    }
    let mut after = args.cursor.as_ref().map(|cursor| decode(cursor, args)).transpose()?;
    let limit = usize::try_from(args.limit.min(PAGE_LIMIT_MAX)).unwrap_or(usize::MAX);
    let mut page = SearchPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let indexes = indexes(args);
    let mut looked_at = 0;
    while looked_at < SCAN_BUDGET {
        let rows = store.list(&indexes, &bounds(args, after.clone())).await?;
        let is_last = rows.len() < PAGE;
        let rows = with_executions(store, rows).await?;
        let count = rows.len();
        for (nth, (position, execution, tags)) in rows.into_iter().enumerate() {
            looked_at += 1;
            after = Some(position.clone());
            let Some(execution) = execution else { continue };
            let summary = summary(execution);
            if !args.matches(&summary, &tags) {
                continue;
            }
            page.entries.push(summary);
            if page.entries.len() == limit {
                page.next_cursor = (!is_last || nth + 1 < count).then(|| encode(&position, args));
                return Ok(page);
            }
        }
        if is_last {
            return Ok(page);
        }
    }
    page.next_cursor = after.map(|position| encode(&position, args));
    Ok(page)
}

/// The narrowest indexes that hold every match. All of them are ordered by creation, newest first.
fn indexes(args: &SearchArgs) -> Vec<Index> {
    if let Some(tag) = &args.tag {
        return vec![Index::Tagged(tag.key.clone(), tag.value.clone())];
    }
    let states = args.public_state.map_or_else(|| PublicState::ALL.to_vec(), |state| vec![state]);
    match (&args.lane_id, &args.kind, &args.namespace) {
        (Some(lane), _, _) => states.into_iter().map(|state| Index::LaneState(lane.clone(), state)).collect(),
        // What cannot be a kind has no index, so nothing is found.
        (None, Some(kind), _) => {
            let kinds = ExecutionKind::new(kind).into_iter();
            kinds.flat_map(|kind| states.iter().map(move |state| Index::KindState(kind.clone(), *state))).collect()
        }
        (None, None, Some(namespace)) => vec![Index::CreatedIn(namespace.clone())],
        (None, None, None) => vec![Index::Created],
    }
}

/// Positions count backwards from the newest, so the end of the time range is where the listing starts.
fn bounds(args: &SearchArgs, after: Option<Position>) -> Bounds {
    let newest = args.created_to.map(|to| Position::end_of(to.0.saturating_neg()));
    let mut bounds = Bounds::first(PAGE).after(newest.max(after));
    bounds.until = args.created_from.map(|from| Position::end_of(from.0.saturating_neg()));
    bounds
}

type Row = (Position, Option<Execution>, BTreeMap<String, String>);

/// The executions behind the rows; a row of the tag index names one that has to be read.
async fn with_executions<S: Store>(store: &S, rows: Vec<Listed>) -> Result<Vec<Row>> {
    let mut out = Vec::with_capacity(rows.len());
    let mut keys = Vec::new();
    for row in rows {
        match row.record {
            Record::Execution(it) => out.push((row.position, Some((*it).clone()), BTreeMap::new())),
            Record::ExecutionTags(it) => {
                let ExecutionTags { execution, tags, .. } = (*it).clone();
                keys.push((out.len(), Key::execution(execution)));
                out.push((row.position, None, tags));
            }
            _ => {}
        }
    }
    let wanted: Vec<Key> = keys.iter().map(|(_, key)| key.clone()).collect();
    if wanted.is_empty() {
        return Ok(out);
    }
    for ((at, _), record) in keys.into_iter().zip(store.read(&wanted).await?) {
        if let Some(Record::Execution(it)) = record {
            out[at].1 = Some((*it).clone());
        }
    }
    Ok(out)
}

fn summary(execution: Execution) -> ExecutionSummary {
    ExecutionSummary {
        execution_id: execution.id,
        public_state: execution.public_state(),
        created_at: execution.created_at,
        namespace: execution.namespace,
        lane_id: execution.lane,
        execution_kind: execution.class.kind.to_string(),
    }
}

/// A number that tells one search from another, whatever its page.
fn fingerprint(args: &SearchArgs) -> u64 {
    let filters = SearchArgs { cursor: None, limit: 0, ..args.clone() };
    fnv1a64(serde_json::to_string(&filters).unwrap_or_default().as_bytes())
}

/// A cursor: which search it belongs to, and where that search stopped.
fn encode(position: &Position, args: &SearchArgs) -> SearchCursor {
    use std::fmt::Write;
    let mut text = format!("{:016x}.{}.", fingerprint(args), position.major);
    for byte in &position.tie {
        let _ = write!(text, "{byte:02x}");
    }
    SearchCursor(text)
}

fn decode(cursor: &SearchCursor, args: &SearchArgs) -> Result<Position> {
    let malformed = || EngineError::invalid("search cursor is malformed");
    let mut parts = cursor.0.split('.');
    let (Some(search), Some(major), Some(tie), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(malformed());
    };
    if search != format!("{:016x}", fingerprint(args)) {
        return Err(EngineError::invalid("search cursor belongs to another search"));
    }
    let major = major.parse().map_err(|_| malformed())?;
    if tie.len() != 2 * TIE_BYTES || !tie.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    let bytes = (0..TIE_BYTES).map(|n| u8::from_str_radix(&tie[2 * n..2 * n + 2], 16));
    let tie = bytes.collect::<std::result::Result<Vec<_>, _>>().map_err(|_| malformed())?;
    Ok(Position::new(major, tie))
}
