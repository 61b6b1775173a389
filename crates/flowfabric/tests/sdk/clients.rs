//! Clients: submissions, flows, budgets and streams.

use std::time::Duration;

use crate::support::{PATIENCE, fabric, in_time};
use flowfabric::core::backend::budgets::{ReportUsageResult, UsageDimensions};
use flowfabric::core::backend::dependencies::{EdgeDependencyPolicy, OnSatisfied};
use flowfabric::core::trace::TraceContext;
use flowfabric::{Budget, Context, Error, Task, TaskError, TaskResult};

async fn double(_: Context, number: u64) -> TaskResult<u64> {
    Ok(number * 2)
}

#[tokio::test]
async fn a_key_finds_the_first_submission_and_many_are_answered_one_by_one() {
    let fabric = fabric().await;
    let client = fabric.client();
    let first = client.submit(Task::new("double", &1).idempotency_key("once")).await.unwrap();
    let second = client.submit(Task::new("double", &2).idempotency_key("once")).await.unwrap();
    assert_eq!((second.id(), second.is_duplicate()), (first.id(), true));
    let tasks = vec![Task::new("double", &1), Task::new("double", &1).tag("no dot", "refused")];
    let answers = client.submit_all(tasks).await.unwrap();
    assert!(answers[0].is_ok());
    assert!(matches!(&answers[1], Err(Error::Setup(text)) if text.contains("invalid_tag_key")), "{answers:?}");
}

#[tokio::test]
async fn waiting_no_longer_than_patience_says_that_it_still_runs() {
    let fabric = fabric().await;
    let run = fabric.client().submit(Task::new("nobody", &())).await.unwrap();
    let waited = run.result_within::<()>(Duration::from_millis(10)).await;
    assert!(matches!(waited, Err(Error::StillRunning { .. })), "{waited:?}");
}

