//! Submits work: with and without ids, keys, delays, deadlines, requirements, and also in ways that must be refused.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::ingress::{
    ChangePriorityArgs, CreateExecutionArgs, CreateExecutionOutcome, CreateExecutionResult, ReplayExecutionArgs,
};
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::policy::{
    BackoffStrategy, DEFAULT_DEDUP_WINDOW_MS, ExecutionPolicy, PolicyDocument, ReclaimBackoff, RetryPolicy,
    RoutingRequirements, SuspensionPolicy, TimeoutBehavior, TimeoutPolicy,
};
use serde_json::json;

use super::actions;
use crate::call::{Call, Presents};
use crate::memory::{CAPABILITIES, KINDS, LANES, NAMESPACES, name, remember};
use crate::world::{COUNTS, World};

actions![30 submit, 4 submit_again, 3 submit_batch, 3 submit_wrongly, 3 reprioritise, 5 replay];

/// A policy with something of everything.
pub(super) fn policy(world: &World, namespace: &Namespace) -> ExecutionPolicy {
    let (mut budgets, mut quotas) = {
        let memory = world.memory();
        (memory.budgets.clone(), memory.quotas.clone())
    };
    // What is attached must be of the same namespace; once in a while somebody does not know.
    let knows = world.rng().chance(97);
    budgets.retain(|(_, home)| !knows || home == namespace);
    quotas.retain(|(_, home)| !knows || home == namespace);
    let rng = world.rng();
    let mut policy = ExecutionPolicy {
        retry_policy: rng
            .chance(70)
            .then(|| RetryPolicy { max_retries: rng.one_of([0, 1, 2]), ..RetryPolicy::default() }),
        max_reclaim_count: rng.chance(50).then(|| rng.one_of([0, 1, 2])),
        max_replay_count: 2,
        ..ExecutionPolicy::default()
    };
    if let (Some(retry), true) = (&mut policy.retry_policy, rng.chance(50)) {
        retry.backoff = BackoffStrategy::Fixed { delay_ms: 500 };
    }
    if rng.chance(40) {
        policy.reclaim_backoff = Some(ReclaimBackoff { initial_delay_ms: 200, max_delay_ms: 2_000 });
    }
    if rng.chance(25) {
        let attempt_timeout_ms = rng.chance(70).then(|| rng.between(2_000, 30_000));
        let execution_deadline_ms = rng.chance(40).then(|| rng.between(5_000, 300_000));
        policy.timeout_policy = Some(TimeoutPolicy { attempt_timeout_ms, execution_deadline_ms });
    }
    if rng.chance(20) {
        let timeout_behavior = rng.one_of([TimeoutBehavior::Fail, TimeoutBehavior::AutoResumeWithTimeoutSignal]);
        policy.suspension_policy = Some(SuspensionPolicy { default_timeout_ms: Some(30_000), timeout_behavior });
    }
    if rng.chance(25) {
        let required_capabilities: BTreeSet<String> =
            CAPABILITIES.iter().filter(|_| rng.chance(60)).map(|token| (*token).to_owned()).collect();
        policy.routing_requirements = Some(RoutingRequirements { required_capabilities });
    }
    if rng.chance(30) {
        policy.budget_ids.extend(rng.pick(&budgets).map(|(id, _)| *id));
    }
    if rng.chance(45) {
        policy.quota_policy_ids.extend(rng.pick(&quotas).map(|(id, _)| *id));
    }
    if rng.chance(10) {
        policy.retention_ms = Some(60_000);
    }
    if rng.chance(10) {
        policy.dedup_window_ms = Some(rng.one_of([60_000, 0]));
    }
    policy
}

/// A submission that should be accepted.
pub(super) fn submission(world: &World, id: Option<ExecutionId>) -> CreateExecutionArgs {
    let namespace: Namespace = name(world.rng().one_of(NAMESPACES));
    submission_in(world, namespace, id)
}

/// A submission in a namespace.
pub(super) fn submission_in(world: &World, namespace: Namespace, id: Option<ExecutionId>) -> CreateExecutionArgs {
    let policy = world.rng().chance(80).then(|| policy(world, &namespace));
    let now = world.now();
    let rng = world.rng();
    let mut args = CreateExecutionArgs::new(id, namespace, name(rng.one_of(LANES)), rng.one_of(KINDS));
    args.priority = i32::try_from(rng.between(0, 3)).unwrap_or(0) * 10;
    args.input_payload = vec![0xff, 0x00, 0x7f].into();
    args.policy = policy.map(PolicyDocument::from);
    if rng.chance(25) {
        args.idempotency_key = Some(format!("key-{}", rng.below(12)));
    }
    if rng.chance(20) {
        let at = now.0 - 2_000 + i64::try_from(rng.between(0, 20_000)).unwrap_or(0);
        args.delay_until = Some(ff_core::TimestampMs(at));
    }
    if rng.chance(5) {
        args.execution_deadline_at = Some(now.plus(rng.between(0, 60_000)));
    }
    if rng.chance(20) {
        args.tags = BTreeMap::from([("app.team".to_owned(), rng.one_of(["red", "blue"]).to_owned())]);
    }
    args
}

