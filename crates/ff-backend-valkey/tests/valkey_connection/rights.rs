//! Users with a password, and with no more rights than a store needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::cursor::EventCursor;
use ff_core::error::ErrorClass;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::state::LaneState;
use ff_core::{Result, TimestampMs};
use ff_engine::event::{Event, EventBody};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::Key;
use ff_engine::records::{Lane, Record};
use ff_engine::store::{Op, Store, Tx};
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};

use crate::{refusal, start, start_cluster, works};

/// Commands that only some deployments need.
const FOR_SOME: [&str; 6] = ["cluster|slots", "zscore", "ping", "asking", "wait", "select"];

/// Everything there can be.
const ALWAYS: TimestampMs = TimestampMs(i64::MAX);

/// Writes or removes a lane, and says so.
struct Change {
    is_there: bool,
}

#[async_trait]
impl Op for Change {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let (namespace, lane) = (Namespace::new("acme")?, LaneId::new("mail")?);
        if self.is_there {
            let (namespace, lane) = (namespace.clone(), lane.clone());
            let state = LaneState::Active;
            tx.put_record(Record::from(Lane { namespace, lane, state, since: TimestampMs(0), reason: String::new() }));
        } else {
            tx.delete(Key::lane(namespace.clone(), lane.clone()));
        }
        let body = EventBody::LaneStateChanged { lane: lane.to_string(), state: String::new(), reason: String::new() };
        let partition = Partition::GLOBAL;
        tx.emit(Event { partition, namespace, execution_id: None, tags: BTreeMap::new(), at: TimestampMs(0), body });
        Ok(())
    }
}

/// Does everything that a store can do.
async fn exercise(options: ValkeyOptions) -> Result<()> {
    let store = ValkeyStore::connect(options).await?;
    let mut cursor = store.events(&EventCursor::TAIL, 1).await?.next;
    store.transact(Arc::new(Change { is_there: true })).await?;
    store.reindex(Partition::GLOBAL).await?;
    store.transact(Arc::new(Change { is_there: false })).await?;
    for _ in 0..2 {
        let page = store.events(&cursor, 1).await?;
        assert_eq!(page.events.len(), 1);
        cursor = page.next;
    }
    store.trim_events(ALWAYS, 10).await?;
    store.count(&Index::Lanes).await?;
    store.list(&[Index::Lanes], &Bounds::first(1)).await?;
    let id = ExecutionId::new(0, uuid::Uuid::nil());
    store.count(&Index::AttemptsOf(id)).await?;
    Ok(())
}

fn set_user(server: &ValkeyServer, name: &str, rules: &str) {
    let command = ["ACL", "SETUSER", name, "reset", "on", ">geheim"];
    let command: Vec<&str> = command.into_iter().chain(rules.split(' ')).collect();
    server.ask(&command).unwrap();
}

