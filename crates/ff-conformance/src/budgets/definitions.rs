//! Creating and reading budgets.

use ff_core::backend::budgets::{
    BUDGET_DIMENSIONS_MAX, BreachAction, BudgetUsageAndLimits, CreateBudgetArgs, CreateBudgetResult, ScopeType,
};
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::BudgetId;

use super::{amounts, create, limits, other_namespace, report, status};
use crate::cases;
use crate::expect::{invalid, not_found};
use crate::world::World;

cases!["budgets":
    a_new_budget_has_used_nothing,
    a_budget_is_created_once_and_keeps_its_definition,
    the_limits_of_a_budget_are_given_by_parallel_lists,
    a_dimension_has_a_name_of_its_own,
    a_budget_has_at_most_64_dimensions,
    numbers_that_some_store_cannot_hold_are_refused,
    a_breach_action_is_one_of_the_known_words,
    a_hard_limit_cannot_only_warn,
    a_scope_must_make_sense,
    a_bad_list_is_told_before_a_bad_scope,
    the_numbers_of_a_budget_can_be_read_alone,
    an_unknown_budget_has_no_status_and_empty_numbers,
];

async fn a_new_budget_has_used_nothing(world: World) {
    let args = CreateBudgetArgs { scope_id: "team A".into(), reset_interval_ms: 60_000, ..limits(&world) };
    let created_at = world.now();
    let id = create(&world, args).await;

    let status = status(&world, id).await;

    assert_eq!(status.budget_id, id);
    assert_eq!(status.namespace, world.namespace());
    assert_eq!((status.scope_type, status.scope_id.as_str()), (ScopeType::Policy, "team A"));
    assert_eq!((status.on_hard_limit, status.on_soft_limit), (BreachAction::Block, BreachAction::Warn));
    assert!(status.usage.values().all(|used| *used == 0), "{:?}", status.usage);
    assert_eq!(status.hard_limits, amounts([("usd", 10), ("calls", 0)]));
    assert_eq!(status.soft_limits, amounts([("usd", 8), ("calls", 3)]));
    assert_eq!((status.breach_count, status.soft_breach_count, status.reset_count), (0, 0, 0));
    assert_eq!((status.last_breach_at, status.last_breach_dim, status.last_reset_at), (None, None, None));
    assert_eq!(status.reset_interval_ms, 60_000);
    assert_eq!(status.next_reset_at, Some(created_at.plus(60_000)));
    assert_eq!(status.created_at, created_at);
}

async fn a_budget_is_created_once_and_keeps_its_definition(world: World) {
    let args = limits(&world);
    let id = create(&world, args.clone()).await;
    report(&world, id, [("usd", 4)]).await;
    let before = status(&world, id).await;

    let again = CreateBudgetArgs { hard_limits: vec![99, 99], on_hard_limit: "cancel_all".into(), ..args };
    let answer = world.backend.create_budget(again).await.unwrap();

    assert_eq!(answer, CreateBudgetResult::AlreadySatisfied { budget_id: id });
    assert_eq!(status(&world, id).await, before);
}

async fn the_limits_of_a_budget_are_given_by_parallel_lists(world: World) {
    let short_hard = CreateBudgetArgs { hard_limits: vec![10], ..limits(&world) };
    let long_soft = CreateBudgetArgs { soft_limits: vec![1, 2, 3], ..limits(&world) };
    let id = short_hard.budget_id;
    invalid(world.backend.create_budget(short_hard).await, ValidationKind::InvalidInput);
    invalid(world.backend.create_budget(long_soft).await, ValidationKind::InvalidInput);
    not_found(world.backend.get_budget_status(id).await, Entity::Budget);
}

async fn a_dimension_has_a_name_of_its_own(world: World) {
    for names in [["usd", "usd"], ["usd", ""], ["usd", "a\tb"]] {
        let args = CreateBudgetArgs { dimensions: names.map(String::from).to_vec(), ..limits(&world) };
        invalid(world.backend.create_budget(args).await, ValidationKind::InvalidInput);
    }
}

