//! A worker hears that it lost something it holds.

use std::pin::pin;
use std::time::Duration;

use ff_core::Result;
use ff_core::backend::attempts::{CancelExecutionArgs, CompleteExecutionArgs, FailureReason};
use ff_core::backend::leases::{AwaitLostLeasesArgs, ExpirePhase, LeaseLoss, LostLease};
use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::error::ValidationKind;
use ff_core::handle::{BackendTag, Handle};
use ff_core::ids::{BudgetId, FenceTriple};
use ff_core::policy::ExecutionPolicy;
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::rules::waiting::WAIT_MS_MAX;
use ff_core::state::PublicState;
use futures_util::future::join;
use serde_json::json;

use crate::attempts::owner::{
    Act, CALLS, Form, Owner, UNTIL, act, cancellation, completion, lose, own, own_with, purge, reclaim_as, resume_as,
    retrying, revoke, run_out, timed,
};
use crate::cases;
use crate::expect::{invalid, is_closing};
use crate::harness::Damage;
use crate::patience::{is_waiting, keeps_waiting, settle};
use crate::stage::{self, suspend};
use crate::world::{LEASE_MS, World, worker};

cases!["leases":
    nothing_is_lost_while_all_is_held,
    a_wait_for_losses_gives_up_when_its_time_is_over,
    a_cancellation_is_heard_at_once,
    a_revocation_is_heard_at_once,
    an_attempt_timeout_is_heard_at_once,
    a_deadline_is_heard_at_once,
    what_an_operator_completes_is_heard_at_once,
    what_a_budget_takes_away_is_heard_at_once,
    an_expiry_that_the_timers_mark_is_heard_at_once,
    a_lease_that_runs_out_is_lost_before_anybody_marks_it,
    the_earliest_lease_ends_the_wait_at_its_end,
    a_renewal_keeps_a_lease_in_the_wait,
    what_another_worker_took_over_is_superseded_whatever_became_of_it,
    what_was_taken_over_in_the_same_moment_is_heard,
    what_the_owner_ends_itself_does_not_wake_it,
    a_loss_of_another_worker_wakes_nobody,
    a_parked_attempt_is_no_longer_owned,
    a_purged_execution_is_missing,
    all_losses_are_told_in_the_order_of_the_handles,
    a_wait_for_losses_is_told_that_the_engine_closes,
    a_wait_for_losses_beyond_the_limits_is_refused,
    handles_of_others_are_refused,
    losses_of_an_unreadable_execution_are_reported_as_corruption,
];

fn args(owners: &[&Owner], max_wait_ms: u64) -> AwaitLostLeasesArgs {
    let handles = owners.iter().map(|owner| owner.handle.clone()).collect();
    AwaitLostLeasesArgs { worker_instance_id: worker("worker-a").1, handles, max_wait_ms }
}

fn lost(owner: &Owner, loss: LeaseLoss) -> LostLease {
    LostLease { execution_id: owner.id, attempt_index: owner.index, loss }
}

async fn now(world: &World, owners: &[&Owner]) -> Vec<LostLease> {
    world.backend.await_lost_leases(args(owners, 0)).await.unwrap()
}

/// Waits for losses of `owners` while something happens; time moves only if that moves it.
async fn heard(world: &World, owners: &[&Owner], happening: impl Future<Output = ()>) -> Vec<LostLease> {
    let waiting = world.backend.await_lost_leases(args(owners, 20_000));
    let happening = async {
        settle().await;
        happening.await;
    };
    join(waiting, happening).await.0.unwrap()
}

fn by_operator(owner: &Owner) -> CancelExecutionArgs {
    CancelExecutionArgs {
        fence: FenceTriple::default(),
        source: CancelSource::OperatorOverride,
        reason: "enough".to_owned(),
        ..cancellation(owner)
    }
}

async fn cancel(world: &World, owner: &Owner) {
    world.backend.cancel_execution(by_operator(owner)).await.unwrap();
}

fn cancelled(owner: &Owner) -> LostLease {
    lost(owner, LeaseLoss::Cancelled { reason: "enough".to_owned() })
}

