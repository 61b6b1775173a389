//! Four processes on one deployment, on a server and on a cluster: under mixed load no error but documented ones, nothing is owned twice,
//! everybody sees everything that happens, everything ends.
//!
//! `FF_LOAD_SECONDS` says for how long.

mod site;

use std::process::ExitCode;
use std::sync::Arc;

use ff_engine::records::Record;
use ff_engine::store::Inspect;
use ff_test_load::mixed::{self, Shift};
use ff_test_load::processes;
use ff_test_load::site::{Site as _, command, finish, has_sound_indexes, orders};
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::site::Site;

/// Slots that the deployment on the cluster spreads over.
const SHARDS: u16 = 6;

/// What a process does, and where.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Orders {
    site: Site,
    shift: Shift,
}

fn main() -> ExitCode {
    if let Some(orders) = orders() {
        work(&orders);
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::test("four_processes_share_a_server", || on_a_server(share)),
        Trial::test("four_processes_share_a_cluster", || on_a_cluster(share)),
        Trial::test("a_reader_that_misses_an_event_would_be_noticed", || on_a_server(processes::a_gap_is_noticed)),
        Trial::test("a_reader_that_misses_an_event_of_a_cluster_would_be_noticed", || {
            on_a_cluster(processes::a_gap_is_noticed)
        }),
        Trial::test("index_entries_that_are_missing_or_left_over_would_be_noticed", wrong_entries),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Works as ordered.
fn work(orders: &Orders) {
    finish(async {
        let backend = Arc::new(orders.site.open(None).await.expect("the store opens"));
        mixed::work(backend, orders.shift).await;
    });
}

fn on_a_server(test: fn(&Site) -> Result<(), Failed>) -> Result<(), Failed> {
    let server = ValkeyServer::start(ValkeyServerOptions::default())?;
    test(&Site::server(server.url()))
}

fn on_a_cluster(test: fn(&Site) -> Result<(), Failed>) -> Result<(), Failed> {
    let cluster = ValkeyCluster::start(&ValkeyServerOptions::default(), 3, 1)?;
    test(&Site { urls: vec![cluster.url()], shards: Some(SHARDS), replicas: 0 })
}

/// They lay the deployment out at once, too.
fn share(site: &Site) -> Result<(), Failed> {
    processes::share(site, |shift| command(&Orders { site: site.clone(), shift }))
}

fn wrong_entries() -> Result<(), Failed> {
    let server = ValkeyServer::start(ValkeyServerOptions::default())?;
    finish(async {
        let backend = Site::server(server.url()).open(None).await?;
        let store = backend.store();
        processes::create(&backend, 1).await?;
        has_sound_indexes(store).await?;
        server.ask(&["ZADD", "{ff:0:0}ia-list", "0", "nobody"])?;
        let left_over = has_sound_indexes(store).await;
        for record in store.records().await?.iter().filter(|record| matches!(record, Record::Execution(_))) {
            store.lose_index_entries(record.key()).await?;
        }
        let missing = has_sound_indexes(store).await;
        has_sound_indexes(store).await?;
        if left_over.is_err() && missing.is_err() { Ok(()) } else { Err("nobody noticed".into()) }
    })
}
