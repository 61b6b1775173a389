//! Purging terminal executions of one lane.

use std::collections::BTreeMap;

use ff_core::backend::maintenance::TrimRetentionArgs;
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::error::ValidationKind;
use ff_core::partition::{Partition, PartitionFamily};
use ff_core::rules::retention::is_purge_due;
use ff_core::{EngineError, Result, TimestampMs};

use super::PAGE;
use crate::engine::Engine;
use crate::index::{Bounds, DueKind, Index, Position};
use crate::key::Key;
use crate::records::{Execution, ExecutionTags, Record};
use crate::store::Store;
use crate::timers::retention::purge;
use crate::verbs::{Found, list_all, read_one};

/// Purges what the arguments ask for; says how many executions went. One that cannot go does not keep others; it is told when
/// nothing else was there to do.
pub(super) async fn trim<S: Store>(engine: &Engine<S>, args: &TrimRetentionArgs) -> Result<u32> {
    let home = engine.partition_of(&args.partition, PartitionFamily::Flow)?;
    let now = args.now.min(engine.store.now().await?);
    let cutoff = TimestampMs(now.0.saturating_sub_unsigned(args.retention_ms));
    let mut pass = Pass { engine, args, home, now, purged: 0, refusal: None };
    pass.over(Index::TerminalIn(home, args.lane_id.clone()), cutoff).await?;
    // Executions with a shorter retention of their own come due before the cutoff reaches them.
    pass.over(Index::Due(DueKind::Retention), now).await?;
    match pass.refusal {
        Some(refusal) if pass.purged == 0 => Err(refusal),
        _ => Ok(pass.purged),
    }
}

struct Pass<'a, S> {
    engine: &'a Engine<S>,
    args: &'a TrimRetentionArgs,
    home: Partition,
    now: TimestampMs,
    purged: u32,
    /// What went wrong with the first execution that could not be purged.
    refusal: Option<EngineError>,
}

impl<S: Store> Pass<'_, S> {
    async fn over(&mut self, index: Index, until: TimestampMs) -> Result<()> {
        let mut after = None;
        while self.purged < self.args.batch_size {
            let bounds = Bounds::first(PAGE).after(after).until(Position::end_of(until.0));
            let page = list_all(&self.engine.store, std::slice::from_ref(&index), &bounds).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.position.clone());
            for Found { key, record, .. } in page {
                if key.partition != self.home || self.purged >= self.args.batch_size {
                    continue;
                }
                match self.one(&key, record).await {
                    Ok(purged) => self.purged += u32::from(purged),
                    Err(refusal) => self.refusal = self.refusal.take().or(Some(refusal)),
                }
            }
        }
        Ok(())
    }

    async fn one(&self, key: &Key, record: Option<Record>) -> Result<bool> {
        let unreadable =
            || EngineError::validation(ValidationKind::Corruption, format_args!("{key:?}: record: unreadable"));
        let Record::Execution(execution) = record.ok_or_else(unreadable)? else { return Ok(false) };
        Ok(self.wants(&execution).await? && purge(self.engine, execution.id, self.args.retention_ms, self.now).await?)
    }

    async fn wants(&self, execution: &Execution) -> Result<bool> {
        let args = self.args;
        let here = execution.lane == args.lane_id
            && args.namespace.as_ref().is_none_or(|wanted| *wanted == execution.namespace);
        let due = execution
            .completed_at
            .is_some_and(|at| is_purge_due(at, args.retention_ms, execution.retention_ms, self.now));
        Ok(here && due && passes(&self.engine.store, &args.filter, execution).await?)
    }
}

/// Whether a filter lets an execution through; reads its tags only when the filter asks for one.
pub(super) async fn passes<S: Store>(store: &S, filter: &ScannerFilter, execution: &Execution) -> Result<bool> {
    let tags = if filter.instance_tag.is_some() && execution.tagged {
        let record: Option<ExecutionTags> = read_one(store, Key::execution_tags(execution.id)).await?;
        record.map(|record| record.tags).unwrap_or_default()
    } else {
        BTreeMap::new()
    };
    Ok(filter.matches(&execution.namespace, &tags))
}
