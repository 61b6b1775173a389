//! Lists that are put together from several parts of the tables are what records declare, page by page, from either end.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;
#[path = "support/write.rs"]
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_backend_postgres::PostgresStore;
use ff_core::TimestampMs;
use ff_core::ids::{AttemptId, ExecutionId, ExecutionKind, LaneId, LeaseId, Namespace, WorkerId, WorkerInstanceId};
use ff_engine::clock::ManualClock;
use ff_engine::index::{Bounds, Index, Position};
use ff_engine::key::Key;
use ff_engine::records::{Execution, NewExecution, QueueClass, Record, Taker};
use ff_engine::store::Store;
use uuid::Uuid;

use write::Write;

const NOW: TimestampMs = TimestampMs(1_000);

const EXECUTIONS: u128 = 48;

/// In a partition, several created at the same moment, in one of three namespaces, two lanes, three kinds and every state of a lease.
fn execution(n: u128) -> Execution {
    let pick = |names: &'static [&'static str], of: u128| names[usize::try_from(of).unwrap() % names.len()];
    let created = TimestampMs(i64::try_from(n / 7).unwrap());
    let new = NewExecution {
        id: ExecutionId::new(u16::try_from(n % 5).unwrap(), Uuid::from_u128(EXECUTIONS - n)),
        namespace: Namespace::new(pick(&["acme", "initech", "umbrella"], n)).unwrap(),
        lane: LaneId::new(pick(&["default", "slow"], n / 2)).unwrap(),
        class: QueueClass::plain(ExecutionKind::new(pick(&["bill", "mail", "scan"], n / 3)).unwrap()),
        priority: 0,
        delay_until: None,
        deadline_at: None,
        budget_ids: Vec::new(),
        quota_policy_ids: Vec::new(),
        retention_ms: None,
        tagged: false,
    };
    let mut out = Execution::create(new, created);
    if !n.is_multiple_of(4) {
        let taker = Taker {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(n)),
            worker_id: WorkerId::new("worker").unwrap(),
            worker_instance_id: WorkerInstanceId::new("worker-1").unwrap(),
            ttl_ms: 30_000,
        };
        out.claim(taker, AttemptId::from_uuid(Uuid::from_u128(n)), NOW);
    }
    match n % 8 {
        2 => out.expire_lease(NOW, NOW),
        3 => out.revoke_lease("because".to_owned(), NOW),
        5 => out.renew(60_000, NOW),
        _ => {}
    }
    out
}

/// All of a list, by pages of this size, from its beginning or from its end.
async fn paged(store: &PostgresStore, index: &Index, limit: usize, reverse: bool) -> Vec<(Position, Key)> {
    let mut out: Vec<(Position, Key)> = Vec::new();
    loop {
        let last = out.last().map(|(position, _)| position.clone());
        let mut bounds = if reverse { Bounds::last(limit) } else { Bounds::first(limit) };
        match last {
            Some(last) if reverse => bounds.until = Some(before(&last)),
            last => bounds.after = last,
        }
        let page = store.list(std::slice::from_ref(index), &bounds).await.unwrap();
        let keys = store.keys(index, &bounds).await.unwrap();
        let page: Vec<_> = page.into_iter().map(|listed| (listed.position, listed.record.key())).collect();
        assert_eq!(page, keys, "{index:?}");
        let is_last = page.len() < limit;
        out.extend(page);
        if is_last {
            return out;
        }
    }
}

/// The last position before one: ties are of one length, so a number less is all that is between.
fn before(position: &Position) -> Position {
    let mut tie = position.tie.to_vec();
    for byte in tie.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    Position::new(position.major, tie)
}

#[tokio::test]
async fn lists_are_what_records_declare() {
    let schema = support::schema();
    let store = support::connect(schema.name(), Arc::new(ManualClock::at(NOW)), support::FAST).await.unwrap();
    let records: Vec<Record> = (0..EXECUTIONS).map(|n| execution(n).into()).collect();
    store.transact(Arc::new(Write(records.clone()))).await.unwrap();

    let mut declared: BTreeMap<Index, BTreeSet<(Position, Key)>> = BTreeMap::new();
    for record in &records {
        for entry in record.entries() {
            declared.entry(entry.index).or_default().insert((entry.position, record.key()));
        }
    }
    assert!(
        declared.keys().filter(|index| matches!(index, Index::KindState(..))).count() >= 6,
        "every kind in two states"
    );
    for (index, expected) in declared {
        assert_eq!(store.count(&index).await.unwrap(), expected.len() as u64, "{index:?}");
        let expected: Vec<_> = expected.into_iter().collect();
        for limit in [1, 3, 100] {
            assert_eq!(paged(&store, &index, limit, false).await, expected, "{index:?}, {limit} at a time");
            let mut reversed = paged(&store, &index, limit, true).await;
            reversed.reverse();
            assert_eq!(reversed, expected, "{index:?} backwards, {limit} at a time");
        }
    }
}
