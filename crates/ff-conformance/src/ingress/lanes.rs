//! Lanes: registered on first use, opened and closed by operators.

use ff_core::backend::ingress::{LaneInfo, SetLaneStateArgs};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::{LaneId, Namespace};
use ff_core::state::{LaneState, PublicState};

use crate::cases;
use crate::expect::{invalid, state};
use crate::world::World;

cases!["ingress":
    a_used_lane_is_active,
    an_unknown_lane_is_nothing,
    a_lane_state_can_be_set_before_any_work,
    setting_the_same_state_changes_nothing,
    a_paused_lane_accepts_but_does_not_serve,
    a_draining_lane_serves_but_does_not_accept,
    a_disabled_lane_does_neither,
    a_closed_lane_leaves_running_work_alone,
    a_lane_is_closed_in_one_namespace_only,
    the_reason_of_a_lane_state_is_a_free_string,
];

fn set(world: &World, state: LaneState) -> SetLaneStateArgs {
    let (namespace, lane_id) = (world.namespace(), world.lane());
    SetLaneStateArgs { namespace, lane_id, state, reason: "maintenance".to_owned() }
}

async fn a_used_lane_is_active(world: World) {
    let since = world.now();
    world.create().await;
    world.advance(5);
    world.create().await;
    let lane = world.backend.describe_lane(&world.namespace(), &world.lane()).await.unwrap();
    let (namespace, lane_id) = (world.namespace(), world.lane());
    assert_eq!(lane, Some(LaneInfo { namespace, lane_id, state: LaneState::Active, since }));
}

async fn an_unknown_lane_is_nothing(world: World) {
    world.create().await;
    let nowhere = LaneId::new("nowhere").unwrap();
    assert_eq!(world.backend.describe_lane(&world.namespace(), &nowhere).await.unwrap(), None);
    let other = Namespace::new("other").unwrap();
    assert_eq!(world.backend.describe_lane(&other, &world.lane()).await.unwrap(), None);
}

async fn a_lane_state_can_be_set_before_any_work(world: World) {
    let answer = world.backend.set_lane_state(set(&world, LaneState::Paused)).await.unwrap();
    let (namespace, lane_id) = (world.namespace(), world.lane());
    let expected = LaneInfo { namespace, lane_id, state: LaneState::Paused, since: world.now() };
    assert_eq!(answer, expected);
    assert_eq!(world.backend.describe_lane(&world.namespace(), &world.lane()).await.unwrap(), Some(expected));
    world.create().await;
    assert!(world.claim().await.is_none());
}

async fn setting_the_same_state_changes_nothing(world: World) {
    let first = world.backend.set_lane_state(set(&world, LaneState::Paused)).await.unwrap();
    world.advance(1000);
    let second = world.backend.set_lane_state(set(&world, LaneState::Paused)).await.unwrap();
    assert_eq!(first, second);
    let third = world.backend.set_lane_state(set(&world, LaneState::Active)).await.unwrap();
    assert_eq!((third.state, third.since), (LaneState::Active, world.now()));
}

async fn a_paused_lane_accepts_but_does_not_serve(world: World) {
    world.backend.set_lane_state(set(&world, LaneState::Paused)).await.unwrap();
    let id = world.create().await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
    assert!(world.claim().await.is_none());
    world.backend.set_lane_state(set(&world, LaneState::Active)).await.unwrap();
    assert!(world.claim().await.is_some());
}

async fn a_draining_lane_serves_but_does_not_accept(world: World) {
    world.create().await;
    world.backend.set_lane_state(set(&world, LaneState::Draining)).await.unwrap();
    state(world.backend.create_execution(world.submission()).await, StateKind::LaneClosed);
    assert!(world.claim().await.is_some());
}

async fn a_disabled_lane_does_neither(world: World) {
    world.create().await;
    world.backend.set_lane_state(set(&world, LaneState::Disabled)).await.unwrap();
    state(world.backend.create_execution(world.submission()).await, StateKind::LaneClosed);
    assert!(world.claim().await.is_none());
    world.backend.set_lane_state(set(&world, LaneState::Active)).await.unwrap();
    assert!(world.claim().await.is_some());
}

async fn a_closed_lane_leaves_running_work_alone(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.set_lane_state(set(&world, LaneState::Disabled)).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.renew(&handle).await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_lane_is_closed_in_one_namespace_only(world: World) {
    world.backend.set_lane_state(set(&world, LaneState::Disabled)).await.unwrap();
    let other = Namespace::new("other").unwrap();
    let mut args = world.submission();
    args.namespace = other;
    world.submit(args).await;
    assert!(world.claim().await.is_some());
}

async fn the_reason_of_a_lane_state_is_a_free_string(world: World) {
    for reason in ["r".repeat(257), "a\nb".to_owned()] {
        let args = SetLaneStateArgs { reason, ..set(&world, LaneState::Paused) };
        invalid(world.backend.set_lane_state(args).await, ValidationKind::InvalidInput);
    }
    assert_eq!(world.backend.describe_lane(&world.namespace(), &world.lane()).await.unwrap(), None);
}