#[tokio::test]
async fn results_flow_along_the_edges_of_a_graph() {
    async fn sum(context: Context, _: ()) -> TaskResult<u64> {
        Ok(context.input::<u64>("left")? + context.input::<u64>("right")?)
    }
    async fn either(context: Context, _: ()) -> TaskResult<bool> {
        Ok(context.input::<u64>("left").is_ok() || context.input::<u64>("right").is_ok())
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("double", double).on("sum", sum).on("either", either).start().await.unwrap();
    let any = EdgeDependencyPolicy::AnyOf { on_satisfied: OnSatisfied::LetRun };
    let flow = fabric.client().flow("sums");
    let flow = flow.node("left", Task::new("double", &3)).node("right", Task::new("double", &4));
    let flow = flow.node("sum", Task::new("sum", &())).edge("left", "sum").edge("right", "sum");
    let flow = flow.joining("either", Task::new("either", &()), any).edge("left", "either").edge("right", "either");
    let flow = flow.submit().await.unwrap();
    assert_eq!(flow.run("sum").unwrap().result_within::<u64>(PATIENCE).await.unwrap(), 14);
    assert!(flow.run("either").unwrap().result_within::<bool>(PATIENCE).await.unwrap());
    assert_eq!(flow.describe().await.unwrap().flow_id, flow.id());
    worker.stop().await;
}

#[tokio::test]
async fn a_spent_budget_is_told_to_the_handler_and_holds_the_next_one_back() {
    async fn spend(context: Context, budget: flowfabric::core::ids::BudgetId) -> TaskResult<bool> {
        let usage = UsageDimensions { output_tokens: 60, ..UsageDimensions::default() };
        let answer = context.report_usage(budget, usage).await?;
        Ok(matches!(answer, ReportUsageResult::HardBreach { .. }))
    }
    let fabric = fabric().await;
    let client = fabric.client();
    let budget = client.create_budget(Budget::new().limit("output_tokens", 100)).await.unwrap();
    let worker = fabric.worker().on("spend", spend).start().await.unwrap();
    let task = || Task::new("spend", &budget).budget(budget);
    let first = client.submit(task()).await.unwrap();
    assert!(!first.result_within::<bool>(PATIENCE).await.unwrap());
    let second = client.submit(task()).await.unwrap();
    assert!(second.result_within::<bool>(PATIENCE).await.unwrap(), "60 more would be too much");
    assert_eq!(client.budget(budget).await.unwrap().usage["output_tokens"], 60);
    worker.stop().await;
}

#[tokio::test]
async fn frames_are_read_over_all_attempts_and_from_any_place() {
    async fn talk(context: Context, _: ()) -> TaskResult {
        for word in ["one", "two"] {
            context.stream().label("word").text(format!("{word} {}", context.attempt())).await?;
        }
        context.live(Duration::from_secs(30)).json(&context.attempt()).await?;
        context.summary(&serde_json::json!({ "attempt": context.attempt() })).await?;
        if context.attempt() == 0 { Err(TaskError::transient("again")) } else { Ok(()) }
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("talk", talk).start().await.unwrap();
    let task = Task::new("talk", &()).retries(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let run = fabric.client().submit(task).await.unwrap();
    let (mut feed, mut seen, mut place) = (run.frames(), Vec::new(), None);
    while let Some(frame) = in_time("the next frame", feed.next()).await {
        seen.push(String::from_utf8(frame.unwrap().payload.to_vec()).unwrap());
        if seen.len() == 3 {
            place = Some(feed.place());
        }
    }
    let expected = ["one 0", "two 0", "0", "{\"attempt\":0}", "one 1", "two 1", "1", "{\"attempt\":1}"];
    assert_eq!(seen, expected);
    let mut feed = run.frames_after(place.unwrap());
    let mut rest = 0;
    while let Some(frame) = in_time("the next frame", feed.next()).await {
        assert_eq!(frame.unwrap().payload.to_vec(), expected[3 + rest].as_bytes());
        rest += 1;
    }
    assert_eq!(rest, 5);
    let summary = run.summary().await.unwrap().unwrap();
    assert_eq!(&*summary.document_json, br#"{"attempt":1}"#);
    worker.stop().await;
}

#[tokio::test]
async fn a_trace_goes_from_the_client_through_the_handler_to_its_children() {
    async fn parent(context: Context, _: ()) -> TaskResult<(String, String)> {
        let child = context.spawn::<String>("child", Task::new("child", &())).await?;
        let own = context.trace().map(|trace| trace.traceparent.clone()).unwrap_or_default();
        Ok((own, context.join(&child).await?))
    }
    async fn child(context: Context, _: ()) -> TaskResult<String> {
        Ok(context.trace().map(|trace| trace.traceparent.clone()).unwrap_or_default())
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("parent", parent).on("child", child).start().await.unwrap();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let client = fabric.client().traced(TraceContext::new(parent, None).unwrap());
    let run = client.submit(Task::new("parent", &())).await.unwrap();
    let seen: (String, String) = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(seen, (parent.to_owned(), parent.to_owned()));
    worker.stop().await;
}

#[tokio::test]
async fn an_attempt_without_frames_does_not_hide_the_next_one() {
    async fn late(context: Context, _: ()) -> TaskResult {
        if context.attempt() < 2 {
            return Err(TaskError::transient("again"));
        }
        context.stream().text("at last").await?;
        context.cancelled().await;
        Ok(())
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("late", late).start().await.unwrap();
    let task = Task::new("late", &()).retries(2).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let run = fabric.client().submit(task).await.unwrap();
    let mut feed = run.frames();
    let frame = in_time("the frame of the third attempt, while it runs", feed.next()).await.unwrap().unwrap();
    assert_eq!(&*frame.payload, b"at last");
    run.cancel("seen").await.unwrap();
    assert!(in_time("the end", feed.next()).await.is_none());
    worker.stop().await;
}
