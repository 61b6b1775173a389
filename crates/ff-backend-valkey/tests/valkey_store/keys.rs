//! Whose keys they are, and where they lie.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_core::TimestampMs;
use ff_core::partition::{Partition, PartitionFamily};
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::codec::decode_key;
use ff_engine::memory::MemoryStore;
use ff_engine::store::Inspect;
use ff_sim::{Plan, compare};
use ff_test_servers::valkey::ValkeyServer;

use crate::support::{self, CLUSTER_OF_SHARDS, FAST, Form};

/// Some of everything that can be done.
const STEPS: usize = 250;

fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// Plays a history, which is the same for the same seed, and holds every answer against those of a model that is alone.
fn play(prefix: &str, seed: u64, form: Form) {
    let model = |clock: Arc<dyn Clock>| {
        let store = MemoryStore::new(clock);
        if form.cluster_shards.is_none() { store.spanning_partitions() } else { store }
    };
    let played = compare(
        Plan::new(seed, STEPS),
        async |clock| Ok(model(clock)),
        async |clock| support::connect(prefix, clock, form).await,
    );
    played.unwrap_or_else(|difference| panic!("{prefix}: {difference}"));
}

/// All that a deployment holds.
fn dump(prefix: &str, form: Form) -> (Vec<String>, usize) {
    finish(async {
        let clock = Arc::new(ManualClock::at(TimestampMs(0)));
        let store = support::connect(prefix, clock, form).await.unwrap();
        let mut records: Vec<String> = store.records().await.unwrap().iter().map(|it| format!("{it:?}")).collect();
        records.sort();
        (records, store.event_log().await.unwrap().len())
    })
}

fn deployments_do_not_meet(form: Form) {
    // Their names begin alike, and two of them do the same, so that they have the same ids.
    let one = support::fresh_prefix();
    let [same, other] = ["-same", "-other"].map(|end| format!("{one}{end}"));
    play(&one, 1, form);
    let before = dump(&one, form);
    assert!(!before.0.is_empty() && before.1 > 0);
    play(&same, 1, form);
    assert_eq!(dump(&one, form), before);
    play(&other, 2, form);
    assert_eq!(dump(&one, form), before);
    assert_ne!(dump(&other, form), before);
}

#[test]
fn deployments_on_one_server_see_nothing_of_each_other() {
    deployments_do_not_meet(FAST);
}

#[test]
fn deployments_on_one_cluster_see_nothing_of_each_other() {
    deployments_do_not_meet(CLUSTER_OF_SHARDS);
}

/// The text in the hash tag of a key, the number of the shard that it names, if any, and what follows the tag.
fn tag<'k>(prefix: &str, key: &'k [u8]) -> (String, Option<u16>, &'k [u8]) {
    let foreign = || panic!("{:?} is not ours", String::from_utf8_lossy(key));
    let end = key.iter().position(|byte| *byte == b'}').unwrap_or_else(foreign);
    let tag = String::from_utf8(key[1..end].to_vec()).unwrap();
    let names = tag.strip_prefix(prefix).unwrap_or_else(|| panic!("{tag:?} does not begin with the prefix"));
    let number = names.strip_prefix(':').map(|names| names.split(':').next().unwrap().parse().unwrap());
    (tag, number, &key[end + 1..])
}

/// What is found on the servers.
#[derive(Default)]
struct Found {
    /// The shards of each partition that has a record.
    shards: BTreeMap<Partition, BTreeSet<u16>>,
    /// The tags of each shard, and on which servers they are.
    places: BTreeMap<u16, BTreeSet<(String, u16)>>,
    /// Keys of each sort.
    sorts: BTreeMap<char, usize>,
    /// What belongs to no shard: how the deployment is laid out, and signposts.
    others: BTreeMap<char, BTreeSet<u16>>,
}

async fn look(prefix: &str, server: &ValkeyServer, found: &mut Found) {
    for key in crate::keys(server).await {
        let (tag, shard, rest) = tag(prefix, &key);
        let sort = char::from(rest[0]);
        let Some(shard) = shard else {
            found.others.entry(sort).or_default().insert(server.port());
            continue;
        };
        found.places.entry(shard).or_default().insert((tag, server.port()));
        *found.sorts.entry(sort).or_default() += 1;
        if sort == 'r' {
            let record = decode_key(&rest[1..]).unwrap();
            found.shards.entry(record.partition).or_default().insert(shard);
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "what was looked at is worth knowing")]
fn every_key_has_the_prefix_and_the_tag_of_its_partition() {
    const SHARDS: u16 = 7;
    let cluster = support::start_cluster(0);
    let prefix = "tagged";
    let form = Form { cluster_shards: Some(SHARDS), ..CLUSTER_OF_SHARDS };
    let options = |clock: Arc<dyn Clock>| support::at(&cluster.url(), prefix, form).unwrap().clock(clock);
    compare(
        Plan::new(3, 4 * STEPS),
        async |clock| Ok(MemoryStore::new(clock)),
        async |clock| ff_backend_valkey::ValkeyStore::connect(options(clock)).await,
    )
    .unwrap_or_else(|difference| panic!("{difference}"));

    let mut found = Found::default();
    finish(async {
        for node in cluster.nodes() {
            look(prefix, node, &mut found).await;
        }
    });
    println!("{} partitions, keys by sort: {:?}", found.shards.len(), found.sorts);
    let others: Vec<(char, usize)> = found.others.iter().map(|(sort, servers)| (*sort, servers.len())).collect();
    assert_eq!(others, [('d', 1), ('s', 1)], "what belongs to no shard is in one slot, too");
    assert!(found.shards.len() > usize::from(SHARDS) && found.sorts.len() >= 5, "too little was done");
    for (partition, shards) in &found.shards {
        let expected = if partition.family() == PartitionFamily::Global { 0 } else { partition.index() % SHARDS };
        assert_eq!(shards, &BTreeSet::from([expected]), "{partition:?}");
    }
    for (shard, places) in &found.places {
        assert_eq!(places.len(), 1, "shard {shard} is in several slots: {places:?}");
        let (tag, port) = places.first().unwrap();
        let slot = cluster.nodes()[0].ask(&["CLUSTER", "KEYSLOT", &format!("{{{tag}}}r")]).unwrap();
        let owner = slot.parse::<usize>().unwrap() * cluster.nodes().len() / 16_384;
        assert_eq!(*port, cluster.nodes()[owner].port(), "shard {shard} is in slot {slot}");
    }
}
