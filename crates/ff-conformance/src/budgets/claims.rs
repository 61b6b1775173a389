//! Budgets at claim time.

use std::collections::BTreeMap;

use ff_core::backend::budgets::{CreateBudgetArgs, RecordSpendArgs, ReleaseBudgetArgs};
use ff_core::backend::flows::{AddExecutionToFlowArgs, CreateFlowArgs};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{BudgetId, FlowId, LaneId};
use ff_core::state::{BlockingReason, EligibilityState, PublicState};

use super::{amounts, attached_to, create, limits, other_namespace, report};
use crate::cases;
use crate::world::World;

cases!["budgets":
    a_budget_with_room_lets_claims_pass,
    an_exhausted_budget_stops_claims,
    a_denied_execution_shows_what_it_waits_for,
    a_denied_execution_does_not_hide_those_behind_it,
    a_reset_lets_in_who_waited,
    a_scheduled_reset_lets_in_who_waited,
    a_release_lets_in_who_waited,
    a_release_that_leaves_the_budget_exhausted_lets_nobody_in,
    one_exhausted_budget_of_several_stops_claims,
    a_budget_of_a_namespace_stops_all_its_claims,
    a_budget_of_a_lane_stops_the_claims_of_that_lane,
    a_budget_of_a_tag_stops_the_claims_of_that_tag,
    a_budget_of_a_flow_stops_the_claims_of_its_members,
    scopes_are_resolved_when_an_execution_is_created,
    a_running_attempt_goes_on_when_its_budget_is_exhausted,
    a_soft_limit_that_blocks_stops_claims,
];

async fn exhaust(world: &World, budget: BudgetId) {
    report(world, budget, [("usd", 10)]).await;
}

async fn scoped(world: &World, scope_type: &str, scope_id: &str) -> BudgetId {
    create(world, CreateBudgetArgs { scope_type: scope_type.into(), scope_id: scope_id.into(), ..limits(world) }).await
}

async fn a_budget_with_room_lets_claims_pass(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 9)]).await;
    world.create_with(&attached_to(&[budget])).await;
    assert!(world.claim().await.is_some());
}

async fn an_exhausted_budget_stops_claims(world: World) {
    let budget = create(&world, limits(&world)).await;
    exhaust(&world, budget).await;
    world.create_with(&attached_to(&[budget])).await;
    assert!(world.claim().await.is_none());
    world.pass(60_000).await;
    assert!(world.claim().await.is_none());
}

async fn a_denied_execution_shows_what_it_waits_for(world: World) {
    let budget = create(&world, limits(&world)).await;
    exhaust(&world, budget).await;
    let id = world.create_with(&attached_to(&[budget])).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);

    world.claim().await;

    let info = world.backend.read_execution_info(id).await.unwrap().unwrap();
    assert_eq!(info.public_state, PublicState::RateLimited);
    assert_eq!(info.state_vector.eligibility_state, EligibilityState::BlockedByBudget);
    assert_eq!(info.state_vector.blocking_reason, BlockingReason::WaitingForBudget);
    assert!(info.blocking_detail.contains("usd"), "{}", info.blocking_detail);
}

async fn a_denied_execution_does_not_hide_those_behind_it(world: World) {
    let budget = create(&world, limits(&world)).await;
    exhaust(&world, budget).await;
    for _ in 0..3 {
        world.create_with(&attached_to(&[budget])).await;
    }
    world.advance(1);
    world.create().await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
}

async fn a_reset_lets_in_who_waited(world: World) {
    let budget = create(&world, limits(&world)).await;
    exhaust(&world, budget).await;
    for _ in 0..3 {
        world.create_with(&attached_to(&[budget])).await;
    }
    assert!(world.claim().await.is_none());

    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;

    for _ in 0..3 {
        assert!(world.claim().await.is_some());
    }
}

async fn a_scheduled_reset_lets_in_who_waited(world: World) {
    let budget = create(&world, CreateBudgetArgs { reset_interval_ms: 3_600_000, ..limits(&world) }).await;
    exhaust(&world, budget).await;
    world.create_with(&attached_to(&[budget])).await;
    assert!(world.claim().await.is_none());
    world.pass(3_599_999).await;
    assert!(world.claim().await.is_none());
    world.pass(1).await;
    assert!(world.claim().await.is_some());
}

async fn a_release_lets_in_who_waited(world: World) {
    let budget = create(&world, limits(&world)).await;
    let spender = world.execution_id();
    let deltas = amounts([("usd", 10)]);
    let spend = RecordSpendArgs { budget_id: budget, execution_id: spender, deltas, idempotency_key: String::new() };
    world.backend.record_spend(spend).await.unwrap();
    world.create_with(&attached_to(&[budget])).await;
    assert!(world.claim().await.is_none());

    world.backend.release_budget(ReleaseBudgetArgs { budget_id: budget, execution_id: spender }).await.unwrap();
    world.run_due().await;

    assert!(world.claim().await.is_some());
}

