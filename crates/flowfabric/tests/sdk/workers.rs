//! Workers: handlers, failures, leases, limits and leaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Leases, PATIENCE, fabric, in_time};
use flowfabric::core::backend::leases::RevokeLeaseArgs;
use flowfabric::core::backend::subscriptions::LeaseChange;
use flowfabric::core::backend::workers::ListWorkersArgs;
use flowfabric::core::state::PublicState;
use flowfabric::{Context, Ending, Error, Interruption, Task, TaskError, TaskResult, Worker};
use tokio::sync::{Notify, Semaphore, mpsc};

fn quick(task: Task) -> Task {
    task.backoff(Duration::from_millis(1), Duration::from_millis(5))
}

fn ending(outcome: Result<u32, Error>) -> Ending {
    match outcome {
        Err(Error::Ended { ending, .. }) => ending,
        other => panic!("expected an end, got {other:?}"),
    }
}

async fn attempt(context: Context, _input: ()) -> TaskResult<u32> {
    Ok(context.attempt())
}

#[tokio::test]
async fn an_answer_is_the_result_and_an_error_is_retried() {
    let fabric = fabric().await;
    let flaky = async |context: Context, until: u32| match context.attempt() {
        attempt if attempt < until => Err(TaskError::transient("not yet")),
        attempt => Ok(attempt),
    };
    let worker = fabric.worker().on("flaky", flaky).start().await.unwrap();
    let client = fabric.client();
    let patient = client.submit(quick(Task::new("flaky", &2).retries(3))).await.unwrap();
    let hasty = client.submit(Task::new("flaky", &1)).await.unwrap();
    assert_eq!(patient.result_within::<u32>(PATIENCE).await.unwrap(), 2);
    let failed = Ending::Failed { reason: "not yet".into(), category: "transient".into() };
    assert_eq!(ending(hasty.result_within(PATIENCE).await), failed);
    worker.stop().await;
}

#[tokio::test]
async fn what_repeating_cannot_help_is_not_repeated() {
    let fabric = fabric().await;
    let refuse = async |_: Context, _: ()| -> TaskResult<u32> { Err(TaskError::permanent("no")) };
    let worker = fabric.worker().on("refuse", refuse).on("number", attempt).start().await.unwrap();
    let client = fabric.client();
    let refused = client.submit(quick(Task::new("refuse", &()).retries(3))).await.unwrap();
    assert!(matches!(ending(refused.result_within(PATIENCE).await), Ending::Failed { .. }));
    assert_eq!(refused.describe().await.unwrap().total_attempt_count, 1);

    let misread = client.submit(quick(Task::new("number", "text").retries(3))).await.unwrap();
    let Ending::Failed { reason, category } = ending(misread.result_within(PATIENCE).await) else { panic!("failed") };
    assert!(reason.contains("the input of \"number\" is not a ()"), "{reason}");
    assert_eq!(category, "permanent");
    worker.stop().await;
}

