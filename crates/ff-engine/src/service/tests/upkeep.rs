//! What nobody waits for: cleaning up, reconciling, and telling how it goes.

use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::{Attempts, Claims, Dependencies, Flows};
use ff_core::capability::CapabilitySet;
use ff_core::ids::FlowId;
use ff_core::partition::PartitionCounts;
use metrics::{Counter, CounterFn, Gauge, Histogram, HistogramFn, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::json;

use super::odd::{Mood, Odd};
use super::*;
use crate::clock::Clock;
use crate::index::{Bounds, Index};

#[tokio::test]
async fn what_has_been_kept_long_enough_goes_with_its_events() {
    let clock = ManualClock::at(START);
    let settings = Settings { retention_ms: 60_000, event_retention_ms: 60_000, ..Settings::default() };
    let engine = Arc::new(Engine::open(memory(&clock), settings).await.unwrap());
    let minutely =
        TimerOptions { cleanup_every: Duration::from_secs(60), trim_events_every: Duration::from_secs(60), ..quiet() };
    let timers = Timers::start(Arc::clone(&engine), minutely);
    delayed(&engine, 1, START).await;
    until("it is claimable", async || is_eligible(&engine, id(1)).await).await;
    complete_next(&engine).await;
    assert!(!engine.store().event_log().is_empty());
    until_asleep(&timers).await;
    clock.advance(60_000);
    until("it is purged", async || execution(&engine, id(1)).await.is_none()).await;
    until_asleep(&timers).await;
    clock.advance(60_000);
    until("its events are gone", async || engine.store().event_log().is_empty()).await;
}

/// Claims the next execution and completes it.
async fn complete_next<S: Store>(engine: &Engine<S>) {
    let policy = ClaimPolicy::new("w".parse().unwrap(), "w-1".parse().unwrap(), 30_000);
    let handle = engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap().expect("work");
    engine.complete(&handle, None).await.unwrap();
}

#[tokio::test]
async fn while_there_is_always_something_to_purge_the_rest_of_the_upkeep_has_its_turn() {
    let clock = ManualClock::at(START);
    let settings = Settings { retention_ms: 60_000, ..Settings::default() };
    let engine = Arc::new(Engine::open(Odd::new(memory(&clock)), settings).await.unwrap());
    delayed(&engine, 1, START).await;
    complete_next(&engine).await;
    let phantom = engine.store().list(&[Index::Terminal], &Bounds::first(1)).await.unwrap().pop();
    assert!(phantom.is_some());
    *engine.store().phantom.lock().unwrap() = phantom;
    clock.advance(60_000);
    let minute = Duration::from_secs(60);
    let options = TimerOptions { cleanup_every: minute, trim_events_every: minute, tidy_every: minute, ..quiet() };
    let timers = Timers::start(Arc::clone(&engine), options);
    let done = |trims, tidies| {
        let store = engine.store();
        (store.trims.load(Ordering::Acquire), store.tidies.load(Ordering::Acquire)) == (trims, tidies)
    };
    until("events are trimmed", async || done(1, 0)).await;
    until_health(&timers, "some were done elsewhere", |health| health.elsewhere > 1).await;
    let began = std::time::Instant::now();
    let before = timers.health().elsewhere;
    clock.advance(60_000);
    let now = START.plus(120_000);
    until("the store is tidied", async || done(2, 1)).await;
    until_health(&timers, "the pass is told", |health| health.cleanup.last_pass == Some(now)).await;
    let passes = timers.health().elsewhere - before;
    assert!(u128::from(passes) <= 2 + began.elapsed().as_millis() / 100, "{passes} passes without a pause");
}

fn args<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A flow whose first member is over and whose second may still ask how it ended.
async fn awaited<S: Store>(engine: &Engine<S>) -> [ExecutionId; 2] {
    let flow = FlowId::from_uuid(Uuid::from_u128(7));
    let home = engine.counts().flow_index(flow);
    let members = [1, 2].map(|n| ExecutionId::new(home, Uuid::from_u128(n)));
    let created = json!({"flow_id": flow, "namespace": "acme", "flow_kind": "chain"});
    engine.create_flow(args(created)).await.unwrap();
    for id in members {
        let submission = CreateExecutionArgs::new(id, "acme".parse().unwrap(), lane(), "task");
        engine.create_execution(submission).await.unwrap();
        engine.add_execution_to_flow(args(json!({"flow_id": flow, "execution_id": id}))).await.unwrap();
    }
    let revision = engine.describe_flow(flow).await.unwrap().expect("the flow").graph_revision;
    let edge = json!({"flow_id": flow, "edge_id": Uuid::from_u128(9), "upstream_execution_id": members[0],
        "downstream_execution_id": members[1], "expected_graph_revision": revision});
    engine.stage_dependency_edge(args(edge)).await.unwrap();
    complete_next(engine).await;
    members
}

#[tokio::test]
async fn an_execution_that_is_awaited_stays_and_has_not_failed() {
    let clock = ManualClock::at(START);
    let settings = Settings { retention_ms: 60_000, ..Settings::default() };
    let engine = Arc::new(Engine::open(memory(&clock), settings).await.unwrap());
    let [upstream, downstream] = awaited(&engine).await;
    assert!(execution(&engine, upstream).await.is_some_and(|execution| execution.is_terminal()));
    clock.advance(60_000);
    let timers = Timers::start(Arc::clone(&engine), quiet());
    let looked = |at| until_health(&timers, "a look", move |health| health.cleanup.last_pass == Some(at));
    looked(START.plus(60_000)).await;
    assert!(execution(&engine, upstream).await.is_some());
    assert_eq!((timers.health().failing, timers.health().elsewhere), (0, 0));
    complete_next(&engine).await;
    clock.advance(300_000);
    until("both are purged", async || {
        execution(&engine, upstream).await.is_none() && execution(&engine, downstream).await.is_none()
    })
    .await;
    assert_eq!(timers.failing(), []);
}

#[tokio::test]
async fn the_upkeep_keeps_its_turns_when_its_loop_is_started_again() {
    let clock = ManualClock::at(START);
    let engine = open(Odd { odd_index: Index::Terminal, ..Odd::new(memory(&clock)) }).await;
    let options = TimerOptions { tidy_every: Duration::from_secs(60), ..quiet() };
    let timers = Timers::start(Arc::clone(&engine), options);
    until_health(&timers, "a first pass", |health| health.cleanup.last_pass == Some(START)).await;
    engine.store().left.store(1, Ordering::Release);
    clock.advance(60_000);
    until_health(&timers, "a restart", |health| health.cleanup.restarts == 1).await;
    until("the store is tidied", async || engine.store().tidies.load(Ordering::Acquire) == 1).await;
}

/// An engine with four partitions of flows and one of each other kind, and an execution in each that has lost its index entries.
async fn in_disorder(clock: &ManualClock) -> Arc<Engine<Odd>> {
    let [flow, other] = [4, 1].map(|count| NonZeroU16::new(count).unwrap());
    let counts = PartitionCounts { flow, budget: other, quota: other };
    let settings = Settings { counts, ..Settings::default() };
    let engine = Arc::new(Engine::open(Odd::new(memory(clock)), settings).await.unwrap());
    for n in 0..4 {
        delayed(&engine, n, START.plus(1_000_000)).await;
        engine.store().inner.lose_index_entries(&Key::execution(id(n)));
    }
    assert_eq!(in_order(&engine).await, 0);
    engine
}

async fn in_order(engine: &Engine<Odd>) -> u64 {
    engine.store().count(&Index::Created).await.unwrap()
}

/// One round of six partitions takes six seconds.
fn walking() -> TimerOptions {
    TimerOptions { reconcile_every: Duration::from_secs(6), ..quiet() }
}

/// Lets a second pass, and so the turn of one partition.
async fn one_partition(clock: &ManualClock, timers: &Timers) {
    let began = clock.now();
    clock.advance(500);
    let is_done = |health: &TimerHealth| health.reconcile.last_pass.is_some_and(|at| at >= began);
    until_health(timers, "the next partition", is_done).await;
    clock.advance(500);
}

#[tokio::test]
async fn every_partition_is_reconciled_within_a_round() {
    let clock = ManualClock::at(START);
    let engine = in_disorder(&clock).await;
    let timers = Timers::start(Arc::clone(&engine), walking());
    for _ in 0..6 {
        one_partition(&clock, &timers).await;
    }
    assert_eq!(in_order(&engine).await, 4);
}

#[tokio::test]
async fn a_process_that_is_started_again_and_again_still_comes_round() {
    let clock = ManualClock::at(START);
    let engine = in_disorder(&clock).await;
    for _ in 0..6 {
        let timers = Timers::start(Arc::clone(&engine), walking());
        one_partition(&clock, &timers).await;
        timers.stop().await;
    }
    assert_eq!(in_order(&engine).await, 4);
}

#[tokio::test]
async fn a_partition_that_cannot_be_reconciled_holds_up_no_other() {
    for mood in [Mood::Panics, Mood::Refuses] {
        let clock = ManualClock::at(START);
        let engine = in_disorder(&clock).await;
        *engine.store().odd_reindex.lock().unwrap() = Some((id(1).partition(), mood));
        let timers = Timers::start(Arc::clone(&engine), walking());
        for _ in 0..6 {
            one_partition(&clock, &timers).await;
        }
        assert_eq!((in_order(&engine).await, timers.health().restarts()), (3, 0));
    }
}

/// Remembers what was recorded, by name and label.
#[derive(Clone, Default)]
struct Remembered(Arc<Mutex<Vec<(String, f64)>>>);

struct One(Remembered, String);

impl One {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().push((self.1.clone(), value));
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.add(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Remembered {
    fn one(&self, key: &metrics::Key) -> Arc<One> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(One(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn sum(&self, name: &str) -> f64 {
        self.0.lock().unwrap().iter().filter(|(found, _)| found == name).map(|(_, value)| value).sum()
    }
}

impl Recorder for Remembered {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

#[tokio::test]
async fn metrics_tell_what_was_done_how_late_and_what_failed() {
    let recorder = Remembered::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (clock, engine) = on_memory().await;
    delayed(&engine, 1, START.plus(1_000)).await;
    let broken = delayed(&engine, 2, START.plus(1_000)).await;
    engine.store().damage(Key::execution(broken));
    let timers = Timers::start(Arc::clone(&engine), quiet());
    until_asleep(&timers).await;
    clock.advance(3_000);
    until_health(&timers, "both were tried", |health| health.handled == 1 && health.failing == 1).await;
    assert!((recorder.sum("ff_timer_handled_total{kind=delay}") - 1.0).abs() < f64::EPSILON);
    assert!((recorder.sum("ff_timer_failed_total{kind=delay}") - 1.0).abs() < f64::EPSILON);
    assert!((2.0..10.0).contains(&recorder.sum("ff_timer_lateness_seconds{kind=delay}")));
    assert!(recorder.sum("ff_timer_wakeups_total{}") >= 1.0);
}
