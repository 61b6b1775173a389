//! The acts of the tour.

use std::collections::BTreeMap;

use ff_core::backend::attempts::Attempts;
use ff_core::backend::budgets::{Budgets, CreateBudgetArgs, ReportUsageResult, UsageDimensions};
use ff_core::backend::dependencies::{DependencyKind, EdgeDependencyPolicy, OnSatisfied};
use ff_core::backend::flows::{FlowEdge, FlowNode, Flows, SubmitFlowArgs, SubmitFlowResult};
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult, Ingress};
use ff_core::backend::signals::{
    DeliverSignalArgs, DeliverSignalResult, SecretText, SeedWaitpointHmacSecretArgs, Signals,
};
use ff_core::backend::suspension::{
    ResumeCondition, SignalMatcher, SuspendArgs, SuspendOutcome, Suspension, SuspensionReasonCode, WaitpointBinding,
};
use ff_core::handle::Handle;
use ff_core::ids::{BudgetId, ExecutionId, SuspensionId, WaitpointId};
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use ff_core::token::WaitpointToken;
use ff_core::{EngineError, Result};
use uuid::Uuid;

use super::Tour;
use crate::memory::name;

/// Something the tour relies on did not happen.
fn unexpected(what: &str) -> EngineError {
    EngineError::invalid(format_args!("expected {what}"))
}

async fn submit(tour: &Tour, kind: &str, policy: Option<ExecutionPolicy>) -> Result<ExecutionId> {
    let mut args = CreateExecutionArgs::new(None, name("acme"), name("default"), kind);
    args.policy = policy.map(PolicyDocument::from);
    match tour.engine.create_execution(args).await? {
        CreateExecutionResult::Created { execution_id, .. } | CreateExecutionResult::Duplicate { execution_id } => {
            Ok(execution_id)
        }
    }
}

async fn claim(tour: &Tour, worker: &str) -> Result<Handle> {
    tour.claim(worker).await?.ok_or_else(|| unexpected("work to claim"))
}

fn refusal<T>(answer: Result<T>) -> String {
    answer.map_or_else(|error| format!("refused: {}", error.code()), |_| "accepted".to_owned())
}

/// A worker dies; another takes over by an ordinary claim; the dead one comes back too late.
pub(super) async fn takeover(tour: &mut Tour) -> Result<()> {
    tour.title("1. A worker dies, another takes over");
    let id = submit(tour, "send_invoice", None).await?;
    tour.say("an execution is submitted", tour.state(id).await?);
    let dead = claim(tour, "ann").await?;
    tour.say("worker ann claims it for 30 s", tour.state(id).await?);
    tour.engine.progress(&dead, Some(40), Some("printing")).await?;
    tour.say("ann reports 40 % and dies", "nobody notices yet");
    tour.pass(31_000).await?;
    tour.say("31 s pass without a renewal", "the lease has expired");
    let alive = claim(tour, "bob").await?;
    tour.say("worker bob claims as always", format!("gets it as a {} handle, a new attempt", alive.kind));
    let late = tour.engine.complete(&dead, Some("ann's result".into())).await;
    tour.say("ann comes back and completes", refusal(late));
    tour.engine.complete(&alive, Some("bob's result".into())).await?;
    tour.say("bob completes", tour.state(id).await?);
    Ok(())
}

/// A person approves through a signed token.
pub(super) async fn approval(tour: &mut Tour) -> Result<()> {
    tour.title("2. A person approves");
    let seed = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex: SecretText::from("ab".repeat(32)) };
    tour.engine.seed_waitpoint_hmac_secret(seed).await?;
    let id = submit(tour, "pay_out", None).await?;
    let handle = claim(tour, "ann").await?;
    let waitpoint = WaitpointBinding::Fresh {
        waitpoint_id: WaitpointId::from_uuid(Uuid::from_u128(1)),
        waitpoint_key: "approval".to_owned(),
    };
    let condition =
        ResumeCondition::Single { waitpoint_key: "approval".to_owned(), matcher: SignalMatcher::by_name("approved") };
    let args = SuspendArgs::new(
        SuspensionId::from_uuid(Uuid::from_u128(2)),
        waitpoint,
        condition,
        SuspensionReasonCode::WaitingForApproval,
    );
    let SuspendOutcome::Suspended { details, .. } = tour.engine.suspend(&handle, args).await? else {
        return Err(unexpected("a suspension"));
    };
    tour.say("ann suspends it until somebody says \"approved\"", tour.state(id).await?);
    let token = details.waitpoint_token;
    let signal = |token: &WaitpointToken| {
        let mut args = DeliverSignalArgs::new(id, details.waitpoint_id, "approved", token.clone());
        args.source_identity = "eve".to_owned();
        args.idempotency_key = Some("eve's vote".to_owned());
        args
    };
    let flipped: String = token.expose().chars().map(|digit| if digit == '0' { '1' } else { digit }).collect();
    let altered = WaitpointToken::new(format!("{}0", &flipped[..flipped.len() - 1]));
    let forged = tour.engine.deliver_signal(signal(&altered)).await;
    tour.say("a signal with an altered token", refusal(forged));
    for what in ["eve's signal with the right token", "the same signal once more"] {
        let told = match tour.engine.deliver_signal(signal(&token)).await? {
            DeliverSignalResult::Accepted { effect, .. } => format!("accepted: {effect}"),
            DeliverSignalResult::Duplicate { .. } => "known already, nothing changes".to_owned(),
        };
        tour.say(what, told);
    }
    let resumed = claim(tour, "bob").await?;
    let seen = tour.engine.observe_signals(&resumed).await?;
    let by = seen.first().map_or("nobody", |signal| signal.source_identity.as_str());
    tour.say("worker bob claims it", format!("the same attempt goes on, approved by {by}"));
    tour.engine.complete(&resumed, None).await?;
    tour.say("bob completes", tour.state(id).await?);
    Ok(())
}

