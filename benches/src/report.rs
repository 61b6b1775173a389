//! What a run found: a table for people, one JSON object for programs.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Number, Value};

use crate::latency::Percentiles;
use crate::rounds::Side;
use crate::scenarios::backlog::BacklogReport;
use crate::scenarios::bare::BareReport;
use crate::scenarios::chain::ChainReport;
use crate::scenarios::foreign::ForeignReport;
use crate::scenarios::idle::{Beside, IdleReport};
use crate::scenarios::lifecycle::{ByCallers, LifecycleReport};
use crate::scenarios::stream::StreamReport;
use crate::scenarios::suspend::SuspendReport;
use crate::scenarios::timers::TimersReport;
use crate::scenarios::worker::WorkerReport;
use crate::settings::{CALLERS, Facts, WAITING_FEW};

/// Everything that was measured; scenarios that were not chosen are absent.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The yardsticks alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare: Option<BareReport>,
    /// Submit, claim, complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleReport>,
    /// The same with a long queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogReport>,
    /// The hand-off between the steps of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<ChainReport>,
    /// Suspend, signal, resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<SuspendReport>,
    /// Appending frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamReport>,
    /// What users of workers wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerReport>,
    /// Delays that end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timers: Option<TimersReport>,
    /// Lifecycles beside a foreign transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignReport>,
    /// Workers without work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// Under which conditions.
    pub settings: Facts,
}

impl Report {
    /// Nothing measured yet.
    pub fn new(settings: Facts) -> Self {
        Self {
            bare: None,
            lifecycle: None,
            backlog: None,
            chain: None,
            suspend: None,
            stream: None,
            worker: None,
            timers: None,
            foreign: None,
            idle: None,
            settings,
        }
    }

    /// One line of JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(&rounded(serde_json::to_value(self)?))?)
    }

    /// Aligned columns, one row per thing that was measured.
    pub fn table(&self) -> String {
        let mut table =
            Table::new(&["", "per s", "min - max", "p50 ms", "p99 ms", "cpu µs", "disk bytes", "ratio", "min - max"]);
        if let Some(report) = &self.bare {
            bare_rows(&mut table, report);
        }
        if let Some(report) = &self.lifecycle {
            report.by_callers.values().for_each(|by| lifecycle_rows(&mut table, by));
        }
        if let Some(report) = &self.backlog {
            backlog_rows(&mut table, report);
        }
        if let Some(report) = &self.chain {
            chain_rows(&mut table, report);
        }
        if let Some(report) = &self.suspend {
            table.side(&format!("suspend: signal to resumed claim, {} callers", CALLERS[0]), &report.side);
        }
        if let Some(report) = &self.stream {
            table.side(&format!("stream: append_frame, {} callers", CALLERS[0]), &report.side);
        }
        if let Some(report) = &self.worker {
            worker_rows(&mut table, report);
        }
        if let Some(report) = &self.timers {
            timers_rows(&mut table, report);
        }
        if let Some(report) = &self.foreign {
            foreign_rows(&mut table, report);
        }
        if let Some(report) = &self.idle {
            idle_rows(&mut table, report);
        }
        table.text()
    }
}

fn bare_rows(table: &mut Table, report: &BareReport) {
    for bare in report.queues.values().chain([&report.commit]) {
        table.side(bare.name, &bare.side);
        table.row(&[format!("  load average {}", range(bare.load.min, bare.load.max))]);
    }
}

fn foreign_rows(table: &mut Table, report: &ForeignReport) {
    let open_s = number(report.open_s);
    table.side(&format!("lifecycle for {open_s} s, {} callers, one call", CALLERS[0]), &report.without);
    table.side("  beside a foreign transaction, open as long", &report.with);
    table.ratio(report.ratio, None);
    table.row(&[format!("  ratio of the last quarter {}", number(report.ratio_end))]);
    let silence = number(report.silence_max_ms);
    table.row(&[format!("  {} of {} events received, {silence} ms apart at most", report.events, report.completed)]);
}

fn idle_rows(table: &mut Table, report: &IdleReport) {
    let beside =
        [("bare commit of one row", &report.commit), ("bare commit of one row after a rest", &report.rested_commit)];
    for (name, beside) in beside {
        beside.iter().for_each(|beside| table.side(name, &beside.bare));
    }
    table.calls("idle: submit to handler's start", &report.submit_to_start);
    for (name, beside) in beside {
        if let Some(Beside { ratio_p50, ratio_p99, .. }) = beside {
            table.row(&[format!("  start against {name}: p50 {}, p99 {}", number(*ratio_p50), number(*ratio_p99))]);
        }
    }
    let (workers, per_minute) = (report.workers, number(report.statements_per_minute));
    table.row(&[format!("  {workers} workers and timers without work: {per_minute} statements per minute")]);
    for busy in &report.busiest {
        table.row(&[format!("  {:>6} {}", busy.calls, busy.query)]);
    }
}

fn worker_rows(table: &mut Table, report: &WorkerReport) {
    if let Some(commit) = &report.commit {
        table.side("bare commit of one row", commit);
    }
    for (name, calls) in [
        ("worker: submit to handler's start", &report.submit_to_start),
        ("worker: cancel to handler", &report.cancel_to_handler),
        ("worker: signal to resumed handler", &report.signal_to_resumed),
        ("worker: completion to next step", &report.completion_to_next),
    ] {
        table.calls(name, calls);
    }
}

