//! Workers get the kinds of work they handle, and no other.

use std::collections::BTreeSet;

use ff_core::backend::claims::{ClaimForWorkerArgs, ClaimForWorkerOutcome, ClaimPolicy};
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs};
use ff_core::capability::CapabilitySet;
use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use ff_core::policy::ExecutionPolicy;
use ff_core::state::PublicState;

use super::reserve::worker_args;
use super::{claim_kinds, of_kind, policy, requiring, set, taking};
use crate::cases;
use crate::expect::invalid;
use crate::world::{LEASE_MS, World};

cases!["claims":
    a_claim_takes_only_the_kinds_it_names,
    a_claim_that_names_no_kinds_takes_all,
    a_claim_that_names_an_empty_set_takes_nothing,
    the_scheduler_grants_only_the_kinds_it_is_given,
    a_kind_may_be_empty_and_case_matters,
    priority_is_global_over_kinds,
    a_batch_is_filled_over_kinds_in_order,
    work_of_other_kinds_at_the_head_starves_nobody,
    lost_work_is_taken_over_by_those_who_handle_it,
    kind_and_capabilities_must_both_match,
    kinds_that_cannot_be_are_refused,
    of_very_many_kinds_each_is_served_and_those_that_nobody_handles_are_parked,
    a_kind_that_was_not_seen_for_long_is_served_again,
    work_that_waits_for_long_is_served_in_the_end,
    work_that_ended_long_ago_is_served_when_it_is_replayed,
];

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

async fn submit(world: &World, kind: &str, priority: i32) -> ExecutionId {
    world.submit(CreateExecutionArgs { priority, ..of_kind(world, kind) }).await
}

async fn a_claim_takes_only_the_kinds_it_names(world: World) {
    let mail = submit(&world, "mail", 0).await;
    let bill = submit(&world, "bill", 0).await;
    let call = submit(&world, "call", 0).await;
    assert!(claim_kinds(&world, &["bill", "unheard-of"]).await.is_some());
    assert_eq!(world.state(bill).await, PublicState::Active);
    assert!(claim_kinds(&world, &["bill", "unheard-of"]).await.is_none());
    assert!(claim_kinds(&world, &["call", "mail"]).await.is_some());
    assert!(claim_kinds(&world, &["call", "mail"]).await.is_some());
    for id in [mail, call] {
        assert_eq!(world.state(id).await, PublicState::Active);
    }
}

async fn a_claim_that_names_no_kinds_takes_all(world: World) {
    for kind in ["mail", "bill", ""] {
        submit(&world, kind, 0).await;
    }
    for _ in 0..3 {
        assert!(world.claim().await.is_some());
    }
    assert!(world.claim().await.is_none());
}

