//! The order of work, and how it can be looked at.

use ff_core::backend::claims::ScanEligibleArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::partition::{Partition, PartitionKey};
use ff_core::state::PublicState;

use super::{grant_args, requiring};
use crate::cases;
use crate::expect::invalid;
use crate::harness::Damage;
use crate::world::World;

cases!["claims":
    priority_decides_then_age,
    order_is_global_over_partitions_and_classes,
    reserved_heads_hide_nothing,
    a_damaged_head_hides_nothing,
    a_scan_lists_the_best_first,
    a_scan_looks_at_one_partition_and_lane,
    a_scan_of_zero_is_empty,
    a_scan_lists_only_the_namespaces_it_names,
    a_scan_reserves_nothing,
    a_scan_needs_a_partition_of_executions,
    a_scan_over_a_damaged_record_is_corruption,
];

async fn place(world: &World, partition: u16, priority: i32) -> ExecutionId {
    let id = ExecutionId::new(partition, world.uuid());
    world.submit(CreateExecutionArgs { execution_id: Some(id), priority, ..world.submission() }).await
}

async fn next(world: &World, candidates: &[ExecutionId]) -> ExecutionId {
    let before: Vec<_> = states(world, candidates).await;
    world.claim().await.expect("there is work");
    let after = states(world, candidates).await;
    let changed = candidates.iter().zip(before.iter().zip(&after)).find(|(_, (before, after))| before != after);
    *changed.expect("a candidate was claimed").0
}

async fn states(world: &World, ids: &[ExecutionId]) -> Vec<PublicState> {
    let mut states = Vec::new();
    for id in ids {
        states.push(world.state(*id).await);
    }
    states
}

fn scan(world: &World, partition: u16, limit: u32) -> ScanEligibleArgs {
    let partition = PartitionKey::from(Partition::flow(partition));
    ScanEligibleArgs { lane_id: world.lane(), partition, limit, namespaces: None }
}

async fn priority_decides_then_age(world: World) {
    let old = place(&world, 3, 0).await;
    world.advance(1);
    let young = place(&world, 3, 0).await;
    world.advance(1);
    let urgent = place(&world, 3, 5).await;
    let all = [old, young, urgent];
    assert_eq!(next(&world, &all).await, urgent);
    assert_eq!(next(&world, &all).await, old);
    assert_eq!(next(&world, &all).await, young);
}

async fn order_is_global_over_partitions_and_classes(world: World) {
    let mut all = Vec::new();
    for n in 0..10u16 {
        let partition = (n * 97) % 256;
        let args = CreateExecutionArgs {
            execution_id: Some(ExecutionId::new(partition, world.uuid())),
            policy: (n % 2 == 0).then(|| requiring(&["gpu"]).into()),
            priority: i32::from(n % 3),
            ..world.submission()
        };
        all.push((world.submit(args).await, n % 3));
        world.advance(1);
    }
    let ids: Vec<ExecutionId> = all.iter().map(|(id, _)| *id).collect();
    let mut expected = all;
    expected.sort_by_key(|(_, priority)| std::cmp::Reverse(*priority));
    for (id, _) in expected {
        let before = states(&world, &ids).await;
        assert!(super::claim_offering(&world, &["gpu"]).await.unwrap().is_some());
        let after = states(&world, &ids).await;
        let taken = ids.iter().zip(before.iter().zip(&after)).find(|(_, (before, after))| before != after).unwrap().0;
        assert_eq!(*taken, id);
    }
}

async fn reserved_heads_hide_nothing(world: World) {
    for _ in 0..20 {
        let id = world.submit(CreateExecutionArgs { priority: 9, ..world.submission() }).await;
        world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    }
    let behind = world.create().await;
    assert!(world.claim_as("worker-b", 1000).await.unwrap().is_some());
    assert_eq!(world.state(behind).await, PublicState::Active);
}

async fn a_scan_lists_the_best_first(world: World) {
    let old = place(&world, 3, 0).await;
    world.advance(1);
    let young = place(&world, 3, 0).await;
    let urgent = place(&world, 3, 5).await;
    let answer = world.backend.scan_eligible_executions(scan(&world, 3, 10)).await.unwrap();
    assert_eq!(answer, [urgent, old, young]);
    let answer = world.backend.scan_eligible_executions(scan(&world, 3, 2)).await.unwrap();
    assert_eq!(answer, [urgent, old]);
}

async fn a_scan_looks_at_one_partition_and_lane(world: World) {
    let here = place(&world, 3, 0).await;
    place(&world, 4, 0).await;
    let delayed = CreateExecutionArgs {
        execution_id: Some(ExecutionId::new(3, world.uuid())),
        delay_until: Some(world.now().plus(10)),
        ..world.submission()
    };
    world.submit(delayed).await;
    assert_eq!(world.backend.scan_eligible_executions(scan(&world, 3, 10)).await.unwrap(), [here]);
    let elsewhere = ScanEligibleArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..scan(&world, 3, 10) };
    assert_eq!(world.backend.scan_eligible_executions(elsewhere).await.unwrap(), []);
}

async fn a_scan_of_zero_is_empty(world: World) {
    place(&world, 3, 0).await;
    assert_eq!(world.backend.scan_eligible_executions(scan(&world, 3, 0)).await.unwrap(), []);
}

async fn a_scan_lists_only_the_namespaces_it_names(world: World) {
    let ours = place(&world, 3, 0).await;
    let other = Namespace::new("other").unwrap();
    let args = CreateExecutionArgs {
        execution_id: Some(ExecutionId::new(3, world.uuid())),
        namespace: other,
        ..world.submission()
    };
    world.submit(args).await;
    let only = ScanEligibleArgs { namespaces: Some([world.namespace()].into()), ..scan(&world, 3, 10) };
    assert_eq!(world.backend.scan_eligible_executions(only).await.unwrap(), [ours]);
    let none = ScanEligibleArgs { namespaces: Some([].into()), ..scan(&world, 3, 10) };
    assert_eq!(world.backend.scan_eligible_executions(none).await.unwrap(), []);
}

async fn a_scan_reserves_nothing(world: World) {
    let id = place(&world, 3, 0).await;
    for _ in 0..2 {
        assert_eq!(world.backend.scan_eligible_executions(scan(&world, 3, 10)).await.unwrap(), [id]);
    }
    assert!(world.claim().await.is_some());
    assert_eq!(world.backend.scan_eligible_executions(scan(&world, 3, 10)).await.unwrap(), []);
}

async fn a_scan_needs_a_partition_of_executions(world: World) {
    for text in ["", "{fp:}", "fp:3", "{fp:70000}", "{x:1}", "{b:1}", "{g:0}"] {
        let args = ScanEligibleArgs { partition: PartitionKey(text.to_owned()), ..scan(&world, 3, 0) };
        invalid(world.backend.scan_eligible_executions(args).await, ValidationKind::InvalidInput);
    }
    assert_eq!(world.backend.scan_eligible_executions(scan(&world, 9999, 10)).await.unwrap(), []);
}

async fn a_scan_over_a_damaged_record_is_corruption(world: World) {
    let id = place(&world, 3, 0).await;
    world.damage(Damage::Execution(id)).await;
    invalid(world.backend.scan_eligible_executions(scan(&world, 3, 10)).await, ValidationKind::Corruption);
}

async fn a_damaged_head_hides_nothing(world: World) {
    let damaged = world.create().await;
    world.advance(1);
    let sound = world.create().await;
    world.damage(Damage::Execution(damaged)).await;
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(sound).await, PublicState::Active);
    assert!(world.claim().await.is_none());
}
