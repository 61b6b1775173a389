//! Lists that hold what no record declares, and their repair beside running work.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ff_backend_valkey::{ValkeyBackend, ValkeyStore};
use ff_core::partition::Partition;
use ff_engine::store::Store;
use ff_engine::{Engine, Settings};
use support::{CLUSTER_OF_SHARDS, FAST, Form, GENERAL};
use work::{create, take};

/// Executions that run while lists are repaired.
const LIFECYCLES: usize = 400;

/// Puts a member that stands for nothing at the head of every list of executions. Such a member is a number, an id of 18 bytes, and a one.
const HAUNT: &str = r"
    local count = 0
    for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
      local first = redis.call('ZRANGE', key, 0, 0)[1]
      if first and #first == 27 and string.byte(first, -1) == 1 then
        count = count + redis.call('ZADD', key, 0, string.rep('\0', 8) .. string.sub(first, 9, 25) .. '\7\1')
      end
    end
    return count";

async fn open(prefix: &str, form: Form) -> Arc<ValkeyBackend> {
    let store = ValkeyStore::connect(support::options(prefix, form).unwrap()).await.unwrap();
    Arc::new(Engine::open(store, Settings::default()).await.unwrap())
}

/// Repairs everything; says how many entries were wrong.
async fn repair(engine: &ValkeyBackend) -> u32 {
    let mut repaired = 0;
    for index in 0..256 {
        repaired += engine.store().reindex_in_round(Partition::flow(index), index == 0).await.unwrap().1;
    }
    repaired
}

fn haunt(prefix: &str, form: Form) -> usize {
    let nodes = match form.cluster_shards {
        None => std::slice::from_ref(support::server()),
        Some(_) => &support::cluster().nodes()[..3],
    };
    let pattern = format!("{{{prefix}:*}}i*");
    let told = nodes.iter().map(|node| node.ask(&["EVAL", HAUNT, "0", &pattern]).unwrap());
    told.map(|count| count.parse::<usize>().unwrap()).sum()
}

async fn ghosts_hide_nobody_and_are_removed(form: Form) {
    let prefix = support::fresh_prefix();
    let engine = open(&prefix, form).await;
    for _ in 0..3 {
        create(&engine).await;
    }
    let ghosts = haunt(&prefix, form);
    assert!(ghosts > 3, "{ghosts}");
    for _ in 0..3 {
        assert!(take(&engine).await, "a ghost stands before it");
    }
    assert!(!take(&engine).await);
    assert_eq!(repair(&engine).await as usize, ghosts);
    assert_eq!(repair(&engine).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_record_is_gone_hides_nobody_on_a_server() {
    ghosts_hide_nobody_and_are_removed(FAST).await;
    ghosts_hide_nobody_and_are_removed(GENERAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_record_is_gone_hides_nobody_on_a_cluster() {
    ghosts_hide_nobody_and_are_removed(CLUSTER_OF_SHARDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repairs_beside_running_work_find_nothing_and_leave_nothing_behind() {
    let engine = open(&support::fresh_prefix(), FAST).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                for _ in 0..LIFECYCLES / 4 {
                    create(&engine).await;
                    while !take(&engine).await {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    let repairing = tokio::spawn({
        let (engine, is_over) = (Arc::clone(&engine), Arc::clone(&is_over));
        async move {
            let mut repaired = 0;
            while !is_over.load(Ordering::Relaxed) {
                repaired += repair(&engine).await;
            }
            repaired
        }
    });
    for caller in callers {
        caller.await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(repairing.await.unwrap(), 0, "nothing was damaged");
    assert_eq!(repair(&engine).await, 0, "it has damaged nothing");
}