async fn a_budget_has_at_most_64_dimensions(world: World) {
    let of_size = |len: usize| CreateBudgetArgs {
        dimensions: (0..len).map(|n| format!("d{n}")).collect(),
        hard_limits: vec![1; len],
        soft_limits: vec![0; len],
        ..limits(&world)
    };
    invalid(world.backend.create_budget(of_size(BUDGET_DIMENSIONS_MAX + 1)).await, ValidationKind::InvalidInput);
    create(&world, of_size(BUDGET_DIMENSIONS_MAX)).await;
    create(&world, of_size(0)).await;
}

async fn numbers_that_some_store_cannot_hold_are_refused(world: World) {
    let beyond = i64::MAX.unsigned_abs() + 1;
    let hard = CreateBudgetArgs { hard_limits: vec![beyond, 0], ..limits(&world) };
    let interval = CreateBudgetArgs { reset_interval_ms: beyond, ..limits(&world) };
    invalid(world.backend.create_budget(hard).await, ValidationKind::InvalidInput);
    invalid(world.backend.create_budget(interval).await, ValidationKind::InvalidInput);
    create(&world, CreateBudgetArgs { hard_limits: vec![beyond - 1, 0], ..limits(&world) }).await;
}

async fn a_breach_action_is_one_of_the_known_words(world: World) {
    let hard = CreateBudgetArgs { on_hard_limit: "explode".into(), ..limits(&world) };
    let soft = CreateBudgetArgs { on_soft_limit: String::new(), ..limits(&world) };
    invalid(world.backend.create_budget(hard).await, ValidationKind::InvalidInput);
    invalid(world.backend.create_budget(soft).await, ValidationKind::InvalidInput);
    for word in ["block", "suspend", "cancel_pending", "cancel_all"] {
        let both = CreateBudgetArgs { on_hard_limit: word.into(), on_soft_limit: word.into(), ..limits(&world) };
        create(&world, both).await;
    }
}

async fn a_hard_limit_cannot_only_warn(world: World) {
    let args = CreateBudgetArgs { on_hard_limit: "warn".into(), ..limits(&world) };
    invalid(world.backend.create_budget(args).await, ValidationKind::InvalidInput);
}

async fn a_scope_must_make_sense(world: World) {
    let other = other_namespace().to_string();
    let bad = [("", ""), ("planet", "earth"), ("lane", ""), ("flow", "seven"), ("tag", "team"), ("namespace", &other)];
    for (scope_type, scope_id) in bad {
        let args = CreateBudgetArgs { scope_type: scope_type.into(), scope_id: scope_id.into(), ..limits(&world) };
        invalid(world.backend.create_budget(args).await, ValidationKind::InvalidBudgetScope);
    }
    let flow = world.uuid().to_string();
    let good = [("namespace", ""), ("lane", "gpu"), ("flow", &flow), ("tag", "app.team=a")];
    for (scope_type, scope_id) in good {
        let args = CreateBudgetArgs { scope_type: scope_type.into(), scope_id: scope_id.into(), ..limits(&world) };
        let id = create(&world, args).await;
        let status = status(&world, id).await;
        assert_eq!((status.scope_type.as_str(), status.scope_id.as_str()), (scope_type, scope_id));
    }
}

async fn a_bad_list_is_told_before_a_bad_scope(world: World) {
    let args = CreateBudgetArgs { scope_type: String::new(), hard_limits: vec![], ..limits(&world) };
    invalid(world.backend.create_budget(args).await, ValidationKind::InvalidInput);
}

async fn the_numbers_of_a_budget_can_be_read_alone(world: World) {
    let id = create(&world, limits(&world)).await;
    report(&world, id, [("usd", 4), ("bytes", 7)]).await;

    let numbers = world.backend.read_budget_usage_and_limits(id).await.unwrap();

    assert_eq!(numbers.hard_limits, amounts([("usd", 10), ("calls", 0)]));
    assert_eq!(numbers.soft_limits, amounts([("usd", 8), ("calls", 3)]));
    let used = numbers.usage.into_iter().filter(|(_, used)| *used > 0).collect();
    assert_eq!(amounts([("usd", 4), ("bytes", 7)]), used);
}

async fn an_unknown_budget_has_no_status_and_empty_numbers(world: World) {
    let id = BudgetId::from_uuid(world.uuid());
    not_found(world.backend.get_budget_status(id).await, Entity::Budget);
    let numbers = world.backend.read_budget_usage_and_limits(id).await.unwrap();
    assert_eq!(numbers, BudgetUsageAndLimits::default());
}
