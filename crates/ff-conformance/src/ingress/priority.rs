//! Another place in the queue.

use ff_core::backend::ingress::{ChangePriorityArgs, ChangePriorityResult, CreateExecutionArgs};
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::state::PublicState;

use crate::cases;
use crate::expect::{contention, invalid, not_found};
use crate::world::World;

cases!["ingress":
    a_higher_priority_is_claimed_first,
    age_still_counts_after_a_change,
    a_changed_priority_is_clamped,
    the_same_priority_again_is_fine,
    only_a_claimable_execution_changes_its_priority,
    the_lane_of_a_change_must_be_its_own,
    eligibility_is_checked_before_the_lane,
    the_priority_of_a_missing_execution_is_not_found,
];

fn change(id: ExecutionId, new_priority: i32) -> ChangePriorityArgs {
    ChangePriorityArgs { execution_id: id, new_priority, lane_id: String::new() }
}

async fn claimed_first(world: &World, candidates: [ExecutionId; 2]) -> ExecutionId {
    world.claim().await.expect("there is work");
    for id in candidates {
        if world.state(id).await == PublicState::Active {
            return id;
        }
    }
    panic!("neither candidate was claimed");
}

async fn a_higher_priority_is_claimed_first(world: World) {
    let first = world.create().await;
    world.advance(1);
    let second = world.create().await;

    let answer = world.backend.change_priority(change(second, 1)).await.unwrap();

    assert_eq!(answer, ChangePriorityResult::Changed { execution_id: second });
    assert_eq!(claimed_first(&world, [first, second]).await, second);
}

async fn age_still_counts_after_a_change(world: World) {
    let first = world.create().await;
    world.advance(1);
    let second = world.submit(CreateExecutionArgs { priority: 7, ..world.submission() }).await;
    world.advance(1);
    world.backend.change_priority(change(first, 7)).await.unwrap();
    assert_eq!(claimed_first(&world, [first, second]).await, first);
}

async fn a_changed_priority_is_clamped(world: World) {
    let id = world.create().await;
    for (given, stored) in [(-7, 0), (9001, 9000), (i32::MIN, 0)] {
        world.backend.change_priority(change(id, given)).await.unwrap();
        assert_eq!(world.backend.read_execution_info(id).await.unwrap().unwrap().priority, stored);
    }
}

async fn the_same_priority_again_is_fine(world: World) {
    let id = world.create().await;
    for _ in 0..2 {
        let answer = world.backend.change_priority(change(id, 3)).await.unwrap();
        assert_eq!(answer, ChangePriorityResult::Changed { execution_id: id });
    }
}

async fn only_a_claimable_execution_changes_its_priority(world: World) {
    let delayed =
        world.submit(CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() }).await;
    contention(world.backend.change_priority(change(delayed, 1)).await, "execution_not_eligible");

    let (active, handle) = world.claim_one().await;
    contention(world.backend.change_priority(change(active, 1)).await, "execution_not_eligible");
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.change_priority(change(active, 1)).await, "execution_not_eligible");
}

async fn the_lane_of_a_change_must_be_its_own(world: World) {
    let id = world.create().await;
    let foreign = ChangePriorityArgs { lane_id: "other".to_owned(), ..change(id, 5) };
    invalid(world.backend.change_priority(foreign).await, ValidationKind::InvalidInput);
    assert_eq!(world.backend.read_execution_info(id).await.unwrap().unwrap().priority, 0);
    let own = ChangePriorityArgs { lane_id: world.lane().to_string(), ..change(id, 5) };
    world.backend.change_priority(own).await.unwrap();
}

async fn eligibility_is_checked_before_the_lane(world: World) {
    let (active, _handle) = world.claim_one().await;
    let foreign = ChangePriorityArgs { lane_id: "other".to_owned(), ..change(active, 5) };
    contention(world.backend.change_priority(foreign).await, "execution_not_eligible");
}

async fn the_priority_of_a_missing_execution_is_not_found(world: World) {
    not_found(world.backend.change_priority(change(world.execution_id(), 1)).await, Entity::Execution);
    let outside = ExecutionId::new(999, world.uuid());
    invalid(world.backend.change_priority(change(outside, 1)).await, ValidationKind::InvalidInput);
}