#[tokio::test]
async fn a_panic_ends_one_attempt_and_nothing_else() {
    let fabric = fabric().await;
    let panics = async |context: Context, _: ()| -> TaskResult<u32> {
        assert!(context.attempt() > 0, "the first time is bad luck");
        Ok(context.attempt())
    };
    let worker = fabric.worker().concurrency(1).on("panics", panics).start().await.unwrap();
    let once = fabric.client().submit(Task::new("panics", &())).await.unwrap();
    let Ending::Failed { reason, .. } = ending(once.result_within(PATIENCE).await) else { panic!("failed") };
    assert_eq!(reason, "the handler panicked: the first time is bad luck");
    let again = fabric.client().submit(quick(Task::new("panics", &()).retries(1))).await.unwrap();
    assert_eq!(again.result_within::<u32>(PATIENCE).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn no_more_handlers_run_at_once_than_allowed() {
    #[derive(Default)]
    struct Count {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    let count = async |context: Context, _: ()| -> TaskResult {
        let count = context.state::<Count>()?;
        let now = count.now.fetch_add(1, Ordering::SeqCst) + 1;
        count.most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        context.progress(50, "half").await?;
        count.now.fetch_sub(1, Ordering::SeqCst);
        if now > 3 { Err(TaskError::permanent("too many at once")) } else { Ok(()) }
    };
    let fabric = fabric().await;
    let builder = fabric.worker().concurrency(3).lane("left").lane("right").state(Count::default());
    let worker = builder.on("count", count).start().await.unwrap();
    let tasks = (0..60).map(|n| Task::new("count", &()).lane(if n % 2 == 0 { "left" } else { "right" }));
    for run in fabric.client().submit_all(tasks.collect()).await.unwrap() {
        run.unwrap().result_within::<()>(PATIENCE).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_takes_only_what_it_has_a_handler_for() {
    let fabric = fabric().await;
    let name = |name: &'static str| move |_: Context, _: ()| async move { TaskResult::Ok(name.to_owned()) };
    let first = fabric.worker().name("first").on("red", name("first")).start().await.unwrap();
    let second = fabric.worker().name("second").on("blue", name("second")).start().await.unwrap();
    for _ in 0..20 {
        for (kind, by) in [("red", "first"), ("blue", "second")] {
            let run = fabric.client().submit(Task::new(kind, &())).await.unwrap();
            assert_eq!(run.result_within::<String>(PATIENCE).await.unwrap(), by);
        }
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_lease_is_kept_while_its_handler_runs() {
    let fabric = fabric().await;
    let mut leases = Leases::of(&fabric).await;
    let go_on = Arc::new(Notify::new());
    let wait = async |context: Context, _: ()| -> TaskResult<u32> {
        context.state::<Arc<Notify>>()?.notified().await;
        Ok(context.attempt())
    };
    let builder = fabric.worker().lease_ttl(Duration::from_millis(150)).state(Arc::clone(&go_on));
    let worker = builder.on("wait", wait).start().await.unwrap();
    let run = fabric.client().submit(Task::new("wait", &())).await.unwrap();
    for _ in 0..6 {
        leases.until(run.id(), |change| matches!(change, LeaseChange::Renewed { .. })).await;
    }
    go_on.notify_one();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 0);
    worker.stop().await;
}

/// Reports why it was interrupted, and that nothing it says afterwards counts.
async fn interrupted(context: Context, _input: ()) -> TaskResult<u32> {
    let heard = context.state::<mpsc::UnboundedSender<Interruption>>()?;
    context.stream().text("begun").await?;
    heard.send(context.cancelled().await)?;
    assert!(context.stream().text("late").await.is_err_and(|error| error.is_lost()));
    Ok(7)
}

#[tokio::test]
async fn a_cancellation_reaches_the_handler_and_its_answer_does_not_count() {
    let fabric = fabric().await;
    let (heard, mut hearing) = mpsc::unbounded_channel::<Interruption>();
    let worker = fabric.worker().state(heard).on("interrupted", interrupted).start().await.unwrap();
    let run = fabric.client().submit(Task::new("interrupted", &())).await.unwrap();
    in_time("the first frame", run.frames().next()).await.unwrap().unwrap();
    run.cancel("enough").await.unwrap();
    let why = in_time("the interruption", hearing.recv()).await.unwrap();
    assert_eq!(why, Interruption::Cancelled { reason: "enough".into() });
    worker.stop().await;
    assert_eq!(run.state().await.unwrap(), Some(PublicState::Cancelled));
}

#[tokio::test]
async fn a_revoked_lease_reaches_the_handler() {
    let fabric = fabric().await;
    let (heard, mut hearing) = mpsc::unbounded_channel::<Interruption>();
    let worker = fabric.worker().state(heard).on("interrupted", interrupted).start().await.unwrap();
    let run = fabric.client().submit(Task::new("interrupted", &())).await.unwrap();
    in_time("the first frame", run.frames().next()).await.unwrap().unwrap();
    let revoke = RevokeLeaseArgs {
        execution_id: run.id(),
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "maintenance".into(),
    };
    fabric.backend().revoke_lease(revoke).await.unwrap();
    let why = in_time("the interruption", hearing.recv()).await.unwrap();
    assert!(matches!(&why, Interruption::LeaseLost { detail } if detail.contains("maintenance")), "{why:?}");
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_stops_finishes_what_it_began() {
    let fabric = fabric().await;
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let slow = async |context: Context, _: ()| -> TaskResult<u32> {
        context.state::<Arc<Semaphore>>()?.add_permits(1);
        context.state::<Arc<Notify>>()?.notified().await;
        Ok(1)
    };
    let builder = fabric.worker().concurrency(1).state(Arc::clone(&begun)).state(Arc::clone(&go_on));
    let worker = builder.on("slow", slow).start().await.unwrap();
    let run = fabric.client().submit(Task::new("slow", &())).await.unwrap();
    in_time("the handler", begun.acquire()).await.unwrap().forget();
    let next = fabric.client().submit(Task::new("slow", &())).await.unwrap();
    tokio::join!(worker.stop(), async { go_on.notify_one() });
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 1);
    assert_eq!(next.state().await.unwrap(), Some(PublicState::Waiting), "it took no more");
    let workers = fabric.backend().list_workers(ListWorkersArgs::default()).await.unwrap();
    assert_eq!(workers.entries, [], "it has left the registry");
}

#[tokio::test]
async fn what_a_stopping_worker_cannot_finish_goes_to_another_at_once() {
    let fabric = fabric().await;
    let begun = Arc::new(Semaphore::new(0));
    let stuck = async |context: Context, _: ()| -> TaskResult<u32> {
        context.state::<Arc<Semaphore>>()?.add_permits(1);
        std::future::pending().await
    };
    let builder = fabric.worker().state(Arc::clone(&begun)).drain(Duration::ZERO).grace(Duration::ZERO);
    let worker = builder.on("work", stuck).start().await.unwrap();
    let run = fabric.client().submit(Task::new("work", &())).await.unwrap();
    in_time("the handler", begun.acquire()).await.unwrap().forget();
    worker.stop().await;
    assert_ne!(run.state().await.unwrap(), Some(PublicState::Active));
    let other = fabric.worker().on("work", attempt).start().await.unwrap();
    assert_eq!(run.result_within::<u32>(PATIENCE).await.unwrap(), 0, "the same attempt goes on");
    other.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_set_up_wrong_says_what_is_wrong() {
    let fabric = fabric().await;
    let fault = |builder: flowfabric::WorkerBuilder| match builder.build() {
        Err(Error::Setup(fault)) => fault,
        _ => panic!("a worker like that is refused"),
    };
    let builder = || Worker::builder(fabric.backend()).on("a", attempt);
    assert!(fault(Worker::builder(fabric.backend())).contains("has no handler"));
    assert!(fault(builder().on("a", attempt)).contains("two handlers for \"a\""));
    assert!(fault(builder().concurrency(0)).contains("cannot run 0 at once"));
    assert!(fault(builder().lease_ttl(Duration::ZERO)).contains("lease of 0ns"));
    assert!(fault(builder().lane("")).contains("lane"));
}

#[tokio::test]
async fn state_that_a_worker_does_not_have_is_named() {
    let fabric = fabric().await;
    let worker =
        fabric.worker().on("needs", async |context: Context, _: ()| context.state::<String>().map(|s| s.len()));
    let worker = worker.start().await.unwrap();
    let run = fabric.client().submit(Task::new("needs", &())).await.unwrap();
    let Ending::Failed { reason, .. } = ending(run.result_within(PATIENCE).await) else { panic!("failed") };
    assert!(reason.contains("no state of type alloc::string::String"), "{reason}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_reaches_a_handler_beside_many_short_ones() {
    let fabric = fabric().await;
    let (heard, mut hearing) = mpsc::unbounded_channel::<Interruption>();
    let builder = fabric.worker().concurrency(32).state(heard).lease_ttl(Duration::from_secs(600));
    let worker = builder.on("interrupted", interrupted).on("attempt", attempt).start().await.unwrap();
    let client = fabric.client();
    let run = client.submit(Task::new("interrupted", &())).await.unwrap();
    in_time("the first frame", run.frames().next()).await.unwrap().unwrap();
    let busy = tokio::spawn(async move {
        loop {
            client.submit(Task::new("attempt", &())).await.unwrap().result::<u32>().await.unwrap();
        }
    });
    run.cancel("enough").await.unwrap();
    let why = in_time("the interruption, long before a renewal", hearing.recv()).await.unwrap();
    assert_eq!(why, Interruption::Cancelled { reason: "enough".into() });
    busy.abort();
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_dropped_lets_go_of_its_handlers() {
    struct Gone(mpsc::UnboundedSender<()>);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let fabric = fabric().await;
    let (gone, mut going) = mpsc::unbounded_channel::<()>();
    let hold = move |context: Context, _: ()| {
        let gone = Gone(gone.clone());
        async move {
            context.stream().text("begun").await?;
            let _gone = gone;
            std::future::pending::<TaskResult>().await
        }
    };
    let worker = fabric.worker().on("hold", hold).start().await.unwrap();
    let run = fabric.client().submit(Task::new("hold", &())).await.unwrap();
    in_time("the first frame", run.frames().next()).await.unwrap().unwrap();
    drop(worker);
    in_time("the end of the handler", going.recv()).await.unwrap();
    assert_eq!(run.state().await.unwrap(), Some(PublicState::Active), "its lease runs out by itself");
}
