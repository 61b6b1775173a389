//! Servers start, keep what they should through a kill, and leave nothing behind.

use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};

#[test]
fn a_durable_server_has_after_a_kill_what_it_had_before() {
    let options = ValkeyServerOptions::default().durable(true).setting("appendfsync", "always");
    let mut server = ValkeyServer::start(options).unwrap();
    server.ask(&["SET", "a", "1"]).unwrap();
    server.restart().unwrap();
    assert_eq!(server.ask(&["GET", "a"]).unwrap(), "1");
}

#[test]
fn a_server_takes_its_directory_along() {
    let server = ValkeyServer::start(ValkeyServerOptions::default()).unwrap();
    let directory = server.directory().to_owned();
    assert!(directory.is_dir());
    drop(server);
    assert!(!directory.exists());
}

#[test]
fn a_cluster_has_a_primary_for_every_slot_and_replicas_that_follow() {
    let cluster = ValkeyCluster::start(&ValkeyServerOptions::default(), 3, 1).unwrap();
    let told = cluster.nodes()[4].ask(&["CLUSTER", "INFO"]).unwrap();
    assert!(told.contains("cluster_state:ok") && told.contains("cluster_slots_assigned:16384"), "{told}");
    assert!(told.contains("cluster_size:3"), "{told}");
    let replication = cluster.nodes()[5].ask(&["INFO", "replication"]).unwrap();
    assert!(replication.contains("role:slave"), "{replication}");
}

#[test]
fn a_cluster_replaces_a_primary_that_was_killed_and_takes_it_back_as_a_replica() {
    let mut cluster = ValkeyCluster::start(&ValkeyServerOptions::default().durable(true), 3, 1).unwrap();
    assert_eq!(cluster.primaries(), [0, 1, 2]);
    cluster.node(1).kill();
    cluster.wait_for_failover().unwrap();
    assert_eq!(cluster.primaries(), [0, 2, 4]);
    cluster.node(1).restart().unwrap();
    cluster.wait_until_whole().unwrap();
    assert_eq!(cluster.primaries(), [0, 2, 4]);
}

#[test]
fn a_slot_of_a_cluster_moves_with_what_it_holds() {
    let cluster = ValkeyCluster::start(&ValkeyServerOptions::default(), 3, 0).unwrap();
    for number in 0..50 {
        cluster.nodes()[0].ask(&["SET", &format!("{{b}}{number}"), "there"]).unwrap();
    }
    let slots = cluster.slots_in_use().unwrap();
    assert_eq!(slots.len(), 1);
    cluster.move_slot(slots[0], 1).unwrap();
    assert_eq!(cluster.nodes()[2].ask(&["GET", "{b}7"]).unwrap(), "there");
    assert!(cluster.nodes()[0].ask(&["GET", "{b}7"]).unwrap_err().to_string().starts_with("MOVED"));
}
