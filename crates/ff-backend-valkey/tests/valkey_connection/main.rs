//! How a store comes to its server, and which servers it refuses.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod encryption;
mod refusals;
mod rights;

use std::sync::Arc;

use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::backend::EngineBackend;
use ff_core::error::ErrorClass;
use ff_engine::{Engine, Settings};
use ff_sdk::{Client, Context, Task, TaskResult, Worker};
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};

fn start(options: ValkeyServerOptions) -> ValkeyServer {
    ValkeyServer::start(options).unwrap_or_else(|error| panic!("{error}"))
}

fn start_cluster(options: &ValkeyServerOptions) -> ValkeyCluster {
    ValkeyCluster::start(options, 3, 0).unwrap_or_else(|error| panic!("{error}"))
}

/// Why a store does not open.
async fn refusal(options: ValkeyOptions) -> (ErrorClass, String) {
    let error = ValkeyStore::connect(options).await.unwrap_err();
    (error.class(), error.to_string())
}

async fn double(_context: Context, number: u32) -> TaskResult<u32> {
    Ok(number * 2)
}

/// Has some work done from its submission to its result.
async fn works(options: ValkeyOptions) {
    let store = ValkeyStore::connect(options).await.unwrap_or_else(|error| panic!("{error}"));
    let backend: Arc<dyn EngineBackend> = Arc::new(Engine::open(store, Settings::default()).await.unwrap());
    let worker = Worker::builder(Arc::clone(&backend)).on("double", double).start().await.unwrap();
    let client = Client::new(backend, ff_sdk::DEFAULT_NAMESPACE).unwrap();
    for number in 0..8 {
        let run = client.submit(Task::new("double", &number)).await.unwrap();
        assert_eq!(run.result::<u32>().await.unwrap(), number * 2);
    }
    worker.stop().await;
}
