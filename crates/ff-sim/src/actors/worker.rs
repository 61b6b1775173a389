//! Workers: they claim, work, report, end, die, and call again when it is too late.

use std::collections::BTreeSet;

use ff_core::backend::attempts::{CompleteExecutionArgs, CompleteManyItem, FailureReason};
use ff_core::backend::budgets::UsageDimensions;
use ff_core::backend::claims::{
    ClaimExecutionArgs, ClaimForWorkerArgs, ClaimForWorkerOutcome, ClaimPolicy, ClaimResumedExecutionArgs, GrantKind,
    ResumeToken,
};
use ff_core::backend::leases::{ReclaimExecutionArgs, ReclaimExecutionOutcome, RenewLeaseArgs};
use ff_core::backend::streams::{BestEffortLiveConfig, Frame, FrameKind, PatchKind, StreamMode};
use ff_core::backend::workers::{HeartbeatWorkerArgs, MarkWorkerDeadArgs, RegisterWorkerArgs};
use ff_core::capability::CapabilitySet;
use ff_core::ids::{AttemptId, AttemptIndex, FenceTriple, LeaseId};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;

use super::actions;
use super::handles::take;
use crate::call::{Call, Presents, Reply};
use crate::memory::{GrantNote, Held, LANES, NAMESPACES, WorkerNote, name, remember};
use crate::world::World;

actions![
    40 claim, 5 claim_some, 10 ask_for_grant, 12 use_grant, 3 misuse_grant, 10 renew, 4 progress, 10 append, 26 complete,
    3 complete_some, 12 fail, 3 give_up, 7 delay, 5 wait_for_children, 7 use_budget, 8 register, 4 heartbeat, 2 sign_off, 5 die,
    16 call_late,
];

/// A call that shows a handle.
pub(super) fn fenced(op: &'static str, held: &Held, detail: &str) -> Call {
    Call::new(op, format!("{} epoch {} {detail}", held.execution, held.fence.lease_epoch))
        .of(held.execution)
        .fenced(held.fence, held.index)
}

pub(super) fn some_held(world: &World) -> Option<Held> {
    world.rng().pick(&world.memory().held).cloned()
}

fn some_worker(world: &World) -> (usize, WorkerNote) {
    let number = world.rng().below(world.memory().workers.len());
    (number, world.memory().workers[number].clone())
}

fn triple(held: &Held) -> FenceTriple {
    FenceTriple {
        lease_id: Some(held.fence.lease_id),
        lease_epoch: Some(held.fence.lease_epoch),
        attempt_id: Some(held.fence.attempt_id),
    }
}

fn claim_policy(world: &World, worker: &WorkerNote) -> ClaimPolicy {
    let rng = world.rng();
    let ttl = rng.one_of([1_500, 5_000, 30_000]);
    let mut policy = ClaimPolicy::new(worker.id.clone(), worker.instance(), ttl);
    if rng.chance(15) {
        policy.namespaces = Some(BTreeSet::from([name(NAMESPACES[0])]));
    }
    policy.kinds.clone_from(&worker.kinds);
    policy
}

fn offering(op: &'static str, worker: &WorkerNote, lane: &str) -> Call {
    let WorkerNote { capabilities, kinds, .. } = worker;
    let detail = format!("{} in {lane} offering {capabilities:?} for {kinds:?}", worker.instance());
    Call::new(op, detail).with(worker.shown())
}

async fn claim(world: &World) {
    let (number, worker) = some_worker(world);
    let lane = world.rng().one_of(LANES);
    let policy = claim_policy(world, &worker);
    let engine = world.engine();
    let (lane_id, offer) = (name(lane), CapabilitySet { tokens: worker.capabilities.clone() });
    let call = offering("claim", &worker, lane);
    if let Some(handle) = world.call(call, engine.claim(&lane_id, &offer, policy)).await.done().flatten() {
        take(world, &handle, number);
    }
}

async fn claim_some(world: &World) {
    let (number, worker) = some_worker(world);
    let lane = world.rng().one_of(LANES);
    let policy = claim_policy(world, &worker);
    let engine = world.engine();
    let (lane_id, offer) = (name(lane), CapabilitySet { tokens: worker.capabilities.clone() });
    let call = offering("claim_many", &worker, lane);
    for handle in world.call(call, engine.claim_many(&lane_id, &offer, policy, 3)).await.done().unwrap_or_default() {
        take(world, &handle, number);
    }
}

