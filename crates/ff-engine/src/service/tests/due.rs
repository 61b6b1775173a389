//! Due work, at its time, shared by all.

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::{Claims, Leases};
use ff_core::capability::CapabilitySet;
use ff_core::state::OwnershipState;

use super::*;

#[tokio::test]
async fn a_delay_ends_at_its_time() {
    let (clock, engine) = on_memory().await;
    let id = delayed(&engine, 1, START.plus(5_000)).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(4_999);
    until_asleep(&timers).await;
    assert!(!is_eligible(&engine, id).await);
    clock.advance(1);
    until("the delay is over", async || is_eligible(&engine, id).await).await;
    until_health(&timers, "it is counted", |health| health.handled == 1).await;
}

#[tokio::test]
async fn an_earlier_delay_wakes_the_sleeper() {
    let (clock, engine) = on_memory().await;
    delayed(&engine, 1, START.plus(60_000)).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    let sooner = delayed(&engine, 2, START.plus(1_000)).await;
    clock.advance(1_000);
    until("the earlier one is over", async || is_eligible(&engine, sooner).await).await;
}

#[tokio::test]
async fn the_first_work_of_an_idle_deployment_is_noticed() {
    let (clock, engine) = on_memory().await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    let id = delayed(&engine, 1, START.plus(1_000)).await;
    clock.advance(1_000);
    until("it is over", async || is_eligible(&engine, id).await).await;
}

#[tokio::test]
async fn later_work_wakes_nobody() {
    let (clock, engine) = on_memory().await;
    let first = delayed(&engine, 0, START.plus(1_000)).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    for n in 1..=500 {
        delayed(&engine, n, START.plus(1_000 + n)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(timers.health().wakeups, 0);
    clock.advance(1_000);
    until("the first one is over", async || is_eligible(&engine, first).await).await;
}

#[tokio::test]
async fn leases_that_are_renewed_cost_few_looks() {
    let (clock, engine) = on_memory().await;
    delayed(&engine, 1, START).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until("it is claimable", async || is_eligible(&engine, id(1)).await).await;
    let policy = ClaimPolicy::new("w".parse().unwrap(), "w-1".parse().unwrap(), 30_000);
    let handle = engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap().expect("work");
    let before = timers.health().wakeups;
    for _ in 0..60 {
        clock.advance(10_000);
        engine.renew(&handle).await.unwrap();
        until_asleep(&timers).await;
    }
    // Ten minutes: one look per old expiry, and each of those is at least twenty seconds after the last.
    let looks = timers.health().wakeups - before;
    assert!((15..=31).contains(&looks), "{looks}");
    clock.advance(30_000);
    until("the lease runs out", async || {
        let found = execution(&engine, id(1)).await.unwrap();
        found.state().ownership_state == OwnershipState::LeaseExpiredReclaimable
    })
    .await;
}

#[tokio::test]
async fn several_services_share_the_work_and_each_counts_its_own() {
    let clock = ManualClock::at(START);
    let store = memory(&clock);
    let mut services = Vec::new();
    let engine = open(Arc::clone(&store)).await;
    for n in 0..1_000 {
        delayed(&engine, n, START.plus(1_000)).await;
    }
    for _ in 0..4 {
        let timers = Timers::start(open(Arc::clone(&store)).await, quiet());
        until_asleep(&timers).await;
        services.push(timers);
    }
    clock.advance(1_000);
    let handled = || services.iter().map(|timers| timers.health().handled).collect::<Vec<_>>();
    until("all delays are over", async || handled().iter().sum::<u64>() >= 1_000).await;
    for timers in &services {
        until_asleep(timers).await;
    }
    let handled = handled();
    assert_eq!(handled.iter().sum::<u64>(), 1_000, "{handled:?}");
    assert!(handled.iter().all(|handled| *handled < 900), "one did it nearly all: {handled:?}");
    let tried: u64 = services.iter().map(|timers| timers.health().elsewhere).sum();
    assert!(tried < 1_000, "{tried} items were tried in vain: {handled:?}");
}

#[tokio::test]
async fn what_was_left_undone_before_the_start_is_done_at_once() {
    let (clock, engine) = on_memory().await;
    let id = delayed(&engine, 1, START.plus(10)).await;
    clock.advance(3_600_000);
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until("it is over", async || is_eligible(&engine, id).await).await;
    until_health(&timers, "the lateness is known", |health| health.lateness_ms >= 3_599_990).await;
}

#[tokio::test]
async fn a_clock_that_jumps_does_no_harm() {
    let (clock, engine) = on_memory().await;
    let near = delayed(&engine, 1, START.plus(1_000)).await;
    let far = delayed(&engine, 2, START.plus(86_400_000)).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.set(TimestampMs(START.0 - 3_600_000));
    until_asleep(&timers).await;
    assert!(!is_eligible(&engine, near).await);
    clock.set(START.plus(1_000));
    until("the near one is over", async || is_eligible(&engine, near).await).await;
    clock.set(START.plus(172_800_000));
    until("the far one is over", async || is_eligible(&engine, far).await).await;
}

#[tokio::test]
async fn after_stopping_nothing_runs() {
    let (clock, engine) = on_memory().await;
    let id = delayed(&engine, 1, START.plus(1_000)).await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    timers.stop().await;
    clock.advance(1_000);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!is_eligible(&engine, id).await);
    assert_eq!(Arc::strong_count(&engine), 1, "nobody holds the engine");
}

#[tokio::test]
async fn dropping_ends_the_loops() {
    let (_clock, engine) = on_memory().await;
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    drop(timers);
    until("the loops are gone", async || Arc::strong_count(&engine) == 1).await;
}
