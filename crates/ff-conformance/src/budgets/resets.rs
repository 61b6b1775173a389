//! Starting over, asked for or due.

use ff_core::backend::budgets::{CreateBudgetArgs, ResetBudgetResult};
use ff_core::error::Entity;
use ff_core::ids::BudgetId;

use super::{create, limits, report, status, used};
use crate::cases;
use crate::expect::not_found;
use crate::world::World;

cases!["budgets":
    a_reset_starts_a_new_period,
    resetting_again_is_harmless,
    an_unknown_budget_is_not_reset,
    a_budget_with_an_interval_resets_itself,
    a_reset_by_hand_puts_the_next_one_off,
    missed_intervals_are_not_made_up_for,
    a_budget_without_interval_never_resets_itself,
];

fn hourly(world: &World) -> CreateBudgetArgs {
    CreateBudgetArgs { reset_interval_ms: 3_600_000, ..limits(world) }
}

async fn a_reset_starts_a_new_period(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 9), ("bytes", 1)]).await;
    report(&world, budget, [("usd", 9)]).await;
    world.advance(10);

    let answer = world.backend.reset_budget(budget).await.unwrap();

    assert_eq!(answer, ResetBudgetResult::Reset { next_reset_at: None });
    let status = status(&world, budget).await;
    assert!(status.usage.values().all(|used| *used == 0), "{:?}", status.usage);
    assert_eq!((status.breach_count, status.soft_breach_count, status.reset_count), (0, 0, 1));
    assert_eq!((status.last_breach_at, status.last_breach_dim), (None, None));
    assert_eq!(status.last_reset_at, Some(world.now()));
    assert_eq!(status.hard_limits["usd"], 10);
}

async fn resetting_again_is_harmless(world: World) {
    let budget = create(&world, hourly(&world)).await;
    for _ in 0..2 {
        world.advance(5);
        let next_reset_at = Some(world.now().plus(3_600_000));
        let answer = world.backend.reset_budget(budget).await.unwrap();
        assert_eq!(answer, ResetBudgetResult::Reset { next_reset_at });
    }
    assert_eq!(status(&world, budget).await.reset_count, 2);
}

async fn an_unknown_budget_is_not_reset(world: World) {
    not_found(world.backend.reset_budget(BudgetId::from_uuid(world.uuid())).await, Entity::Budget);
}

async fn a_budget_with_an_interval_resets_itself(world: World) {
    let budget = create(&world, hourly(&world)).await;
    report(&world, budget, [("usd", 4)]).await;
    world.pass(3_599_999).await;
    assert_eq!(used(&world, budget, "usd").await, 4);

    world.pass(1).await;

    let status = status(&world, budget).await;
    assert_eq!(status.usage.get("usd").copied().unwrap_or(0), 0);
    assert_eq!(status.reset_count, 1);
    assert_eq!(status.next_reset_at, Some(world.now().plus(3_600_000)));
}

async fn a_reset_by_hand_puts_the_next_one_off(world: World) {
    let budget = create(&world, hourly(&world)).await;
    world.advance(1_800_000);
    world.backend.reset_budget(budget).await.unwrap();
    report(&world, budget, [("usd", 4)]).await;

    world.pass(1_800_000).await;
    assert_eq!((used(&world, budget, "usd").await, status(&world, budget).await.reset_count), (4, 1));

    world.pass(1_800_000).await;
    assert_eq!((used(&world, budget, "usd").await, status(&world, budget).await.reset_count), (0, 2));
}

async fn missed_intervals_are_not_made_up_for(world: World) {
    let budget = create(&world, hourly(&world)).await;
    world.pass(5 * 3_600_000 + 1).await;
    let status = status(&world, budget).await;
    assert_eq!(status.reset_count, 1);
    assert_eq!(status.next_reset_at, Some(world.now().plus(3_600_000)));
}

async fn a_budget_without_interval_never_resets_itself(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 4)]).await;
    world.pass(400 * 24 * 3_600_000).await;
    assert_eq!(used(&world, budget, "usd").await, 4);
    assert_eq!(status(&world, budget).await.next_reset_at, None);
}
