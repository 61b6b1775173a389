//! How much memory a server needs, and that it does not need more and more of it.

use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::TimestampMs;
use ff_engine::clock::ManualClock;
use ff_engine::store::Store;
use ff_engine::{Engine, Settings};
use ff_test_servers::valkey::ValkeyServer;

use crate::{finish, open, submit, support, told};

/// How long executions and events are kept.
const KEPT_MS: u64 = 60_000;

/// Executions of a wave.
const WAVE: usize = 600;

const WAVES: usize = 6;

/// What buffers, tables of keys and scripts may need in one moment, and not in another.
const NOISE_BYTES: u64 = 512 << 10;

/// Executions that are weighed.
const WEIGHED: usize = 20_000;

fn keys_of(servers: &[ValkeyServer]) -> u64 {
    servers.iter().map(|server| server.ask(&["DBSIZE"]).unwrap().parse::<u64>().unwrap()).sum()
}

fn bytes_of(servers: &[ValkeyServer]) -> u64 {
    servers.iter().map(|server| told(server, "memory", "used_memory")).sum()
}

/// Does everything that is due, and drops events that are old.
async fn clean_up(engine: &Engine<ValkeyStore>, clock: &ManualClock) {
    clock.advance(2 * KEPT_MS);
    let now = engine.store().now().await.unwrap();
    while engine.run_due(now, 1_000).await.unwrap().handled > 0 {}
    let old = TimestampMs(now.0 - i64::try_from(KEPT_MS).unwrap());
    while engine.store().trim_events(old, 1_000).await.unwrap() > 0 {}
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
async fn waves_leave_nothing(servers: &[ValkeyServer], options: ValkeyOptions) {
    let settings = Settings { retention_ms: KEPT_MS, event_retention_ms: KEPT_MS, ..Settings::default() };
    let (engine, clock) = open(options, settings).await;
    let mut left = Vec::new();
    for wave in 0..WAVES {
        submit(&engine, WAVE, &[7; 500]).await;
        assert_eq!(finish(&engine, &[8; 500]).await, WAVE);
        let full = (keys_of(servers), bytes_of(servers));
        clean_up(&engine, &clock).await;
        left.push((keys_of(servers), bytes_of(servers)));
        println!("wave {wave}: {full:?} keys and bytes, then {:?}", left[wave]);
        assert!(full.0 > left[wave].0 + WAVE as u64, "there was something to remove");
    }
    // The first one also leaves what is made once.
    for (keys, bytes) in &left[2..] {
        assert!(*keys <= left[1].0, "keys grow: {left:?}");
        assert!(*bytes <= left[1].1 + NOISE_BYTES, "memory grows: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_long_enough_leaves_no_trace_on_a_server() {
    let server = support::start();
    let options = ValkeyOptions::new(&server.url()).unwrap();
    waves_leave_nothing(std::slice::from_ref(&server), options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_long_enough_leaves_no_trace_on_a_cluster() {
    let cluster = support::start_cluster(0);
    let options = ValkeyOptions::new(&cluster.url()).unwrap();
    waves_leave_nothing(cluster.nodes(), options).await;
}

/// Bytes of the log of events, if there is one.
fn events_of(server: &ValkeyServer) -> u64 {
    let log = server.ask(&["KEYS", "{ff:*}e"]).unwrap();
    server.ask(&["MEMORY", "USAGE", &log, "SAMPLES", "0"]).unwrap().parse().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stdout, reason = "the figures are for people")]
async fn an_execution_needs_little_memory() {
    let server = support::start();
    let servers = std::slice::from_ref(&server);
    let (engine, _) = open(ValkeyOptions::new(&server.url()).unwrap(), Settings::default()).await;
    let weigh = || (bytes_of(servers), keys_of(servers), events_of(&server));
    let each = |(bytes, keys, events): (u64, u64, u64), (before, keys_before, events_before): (u64, u64, u64)| {
        let count = WEIGHED as u64;
        ((bytes - before) / count, (keys - keys_before) as f64 / count as f64, (events - events_before) / count)
    };
    let empty = weigh();
    submit(&engine, WEIGHED, &[7; 100]).await;
    let waiting = each(weigh(), empty);
    assert_eq!(finish(&engine, &[8; 100]).await, WEIGHED);
    let finished = each(weigh(), empty);
    println!("each of {WEIGHED} executions with 100 bytes of input and of result needs");
    for (when, (bytes, keys, events)) in [("waiting", waiting), ("finished", finished)] {
        println!("  {when}: {bytes} bytes, {events} of them in events, and {keys:.2} keys");
    }
    assert!(waiting.0 < 3_000 && finished.0 < 4_000, "{waiting:?} {finished:?}");
}