fn node(label: &str, join: Option<EdgeDependencyPolicy>) -> FlowNode {
    FlowNode {
        name: label.to_owned(),
        lane_id: name("default"),
        execution_kind: label.to_owned(),
        input_payload: "".into(),
        payload_encoding: None,
        priority: 0,
        tags: BTreeMap::new(),
        policy: None,
        delay_until: None,
        execution_deadline_at: None,
        join,
        trace_context: None,
    }
}

/// Three sources, of which two are enough.
pub(super) async fn quorum(tour: &mut Tour) -> Result<()> {
    tour.title("3. A flow: report needs two of three quotes");
    let join = EdgeDependencyPolicy::Quorum { k: 2, on_satisfied: OnSatisfied::CancelRemaining };
    let sources = ["quote_a", "quote_b", "quote_c"];
    let edge = |from: &&str| FlowEdge {
        from: (*from).to_owned(),
        to: "report".to_owned(),
        kind: DependencyKind::SuccessOnly,
        data_passing_ref: None,
    };
    let args = SubmitFlowArgs {
        flow_id: None,
        flow_kind: "quotes".to_owned(),
        namespace: name("acme"),
        idempotency_key: None,
        tags: BTreeMap::new(),
        nodes: sources.iter().map(|source| node(source, None)).chain([node("report", Some(join))]).collect(),
        edges: sources.iter().map(edge).collect(),
    };
    let SubmitFlowResult::Submitted { executions, .. } = tour.engine.submit_flow(args).await? else {
        return Err(unexpected("a new flow"));
    };
    let state = async |tour: &Tour, label: &str| match executions.get(label) {
        Some(id) => tour.state(*id).await,
        None => Err(unexpected(label)),
    };
    tour.say("the whole graph is submitted in one call", format!("report is {}", state(tour, "report").await?));
    for quotes in ["one quote arrives", "another quote arrives"] {
        let handle = claim(tour, "ann").await?;
        tour.engine.complete(&handle, None).await?;
        tour.say(quotes, format!("report is {}", state(tour, "report").await?));
    }
    tour.pass(1_000).await?;
    let mut left = Vec::new();
    for source in sources {
        left.push(state(tour, source).await?);
    }
    tour.say("the third quote is no longer needed", left.join(", "));
    let handle = claim(tour, "bob").await?;
    tour.engine.complete(&handle, None).await?;
    tour.say("bob writes the report", state(tour, "report").await?);
    Ok(())
}

/// A budget that is used up blocks the next execution.
pub(super) async fn budget(tour: &mut Tour) -> Result<()> {
    tour.title("4. A budget of 100 tokens");
    let budget_id = BudgetId::from_uuid(Uuid::from_u128(3));
    let args = CreateBudgetArgs {
        budget_id,
        namespace: name("acme"),
        scope_type: "policy".to_owned(),
        scope_id: String::new(),
        on_hard_limit: "block".to_owned(),
        on_soft_limit: "warn".to_owned(),
        reset_interval_ms: 0,
        dimensions: vec!["input_tokens".to_owned()],
        hard_limits: vec![100],
        soft_limits: vec![0],
    };
    tour.engine.create_budget(args).await?;
    let policy = ExecutionPolicy { budget_ids: vec![budget_id], ..ExecutionPolicy::default() };
    submit(tour, "summarise", Some(policy.clone())).await?;
    let second = submit(tour, "summarise", Some(policy)).await?;
    let handle = claim(tour, "ann").await?;
    for tokens in [70, 70, 30] {
        let usage = UsageDimensions { input_tokens: tokens, ..UsageDimensions::default() };
        let told = match tour.engine.report_usage(&handle, budget_id, usage).await? {
            ReportUsageResult::HardBreach { current_usage, hard_limit, .. } => {
                format!("hard breach, nothing is added: {current_usage} of {hard_limit} used")
            }
            _ => "counted".to_owned(),
        };
        tour.say(&format!("ann reports {tokens} tokens"), told);
    }
    tour.engine.complete(&handle, None).await?;
    let none = tour.claim("bob").await?.is_none();
    let told = if none { "nothing to claim" } else { "something" };
    tour.say("bob asks for the second execution", format!("{told}; it is {}", tour.state(second).await?));
    tour.engine.reset_budget(budget_id).await?;
    tour.pass(1_000).await?;
    let handle = claim(tour, "bob").await?;
    tour.engine.complete(&handle, None).await?;
    tour.say("the budget is reset, bob claims and completes", tour.state(second).await?);
    Ok(())
}
