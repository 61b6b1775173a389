//! Items that fail, stores that panic.

use std::sync::atomic::Ordering;

use super::odd::{Mood, Odd};
use super::*;
use crate::index::DueKind;

#[tokio::test]
async fn a_failing_item_is_seen_waits_longer_each_time_and_holds_up_nobody() {
    let (clock, engine) = on_memory().await;
    let broken = delayed(&engine, 1, START.plus(100)).await;
    let sound = delayed(&engine, 2, START.plus(200)).await;
    engine.store().damage(Key::execution(broken));
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(200);
    until("the sound one is over", async || is_eligible(&engine, sound).await).await;
    for (failures, pause) in [(1, 100), (2, 200), (3, 400), (4, 800)] {
        until_health(&timers, "the next try", |health| health.worst.iter().any(|item| item.failures == failures)).await;
        let health = timers.health();
        assert_eq!((health.failing, health.worst[0].kind), (1, DueKind::Delay));
        assert_eq!(health.worst[0].key, Key::execution(broken));
        assert_eq!(health.worst[0].is_poisoned(), failures >= 3);
        let woken = health.wakeups;
        clock.advance(pause - 1);
        until_asleep(&timers).await;
        assert_eq!(timers.health().wakeups, woken, "it waits without looking");
        clock.advance(1);
    }
}

#[tokio::test]
async fn many_failing_items_do_not_keep_the_timers_busy() {
    let (clock, engine) = on_memory().await;
    for n in 0..500 {
        let id = delayed(&engine, n, START.plus(1)).await;
        engine.store().damage(Key::execution(id));
    }
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(1);
    until_health(&timers, "all have failed", |health| health.failing == 500).await;
    until_asleep(&timers).await;
    let woken = timers.health().wakeups;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(timers.health().wakeups <= woken + 1);
    let sound = delayed(&engine, 1_000, START.plus(2)).await;
    clock.advance(1);
    until("the sound one is over", async || is_eligible(&engine, sound).await).await;
}

#[tokio::test]
async fn what_failed_and_is_not_due_any_more_is_forgotten() {
    let (clock, engine) = on_memory().await;
    let broken = delayed(&engine, 1, START.plus(100)).await;
    engine.store().damage(Key::execution(broken));
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(100);
    until_health(&timers, "it failed", |health| health.failing == 1).await;
    engine.store().lose_index_entries(&Key::execution(broken));
    clock.advance(100);
    until_health(&timers, "it is gone", |health| health.failing == 0).await;
}