async fn nothing_is_lost_while_all_is_held(world: World) {
    let (one, two) = (own(&world).await, own(&world).await);
    assert_eq!(now(&world, &[&one, &two]).await, []);
    assert_eq!(now(&world, &[]).await, []);
}

async fn a_wait_for_losses_gives_up_when_its_time_is_over(world: World) {
    let owner = own(&world).await;
    let mut waiting = pin!(world.backend.await_lost_leases(args(&[&owner], 1_000)));
    assert!(is_waiting(&mut waiting).await);
    world.advance(999);
    settle().await;
    assert!(is_waiting(&mut waiting).await);
    world.advance(1);
    assert_eq!(waiting.await.unwrap(), []);
}

async fn a_cancellation_is_heard_at_once(world: World) {
    let (one, two) = (own(&world).await, own(&world).await);
    assert_eq!(heard(&world, &[&one, &two], cancel(&world, &two)).await, [cancelled(&two)]);
}

async fn a_revocation_is_heard_at_once(world: World) {
    let owner = own(&world).await;
    let reason = "operator says so".to_owned();
    assert_eq!(heard(&world, &[&owner], revoke(&world, &owner)).await, [lost(&owner, LeaseLoss::Revoked { reason })]);
}

async fn an_attempt_timeout_is_heard_at_once(world: World) {
    for (retries, public_state) in [(1, PublicState::Delayed), (0, PublicState::Expired)] {
        let owner = own_with(&world, &timed(5_000, retrying(retries))).await;
        let told = heard(&world, &[&owner], world.pass(5_000)).await;
        assert_eq!(told, [lost(&owner, LeaseLoss::Ended { public_state })]);
    }
}

async fn a_deadline_is_heard_at_once(world: World) {
    let mut policy = timed(0, retrying(0));
    policy.timeout_policy.as_mut().unwrap().execution_deadline_ms = Some(5_000);
    let owner = own_with(&world, &policy).await;
    let told = heard(&world, &[&owner], async {
        world.advance(5_000);
        let phase = ExpirePhase::ExecutionDeadline;
        world.backend.expire_execution(owner.id, phase, world.now()).await.unwrap();
    })
    .await;
    assert_eq!(told, [lost(&owner, LeaseLoss::Ended { public_state: PublicState::Expired })]);
}

async fn what_an_operator_completes_is_heard_at_once(world: World) {
    let owner = own(&world).await;
    let args = CompleteExecutionArgs {
        fence: FenceTriple::default(),
        source: CancelSource::OperatorOverride,
        ..completion(&owner)
    };
    let told = heard(&world, &[&owner], async {
        world.backend.complete_execution(args).await.unwrap();
    })
    .await;
    assert_eq!(told, [lost(&owner, LeaseLoss::Ended { public_state: PublicState::Completed })]);
}

async fn what_a_budget_takes_away_is_heard_at_once(world: World) {
    let id = world.uuid();
    let budget = json!({
        "budget_id": id, "namespace": "acme", "dimensions": ["usd"], "hard_limits": [5], "soft_limits": [0],
        "scope_type": "policy", "scope_id": "", "on_hard_limit": "suspend", "on_soft_limit": "warn",
        "reset_interval_ms": 0,
    });
    world.backend.create_budget(stage::args(budget)).await.unwrap();
    let budget = BudgetId::from_uuid(id);
    let owner = own_with(&world, &ExecutionPolicy { budget_ids: vec![budget], ..ExecutionPolicy::default() }).await;
    let usage = json!({"dimensions": ["usd"], "deltas": [6]});
    let told = heard(&world, &[&owner], async {
        world.backend.report_usage_admin(budget, stage::args(usage)).await.unwrap();
        world.run_due().await;
    })
    .await;
    assert_eq!(told, [lost(&owner, LeaseLoss::Ended { public_state: PublicState::Suspended })]);
}

async fn an_expiry_that_the_timers_mark_is_heard_at_once(world: World) {
    let owner = own(&world).await;
    world.advance(LEASE_MS - 10_000);
    assert_eq!(heard(&world, &[&owner], world.pass(10_000)).await, [lost(&owner, LeaseLoss::Expired)]);
}

