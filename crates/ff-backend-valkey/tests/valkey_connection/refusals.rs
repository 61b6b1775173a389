//! Servers that cannot be used, and deployments that this program does not understand.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::error::ErrorClass;
use ff_test_servers::valkey::ValkeyServerOptions;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::{refusal, start, start_cluster};

/// Longer than it takes to find that nobody listens, and shorter than any timeout.
const SOON: Duration = Duration::from_secs(4);

fn options(url: &str) -> ValkeyOptions {
    ValkeyOptions::new(url).unwrap()
}

#[tokio::test]
async fn where_nobody_listens_the_server_is_unreachable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for parameters in ["", "?cluster=true"] {
        let began = Instant::now();
        let (class, told) = refusal(options(&format!("redis://anna:geheim@127.0.0.1:{port}{parameters}"))).await;
        assert_eq!(class, ErrorClass::Retryable, "{told}");
        assert!(told.contains(&format!("no connection to 127.0.0.1:{port}")) && !told.contains("geheim"), "{told}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = start(ValkeyServerOptions::default());
    for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
        server.ask(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
        let (class, told) = refusal(options(&server.url())).await;
        assert_eq!(class, ErrorClass::Terminal);
        assert!(told.contains(policy) && told.contains("Set maxmemory-policy to noeviction"), "{told}");
    }
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    ValkeyStore::connect(options(&server.url())).await.unwrap();
}

#[tokio::test]
async fn a_cluster_with_one_server_that_evicts_is_refused() {
    let cluster = start_cluster(&ValkeyServerOptions::default());
    for node in cluster.nodes() {
        node.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
        let (_, told) = refusal(options(&cluster.url())).await;
        assert!(told.contains(&format!("127.0.0.1:{} may throw keys away", node.port())), "{told}");
        node.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    }
    ValkeyStore::connect(options(&cluster.url())).await.unwrap();
}

#[tokio::test]
async fn a_node_of_a_cluster_is_no_server_by_itself() {
    let cluster = start_cluster(&ValkeyServerOptions::default());
    for node in cluster.nodes() {
        let (class, told) = refusal(options(&node.url())).await;
        assert_eq!(class, ErrorClass::Terminal, "{told}");
        assert!(told.contains("is a node of a cluster. Add cluster=true"), "{told}");
    }
}

#[tokio::test]
async fn a_server_by_itself_is_no_cluster() {
    let server = start(ValkeyServerOptions::default());
    let (class, told) = refusal(options(&server.url()).cluster(true)).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("no node of a cluster. Leave cluster=true out"), "{told}");
}

#[tokio::test]
async fn a_layout_that_needs_a_newer_program_is_refused() {
    let server = start(ValkeyServerOptions::default());
    ValkeyStore::connect(options(&server.url())).await.unwrap();
    // A newer program has been here, and this one can still use what it left.
    server.ask(&["HSET", "{ff}deployment", "layout", "2"]).unwrap();
    ValkeyStore::connect(options(&server.url())).await.unwrap();

    server.ask(&["HSET", "{ff}deployment", "min_compatible", "2"]).unwrap();
    let (class, told) = refusal(options(&server.url())).await;
    assert_eq!(class, ErrorClass::Terminal);
    assert!(told.contains("layout 2") && told.contains("Use a newer program, or another prefix"), "{told}");
    ValkeyStore::connect(options(&server.url()).prefix("other").unwrap()).await.unwrap();
}

#[tokio::test]
async fn another_number_of_shards_than_laid_out_is_refused() {
    let cluster = start_cluster(&ValkeyServerOptions::default());
    let store = ValkeyStore::connect(options(&cluster.url()).shards(4)).await.unwrap();
    assert_eq!(store.shards(), 4);
    let (class, told) = refusal(options(&cluster.url()).shards(8)).await;
    assert_eq!(class, ErrorClass::Terminal);
    assert!(told.contains("laid out with 4 shards, not 8"), "{told}");
    assert_eq!(
        ValkeyStore::connect(options(&cluster.url())).await.unwrap().shards(),
        4,
        "who wants no number takes it"
    );
}

/// What was warned of.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::WARN {
            let mut told = self.0.lock().unwrap();
            event.record(&mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
                told.push_str(&format!("{field}={value:?} "));
            });
        }
    }
}

/// What is warned of while a store opens.
async fn warnings(options: ValkeyOptions) -> String {
    let warnings = Warnings::default();
    let heard = tracing::subscriber::set_default(tracing_subscriber::registry().with(warnings.clone()));
    ValkeyStore::connect(options).await.unwrap();
    drop(heard);
    let told = warnings.0.lock().unwrap();
    told.clone()
}

#[tokio::test]
async fn a_server_without_an_append_only_file_is_warned_of() {
    let server = start(ValkeyServerOptions::default());
    server.ask(&["ACL", "SETUSER", "anna", "on", ">geheim", "+@all", "~*", "&*"]).unwrap();
    let told = warnings(options(&format!("redis://anna:geheim@127.0.0.1:{}", server.port()))).await;
    assert!(told.contains(&format!("127.0.0.1:{}", server.port())), "{told}");
    assert!(told.contains("no append-only file") && !told.contains("geheim"), "{told}");

    let durable = start(ValkeyServerOptions::default().durable(true));
    assert_eq!(warnings(options(&durable.url())).await, "");
}