async fn a_release_that_leaves_the_budget_exhausted_lets_nobody_in(world: World) {
    let args = CreateBudgetArgs { hard_limits: vec![10, 5], ..limits(&world) };
    let budget = create(&world, args).await;
    let spender = world.execution_id();
    let deltas = amounts([("usd", 10)]);
    let spend = RecordSpendArgs { budget_id: budget, execution_id: spender, deltas, idempotency_key: String::new() };
    world.backend.record_spend(spend).await.unwrap();
    report(&world, budget, [("calls", 5)]).await;
    let id = world.create_with(&attached_to(&[budget])).await;
    world.claim().await;

    world.backend.release_budget(ReleaseBudgetArgs { budget_id: budget, execution_id: spender }).await.unwrap();
    world.run_due().await;

    assert_eq!(world.state(id).await, PublicState::RateLimited);
    assert!(world.claim().await.is_none());
}

async fn one_exhausted_budget_of_several_stops_claims(world: World) {
    let (open, closed) = (create(&world, limits(&world)).await, create(&world, limits(&world)).await);
    exhaust(&world, closed).await;
    world.create_with(&attached_to(&[open, closed])).await;
    assert!(world.claim().await.is_none());
    world.backend.reset_budget(closed).await.unwrap();
    world.run_due().await;
    assert!(world.claim().await.is_some());
}

async fn a_budget_of_a_namespace_stops_all_its_claims(world: World) {
    let budget = scoped(&world, "namespace", "").await;
    let mine = [world.create().await, world.create().await];
    world.submit(CreateExecutionArgs { namespace: other_namespace(), ..world.submission() }).await;
    exhaust(&world, budget).await;

    assert!(world.claim().await.is_some(), "another namespace is not concerned");
    assert!(world.claim().await.is_none());

    let parked = [world.state(mine[0]).await, world.state(mine[1]).await];
    assert!(parked.contains(&PublicState::RateLimited), "{parked:?}");
    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_some());
}

async fn a_budget_of_a_lane_stops_the_claims_of_that_lane(world: World) {
    let here = scoped(&world, "lane", world.lane().as_str()).await;
    let elsewhere = scoped(&world, "lane", LaneId::new("gpu").unwrap().as_str()).await;
    exhaust(&world, elsewhere).await;
    world.create().await;
    world.create().await;
    assert!(world.claim().await.is_some());
    exhaust(&world, here).await;
    assert!(world.claim().await.is_none());
}

async fn a_budget_of_a_tag_stops_the_claims_of_that_tag(world: World) {
    let budget = scoped(&world, "tag", "app.team=red").await;
    exhaust(&world, budget).await;
    let team = |team: &str| BTreeMap::from([("app.team".to_owned(), team.to_owned())]);
    world.submit(CreateExecutionArgs { tags: team("red"), ..world.submission() }).await;
    assert!(world.claim().await.is_none());
    world.submit(CreateExecutionArgs { tags: team("blue"), ..world.submission() }).await;
    assert!(world.claim().await.is_some());
}

async fn a_budget_of_a_flow_stops_the_claims_of_its_members(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let flow = CreateFlowArgs { flow_id, flow_kind: "pipeline".into(), namespace: world.namespace() };
    world.backend.create_flow(flow).await.unwrap();
    let budget = scoped(&world, "flow", &flow_id.to_string()).await;
    exhaust(&world, budget).await;
    let member = CreateExecutionArgs { execution_id: Some(world.member_id(flow_id)), ..world.submission() };
    let member = world.submit(member).await;
    let args = AddExecutionToFlowArgs { flow_id, execution_id: member };
    world.backend.add_execution_to_flow(args).await.unwrap();
    assert!(world.claim().await.is_none());

    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;

    assert!(world.claim().await.is_some());
}

async fn scopes_are_resolved_when_an_execution_is_created(world: World) {
    world.create().await;
    let budget = scoped(&world, "namespace", "").await;
    exhaust(&world, budget).await;
    assert!(world.claim().await.is_some(), "it was there before the budget");
    world.create().await;
    assert!(world.claim().await.is_none());
}

async fn a_running_attempt_goes_on_when_its_budget_is_exhausted(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (id, handle) = world.claim_one_with(&attached_to(&[budget])).await;
    exhaust(&world, budget).await;
    world.run_due().await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.renew(&handle).await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_soft_limit_that_blocks_stops_claims(world: World) {
    let budget = create(&world, CreateBudgetArgs { on_soft_limit: "block".into(), ..limits(&world) }).await;
    report(&world, budget, [("usd", 8)]).await;
    world.create_with(&attached_to(&[budget])).await;
    world.create_with(&attached_to(&[budget])).await;
    assert!(world.claim().await.is_some());
    report(&world, budget, [("usd", 1)]).await;
    assert!(world.claim().await.is_none());
}
