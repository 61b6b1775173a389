//! Lists of lanes and of executions.

use std::collections::BTreeSet;

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::inspection::LaneKey;
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::partition::PartitionKey;

use crate::cases;
use crate::expect::invalid;
use crate::stage::registration;
use crate::world::World;

cases!["inspection::lists":
    executions_of_a_partition_are_listed_in_order_of_id,
    an_execution_list_without_limit_is_empty,
    a_faulty_partition_is_refused,
    lanes_are_listed_by_namespace_and_name,
    a_lane_that_only_a_worker_serves_is_listed,
];

fn partition_of(id: ExecutionId) -> PartitionKey {
    PartitionKey::from(id.partition())
}

async fn executions_of_a_partition_are_listed_in_order_of_id(world: World) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.create().await);
    }
    ids.sort();
    let partition = partition_of(ids[0]);
    let first = world.backend.list_executions(&partition, None, 2).await.unwrap();
    assert_eq!((&first.executions[..], first.next_cursor), (&ids[..2], Some(ids[1])));
    let second = world.backend.list_executions(&partition, first.next_cursor, 3).await.unwrap();
    assert_eq!((&second.executions[..], second.next_cursor), (&ids[2..], None));
    let all = world.backend.list_executions(&partition, None, u32::MAX).await.unwrap();
    assert_eq!((all.executions, all.next_cursor), (ids, None));
    let elsewhere = PartitionKey("{fp:1}".into());
    assert!(world.backend.list_executions(&elsewhere, None, 10).await.unwrap().executions.is_empty());
}

async fn an_execution_list_without_limit_is_empty(world: World) {
    let id = world.create().await;
    let page = world.backend.list_executions(&partition_of(id), None, 0).await.unwrap();
    assert_eq!((page.executions.len(), page.next_cursor), (0, None));
}

async fn a_faulty_partition_is_refused(world: World) {
    for text in ["", "fp:1", "{fp}", "{zz:1}", "{fp:70000}", "{fp:256}", "{b:1}", "{g:0}"] {
        let page = world.backend.list_executions(&PartitionKey(text.into()), None, 1).await;
        invalid(page, ValidationKind::InvalidInput);
    }
}

fn lane_key(namespace: &str, lane: &str) -> LaneKey {
    LaneKey { namespace: Namespace::new(namespace).unwrap(), lane_id: LaneId::new(lane).unwrap() }
}

async fn lanes_are_listed_by_namespace_and_name(world: World) {
    let keys = [lane_key("acme", "a"), lane_key("acme", "b"), lane_key("acme2", "a"), lane_key("zeta", "a")];
    for key in keys.iter().rev().chain(&keys) {
        let mut args = world.submission();
        args.namespace = key.namespace.clone();
        world.submit(CreateExecutionArgs { lane_id: key.lane_id.clone(), ..args }).await;
    }
    let all = world.backend.list_lanes(None, 100).await.unwrap();
    assert_eq!((&all.lanes[..], all.next_cursor), (&keys[..], None));
    let first = world.backend.list_lanes(None, 2).await.unwrap();
    assert_eq!((&first.lanes[..], &first.next_cursor), (&keys[..2], &Some(keys[1].clone())));
    let rest = world.backend.list_lanes(first.next_cursor, 2).await.unwrap();
    assert_eq!((&rest.lanes[..], rest.next_cursor), (&keys[2..], None));
    let none = world.backend.list_lanes(None, 0).await.unwrap();
    assert_eq!((none.lanes.len(), none.next_cursor), (0, None));
    let between = world.backend.list_lanes(Some(lane_key("acme", "aa")), 1).await.unwrap();
    assert_eq!(between.lanes, [keys[1].clone()]);
}

async fn a_lane_that_only_a_worker_serves_is_listed(world: World) {
    let mut args = registration(&world, "worker-a", &[]);
    args.lanes = ["gpu", "cpu"].map(|name| LaneId::new(name).unwrap()).into();
    world.backend.register_worker(args).await.unwrap();
    let lanes: BTreeSet<_> = world.backend.list_lanes(None, 10).await.unwrap().lanes.into_iter().collect();
    assert_eq!(lanes, [lane_key("acme", "cpu"), lane_key("acme", "gpu")].into());
}