async fn ask_for_grant(world: &World) {
    let (number, worker) = some_worker(world);
    let lane = world.rng().one_of(LANES);
    let args = ClaimForWorkerArgs {
        lane_id: name(lane),
        worker_id: worker.id.clone(),
        worker_instance_id: worker.instance(),
        worker_capabilities: worker.capabilities.clone(),
        grant_ttl_ms: world.rng().between(500, 10_000),
        namespaces: None,
        kinds: worker.kinds.clone(),
    };
    let engine = world.engine();
    let call = offering("claim_for_worker", &worker, lane);
    if let Some(ClaimForWorkerOutcome::Granted(grant)) = world.call(call, engine.claim_for_worker(args)).await.done() {
        let note = GrantNote { grant, worker: worker.id.clone(), instance: worker.instance(), by: number };
        remember(&mut world.memory().grants, note);
    }
}

async fn use_grant(world: &World) {
    let note = world.rng().pick_recent(&world.memory().grants).cloned();
    if let Some(note) = note {
        consume(world, note).await;
    }
}

/// Somebody else tries to consume a grant.
async fn misuse_grant(world: &World) {
    let note = world.rng().pick_recent(&world.memory().grants).cloned();
    let (number, thief) = some_worker(world);
    if let Some(note) = note {
        consume(world, GrantNote { worker: thief.id.clone(), instance: thief.instance(), by: number, ..note }).await;
    }
}

/// Turns a grant into ownership, each kind in its own way.
pub(crate) async fn consume(world: &World, note: GrantNote) {
    match note.grant.kind {
        GrantKind::Claim => consume_claim(world, &note).await,
        GrantKind::Resume => consume_resume(world, &note).await,
        GrantKind::Reclaim => consume_reclaim(world, &note).await,
    }
}

fn granted(op: &'static str, note: &GrantNote) -> Call {
    let execution = note.grant.execution_id;
    let presents = Presents::Grant { worker: note.worker.clone(), instance: note.instance.clone() };
    Call::new(op, format!("{execution} as {}", note.instance)).of(execution).with(presents)
}

/// The attempt a caller would expect next, and the one that runs.
fn indexes(world: &World, note: &GrantNote) -> (AttemptIndex, AttemptIndex) {
    let seen = world.seen();
    let execution = seen.mirror().execution(note.grant.execution_id);
    execution.map_or((AttemptIndex(0), AttemptIndex(0)), |e| (AttemptIndex(e.attempt_count), e.attempt_index))
}

async fn consume_claim(world: &World, note: &GrantNote) {
    let (lease, attempt) = (world.rng().uuid(), world.rng().uuid());
    let args = ClaimExecutionArgs {
        execution_id: note.grant.execution_id,
        worker_id: note.worker.clone(),
        worker_instance_id: note.instance.clone(),
        lane_id: note.grant.lane_id.clone(),
        lease_id: LeaseId::from_uuid(lease),
        lease_ttl_ms: 5_000,
        attempt_id: AttemptId::from_uuid(attempt),
        expected_attempt_index: indexes(world, note).0,
        attempt_timeout_ms: None,
        execution_deadline_at: None,
    };
    let engine = world.engine();
    // A caller whose reply was lost asks again.
    for _ in 0..2 {
        match world.call(granted("claim_execution", note), engine.claim_execution(args.clone())).await {
            Reply::Done(ff_core::backend::claims::ClaimExecutionResult::Claimed(claimed)) => {
                return take(world, &claimed.handle, note.by);
            }
            Reply::Lost => {}
            Reply::Refused(_) => return,
        }
    }
}

async fn consume_resume(world: &World, note: &GrantNote) {
    let engine = world.engine();
    if world.rng().chance(50) {
        let token = ResumeToken {
            grant: note.grant.clone(),
            worker_id: note.worker.clone(),
            worker_instance_id: note.instance.clone(),
            lease_ttl_ms: 5_000,
        };
        let call = granted("claim_from_resume_grant", note);
        if let Some(handle) = world.call(call, engine.claim_from_resume_grant(token)).await.done().flatten() {
            take(world, &handle, note.by);
        }
        return;
    }
    let lease = world.rng().uuid();
    let args = ClaimResumedExecutionArgs {
        execution_id: note.grant.execution_id,
        worker_id: note.worker.clone(),
        worker_instance_id: note.instance.clone(),
        lane_id: note.grant.lane_id.clone(),
        lease_id: LeaseId::from_uuid(lease),
        lease_ttl_ms: 5_000,
        current_attempt_index: indexes(world, note).1,
        remaining_attempt_timeout_ms: None,
    };
    let call = granted("claim_resumed_execution", note);
    if let Some(answer) = world.call(call, engine.claim_resumed_execution(args)).await.done() {
        let ff_core::backend::claims::ClaimResumedExecutionResult::Claimed(claimed) = answer;
        take(world, &claimed.handle, note.by);
    }
}