/// What a submission shows of itself.
pub(super) fn creation(args: &CreateExecutionArgs) -> Presents {
    let decoded = args.policy.as_ref().and_then(|document| document.decode().ok());
    let window_ms = decoded.map_or(Some(DEFAULT_DEDUP_WINDOW_MS), |policy| policy.dedup_window()).unwrap_or(0);
    let key = args.idempotency_key.clone().filter(|key| !key.is_empty());
    Presents::Creation { namespace: args.namespace.clone(), key, window_ms }
}

fn describe(args: &CreateExecutionArgs) -> String {
    format!(
        "{}/{} id={:?} key={:?} delay={:?} policy={}",
        args.namespace,
        args.lane_id,
        args.execution_id.map(|id| id.to_string()),
        args.idempotency_key,
        args.delay_until.map(|at| at.0),
        args.policy.as_ref().map_or(String::new(), |policy| policy.0.to_string()),
    )
}

pub(super) async fn create(world: &World, args: CreateExecutionArgs) -> Option<ExecutionId> {
    let engine = world.engine();
    let mut call = Call::new("create_execution", describe(&args)).with(creation(&args));
    call.subject = args.execution_id;
    let answer = world.call(call, engine.create_execution(args)).await.done()?;
    let (CreateExecutionResult::Created { execution_id, .. } | CreateExecutionResult::Duplicate { execution_id }) =
        answer;
    remember(&mut world.memory().executions, execution_id);
    Some(execution_id)
}

async fn submit(world: &World) {
    let id = {
        let rng = world.rng();
        rng.chance(50).then(|| rng.execution_id(COUNTS.flow.get()))
    };
    let args = submission(world, id);
    create(world, args).await;
}

/// The same id once more, with whatever else.
async fn submit_again(world: &World) {
    let known = world.rng().pick_recent(&world.memory().executions).copied();
    if let Some(id) = known {
        let args = submission(world, Some(id));
        create(world, args).await;
    }
}

async fn submit_batch(world: &World) {
    let batch: Vec<_> =
        (0..3).map(|_| CreateExecutionArgs { idempotency_key: None, ..submission(world, None) }).collect();
    let engine = world.engine();
    let call = Call::new("create_executions", "three");
    let made = world.call(call, engine.create_executions(batch)).await.done().unwrap_or_default();
    for outcome in made {
        if let CreateExecutionOutcome::Created { execution_id, .. } = outcome {
            remember(&mut world.memory().executions, execution_id);
        }
    }
}

/// Something the engine must refuse without a trace.
async fn submit_wrongly(world: &World) {
    let mut args = CreateExecutionArgs { idempotency_key: None, ..submission(world, None) };
    match world.rng().below(4) {
        0 => args.policy = Some(PolicyDocument(json!({"retry_policy": 3}))),
        1 => {
            args.policy = Some(PolicyDocument(json!({"routing_requirements": {"required_capabilities": ["a,b"]}})));
        }
        2 => args.policy = Some(PolicyDocument(json!({"nobody_knows": true}))),
        _ => args.tags = BTreeMap::from([("NoDot".to_owned(), "x".to_owned())]),
    }
    create(world, args).await;
}

async fn reprioritise(world: &World) {
    let known = world.rng().pick_recent(&world.memory().executions).copied();
    let Some(execution_id) = known else { return };
    let new_priority = i32::try_from(world.rng().between(0, 20_000)).unwrap_or(0);
    let args = ChangePriorityArgs { execution_id, new_priority, lane_id: String::new() };
    let engine = world.engine();
    let call = Call::new("change_priority", format!("{execution_id} to {new_priority}")).of(execution_id);
    world.call(call, engine.change_priority(args)).await;
}

/// Opens an execution again: mostly one that is over, and rather one that had a hard life.
async fn replay(world: &World) {
    let known = world.memory().executions.clone();
    let (over, tried): (Vec<_>, Vec<_>) = {
        let seen = world.seen();
        let ended = |id: &&ExecutionId| seen.mirror().execution(**id).is_some_and(|e| e.is_terminal());
        let retried = |id: &&ExecutionId| seen.mirror().execution(**id).is_some_and(|e| e.retry_count > 0);
        let over: Vec<ExecutionId> = known.iter().filter(ended).copied().collect();
        let tried = over.iter().filter(retried).copied().collect();
        (over, tried)
    };
    let pool = match world.rng().below(10) {
        0 => &known,
        1..=3 if !tried.is_empty() => &tried,
        _ => &over,
    };
    let Some(execution_id) = world.rng().pick(pool).copied() else { return };
    let args = ReplayExecutionArgs { execution_id, reason: "again".to_owned(), requested_by: "ops".to_owned() };
    let engine = world.engine();
    let call = Call::new("replay_execution", execution_id.to_string()).of(execution_id);
    world.call(call, engine.replay_execution(args)).await;
}