async fn a_lease_that_runs_out_is_lost_before_anybody_marks_it(world: World) {
    let owner = own(&world).await;
    world.advance(LEASE_MS - 1);
    assert_eq!(now(&world, &[&owner]).await, []);
    world.advance(1);
    assert_eq!(now(&world, &[&owner]).await, [lost(&owner, LeaseLoss::Expired)]);
}

async fn the_earliest_lease_ends_the_wait_at_its_end(world: World) {
    let early = own(&world).await;
    world.advance(15_000);
    let late = own(&world).await;
    let told = heard(&world, &[&late, &early], async { world.advance(15_000) }).await;
    assert_eq!(told, [lost(&early, LeaseLoss::Expired)]);
}

async fn a_renewal_keeps_a_lease_in_the_wait(world: World) {
    let owner = own(&world).await;
    world.advance(LEASE_MS - 1_000);
    let mut waiting = pin!(world.backend.await_lost_leases(args(&[&owner], 20_000)));
    assert!(keeps_waiting(&world, &mut waiting).await);
    world.backend.renew(&owner.handle).await.unwrap();
    world.advance(1_000);
    assert!(keeps_waiting(&world, &mut waiting).await, "the end that was seen first has passed");
    world.advance(19_000);
    assert_eq!(waiting.await.unwrap(), []);
}

async fn what_another_worker_took_over_is_superseded_whatever_became_of_it(world: World) {
    let first = own(&world).await;
    let second = lose(&world, &first).await;
    assert_eq!(now(&world, &[&first]).await, [lost(&first, LeaseLoss::Superseded)]);
    world.backend.fail(&second.handle, FailureReason::new("no"), FailureClass::Permanent).await.unwrap();
    assert_eq!(now(&world, &[&first]).await, [lost(&first, LeaseLoss::Superseded)]);
    let delayed = own(&world).await;
    world.backend.delay(&delayed.handle, world.now().plus(1)).await.unwrap();
    world.pass(1).await;
    resume_as(&world, &delayed, "worker-b").await;
    assert_eq!(now(&world, &[&delayed]).await, [lost(&delayed, LeaseLoss::Superseded)]);
}

async fn what_was_taken_over_in_the_same_moment_is_heard(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    let next = reclaim_as(&world, &owner, "worker-b").await;
    let instance = worker("worker-b").1;
    let args = AwaitLostLeasesArgs { worker_instance_id: instance, ..args(&[&next], 20_000) };
    let taking = async {
        settle().await;
        run_out(&world, &next);
        reclaim_as(&world, &next, "worker-c").await;
    };
    let told = join(world.backend.await_lost_leases(args), taking).await.0.unwrap();
    assert_eq!(told.len(), 1);
    assert!(matches!(told[0].loss, LeaseLoss::Expired | LeaseLoss::Superseded), "{told:?}");
}

async fn what_the_owner_ends_itself_does_not_wake_it(world: World) {
    let held = own(&world).await;
    let ending = CALLS.iter().filter(|(act, _)| !matches!(act, Act::Renew | Act::Progress | Act::Cancel));
    for (call, form) in ending {
        let owner = own_with(&world, &retrying(1)).await;
        let mut waiting = pin!(world.backend.await_lost_leases(args(&[&held, &owner], 20_000)));
        assert!(keeps_waiting(&world, &mut waiting).await);
        act(&world, *call, *form, &owner).await.unwrap();
        assert!(keeps_waiting(&world, &mut waiting).await, "{call:?} by {form:?}");
    }
    let owner = own(&world).await;
    let mut waiting = pin!(world.backend.await_lost_leases(args(&[&held, &owner], 20_000)));
    assert!(keeps_waiting(&world, &mut waiting).await);
    suspend(&world, &owner.handle).await;
    assert!(keeps_waiting(&world, &mut waiting).await, "a suspension");
    cancel(&world, &held).await;
    let public_state = PublicState::Suspended;
    assert_eq!(waiting.await.unwrap(), [cancelled(&held), lost(&owner, LeaseLoss::Ended { public_state })]);
}