async fn consume_reclaim(world: &World, note: &GrantNote) {
    let (lease, attempt) = (world.rng().uuid(), world.rng().uuid());
    let args = ReclaimExecutionArgs {
        execution_id: note.grant.execution_id,
        worker_id: note.worker.clone(),
        worker_instance_id: note.instance.clone(),
        lane_id: note.grant.lane_id.clone(),
        lease_id: LeaseId::from_uuid(lease),
        lease_ttl_ms: 5_000,
        attempt_id: AttemptId::from_uuid(attempt),
        max_reclaim_count: None,
        current_attempt_index: indexes(world, note).1,
    };
    let engine = world.engine();
    let call = granted("reclaim_execution", note);
    if let Some(ReclaimExecutionOutcome::Claimed { handle }) =
        world.call(call, engine.reclaim_execution(args)).await.done()
    {
        take(world, &handle, note.by);
    }
}

async fn renew(world: &World) {
    if let Some(held) = some_held(world) {
        renew_with(world, &held).await;
    }
}

async fn renew_with(world: &World, held: &Held) {
    let engine = world.engine();
    if world.rng().chance(80) {
        let reply = world.call(fenced("renew", held, ""), engine.renew(&held.handle)).await;
        learn(world, held, &reply, false);
    } else {
        let args = RenewLeaseArgs {
            execution_id: held.execution,
            attempt_index: held.index,
            fence: triple(held),
            lease_ttl_ms: 4_000,
        };
        world.call(fenced("renew_lease", held, ""), engine.renew_lease(args)).await;
    }
}

async fn progress(world: &World) {
    if let Some(held) = some_held(world) {
        progress_with(world, &held).await;
    }
}

async fn progress_with(world: &World, held: &Held) {
    let engine = world.engine();
    let reply = world.call(fenced("progress", held, ""), engine.progress(&held.handle, Some(50), Some("half"))).await;
    learn(world, held, &reply, false);
}

/// A few frames, often within one millisecond.
async fn append(world: &World) {
    let Some(held) = some_held(world) else { return };
    for _ in 0..1 + world.rng().below(3) {
        append_with(world, &held).await;
    }
}

async fn append_with(world: &World, held: &Held) {
    let mut frame = Frame::new(FrameKind::Stdout, vec![0xff, 0x00]);
    match world.rng().below(4) {
        0 => frame.mode = StreamMode::BestEffort { config: BestEffortLiveConfig::new(1_000) },
        1 => {
            frame.mode = StreamMode::Summary { patch_kind: PatchKind::JsonMergePatch };
            frame.payload = r#"{"a":{"b":"__ff_null__"},"c":1}"#.into();
        }
        _ => {}
    }
    let detail = frame.mode.word().as_str();
    let engine = world.engine();
    let reply = world.call(fenced("append_frame", held, detail), engine.append_frame(&held.handle, frame)).await;
    learn(world, held, &reply, false);
}

async fn complete(world: &World) {
    if let Some(held) = some_held(world) {
        complete_with(world, &held).await;
    }
}

async fn complete_with(world: &World, held: &Held) {
    let result = world.rng().chance(70).then(|| vec![0xde, 0xad].into());
    let engine = world.engine();
    if world.rng().chance(85) {
        let reply = world.call(fenced("complete", held, ""), engine.complete(&held.handle, result)).await;
        learn(world, held, &reply, true);
    } else {
        let args = CompleteExecutionArgs {
            execution_id: held.execution,
            fence: triple(held),
            attempt_index: held.index,
            result_payload: result,
            source: CancelSource::LeaseHolder,
        };
        let reply = world.call(fenced("complete_execution", held, ""), engine.complete_execution(args)).await;
        learn(world, held, &reply, true);
    }
}

/// A handle that has done its work, or is known to be worth nothing, is kept only to be misused.
fn learn<T>(world: &World, held: &Held, reply: &Reply<T>, ends: bool) {
    let over = match reply {
        Reply::Done(_) => ends,
        Reply::Refused(_) => true,
        Reply::Lost => false,
    };
    if over {
        world.memory().retire(held);
    }
}

async fn complete_some(world: &World) {
    let held: Vec<Held> = world.memory().held.iter().take(2).cloned().collect();
    if held.is_empty() {
        return;
    }
    let items: Vec<_> =
        held.iter().map(|held| CompleteManyItem { handle: held.handle.clone(), result_payload: None }).collect();
    let engine = world.engine();
    world.call(Call::new("complete_many", format!("{} handles", items.len())), engine.complete_many(items)).await;
    for held in &held {
        world.memory().retire(held);
    }
}

async fn fail(world: &World) {
    if let Some(held) = some_held(world) {
        fail_with(world, &held).await;
    }
}

async fn fail_with(world: &World, held: &Held) {
    let class = world.rng().one_of([
        FailureClass::Transient,
        FailureClass::Transient,
        FailureClass::InfraCrash,
        FailureClass::Permanent,
        FailureClass::Timeout,
    ]);
    let engine = world.engine();
    let call = fenced("fail", held, class.as_str()).failing(class);
    let reply = world.call(call, engine.fail(&held.handle, FailureReason::new("broke"), class)).await;
    learn(world, held, &reply, true);
}