fn lifecycle_rows(table: &mut Table, by: &ByCallers) {
    let callers = by.callers;
    if let (Some(comparison), Some(bare)) = (&by.comparison, &by.yardstick) {
        table.side(comparison.name, bare);
    }
    table.side(&format!("lifecycle, {callers} callers, one call"), &by.side);
    if let Some(ratio) = by.ratio {
        table.ratio(ratio.median, Some((ratio.min, ratio.max)));
    }
    for (call, calls) in
        [("create", by.create), ("claim", by.claim), ("complete", by.complete), ("whole lifecycle", by.lifecycle)]
    {
        table.calls(&format!("  {call}"), &calls);
    }
}

fn backlog_rows(table: &mut Table, report: &BacklogReport) {
    table.side(&format!("backlog, {WAITING_FEW} waiting, one call"), &report.few);
    table.side(&format!("backlog, {} waiting, one call", report.waiting), &report.many);
    table.ratio(report.ratio, Some((report.ratio_spread.min, report.ratio_spread.max)));
    table.row(&["  filling it".to_owned(), number(report.fill_per_s)]);
    if let Some(peak) = report.peak_rss_mb {
        table.row(&[format!("  peak memory {peak:.0} MB")]);
    }
}

fn chain_rows(table: &mut Table, report: &ChainReport) {
    if let Some(commit) = &report.commit {
        table.side("bare commit of one row", commit);
    }
    table.side("chain: hand-off of a step, one chain at a time", &report.side);
    if let (Some(p50), Some(p99)) = (report.ratio_p50, report.ratio_p99) {
        table.row(&[format!("  hand-off in bare commits: p50 {}, p99 {}", number(p50), number(p99))]);
    }
}

fn timers_rows(table: &mut Table, report: &TimersReport) {
    for (when, late) in [("at random times", &report.spread), ("all at once", &report.burst)] {
        table.calls(&format!("timers: lateness of {}, {when}", report.timers), &late.percentiles);
        table.row(&[format!("  {} ms at most", number(late.max_ms))]);
    }
}

/// Rows of columns: the first to the left, all others to the right.
struct Table(Vec<Vec<String>>);

impl Table {
    fn new(heads: &[&str]) -> Self {
        Self(vec![heads.iter().map(|head| (*head).to_owned()).collect()])
    }

    fn row(&mut self, cells: &[String]) {
        self.0.push(cells.to_vec());
    }

    fn side(&mut self, name: &str, side: &Side) {
        let spread = range(side.per_s_min, side.per_s_max);
        let (p50, p99) = (number(side.calls.p50_ms), number(side.calls.p99_ms));
        let cost = side.cost.map_or([String::new(), String::new()], |cost| [cost.cpu_us, cost.disk_bytes].map(number));
        let [cpu, disk] = cost;
        self.row(&[name.to_owned(), number(side.per_s), spread, p50, p99, cpu, disk]);
    }

    fn calls(&mut self, name: &str, calls: &Percentiles) {
        let empty = String::new;
        self.row(&[name.to_owned(), empty(), empty(), number(calls.p50_ms), number(calls.p99_ms)]);
    }

    /// Puts a ratio into the row that was added last.
    fn ratio(&mut self, ratio: f64, spread: Option<(f64, f64)>) {
        if let Some(row) = self.0.last_mut() {
            row.push(number(ratio));
            row.extend(spread.map(|(min, max)| range(min, max)));
        }
    }

    fn text(&self) -> String {
        let columns = self.0[0].len();
        // A row of one cell is a remark: it may be longer than its column.
        let cells = |column: usize| self.0.iter().filter(|row| row.len() > 1).filter_map(move |row| row.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            line.trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

fn range(min: f64, max: f64) -> String {
    format!("{} - {}", number(min), number(max))
}

fn number(number: f64) -> String {
    round(number).to_string()
}

/// Four significant digits, though whole numbers stay whole.
fn round(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    #[allow(clippy::cast_possible_truncation)]
    let decimals = (3 - number.abs().log10().floor() as i32).clamp(0, 9);
    let factor = 10_f64.powi(decimals);
    (number * factor).round() / factor
}

fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map(round).and_then(Number::from_f64).map_or(Value::Null, Value::Number)
        }
        Value::Array(items) => items.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, rounded(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_four_digits_or_are_whole() {
        for (exact, shown) in [
            (0.0, "0"),
            (0.012_345_6, "0.01235"),
            (0.5, "0.5"),
            (12.345_6, "12.35"),
            (1234.5, "1235"),
            (98_765.4, "98765"),
        ] {
            assert_eq!(number(exact), shown);
        }
    }

    #[test]
    fn the_object_is_rounded_everywhere_and_counts_stay() {
        let exact = json!({ "a": [1.000_04, { "b": 1234.5 }], "count": 1_000_001, "word": "x" });

        assert_eq!(rounded(exact), json!({ "a": [1.0, { "b": 1235.0 }], "count": 1_000_001, "word": "x" }));
    }

    #[test]
    fn columns_are_aligned_and_remarks_may_be_longer() {
        let mut table = Table::new(&["", "per s", "ratio"]);
        table.row(&["one".to_owned(), "12345".to_owned()]);
        table.ratio(0.5, None);
        table.row(&["a remark without numbers".to_owned()]);

        assert_eq!(table.text(), "     per s  ratio\none  12345    0.5\na remark without numbers\n");
    }
}