async fn a_claim_that_names_an_empty_set_takes_nothing(world: World) {
    let id = submit(&world, "mail", 0).await;
    assert!(claim_kinds(&world, &[]).await.is_none());
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn the_scheduler_grants_only_the_kinds_it_is_given(world: World) {
    submit(&world, "mail", 9).await;
    let bill = submit(&world, "bill", 0).await;
    let args = ClaimForWorkerArgs { kinds: Some(set(&["bill"])), ..worker_args(&world, "worker-a") };
    match world.backend.claim_for_worker(args.clone()).await.unwrap() {
        ClaimForWorkerOutcome::Granted(grant) => assert_eq!(grant.execution_id, bill),
        other @ ClaimForWorkerOutcome::NoWork => panic!("expected a grant, got {other:?}"),
    }
    assert_eq!(world.backend.claim_for_worker(args).await.unwrap(), ClaimForWorkerOutcome::NoWork);
}

async fn a_kind_may_be_empty_and_case_matters(world: World) {
    let nameless = submit(&world, "", 0).await;
    let mail = submit(&world, "Mail", 0).await;
    assert!(claim_kinds(&world, &["mail"]).await.is_none());
    assert!(claim_kinds(&world, &[""]).await.is_some());
    assert_eq!(world.state(nameless).await, PublicState::Active);
    assert!(claim_kinds(&world, &["Mail"]).await.is_some());
    assert_eq!(world.state(mail).await, PublicState::Active);
}

async fn priority_is_global_over_kinds(world: World) {
    let mut expected = Vec::new();
    for (n, kind) in ["mail", "bill", "call", "mail", "bill"].into_iter().enumerate() {
        let priority = [1, 0, 9, 2, 2][n];
        expected.push((priority, submit(&world, kind, priority).await, kind));
        world.advance(1);
    }
    expected.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
    for (_, id, _) in expected.iter().filter(|(_, _, kind)| *kind != "call") {
        assert_eq!(world.state(*id).await, PublicState::Waiting);
        assert!(claim_kinds(&world, &["bill", "mail"]).await.is_some());
        assert_eq!(world.state(*id).await, PublicState::Active);
    }
    assert!(claim_kinds(&world, &["bill", "mail"]).await.is_none());
}

async fn a_batch_is_filled_over_kinds_in_order(world: World) {
    let late = submit(&world, "mail", 0).await;
    let other = submit(&world, "call", 9).await;
    let first = submit(&world, "bill", 5).await;
    let second = submit(&world, "mail", 4).await;
    let nothing = CapabilitySet::default();
    let some = world.backend.claim_many(&world.lane(), &nothing, taking(&["bill", "mail"]), 2).await.unwrap();
    assert_eq!(some.len(), 2);
    for (id, state) in [(first, PublicState::Active), (second, PublicState::Active), (late, PublicState::Waiting)] {
        assert_eq!(world.state(id).await, state);
    }
    let rest = world.backend.claim_many(&world.lane(), &nothing, taking(&["bill", "mail"]), 10).await.unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(world.state(other).await, PublicState::Waiting);
}

async fn work_of_other_kinds_at_the_head_starves_nobody(world: World) {
    for _ in 0..100 {
        submit(&world, "bill", 9).await;
    }
    let behind = submit(&world, "mail", 0).await;
    assert!(claim_kinds(&world, &["mail"]).await.is_some());
    assert_eq!(world.state(behind).await, PublicState::Active);
}

async fn lost_work_is_taken_over_by_those_who_handle_it(world: World) {
    let id = submit(&world, "bill", 0).await;
    claim_kinds(&world, &["bill"]).await.expect("it is claimable");
    world.pass(LEASE_MS).await;
    assert!(claim_kinds(&world, &["mail"]).await.is_none());
    assert_eq!(super::info(&world, id).await.current_attempt_index.0, 0);
    assert!(claim_kinds(&world, &["bill"]).await.is_some());
    assert_eq!(super::info(&world, id).await.current_attempt_index.0, 1);
}

async fn kind_and_capabilities_must_both_match(world: World) {
    let gpu = Some(requiring(&["gpu"]).into());
    let id = world.submit(CreateExecutionArgs { policy: gpu, ..of_kind(&world, "mail") }).await;
    let claim = async |kinds: &[&str], tokens: &[&str]| {
        let offered = CapabilitySet::new(tokens.iter().copied());
        world.backend.claim(&world.lane(), &offered, taking(kinds)).await.unwrap()
    };
    assert!(claim(&["mail"], &[]).await.is_none());
    assert!(claim(&["bill"], &["gpu"]).await.is_none());
    assert!(claim(&["mail"], &["gpu"]).await.is_some());
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn kinds_that_cannot_be_are_refused(world: World) {
    let id = submit(&world, "mail", 0).await;
    let many: BTreeSet<String> = (0..1001).map(|n| format!("kind-{n}")).collect();
    let (nothing, lane) = (CapabilitySet::default(), world.lane());
    for (kinds, why) in [
        (many, "at most 1000"),
        (set(&["mail", &"k".repeat(257)]), "257 bytes"),
        (set(&["mail", "a\nb"]), "forbidden character"),
    ] {
        let policy = ClaimPolicy { kinds: Some(kinds.clone()), ..policy("worker-a") };
        let args = ClaimForWorkerArgs { kinds: Some(kinds), ..worker_args(&world, "worker-a") };
        for detail in [
            invalid(world.backend.claim(&lane, &nothing, policy.clone()).await, ValidationKind::InvalidInput),
            invalid(world.backend.claim_many(&lane, &nothing, policy, 2).await, ValidationKind::InvalidInput),
            invalid(world.backend.claim_for_worker(args).await, ValidationKind::InvalidInput),
        ] {
            assert!(detail.contains("kinds") && detail.contains(why), "{detail}");
        }
    }
    assert_eq!(world.state(id).await, PublicState::Waiting);
    let most: BTreeSet<String> = (0..999).map(|n| format!("kind-{n}")).chain(["mail".to_owned()]).collect();
    let policy = ClaimPolicy { kinds: Some(most), ..policy("worker-a") };
    assert!(world.backend.claim(&lane, &nothing, policy).await.unwrap().is_some());
}

async fn finish(world: &World, kind: &str) {
    let handle = claim_kinds(world, &[kind]).await.expect("it is claimable");
    world.backend.complete(&handle, None).await.unwrap();
}

async fn of_very_many_kinds_each_is_served_and_those_that_nobody_handles_are_parked(world: World) {
    let name = |n: usize| format!("kind-{n:03}");
    let mut ids = Vec::new();
    for n in 0..120 {
        ids.push(submit(&world, &name(n), 0).await);
    }
    for n in [0, 57, 118, 119] {
        assert!(claim_kinds(&world, &[&name(n)]).await.is_some());
        assert_eq!(world.state(ids[n]).await, PublicState::Active);
    }
    // A claim looks at some of what it cannot do, and the next one at more.
    let is_parked = |detail: &str| detail.contains("no live worker");
    for _ in 0..50 {
        assert!(claim_kinds(&world, &["other"]).await.is_none());
    }
    for (n, id) in ids.iter().enumerate().filter(|(n, _)| ![0, 57, 118, 119].contains(n)) {
        let detail = super::info(&world, *id).await.blocking_detail;
        assert!(is_parked(&detail), "{n}: {detail}");
    }
    assert!(claim_kinds(&world, &[&name(117), &name(3)]).await.is_some());
    assert_eq!(world.state(ids[3]).await, PublicState::Active);
}

async fn a_kind_that_was_not_seen_for_long_is_served_again(world: World) {
    for _ in 0..3 {
        submit(&world, "mail", 0).await;
        finish(&world, "mail").await;
        for _ in 0..3 {
            world.pass(DAY_MS).await;
        }
        assert!(claim_kinds(&world, &["mail"]).await.is_none());
    }
}

async fn work_that_waits_for_long_is_served_in_the_end(world: World) {
    let delay_until = Some(world.now().plus(5 * DAY_MS));
    world.submit(CreateExecutionArgs { delay_until, ..of_kind(&world, "mail") }).await;
    for _ in 0..5 {
        assert!(claim_kinds(&world, &["mail"]).await.is_none());
        world.pass(DAY_MS).await;
    }
    finish(&world, "mail").await;
}

async fn work_that_ended_long_ago_is_served_when_it_is_replayed(world: World) {
    let kept = ExecutionPolicy { retention_ms: Some(30 * DAY_MS), ..ExecutionPolicy::default() };
    let execution_id = world.submit(CreateExecutionArgs { policy: Some(kept.into()), ..of_kind(&world, "mail") }).await;
    finish(&world, "mail").await;
    for _ in 0..3 {
        world.pass(DAY_MS).await;
    }
    let again = ReplayExecutionArgs { execution_id, reason: "again".into(), requested_by: "ops".into() };
    world.backend.replay_execution(again).await.unwrap();
    finish(&world, "mail").await;
}