async fn give_up(world: &World) {
    if let Some(held) = some_held(world) {
        cancel_with(world, &held).await;
    }
}

async fn cancel_with(world: &World, held: &Held) {
    let engine = world.engine();
    let reply = world.call(fenced("cancel", held, ""), engine.cancel(&held.handle, "not today")).await;
    learn(world, held, &reply, true);
}

async fn delay(world: &World) {
    if let Some(held) = some_held(world) {
        delay_with(world, &held).await;
    }
}

async fn delay_with(world: &World, held: &Held) {
    let until = world.now().plus(world.rng().between(0, 8_000));
    let engine = world.engine();
    let reply = world.call(fenced("delay", held, &format!("until {until}")), engine.delay(&held.handle, until)).await;
    learn(world, held, &reply, true);
}

async fn wait_for_children(world: &World) {
    if let Some(held) = some_held(world) {
        wait_children_with(world, &held).await;
    }
}

pub(super) async fn wait_children_with(world: &World, held: &Held) {
    let engine = world.engine();
    let reply = world.call(fenced("wait_children", held, ""), engine.wait_children(&held.handle)).await;
    learn(world, held, &reply, true);
}

async fn use_budget(world: &World) {
    if let Some(held) = some_held(world) {
        use_budget_with(world, &held).await;
    }
}

async fn use_budget_with(world: &World, held: &Held) {
    let budget = world.rng().pick(&world.memory().budgets).copied_id();
    let Some(budget) = budget else { return };
    let mut usage = UsageDimensions { input_tokens: world.rng().between(0, 5), ..UsageDimensions::default() };
    usage.dedup_key = world.rng().chance(40).then(|| "report-1".to_owned());
    let Ok(deltas) = ff_core::rules::budgets::usage_deltas(&usage) else { return };
    let engine = world.engine();
    let presents = Presents::Usage { budget, deltas, key: usage.dedup_key.clone() };
    let call = fenced("report_usage", held, &format!("{budget} {usage:?}")).with(presents);
    world.call(call, engine.report_usage(&held.handle, budget, usage)).await;
}

trait CopiedId<I> {
    fn copied_id(self) -> Option<I>;
}

impl<I: Copy, N> CopiedId<I> for Option<&(I, N)> {
    fn copied_id(self) -> Option<I> {
        self.map(|(id, _)| *id)
    }
}

async fn register(world: &World) {
    let (_, worker) = some_worker(world);
    let namespace = world.rng().one_of(NAMESPACES);
    let args = RegisterWorkerArgs {
        worker_id: worker.id.clone(),
        worker_instance_id: worker.instance(),
        namespace: name(namespace),
        lanes: LANES.iter().map(|lane| name(lane)).collect(),
        capabilities: worker.capabilities.clone(),
        kinds: worker.kinds.clone(),
        liveness_ttl_ms: 20_000,
    };
    let engine = world.engine();
    let call = Call::new("register_worker", format!("{} in {namespace}", worker.instance()));
    world.call(call, engine.register_worker(args)).await;
}

async fn heartbeat(world: &World) {
    let (_, worker) = some_worker(world);
    let namespace = world.rng().one_of(NAMESPACES);
    let args = HeartbeatWorkerArgs { worker_instance_id: worker.instance(), namespace: name(namespace) };
    let engine = world.engine();
    let call = Call::new("heartbeat_worker", format!("{} in {namespace}", worker.instance()));
    world.call(call, engine.heartbeat_worker(args)).await;
}

async fn sign_off(world: &World) {
    let (_, worker) = some_worker(world);
    let namespace = world.rng().one_of(NAMESPACES);
    let args = MarkWorkerDeadArgs {
        worker_instance_id: worker.instance(),
        namespace: name(namespace),
        reason: "gone".to_owned(),
    };
    let engine = world.engine();
    let call = Call::new("mark_worker_dead", format!("{} in {namespace}", worker.instance()));
    world.call(call, engine.mark_worker_dead(args)).await;
}

async fn die(world: &World) {
    let (number, worker) = some_worker(world);
    world.memory().bury(number);
    world.history().note(format!("{} dies", worker.instance()));
}

/// A worker that has lost or ended its attempt calls anyway.
async fn call_late(world: &World) {
    let late = world.rng().pick(&world.memory().old).cloned();
    let Some(held) = late else { return };
    match world.rng().below(9) {
        0 => renew_with(world, &held).await,
        1 => progress_with(world, &held).await,
        2 => append_with(world, &held).await,
        3 | 4 => complete_with(world, &held).await,
        5 => fail_with(world, &held).await,
        6 => cancel_with(world, &held).await,
        7 => delay_with(world, &held).await,
        _ => wait_children_with(world, &held).await,
    }
}
