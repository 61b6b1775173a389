//! Leases that were lost or are overdue.

use std::collections::BTreeMap;

use ff_core::backend::leases::{ExpiredLeaseInfo, ExpiredLeasesCursor, ListExpiredLeasesArgs, ListExpiredLeasesResult};
use ff_core::{Result, TimestampMs};

use crate::index::{Bounds, DueKind, Index, Position};
use crate::records::Execution;
use crate::store::Store;
use crate::verbs::list_of;

/// Entries of a page unless the caller says otherwise.
const LIMIT_DEFAULT: u32 = 1000;
/// Entries of the largest page.
const LIMIT_MAX: u32 = 10_000;
/// Leases of other tenants one call may pass over before it answers a short page.
const SCAN_MAX: usize = 20_000;

/// One page, by expiry, then execution.
pub(super) async fn list<S: Store>(store: &S, args: ListExpiredLeasesArgs) -> Result<ListExpiredLeasesResult> {
    let limit = usize::try_from(args.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX)).unwrap_or(usize::MAX);
    let mut page = ListExpiredLeasesResult { entries: Vec::new(), cursor: args.after };
    let mut scanned = 0;
    while page.entries.len() < limit && scanned < SCAN_MAX {
        let wanted = limit - page.entries.len();
        let found = slice(store, args.as_of, page.cursor, wanted + 1).await?;
        let more = found.len() > wanted;
        for execution in found.into_values().take(wanted) {
            scanned += 1;
            let Some(entry) = info(&execution) else { continue };
            page.cursor = Some(position_of(&entry));
            if args.namespace.as_ref().is_none_or(|wanted| *wanted == execution.namespace) {
                page.entries.push(entry);
            }
        }
        if !more {
            page.cursor = None;
            break;
        }
    }
    Ok(page)
}

/// The next leases in order. A lease that is lost between the two reads is found twice and kept once.
async fn slice<S: Store>(
    store: &S,
    as_of: TimestampMs,
    after: Option<ExpiredLeasesCursor>,
    limit: usize,
) -> Result<BTreeMap<Position, Execution>> {
    let bounds = Bounds::first(limit).after(after.map(|after| Position::of(after.expires_at_ms.0, after.execution_id)));
    let overdue = bounds.clone().until(Position::end_of(as_of.0));
    let mut found: Vec<Execution> = list_of(store, Index::Due(DueKind::LeaseExpiry), overdue).await?;
    found.extend(list_of::<Execution, _>(store, Index::LostLeases, bounds).await?);
    let placed = found.into_iter().filter_map(|execution| {
        let expires_at = execution.lease.as_ref()?.expires_at;
        Some((Position::of(expires_at.0, execution.id), execution))
    });
    let mut slice: BTreeMap<Position, Execution> = placed.collect();
    while slice.len() > limit {
        slice.pop_last();
    }
    Ok(slice)
}

fn info(execution: &Execution) -> Option<ExpiredLeaseInfo> {
    let lease = execution.lease.as_ref()?;
    Some(ExpiredLeaseInfo {
        execution_id: execution.id,
        lease_id: lease.id,
        lease_epoch: execution.epoch,
        worker_instance_id: lease.worker_instance_id.clone(),
        expires_at_ms: lease.expires_at,
        attempt_index: execution.attempt_index,
        ownership_state: execution.state().ownership_state,
    })
}

const fn position_of(entry: &ExpiredLeaseInfo) -> ExpiredLeasesCursor {
    ExpiredLeasesCursor { expires_at_ms: entry.expires_at_ms, execution_id: entry.execution_id }
}