fn options(server: &ValkeyServer, user: &str, prefix: &str) -> ValkeyOptions {
    let url = format!("redis://{user}:geheim@127.0.0.1:{}?prefix={prefix}", server.port());
    ValkeyOptions::new(&url).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_that_are_told_are_enough() {
    let server = start(ValkeyServerOptions::default());
    let own = options(&server, "anna", "jobs");
    set_user(&server, "anna", &own.access_rules());
    exercise(own.clone()).await.unwrap();
    works(own).await;
    let numbered = format!("redis://anna:geheim@127.0.0.1:{}/3?prefix=jobs", server.port());
    exercise(ValkeyOptions::new(&numbered).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_that_are_told_are_enough_on_a_cluster_with_replicas() {
    let cluster = ValkeyCluster::start(&ValkeyServerOptions::default(), 3, 1).unwrap();
    let own = options(&cluster.nodes()[0], "anna", "jobs").cluster(true).shards(6);
    for node in cluster.nodes() {
        set_user(node, "anna", &own.access_rules());
    }
    let own = own.wait_for_replicas(1, Duration::from_secs(5));
    exercise(own.clone()).await.unwrap();
    works(own).await;
}

#[tokio::test]
async fn whatever_right_is_missing_is_named() {
    let server = start(ValkeyServerOptions::default());
    let rules = options(&server, "anna", "jobs").access_rules();
    let needed: Vec<&str> = rules.split(' ').filter(|rule| !FOR_SOME.iter().any(|some| rule.ends_with(some))).collect();
    for missing in &needed {
        let prefix = format!("case-{}", missing.bytes().fold(0_u32, |sum, byte| sum * 31 % 65_521 + u32::from(byte)));
        let own = options(&server, "anna", &prefix);
        let less = rules.split(' ').filter(|rule| rule != missing).collect::<Vec<_>>().join(" ");
        set_user(&server, "anna", &less.replace("jobs", &prefix));
        let error = exercise(own).await.expect_err(missing);
        let told = error.to_string();
        assert_eq!(error.class(), ErrorClass::Terminal, "without {missing}: {told}");
        assert!(told.contains("may not do that") && told.contains("access_rules"), "without {missing}: {told}");
        let named = match missing.strip_prefix('+') {
            Some(command) => told.contains(&format!("'{command}'")),
            None => told.contains("key") || told.contains("channel"),
        };
        assert!(named, "without {missing}: {told}");
    }
}

#[tokio::test]
async fn a_user_of_one_deployment_has_no_way_into_another() {
    let server = start(ValkeyServerOptions::default());
    exercise(ValkeyOptions::new(&server.url()).unwrap().prefix("other").unwrap()).await.unwrap();
    set_user(&server, "anna", &options(&server, "anna", "jobs").access_rules());
    let (class, told) = refusal(options(&server, "anna", "other")).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("may not do that") && !told.contains("geheim"), "{told}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = start(ValkeyServerOptions::default());
    set_user(&server, "anna", "+@all ~* &*");
    server.ask(&["CONFIG", "SET", "requirepass", "richtig"]).unwrap();
    let at = |who: &str| ValkeyOptions::new(&format!("redis://{who}127.0.0.1:{}", server.port())).unwrap();
    for who in ["anna:falsch@", ":falsch@", "berta:falsch@"] {
        for is_cluster in [false, true] {
            let (class, told) = refusal(at(who).cluster(is_cluster)).await;
            assert_eq!(class, ErrorClass::Terminal, "{told}");
            assert!(told.contains("does not let us in") && told.contains("Check user and password"), "{told}");
            assert!(!told.contains("falsch") && !told.contains("geheim") && !told.contains("richtig"), "{told}");
        }
    }
    let (class, told) = refusal(at("")).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("Write user and password into the URL"), "{told}");

    exercise(at("anna:geheim@")).await.unwrap();
    exercise(at(":richtig@")).await.unwrap();
}

/// Refuses the password at every reconnect, until it is changed back.
async fn outlives_a_refused_password(servers: &[ValkeyServer], own: ValkeyOptions) {
    let everywhere = |command: &[&str]| servers.iter().for_each(|server| drop(server.ask(command).unwrap()));
    for server in servers {
        set_user(server, "anna", &own.access_rules());
    }
    let store = ValkeyStore::connect(own).await.unwrap();
    store.transact(Arc::new(Change { is_there: true })).await.unwrap();
    everywhere(&["ACL", "SETUSER", "anna", "resetpass", ">anders"]);
    everywhere(&["CLIENT", "KILL", "USER", "anna"]);
    for _ in 0..3 {
        let error = store.transact(Arc::new(Change { is_there: false })).await.unwrap_err();
        let told = error.to_string();
        assert_eq!(error.class(), ErrorClass::Terminal, "{told}");
        assert!(told.contains("does not let us in any more") && told.contains("Check whether"), "{told}");
        assert!(!told.contains("geheim") && !told.contains("anders"), "{told}");
    }
    everywhere(&["ACL", "SETUSER", "anna", "resetpass", ">geheim"]);
    store.transact(Arc::new(Change { is_there: false })).await.unwrap();
    assert_eq!(store.count(&Index::Lanes).await.unwrap(), 0);
}

#[tokio::test]
async fn a_password_that_was_refused_for_a_while_is_shown_again() {
    let server = start(ValkeyServerOptions::default());
    let own = options(&server, "anna", "jobs");
    outlives_a_refused_password(&[server], own).await;
}

#[tokio::test]
async fn a_password_that_a_cluster_refused_for_a_while_is_shown_again() {
    let cluster = start_cluster(&ValkeyServerOptions::default());
    let own = options(&cluster.nodes()[0], "anna", "jobs").cluster(true).shards(6);
    outlives_a_refused_password(cluster.nodes(), own).await;
}
