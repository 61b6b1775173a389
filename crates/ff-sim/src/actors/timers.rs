//! Time: it passes, jumps and steps back; due work runs; single hooks run early, late and twice; processes restart.

use ff_core::backend::leases::ExpirePhase;
use ff_core::backend::maintenance::TrimRetentionArgs;
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::partition::{Partition, PartitionFamily};
use ff_engine::clock::Clock;

use super::actions;
use crate::call::Call;
use crate::memory::{LANES, name};
use crate::world::{PARTITIONS, World};

actions![30 run_due, 8 pass, 2 jump, 2 step_back, 5 run_hook, 2 trim, 1 reconcile, 1 restart];

/// How much one pass handles at most; few, so that passes are cut short.
async fn run_due(world: &World) {
    let limit = world.rng().one_of([1, 5, 50]);
    run_due_with(world, limit).await;
}

pub(crate) async fn run_due_with(world: &World, limit: usize) -> usize {
    let engine = world.engine();
    let now = world.now();
    let report = world.call(Call::new("run_due", format!("limit {limit}")), engine.run_due(now, limit)).await;
    report.done().map_or(0, |report| report.handled)
}

async fn pass(world: &World) {
    let ms = world.rng().between(100, 6_000);
    world.clock.advance(ms);
    world.history().note(format!("{ms} ms pass"));
}

async fn jump(world: &World) {
    let ms = world.rng().one_of([60_000, 600_000]);
    world.clock.advance(ms);
    world.history().note(format!("the clock jumps {ms} ms ahead"));
}

/// The clock of the machine steps back; the store's time must not.
async fn step_back(world: &World) {
    let ms = world.rng().between(1, 3_000);
    let earlier = ff_core::TimestampMs(world.clock.now().0 - i64::try_from(ms).unwrap_or(0));
    world.clock.set(earlier);
    world.history().note(format!("the clock steps {ms} ms back"));
}

async fn run_hook(world: &World) {
    let id = world.rng().pick_recent(&world.memory().executions).copied();
    let waitpoint = world.rng().pick_recent(&world.memory().waitpoints).cloned();
    let Some(id) = id else { return };
    let engine = world.engine();
    let now = world.now();
    let about = |op: &'static str| Call::new(op, id.to_string()).of(id);
    match world.rng().below(6) {
        0 => drop(world.call(about("mark_lease_expired_if_due"), engine.mark_lease_expired_if_due(id)).await),
        1 => drop(world.call(about("promote_delayed"), engine.promote_delayed(id, now)).await),
        2 => {
            let call = engine.expire_execution(id, ExpirePhase::ExecutionDeadline, now);
            drop(world.call(about("expire_execution"), call).await);
        }
        3 => {
            let call = engine.expire_execution(id, ExpirePhase::AttemptTimeout, now);
            drop(world.call(about("expire_execution"), call).await);
        }
        4 => drop(world.call(about("expire_suspension"), engine.expire_suspension(id, now)).await),
        _ => {
            let Some(note) = waitpoint.filter(|_| world.rng().chance(30)) else { return };
            let call = Call::new("close_waitpoint", note.id.to_string()).of(note.execution);
            drop(world.call(call, engine.close_waitpoint(note.execution, note.id, now)).await);
        }
    }
}

async fn trim(world: &World) {
    let partition = Partition::flow(u16::try_from(world.rng().below(PARTITIONS)).unwrap_or(0));
    let args = TrimRetentionArgs {
        partition: partition.into(),
        namespace: None,
        lane_id: name(world.rng().one_of(LANES)),
        retention_ms: 300_000,
        now: world.now(),
        batch_size: 3,
        filter: ScannerFilter::default(),
    };
    let engine = world.engine();
    world.call(Call::new("trim_retention", partition.to_string()), engine.trim_retention(args)).await;
}

async fn reconcile(world: &World) {
    let engine = world.engine();
    let now = world.now();
    let index = u16::try_from(world.rng().below(2)).unwrap_or(0);
    let quotas = Partition::new(PartitionFamily::Quota, index).into();
    world.call(Call::new("reconcile_quota_counters", ""), engine.reconcile_quota_counters(&quotas, now)).await;
    let budgets = Partition::new(PartitionFamily::Budget, index).into();
    world.call(Call::new("reconcile_budget_counters", ""), engine.reconcile_budget_counters(&budgets, now)).await;
}

async fn restart(world: &World) {
    world.restart_process().await;
    world.history().note("a process restarts".to_owned());
}
