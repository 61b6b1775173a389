//! Listing suspended executions.

use ff_core::backend::suspension::{
    NO_TIMEOUT_MS, ResumeExecutionArgs, ResumeTrigger, SuspendArgs, SuspendedCursor, SuspensionReasonCode,
};
use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use ff_core::partition::PartitionKey;
use ff_core::{Result, TimestampMs};

use super::fixtures::*;
use crate::expect::invalid;
use crate::{World, cases};

cases!["suspension":
    suspended_executions_are_listed_soonest_timeout_first,
    a_listing_of_suspended_executions_is_paged_without_gaps,
    a_cursor_whose_entry_is_gone_goes_on_after_its_place,
    a_listing_of_suspended_executions_shows_one_partition,
    timeouts_beyond_all_listings_are_paged_like_none,
];

async fn suspended_until(world: &World, timeout_at: Option<TimestampMs>) -> ExecutionId {
    let (id, handle) = world.claim_one().await;
    let args = SuspendArgs { timeout_at, reason_code: SuspensionReasonCode::WaitingForApproval, ..ask(world) };
    park_with(world, id, handle, args).await;
    id
}

fn place(world: &World) -> PartitionKey {
    world.execution_id().partition().into()
}

async fn page(world: &World, cursor: Option<SuspendedCursor>, limit: usize) -> Result<Vec<ExecutionId>> {
    let page = world.backend.list_suspended(&place(world), cursor, limit).await?;
    Ok(page.entries.into_iter().map(|entry| entry.execution_id).collect())
}

/// Every execution, `limit` at a time.
async fn walk(world: &World, limit: usize) -> Vec<ExecutionId> {
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.backend.list_suspended(&place(world), cursor, limit).await.unwrap();
        assert!(page.entries.len() <= limit);
        seen.extend(page.entries.iter().map(|entry| entry.execution_id));
        if page.next_cursor.is_none() {
            return seen;
        }
        assert_eq!(page.next_cursor, page.entries.last().map(|entry| entry.cursor()));
        cursor = page.next_cursor;
    }
}

async fn suspended_executions_are_listed_soonest_timeout_first(world: World) {
    seed(&world).await;
    let now = world.now();
    let never = suspended_until(&world, None).await;
    let late = suspended_until(&world, Some(now.plus(9000))).await;
    let soon = suspended_until(&world, Some(now.plus(1000))).await;
    world.claim_one().await;

    let page = world.backend.list_suspended(&place(&world), None, 10).await.unwrap();

    let listed: Vec<_> = page.entries.iter().map(|entry| (entry.execution_id, entry.timeout_at)).collect();
    assert_eq!(listed, [(soon, Some(now.plus(1000))), (late, Some(now.plus(9000))), (never, None)]);
    assert!(page.entries.iter().all(|entry| entry.reason == SuspensionReasonCode::WaitingForApproval));
    assert_eq!(page.next_cursor, None);
    let empty = world.backend.list_suspended(&place(&world), None, 0).await.unwrap();
    assert_eq!((empty.entries.len(), empty.next_cursor), (0, None));
}

async fn a_listing_of_suspended_executions_is_paged_without_gaps(world: World) {
    seed(&world).await;
    let at = Some(world.now().plus(1000));
    let mut ids = Vec::new();
    for timeout in [at, at, at, None, None] {
        ids.push(suspended_until(&world, timeout).await);
    }
    for limit in 1..=6 {
        let seen = walk(&world, limit).await;
        assert_eq!(seen, ids, "ids are minted in order, {limit} at a time");
    }
}

async fn a_cursor_whose_entry_is_gone_goes_on_after_its_place(world: World) {
    seed(&world).await;
    let now = world.now();
    let first = suspended_until(&world, Some(now.plus(1000))).await;
    let second = suspended_until(&world, Some(now.plus(2000))).await;
    let cursor = world.backend.list_suspended(&place(&world), None, 1).await.unwrap().next_cursor;
    world.backend.resume_execution(ResumeExecutionArgs::new(first, ResumeTrigger::Operator)).await.unwrap();
    assert_eq!(page(&world, cursor, 10).await.unwrap(), [second]);
}

async fn a_listing_of_suspended_executions_shows_one_partition(world: World) {
    seed(&world).await;
    suspended_until(&world, None).await;
    let home = world.execution_id().partition().index();
    let elsewhere = PartitionKey(format!("{{fp:{}}}", home ^ 1));
    assert_eq!(world.backend.list_suspended(&elsewhere, None, 10).await.unwrap().entries, []);
    let nonsense = PartitionKey("fp:1".into());
    invalid(world.backend.list_suspended(&nonsense, None, 0).await, ValidationKind::InvalidInput);
}

async fn timeouts_beyond_all_listings_are_paged_like_none(world: World) {
    seed(&world).await;
    let far = suspended_until(&world, Some(TimestampMs(NO_TIMEOUT_MS + 5))).await;
    let never = suspended_until(&world, None).await;
    assert_eq!(walk(&world, 1).await, [far, never]);
}
