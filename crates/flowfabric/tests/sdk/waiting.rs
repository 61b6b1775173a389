//! Handlers that wait: steps, sleeps, signals, callbacks and children.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{PATIENCE, fabric, in_time};
use flowfabric::core::backend::suspension::{ResumeCondition, SignalMatcher};
use flowfabric::{Context, Ending, Error, FlowFabric, RunningWorker, Task, TaskError, TaskResult, Wait};
use serde::{Deserialize, Serialize};

/// How often something really happened.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

async fn start<F, Fut, Out>(fabric: &FlowFabric, counter: &Counter, handler: F) -> RunningWorker
where
    F: Fn(Context, ()) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = TaskResult<Out>> + Send + 'static,
    Out: Serialize + Send + 'static,
{
    fabric.worker().state(counter.clone()).on("work", handler).start().await.unwrap()
}

#[tokio::test]
async fn a_step_is_done_once_however_often_the_handler_runs() {
    async fn handler(context: Context, _: ()) -> TaskResult<u32> {
        let counter = context.state::<Counter>()?;
        let value = context.step("count", async || TaskResult::Ok(counter.add())).await?;
        if context.attempt() == 0 { Err(TaskError::transient("again")) } else { Ok(value) }
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let task = Task::new("work", &()).retries(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let run = fabric.client().submit(task).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 1);
    assert_eq!(counter.get(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn a_sleep_holds_no_worker_and_happens_once() {
    async fn handler(context: Context, _: ()) -> TaskResult<u32> {
        context.state::<Counter>()?.add();
        context.sleep(Duration::from_millis(300)).await?;
        context.sleep(Duration::from_millis(5)).await?;
        context.sleep(Duration::from_millis(400)).await?;
        Ok(context.attempt())
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 0, "one attempt");
    assert_eq!(counter.get(), 3, "it ran, and again after each long sleep");
    worker.stop().await;
}

#[tokio::test]
async fn every_wait_of_a_handler_keeps_its_answer() {
    #[derive(Serialize, Deserialize)]
    struct Offer {
        price: u32,
    }
    async fn handler(context: Context, _: ()) -> TaskResult<(u32, u32, bool)> {
        let first: Offer = context.wait_for(Wait::signal("offer")).await?.body()?;
        let second: Offer = context.wait_for(Wait::signal("offer").named("better")).await?.body()?;
        let approved = context.wait_for(Wait::approval("deal")).await?.is_approved();
        Ok((first.price, second.price, approved))
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    let first = in_time("the first wait", run.until_waiting("offer")).await.unwrap();
    run.signal("offer", "any", &Offer { price: 10 }).await.unwrap();
    let second = loop {
        let open = in_time("the second wait", run.until_waiting("offer")).await.unwrap();
        if open.waitpoint_id != first.waitpoint_id {
            break open;
        }
    };
    assert_eq!(second.required_signal_names, ["better"]);
    run.signal("offer", "worse", &Offer { price: 9 }).await.unwrap();
    run.signal("offer", "better", &Offer { price: 12 }).await.unwrap();
    in_time("the third wait", run.until_waiting("deal")).await.unwrap();
    run.approve("deal", "ada").await.unwrap();
    assert_eq!(run.result_within::<(u32, u32, bool)>(PATIENCE).await.unwrap(), (10, 12, true));
    worker.stop().await;
}

#[tokio::test]
async fn a_wait_that_takes_too_long_goes_on_or_fails_as_it_says() {
    async fn patient(context: Context, _: ()) -> TaskResult<bool> {
        let wait = Wait::signal("never").timeout(Duration::from_millis(20)).or_continue();
        Ok(context.wait_for(wait).await?.timed_out())
    }
    async fn strict(context: Context, _: ()) -> TaskResult<bool> {
        Ok(context.wait_for(Wait::signal("never").timeout(Duration::from_millis(20))).await?.timed_out())
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("patient", patient).on("strict", strict).start().await.unwrap();
    let run = fabric.client().submit(Task::new("patient", &())).await.unwrap();
    assert!(run.result_within::<bool>(PATIENCE).await.unwrap());
    let run = fabric.client().submit(Task::new("strict", &())).await.unwrap();
    let failed = run.result_within::<bool>(PATIENCE).await;
    assert!(matches!(failed, Err(Error::Ended { ending: Ending::Failed { .. }, .. })), "{failed:?}");
    worker.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_wait_is_kept() {
    async fn handler(context: Context, _: ()) -> TaskResult<u32> {
        let callback = context.callback("early", Duration::from_secs(60)).await?;
        context.client().answer(&callback, "done", &41).await?;
        let answer: u32 = context.wait_for(Wait::callback(&callback)).await?.body()?;
        Ok(answer + 1)
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 42);
    worker.stop().await;
}

#[tokio::test]
async fn a_parent_gets_the_results_of_its_children_and_their_failures_as_data() {
    async fn parent(context: Context, numbers: Vec<i64>) -> TaskResult<Vec<String>> {
        let tasks = numbers.iter().map(|number| (format!("child-{number}"), Task::new("root", number)));
        let children = context.spawn_all::<i64>(tasks.collect()).await?;
        let results = context.join_all(&children).await?;
        let more = context.spawn::<i64>("more", Task::new("root", &81)).await?;
        let more = context.join(&more).await?;
        let text = results.into_iter().map(|result| match result {
            Ok(root) => root.to_string(),
            Err(failed) => failed.to_string(),
        });
        Ok(text.chain([more.to_string()]).collect())
    }
    async fn root(_: Context, number: i64) -> TaskResult<i64> {
        let roots = (0..=number).find(|root| root * root == number);
        roots.ok_or_else(|| TaskError::permanent(format!("{number} has no root")))
    }
    let fabric = fabric().await;
    let worker = fabric.worker().concurrency(1).on("parent", parent).on("root", root).start().await.unwrap();
    let run = fabric.client().submit(Task::new("parent", &[4, 5, 9])).await.unwrap();
    let results: Vec<String> = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(results, ["2", "child \"child-5\" failed (permanent): 5 has no root", "3", "9"]);
    worker.stop().await;
}

#[tokio::test]
async fn a_handler_that_swallows_its_wait_is_told_to_stop_and_says_nothing_more() {
    async fn handler(context: Context, _: ()) -> TaskResult<u32> {
        if context.wait_for(Wait::signal("go")).await.is_err_and(|error| error.is_parked()) {
            context.cancelled().await;
            assert!(context.step("late", async || TaskResult::Ok(1)).await.is_err_and(|error| error.is_parked()));
            return Ok(0);
        }
        Ok(1)
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    in_time("the wait", run.until_waiting("go")).await.unwrap();
    run.signal("go", "go", &()).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn a_wait_can_be_for_several_signals_at_once() {
    async fn handler(context: Context, _: ()) -> TaskResult<Vec<String>> {
        let single =
            |key: &str| ResumeCondition::Single { waitpoint_key: key.to_owned(), matcher: SignalMatcher::Wildcard {} };
        let both = ResumeCondition::AllOf { members: vec![single("left"), single("right")] };
        let answer = context.wait_for(Wait::matching(both)).await?;
        Ok(answer.signals().iter().map(|signal| signal.waitpoint_key.clone()).collect())
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    in_time("the wait", run.until_waiting("right")).await.unwrap();
    run.signal("right", "go", &()).await.unwrap();
    run.signal("left", "go", &()).await.unwrap();
    assert_eq!(run.result_within::<Vec<String>>(PATIENCE).await.unwrap(), ["right", "left"]);
    worker.stop().await;
}

#[tokio::test]
async fn callbacks_of_one_name_are_answered_one_after_another() {
    async fn handler(context: Context, _: ()) -> TaskResult<Vec<u32>> {
        let mut answers = Vec::new();
        for number in [1, 2] {
            let callback = context.callback("turn", Duration::from_secs(60)).await?;
            let client = context.client();
            context
                .step(&format!("answer-{number}"), async || client.answer(&callback, "done", &number).await.map(|_| ()))
                .await?;
            answers.push(context.wait_for(Wait::callback(&callback)).await?.body()?);
        }
        Ok(answers)
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    assert_eq!(run.result_within::<Vec<u32>>(PATIENCE).await.unwrap(), [1, 2]);
    worker.stop().await;
}

#[tokio::test]
async fn an_operator_can_let_an_execution_go_on() {
    async fn handler(context: Context, _: ()) -> TaskResult<usize> {
        Ok(context.wait_for(Wait::operator("review")).await?.signals().len())
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    in_time("the wait", run.until_waiting("review")).await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(run.result_within::<usize>(PATIENCE).await.unwrap(), 0);
    worker.stop().await;
}

#[tokio::test]
async fn a_callback_that_was_handed_out_survives_a_retry() {
    async fn handler(context: Context, _: ()) -> TaskResult<u32> {
        let callback = context.callback("payment", Duration::from_secs(60)).await?;
        let given: String = context.step("ask", async || TaskResult::Ok(callback.waitpoint_id.to_string())).await?;
        assert_eq!(given, callback.waitpoint_id.to_string());
        if context.attempt() == 0 {
            return Err(TaskError::transient("bad luck after the callback was handed out"));
        }
        let client = context.client();
        context.step("answer", async || client.answer(&callback, "paid", &7).await.map(|_| ())).await?;
        context.wait_for(Wait::callback(&callback)).await?.body()
    }
    let (fabric, counter) = (fabric().await, Counter::default());
    let worker = start(&fabric, &counter, handler).await;
    let task = Task::new("work", &()).retries(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let run = fabric.client().submit(task).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 7);
    worker.stop().await;
}

#[tokio::test]
async fn a_parent_sleeps_while_its_children_work() {
    async fn parent(context: Context, _: ()) -> TaskResult<u32> {
        let child = context.spawn::<u32>("child", Task::new("child", &())).await?;
        context.sleep(Duration::from_millis(300)).await?;
        let run = context.client().run(child.id);
        context.step("signal", async || run.signal("go", "go", &()).await.map(|_| ())).await?;
        context.join(&child).await
    }
    async fn child(context: Context, _: ()) -> TaskResult<u32> {
        context.wait_for(Wait::signal("go")).await?;
        Ok(3)
    }
    let fabric = fabric().await;
    let worker = fabric.worker().on("parent", parent).on("child", child).start().await.unwrap();
    let run = fabric.client().submit(Task::new("parent", &()).retries(20)).await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 3);
    worker.stop().await;
}