/// Runs timers on a store that misbehaves so often; says how long they were down altogether.
async fn ride_out(mood: Mood, times: u32) -> Duration {
    let clock = ManualClock::at(START);
    let engine = open(Odd { mood, ..Odd::new(memory(&clock)) }).await;
    let id = delayed(&engine, 1, START.plus(10)).await;
    clock.advance(10);
    engine.store().left.store(times, Ordering::Release);
    let began = tokio::time::Instant::now();
    let timers = Timers::start(Arc::clone(&engine), quiet());
    // Time stands still while this test is busy.
    until_health(&timers, "the first restart", |health| health.restarts() == 1).await;
    let health = timers.health();
    assert!(health.is_down() && health.due.is_down && !health.cleanup.is_down);
    assert!(health.due.last_error.is_some());
    while !is_eligible(&engine, id).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let health = timers.health();
    assert_eq!((health.due.restarts, health.is_down()), (u64::from(times), false));
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_panics_is_started_again_after_a_pause() {
    let down = ride_out(Mood::Panics, 1).await;
    assert!((50..=150).contains(&down.as_millis()), "{down:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_keeps_failing_pauses_longer_each_time_up_to_a_bound() {
    let down = ride_out(Mood::Refuses, 12).await;
    // 0.1 + 0.2 + … + 25.6 s, then three times 30 s, each from half of it on.
    assert!((70_000..=141_200).contains(&down.as_millis()), "{down:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_ran_well_for_a_minute_begins_with_the_first_pause() {
    let clock = ManualClock::at(START);
    let engine = open(Odd::new(memory(&clock))).await;
    engine.store().left.store(8, Ordering::Release);
    let timers = Timers::start(Arc::clone(&engine), quiet());
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(timers.health().due.restarts, 8);
    engine.store().left.store(1, Ordering::Release);
    let id = delayed(&engine, 1, START.plus(10)).await;
    clock.advance(10);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(timers.health().due.restarts, 9);
    assert!(is_eligible(&engine, id).await);
}

#[tokio::test]
async fn more_failing_items_than_one_pass_looks_at_do_not_keep_the_timers_busy() {
    const MANY: u64 = 6_000;
    let clock = ManualClock::at(START);
    let engine = open(Odd::new(memory(&clock))).await;
    for n in 0..MANY {
        let id = delayed(&engine, n, START.plus(1 + n / 100)).await;
        engine.store().inner.damage(Key::execution(id));
    }
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(100);
    let now = START.plus(100);
    until_health(&timers, "a whole round", |health| health.due.last_pass == Some(now) && health.failing as u64 == MANY)
        .await;
    let looks = engine.store().lists.load(Ordering::Acquire);
    let woken = timers.health().wakeups;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((engine.store().lists.load(Ordering::Acquire), timers.health().wakeups), (looks, woken));
    let sound = delayed(&engine, MANY, START.plus(101)).await;
    clock.advance(1);
    until("the sound one is over", async || is_eligible(&engine, sound).await).await;
}

#[tokio::test]
async fn options_without_any_span_keep_nobody_busy() {
    let clock = ManualClock::at(START);
    let engine = open(Odd::new(memory(&clock))).await;
    let none = Duration::ZERO;
    let options = TimerOptions {
        sweep_every: none,
        cleanup_every: none,
        trim_events_every: none,
        tidy_every: none,
        reconcile_every: none,
        concurrency: 0,
    };
    let timers = Timers::start(Arc::clone(&engine), options);
    until_health(&timers, "a first cleanup", |health| health.cleanup.last_pass.is_some()).await;
    until_asleep(&timers).await;
    let looks = engine.store().lists.load(Ordering::Acquire);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(engine.store().lists.load(Ordering::Acquire), looks);
    let id = delayed(&engine, 1, START.plus(1_000)).await;
    clock.advance(1_000);
    until("the delay is over", async || is_eligible(&engine, id).await).await;
}

/// Timers on a store that misbehaves with one of two delays.
async fn one_odd_item(mood: Mood) -> (Arc<Engine<Odd>>, Timers, [ExecutionId; 2]) {
    let clock = ManualClock::at(START);
    let engine = open(Odd::new(memory(&clock))).await;
    let (odd, sound) = (delayed(&engine, 1, START.plus(10)).await, delayed(&engine, 2, START.plus(20)).await);
    *engine.store().odd_home.lock().unwrap() = Some((odd.partition(), mood));
    clock.advance(20);
    let timers = Timers::start(Arc::clone(&engine), quiet());
    (engine, timers, [odd, sound])
}

#[tokio::test]
async fn an_item_that_panics_fails_and_the_loop_goes_on() {
    let (engine, timers, [odd, sound]) = one_odd_item(Mood::Panics).await;
    until("the sound one is over", async || is_eligible(&engine, sound).await).await;
    until_health(&timers, "the other is seen", |health| health.failing == 1).await;
    let health = timers.health();
    assert_eq!((&health.worst[0].key, health.restarts()), (&Key::execution(odd), 0));
    assert!(health.worst[0].why.contains("the store is in a mood"), "{}", health.worst[0].why);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_never_ends_fails_after_a_while_and_keeps_nobody_from_stopping() {
    let (engine, timers, [odd, sound]) = one_odd_item(Mood::NeverAnswers).await;
    let began = tokio::time::Instant::now();
    while timers.health().failing == 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(began.elapsed() < Duration::from_secs(60), "it is waited for");
    }
    assert!(is_eligible(&engine, sound).await);
    assert_eq!(timers.health().worst[0].key, Key::execution(odd));
    tokio::time::timeout(Duration::from_secs(60), timers.stop()).await.expect("the timers stop");
}