async fn a_loss_of_another_worker_wakes_nobody(world: World) {
    let mine = own(&world).await;
    let id = world.create().await;
    let theirs = crate::attempts::owner::take_as(&world, id, 0, "worker-b").await;
    let mut waiting = pin!(world.backend.await_lost_leases(args(&[&mine], 20_000)));
    assert!(keeps_waiting(&world, &mut waiting).await);
    cancel(&world, &theirs).await;
    assert!(keeps_waiting(&world, &mut waiting).await);
    cancel(&world, &mine).await;
    assert_eq!(waiting.await.unwrap(), [cancelled(&mine)]);
}

async fn a_parked_attempt_is_no_longer_owned(world: World) {
    let owner = own(&world).await;
    world.backend.delay(&owner.handle, UNTIL).await.unwrap();
    let ended = lost(&owner, LeaseLoss::Ended { public_state: PublicState::Delayed });
    assert_eq!(heard(&world, &[&owner], async {}).await, [ended]);
}

async fn a_purged_execution_is_missing(world: World) {
    let owner = own(&world).await;
    act(&world, Act::Complete, Form::Handle, &owner).await.unwrap();
    purge(&world, owner.id).await;
    assert_eq!(now(&world, &[&owner]).await, [lost(&owner, LeaseLoss::Missing)]);
}

async fn all_losses_are_told_in_the_order_of_the_handles(world: World) {
    let (one, two, three) = (own(&world).await, own(&world).await, own(&world).await);
    cancel(&world, &one).await;
    cancel(&world, &three).await;
    assert_eq!(now(&world, &[&three, &two, &one]).await, [cancelled(&three), cancelled(&one)]);
}

async fn a_wait_for_losses_is_told_that_the_engine_closes(world: World) {
    let owner = own(&world).await;
    let waiting = world.backend.await_lost_leases(args(&[&owner], 20_000));
    let closing = async {
        settle().await;
        world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
    };
    is_closing(join(waiting, closing).await.0);
    is_closing(world.backend.await_lost_leases(args(&[&owner], 20_000)).await);
    assert_eq!(now(&world, &[&owner]).await, []);
    cancel(&world, &owner).await;
    let told = world.backend.await_lost_leases(args(&[&owner], 20_000)).await.unwrap();
    assert_eq!(told, [cancelled(&owner)], "what is known already needs no wait");
}

async fn a_wait_for_losses_beyond_the_limits_is_refused(world: World) {
    let owner = own(&world).await;
    invalid(world.backend.await_lost_leases(args(&[&owner], WAIT_MS_MAX + 1)).await, ValidationKind::InvalidInput);
    let all = [&owner; 1024];
    assert_eq!(now(&world, &all).await, []);
    let answer = world.backend.await_lost_leases(args(&[&owner; 1025], 0)).await;
    invalid(answer, ValidationKind::InvalidInput);
}

async fn handles_of_others_are_refused(world: World) {
    let owner = own(&world).await;
    let show =
        async |args: AwaitLostLeasesArgs| -> Result<Vec<LostLease>> { world.backend.await_lost_leases(args).await };
    let RegisterWorkerArgs { worker_instance_id, .. } = crate::stage::registration(&world, "worker-b", &[]);
    let stranger = AwaitLostLeasesArgs { worker_instance_id, ..args(&[&owner], 0) };
    let detail = invalid(show(stranger).await, ValidationKind::InvalidInput);
    assert!(detail.contains("worker-a-1") && detail.contains("worker-b-1"), "{detail}");
    let foreign = *BackendTag::ALL.iter().find(|tag| **tag != owner.handle.backend).unwrap();
    let mut others = args(&[&owner, &owner], 0);
    others.handles[1] = Handle { backend: foreign, ..owner.handle.clone() };
    invalid(show(others).await, ValidationKind::HandleFromOtherBackend);
}

async fn losses_of_an_unreadable_execution_are_reported_as_corruption(world: World) {
    let owner = own(&world).await;
    world.damage(Damage::Execution(owner.id)).await;
    invalid(world.backend.await_lost_leases(args(&[&owner], 1_000)).await, ValidationKind::Corruption);
}
