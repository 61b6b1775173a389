//! Once per id, once per idempotency key.

use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use ff_core::state::PublicState;
use serde_json::json;

use crate::cases;
use crate::world::World;

cases!["ingress":
    the_same_id_is_a_duplicate,
    the_same_key_is_a_duplicate_under_another_id,
    a_known_key_wins_over_a_known_id,
    a_duplicate_is_told_before_anything_is_wrong_with_the_submission,
    a_duplicate_changes_nothing,
    a_duplicate_is_told_on_a_closed_lane,
    an_empty_key_is_no_key,
    a_key_belongs_to_its_namespace,
    a_key_is_forgotten_after_its_window,
    a_key_without_a_policy_lives_a_day,
    a_window_of_zero_or_less_disables_the_key,
    a_key_outlives_the_end_of_its_execution,
    the_same_key_without_ids_is_one_execution,
];

fn keyed(world: &World, key: &str) -> CreateExecutionArgs {
    CreateExecutionArgs { idempotency_key: Some(key.to_owned()), ..world.submission() }
}

fn window(ms: i64) -> Option<PolicyDocument> {
    Some(PolicyDocument::from(ExecutionPolicy { dedup_window_ms: Some(ms), ..ExecutionPolicy::default() }))
}

async fn duplicate(world: &World, args: CreateExecutionArgs) -> ExecutionId {
    match world.backend.create_execution(args).await.unwrap() {
        CreateExecutionResult::Duplicate { execution_id } => execution_id,
        other @ CreateExecutionResult::Created { .. } => panic!("expected a duplicate, got {other:?}"),
    }
}

async fn the_same_id_is_a_duplicate(world: World) {
    let args = world.submission();
    let id = world.submit(args.clone()).await;
    assert_eq!(duplicate(&world, args.clone()).await, id);
    assert_eq!(duplicate(&world, CreateExecutionArgs { execution_kind: "other".into(), ..args }).await, id);
}

async fn the_same_key_is_a_duplicate_under_another_id(world: World) {
    let id = world.submit(keyed(&world, "order-1")).await;
    assert_eq!(duplicate(&world, keyed(&world, "order-1")).await, id);
    world.submit(keyed(&world, "order-2")).await;
}

async fn a_known_key_wins_over_a_known_id(world: World) {
    let first = world.submit(keyed(&world, "order-1")).await;
    let second = world.create().await;
    let both = CreateExecutionArgs { execution_id: Some(second), ..keyed(&world, "order-1") };
    assert_eq!(duplicate(&world, both).await, first);
}

async fn a_duplicate_is_told_before_anything_is_wrong_with_the_submission(world: World) {
    let id = world.submit(keyed(&world, "order-1")).await;
    let broken = |args: CreateExecutionArgs| CreateExecutionArgs {
        policy: Some(PolicyDocument(json!("not a policy"))),
        tags: [("plain".to_owned(), String::new())].into(),
        execution_kind: "\n".to_owned(),
        ..args
    };
    assert_eq!(duplicate(&world, broken(keyed(&world, "order-1"))).await, id);
    let same_id = CreateExecutionArgs { execution_id: Some(id), ..world.submission() };
    assert_eq!(duplicate(&world, broken(same_id)).await, id);
}

async fn a_duplicate_changes_nothing(world: World) {
    let args = CreateExecutionArgs { priority: 5, ..keyed(&world, "order-1") };
    let id = world.submit(args.clone()).await;
    let before = world.backend.read_execution_info(id).await.unwrap().unwrap();
    world.advance(1000);

    let again = CreateExecutionArgs {
        priority: 9,
        delay_until: Some(world.now().plus(1000)),
        lane_id: LaneId::new("elsewhere").unwrap(),
        ..args
    };
    duplicate(&world, again).await;

    assert_eq!(world.backend.read_execution_info(id).await.unwrap().unwrap(), before);
    let elsewhere = LaneId::new("elsewhere").unwrap();
    assert_eq!(world.backend.describe_lane(&world.namespace(), &elsewhere).await.unwrap(), None);
}

async fn a_duplicate_is_told_on_a_closed_lane(world: World) {
    let id = world.submit(keyed(&world, "order-1")).await;
    let args = serde_json::from_value(json!({
        "namespace": world.namespace(), "lane_id": world.lane(), "state": "disabled",
    }))
    .unwrap();
    world.backend.set_lane_state(args).await.unwrap();
    assert_eq!(duplicate(&world, keyed(&world, "order-1")).await, id);
}

async fn an_empty_key_is_no_key(world: World) {
    let first = world.submit(keyed(&world, "")).await;
    let second = world.submit(keyed(&world, "")).await;
    assert_ne!(first, second);
}

async fn a_key_belongs_to_its_namespace(world: World) {
    world.submit(keyed(&world, "order-1")).await;
    let other = Namespace::new("other").unwrap();
    world.submit(CreateExecutionArgs { namespace: other, ..keyed(&world, "order-1") }).await;
}

async fn a_key_is_forgotten_after_its_window(world: World) {
    let keyed = || CreateExecutionArgs { policy: window(1000), ..keyed(&world, "order-1") };
    let first = world.submit(keyed()).await;
    world.advance(999);
    assert_eq!(duplicate(&world, keyed()).await, first);
    world.advance(1);
    let second = world.submit(keyed()).await;
    assert_ne!(first, second);
    assert_eq!(duplicate(&world, keyed()).await, second);
}

async fn a_key_without_a_policy_lives_a_day(world: World) {
    let first = world.submit(keyed(&world, "order-1")).await;
    world.advance(24 * 60 * 60 * 1000 - 1);
    assert_eq!(duplicate(&world, keyed(&world, "order-1")).await, first);
    world.advance(1);
    world.submit(keyed(&world, "order-1")).await;
}

async fn a_window_of_zero_or_less_disables_the_key(world: World) {
    for ms in [0, -1] {
        let keyed = || CreateExecutionArgs { policy: window(ms), ..keyed(&world, "order-1") };
        let args = keyed();
        let id = world.submit(args.clone()).await;
        assert_eq!(duplicate(&world, args).await, id, "the id still counts");
        world.submit(keyed()).await;
    }
}

async fn a_key_outlives_the_end_of_its_execution(world: World) {
    let id = world.submit(keyed(&world, "order-1")).await;
    let handle = world.claim().await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Completed);
    assert_eq!(duplicate(&world, keyed(&world, "order-1")).await, id);
}

async fn the_same_key_without_ids_is_one_execution(world: World) {
    let args = CreateExecutionArgs { execution_id: None, ..keyed(&world, "order-1") };
    let id = world.submit(args.clone()).await;
    assert_eq!(duplicate(&world, args.clone()).await, id);
    let elsewhere = CreateExecutionArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..args };
    assert_eq!(duplicate(&world, elsewhere).await, id);
}
