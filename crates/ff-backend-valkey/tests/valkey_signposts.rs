//! How claims find work on a cluster without asking every shard.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod work;

use ff_backend_valkey::{ValkeyBackend, ValkeyOptions, ValkeyStore};
use ff_engine::{Engine, Settings};
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServerOptions};
use work::{create, take};

/// Claims that are counted together.
const CLAIMS: u64 = 50;

/// Commands that one claim on an idle lane may cost: the classes of the lane, its state, signs of queues, and signs of parked executions.
const COMMANDS_MAX: u64 = 5;

/// Three primaries of its own, because their commands are counted.
fn start() -> ValkeyCluster {
    ValkeyCluster::start(&ValkeyServerOptions::default(), 3, 0).unwrap_or_else(|error| panic!("{error}"))
}

async fn open(cluster: &ValkeyCluster, prefix: &str, shards: u16) -> ValkeyBackend {
    let options = ValkeyOptions::new(&cluster.url()).unwrap().prefix(prefix).unwrap().shards(shards);
    Engine::open(ValkeyStore::connect(options).await.unwrap(), Settings::default()).await.unwrap()
}

async fn take_all(process: &ValkeyBackend) -> usize {
    let mut taken = 0;
    while take(process).await {
        taken += 1;
    }
    taken
}

/// Calls of functions that all primaries have counted.
fn calls(cluster: &ValkeyCluster) -> u64 {
    let count = |line: &str| -> Option<u64> {
        let rest =
            line.strip_prefix("cmdstat_fcall_ro:calls=").or_else(|| line.strip_prefix("cmdstat_fcall:calls="))?;
        rest.split(',').next()?.parse().ok()
    };
    let stats = cluster.nodes().iter().map(|node| node.ask(&["INFO", "commandstats"]).unwrap());
    stats.map(|told| told.lines().filter_map(count).sum::<u64>()).sum()
}

/// Does something to the signs of a deployment, wherever they are: `KEY` stands for each of its sets. Says how many signs were there.
fn with_signs(cluster: &ValkeyCluster, prefix: &str, what: &str) -> usize {
    let script = format!(
        "local count = 0
         for _, KEY in ipairs(redis.call('KEYS', '{{{prefix}}}s*')) do count = count + redis.call('ZCARD', KEY) {what} end
         return count"
    );
    let told = cluster.nodes().iter().map(|node| node.ask(&["EVAL", &script, "0"]).unwrap());
    told.map(|count| count.parse::<usize>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_on_an_idle_lane_costs_the_same_however_many_shards_there_are() {
    let cluster = start();
    for shards in [6, 24] {
        let prefix = format!("idle-{shards}");
        let process = open(&cluster, &prefix, shards).await;
        create(&process).await;
        assert_eq!(take_all(&process).await, 1);
        // Nobody need follow old signs.
        with_signs(&cluster, &prefix, "redis.call('UNLINK', KEY)");
        let before = calls(&cluster);
        for _ in 0..CLAIMS {
            assert!(!take(&process).await);
        }
        let cost = calls(&cluster) - before;
        assert!((CLAIMS..=CLAIMS * COMMANDS_MAX).contains(&cost), "{cost} commands with {shards} shards");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_another_process_adds_is_found_at_once_in_every_shard() {
    let cluster = start();
    let (one, other) = (open(&cluster, "two", 12).await, open(&cluster, "two", 12).await);
    for _ in 0..100 {
        create(&other).await;
        assert!(take(&one).await, "it was there before the claim");
    }
    assert!(!take(&one).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_signs_are_taken_down_only_where_they_lead_to_nothing() {
    let cluster = start();
    let process = open(&cluster, "old", 6).await;
    for _ in 0..60 {
        create(&process).await;
    }
    assert_eq!(take_all(&process).await, 60);
    assert!(with_signs(&cluster, "old", "") >= 6, "work was everywhere");
    let age = "for _, shard in ipairs(redis.call('ZRANGE', KEY, 0, -1)) do redis.call('ZADD', KEY, 1, shard) end";
    with_signs(&cluster, "old", age);
    assert!(!take(&process).await);
    assert_eq!(with_signs(&cluster, "old", ""), 0, "all of them led to nothing");

    let newcomer = open(&cluster, "old", 6).await;
    for _ in 0..10 {
        create(&newcomer).await;
    }
    with_signs(&cluster, "old", age);
    assert!(take(&process).await);
    assert!(with_signs(&cluster, "old", "") > 0, "the others are still pointed out");
    assert_eq!(take_all(&process).await, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_signs_were_lost_is_found_by_a_look_everywhere() {
    let cluster = start();
    let process = open(&cluster, "lost", 6).await;
    for _ in 0..30 {
        create(&process).await;
    }
    assert!(with_signs(&cluster, "lost", "redis.call('UNLINK', KEY)") > 0);
    let newcomer = open(&cluster, "lost", 6).await;
    assert!(take(&newcomer).await, "it begins with a look everywhere");
    assert!(with_signs(&cluster, "lost", "") > 0, "it puts up what is missing");
    assert_eq!(take_all(&newcomer).await, 29);
}
