//! One server and one cluster for all cases of a test program, and for each of them a store with a prefix of its own.

#![allow(dead_code, reason = "not every program has use for everything")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};

static SERVER: LazyLock<ValkeyServer> = LazyLock::new(start);

static CLUSTER: LazyLock<ValkeyCluster> = LazyLock::new(|| start_cluster(1));

static PREFIXES: AtomicU64 = AtomicU64::new(0);

/// How a store works.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) fast_paths: bool,
    /// On the cluster, spread over so many slots; otherwise on the server.
    pub(crate) cluster_shards: Option<u16>,
}

/// As it works unless told otherwise.
pub(crate) const FAST: Form = Form { fast_paths: true, cluster_shards: None };

/// No shortcuts.
pub(crate) const GENERAL: Form = Form { fast_paths: false, cluster_shards: None };

/// On the cluster, spread over some slots.
pub(crate) const CLUSTER_OF_SHARDS: Form = Form { fast_paths: true, cluster_shards: Some(6) };

/// On the cluster, all in one slot.
pub(crate) const CLUSTER_OF_ONE: Form = Form { fast_paths: true, cluster_shards: Some(1) };

/// A server for one case alone.
pub(crate) fn start() -> ValkeyServer {
    ValkeyServer::start(ValkeyServerOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// A cluster for one case alone: three primaries with so many replicas each.
pub(crate) fn start_cluster(replicas: usize) -> ValkeyCluster {
    ValkeyCluster::start(&ValkeyServerOptions::default(), 3, replicas).unwrap_or_else(|error| panic!("{error}"))
}

/// The server of all cases.
pub(crate) fn server() -> &'static ValkeyServer {
    &SERVER
}

/// The cluster of all cases.
pub(crate) fn cluster() -> &'static ValkeyCluster {
    &CLUSTER
}

/// A prefix that nobody has used.
pub(crate) fn fresh_prefix() -> String {
    format!("case-{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

/// How to reach a deployment.
pub(crate) fn options(prefix: &str, form: Form) -> Result<ValkeyOptions> {
    let url = if form.cluster_shards.is_some() { cluster().url() } else { server().url() };
    at(&url, prefix, form)
}

/// How to reach a deployment at some place.
pub(crate) fn at(url: &str, prefix: &str, form: Form) -> Result<ValkeyOptions> {
    let options = ValkeyOptions::new(url)?.prefix(prefix)?.fast_paths(form.fast_paths);
    Ok(match form.cluster_shards {
        Some(shards) => options.shards(shards),
        None => options,
    })
}

/// A store.
pub(crate) async fn connect(prefix: &str, clock: Arc<dyn Clock>, form: Form) -> Result<ValkeyStore> {
    ValkeyStore::connect(options(prefix, form)?.clock(clock)).await
}
