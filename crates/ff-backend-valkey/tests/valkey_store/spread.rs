//! Work spreads over a cluster.

use ff_engine::Settings;

use crate::{finish, keys, open, submit, support};

/// Executions that are spread.
const COUNT: usize = 3_000;

/// The least that each of three primaries may have of it.
const LEAST_PERCENT: usize = 15;

/// How many records of executions, and how many commands a server has.
async fn load(server: &ff_test_servers::valkey::ValkeyServer) -> (usize, u64) {
    let is_execution = |key: &Vec<u8>| key.windows(2).any(|pair| pair == b"}r") && key.last() == Some(&1);
    let executions = keys(server).await.iter().filter(|key| is_execution(key)).count();
    (executions, crate::told(server, "stats", "total_commands_processed"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stdout, reason = "the figures are for people")]
async fn work_spreads_over_all_primaries() {
    let cluster = support::start_cluster(0);
    let options = ff_backend_valkey::ValkeyOptions::new(&cluster.url()).unwrap();
    let (engine, _) = open(options, Settings::default()).await;
    let mut before = Vec::new();
    for node in cluster.nodes() {
        before.push(load(node).await.1);
    }
    submit(&engine, COUNT, b"input").await;
    assert_eq!(finish(&engine, b"result").await, COUNT);
    let mut loads = Vec::new();
    for (node, before) in cluster.nodes().iter().zip(before) {
        let (executions, commands) = load(node).await;
        loads.push((executions, commands - before));
    }
    println!("executions and commands of each primary: {loads:?}");
    let commands: u64 = loads.iter().map(|(_, commands)| commands).sum();
    assert_eq!(loads.iter().map(|(executions, _)| executions).sum::<usize>(), COUNT);
    for (executions, busy) in loads {
        assert!(executions * 100 >= COUNT * LEAST_PERCENT, "{executions} of {COUNT} executions");
        assert!(busy * 100 >= commands * LEAST_PERCENT as u64, "{busy} of {commands} commands");
    }
}
