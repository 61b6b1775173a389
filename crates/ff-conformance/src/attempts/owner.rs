//! Owners of executions, and what they do in both forms of a call.

use ff_core::backend::attempts::{
    CancelExecutionArgs, CompleteExecutionArgs, FailExecutionArgs, FailExecutionResult, FailOutcome, FailureReason,
};
use ff_core::backend::claims::{
    ClaimExecutionArgs, ClaimExecutionResult, ClaimResumedExecutionArgs, ClaimResumedExecutionResult,
    IssueClaimGrantArgs,
};
use ff_core::backend::inspection::ExecutionInfo;
use ff_core::backend::leases::{
    IssueReclaimGrantArgs, IssueReclaimGrantOutcome, ReclaimExecutionArgs, ReclaimExecutionOutcome, RenewLeaseArgs,
    RevokeLeaseArgs, RevokeLeaseResult,
};
use ff_core::backend::maintenance::TrimRetentionArgs;
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ScannerFilter, Subscription};
use ff_core::cursor::{EventCursor, FrameCursor};
use ff_core::error::{ContentionKind, NotActive};
use ff_core::handle::Handle;
use ff_core::ids::{AttemptId, AttemptIndex, ExecutionId, FenceTriple, LeaseEpoch, LeaseId};
use ff_core::partition::PartitionKey;
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, RetryPolicy, TimeoutPolicy};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::StreamCloseReason;
use ff_core::{Blob, Result, TimestampMs};
use futures_util::StreamExt;

use crate::expect::contention;
use crate::world::{LEASE_MS, World, worker};

/// Whoever owns an execution, or owned it: the proof in both forms.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) id: ExecutionId,
    pub(crate) fence: FenceTriple,
    pub(crate) index: AttemptIndex,
    pub(crate) handle: Handle,
    pub(crate) expires_at: TimestampMs,
}

impl Owner {
    pub(crate) fn epoch(&self) -> LeaseEpoch {
        self.fence.lease_epoch.unwrap()
    }

    pub(crate) fn lease_id(&self) -> LeaseId {
        self.fence.lease_id.unwrap()
    }

    pub(crate) fn attempt_id(&self) -> AttemptId {
        self.fence.attempt_id.unwrap()
    }

    /// The same owner with one part of its fence, or its index, replaced by another.
    pub(crate) fn imposters(&self, world: &World) -> Vec<Self> {
        let with = |fence| Self { fence, ..self.clone() };
        vec![
            with(FenceTriple { lease_id: Some(LeaseId::from_uuid(world.uuid())), ..self.fence }),
            with(FenceTriple { lease_epoch: Some(self.epoch().next()), ..self.fence }),
            with(FenceTriple { attempt_id: Some(AttemptId::from_uuid(world.uuid())), ..self.fence }),
            Self { index: AttemptIndex(self.index.0 + 1), ..self.clone() },
        ]
    }
}

/// The two ways to say who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By the worker's handle.
    Handle,
    /// By fence, as a service does that stored it.
    Fence,
}

/// What an owner can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Renew,
    Progress,
    Complete,
    Fail,
    Cancel,
    Delay,
    WaitChildren,
}

/// Every call of an owner, in every form it has.
pub(crate) const CALLS: [(Act, Form); 11] = [
    (Act::Renew, Form::Handle),
    (Act::Renew, Form::Fence),
    (Act::Progress, Form::Handle),
    (Act::Complete, Form::Handle),
    (Act::Complete, Form::Fence),
    (Act::Fail, Form::Handle),
    (Act::Fail, Form::Fence),
    (Act::Cancel, Form::Handle),
    (Act::Cancel, Form::Fence),
    (Act::Delay, Form::Handle),
    (Act::WaitChildren, Form::Handle),
];

/// When an owner that parks wants to go on.
pub(crate) const UNTIL: TimestampMs = TimestampMs(1_700_000_900_000);

/// Does it, as a worker would; the answer is only whether it was allowed.
pub(crate) async fn act(world: &World, act: Act, form: Form, owner: &Owner) -> Result<()> {
    let backend = &world.backend;
    match (act, form) {
        (Act::Renew, Form::Handle) => backend.renew(&owner.handle).await.map(drop),
        (Act::Renew, Form::Fence) => backend.renew_lease(renewal(owner)).await.map(drop),
        (Act::Progress, _) => backend.progress(&owner.handle, Some(50), Some("half")).await,
        (Act::Complete, _) => complete(world, form, owner, None).await,
        (Act::Fail, _) => fail(world, form, owner, FailureClass::Transient).await.map(drop),
        (Act::Cancel, _) => cancel(world, form, owner).await,
        (Act::Delay, _) => backend.delay(&owner.handle, UNTIL).await,
        (Act::WaitChildren, _) => backend.wait_children(&owner.handle).await,
    }
}

pub(crate) fn renewal(owner: &Owner) -> RenewLeaseArgs {
    RenewLeaseArgs { execution_id: owner.id, attempt_index: owner.index, fence: owner.fence, lease_ttl_ms: LEASE_MS }
}

pub(crate) fn completion(owner: &Owner) -> CompleteExecutionArgs {
    CompleteExecutionArgs {
        execution_id: owner.id,
        fence: owner.fence,
        attempt_index: owner.index,
        result_payload: None,
        source: CancelSource::LeaseHolder,
    }
}

pub(crate) fn failure(owner: &Owner, category: &str) -> FailExecutionArgs {
    FailExecutionArgs {
        execution_id: owner.id,
        fence: owner.fence,
        attempt_index: owner.index,
        failure_reason: "broken".to_owned(),
        failure_category: category.to_owned(),
        retry_policy_json: String::new(),
        source: CancelSource::LeaseHolder,
    }
}

pub(crate) fn cancellation(owner: &Owner) -> CancelExecutionArgs {
    CancelExecutionArgs {
        execution_id: owner.id,
        reason: "not needed".to_owned(),
        source: CancelSource::LeaseHolder,
        fence: owner.fence,
    }
}

pub(crate) async fn complete(world: &World, form: Form, owner: &Owner, result: Option<Blob>) -> Result<()> {
    match form {
        Form::Handle => world.backend.complete(&owner.handle, result).await,
        Form::Fence => {
            let args = CompleteExecutionArgs { result_payload: result, ..completion(owner) };
            world.backend.complete_execution(args).await.map(drop)
        }
    }
}

pub(crate) async fn fail(world: &World, form: Form, owner: &Owner, class: FailureClass) -> Result<FailOutcome> {
    match form {
        Form::Handle => world.backend.fail(&owner.handle, FailureReason::new("broken"), class).await,
        Form::Fence => {
            let answer = world.backend.fail_execution(failure(owner, class.as_str())).await?;
            Ok(match answer {
                FailExecutionResult::RetryScheduled { delay_until, .. } => FailOutcome::RetryScheduled { delay_until },
                FailExecutionResult::TerminalFailed => FailOutcome::TerminalFailed,
            })
        }
    }
}

pub(crate) async fn cancel(world: &World, form: Form, owner: &Owner) -> Result<()> {
    match form {
        Form::Handle => world.backend.cancel(&owner.handle, "not needed").await,
        Form::Fence => world.backend.cancel_execution(cancellation(owner)).await.map(drop),
    }
}

// Becoming an owner.

/// Takes a claimable execution that had `attempts` attempts.
pub(crate) async fn take_as(world: &World, id: ExecutionId, attempts: u32, name: &str) -> Owner {
    let (worker_id, worker_instance_id) = worker(name);
    grant(world, id, name).await;
    let args = ClaimExecutionArgs {
        execution_id: id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        lease_id: LeaseId::from_uuid(world.uuid()),
        lease_ttl_ms: LEASE_MS,
        attempt_id: AttemptId::from_uuid(world.uuid()),
        expected_attempt_index: AttemptIndex(attempts),
        attempt_timeout_ms: None,
        execution_deadline_at: None,
    };
    let ClaimExecutionResult::Claimed(claimed) = world.backend.claim_execution(args).await.unwrap();
    Owner {
        id,
        fence: FenceTriple {
            lease_id: Some(claimed.lease_id),
            lease_epoch: Some(claimed.lease_epoch),
            attempt_id: Some(claimed.attempt_id),
        },
        index: claimed.attempt_index,
        handle: claimed.handle,
        expires_at: claimed.lease_expires_at,
    }
}

async fn grant(world: &World, id: ExecutionId, name: &str) {
    let (worker_id, worker_instance_id) = worker(name);
    let args = IssueClaimGrantArgs {
        execution_id: id,
        lane_id: world.lane(),
        worker_id,
        worker_instance_id,
        worker_capabilities: std::collections::BTreeSet::new(),
        grant_ttl_ms: 5_000,
    };
    world.backend.issue_claim_grant(args).await.unwrap();
}

/// Continues an interrupted attempt that is claimable again.
pub(crate) async fn resume_as(world: &World, before: &Owner, name: &str) -> Owner {
    let (worker_id, worker_instance_id) = worker(name);
    grant(world, before.id, name).await;
    let args = ClaimResumedExecutionArgs {
        execution_id: before.id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        lease_id: LeaseId::from_uuid(world.uuid()),
        lease_ttl_ms: LEASE_MS,
        current_attempt_index: before.index,
        remaining_attempt_timeout_ms: None,
    };
    let ClaimResumedExecutionResult::Claimed(claimed) = world.backend.claim_resumed_execution(args).await.unwrap();
    Owner {
        id: before.id,
        fence: FenceTriple {
            lease_id: Some(claimed.lease_id),
            lease_epoch: Some(claimed.lease_epoch),
            attempt_id: Some(claimed.attempt_id),
        },
        index: claimed.attempt_index,
        handle: claimed.handle,
        expires_at: claimed.lease_expires_at,
    }
}

/// A new execution and its owner.
pub(crate) async fn own(world: &World) -> Owner {
    let id = world.create().await;
    take_as(world, id, 0, "worker-a").await
}

/// A new execution with a policy, and its owner.
pub(crate) async fn own_with(world: &World, policy: &ExecutionPolicy) -> Owner {
    let id = world.create_with(policy).await;
    take_as(world, id, 0, "worker-a").await
}

// Losing ownership.

/// Lets the lease of an owner run out, without anybody noticing yet.
pub(crate) fn run_out(world: &World, owner: &Owner) {
    world.advance(owner.expires_at.since(world.now()));
}

/// Takes the lease of an owner away.
pub(crate) async fn revoke(world: &World, owner: &Owner) {
    let args = RevokeLeaseArgs {
        execution_id: owner.id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "operator says so".to_owned(),
    };
    let answer = world.backend.revoke_lease(args).await.unwrap();
    assert!(matches!(answer, RevokeLeaseResult::Revoked { .. }), "{answer:?}");
}

/// Asks for permission to take over what an owner lost.
pub(crate) fn reclaim_request(world: &World, lost: &Owner, name: &str) -> IssueReclaimGrantArgs {
    let (worker_id, worker_instance_id) = worker(name);
    IssueReclaimGrantArgs {
        execution_id: lost.id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        grant_ttl_ms: 5_000,
        worker_capabilities: std::collections::BTreeSet::new(),
    }
}

/// Takes over what an owner lost, once permitted.
pub(crate) fn reclaim_args(world: &World, lost: &Owner, name: &str) -> ReclaimExecutionArgs {
    let (worker_id, worker_instance_id) = worker(name);
    ReclaimExecutionArgs {
        execution_id: lost.id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        lease_id: LeaseId::from_uuid(world.uuid()),
        lease_ttl_ms: LEASE_MS,
        attempt_id: AttemptId::from_uuid(world.uuid()),
        max_reclaim_count: None,
        current_attempt_index: lost.index,
    }
}

/// Permits and takes over what an owner lost.
pub(crate) async fn reclaim_as(world: &World, lost: &Owner, name: &str) -> Owner {
    let granted = world.backend.issue_reclaim_grant(reclaim_request(world, lost, name)).await.unwrap();
    assert!(matches!(granted, IssueReclaimGrantOutcome::Granted(_)), "{granted:?}");
    let args = reclaim_args(world, lost, name);
    let (lease_id, attempt_id) = (args.lease_id, args.attempt_id);
    match world.backend.reclaim_execution(args).await.unwrap() {
        ReclaimExecutionOutcome::Claimed { handle } => Owner {
            id: lost.id,
            fence: FenceTriple {
                lease_id: Some(lease_id),
                lease_epoch: Some(lost.epoch().next()),
                attempt_id: Some(attempt_id),
            },
            index: AttemptIndex(lost.index.0 + 1),
            handle,
            expires_at: world.now().plus(LEASE_MS),
        },
        other => panic!("expected a reclaim, got {other:?}"),
    }
}

/// Lets the lease run out and another worker take over.
pub(crate) async fn lose(world: &World, owner: &Owner) -> Owner {
    run_out(world, owner);
    reclaim_as(world, owner, "worker-b").await
}

// Policies.

/// Retries after exactly one second.
pub(crate) fn retrying(max_retries: u32) -> ExecutionPolicy {
    let retry = RetryPolicy {
        max_retries,
        backoff: BackoffStrategy::Fixed { delay_ms: 1000 },
        retryable_categories: Vec::new(),
    };
    ExecutionPolicy { retry_policy: Some(retry), ..ExecutionPolicy::default() }
}

/// Attempts may take so long.
pub(crate) fn timed(attempt_timeout_ms: u64, policy: ExecutionPolicy) -> ExecutionPolicy {
    let timeouts = TimeoutPolicy { attempt_timeout_ms: Some(attempt_timeout_ms), execution_deadline_ms: None };
    ExecutionPolicy { timeout_policy: Some(timeouts), ..policy }
}

// Looking.

/// Every state dimension.
pub(crate) async fn info(world: &World, id: ExecutionId) -> ExecutionInfo {
    world.backend.read_execution_info(id).await.unwrap().expect("the execution exists")
}

/// One stored field as text.
pub(crate) async fn field(world: &World, id: ExecutionId, name: &str) -> Option<String> {
    world.backend.read_exec_core_fields(id, &[name]).await.unwrap().remove(name).flatten()
}

/// Why the stream of an attempt closed.
pub(crate) async fn closed(world: &World, id: ExecutionId, index: u32) -> Option<StreamCloseReason> {
    let (from, to) = (FrameCursor::Start, FrameCursor::End);
    world.backend.read_stream(id, AttemptIndex(index), from, to, 10).await.unwrap().closed_reason
}

/// `ExecutionNotActive`; gives the detail.
#[track_caller]
pub(crate) fn not_active<T: std::fmt::Debug>(answer: Result<T>) -> NotActive {
    match contention(answer, "execution_not_active") {
        ContentionKind::ExecutionNotActive(detail) => detail,
        other => panic!("expected the detail of not active, got {other:?}"),
    }
}

type Feed<T> = Subscription<(ExecutionId, T)>;

/// Ownership and ends, watched from some moment on.
pub(crate) struct Watch {
    leases: Feed<LeaseChange>,
    ends: Feed<CompletionOutcome>,
}

/// What was watched.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) leases: Vec<(ExecutionId, LeaseChange)>,
    pub(crate) ends: Vec<(ExecutionId, CompletionOutcome)>,
}

/// Watches from now on.
pub(crate) async fn watch(world: &World) -> Watch {
    let filter = ScannerFilter::default();
    let leases = world.backend.subscribe_lease_history(EventCursor::TAIL, &filter).await.unwrap();
    let ends = world.backend.subscribe_completion(EventCursor::TAIL, &filter).await.unwrap();
    Watch {
        leases: Box::pin(leases.map(|event| event.map(|event| (event.execution_id, event.change)))),
        ends: Box::pin(ends.map(|event| event.map(|event| (event.execution_id, event.outcome)))),
    }
}

impl Watch {
    /// Everything up to now: what comes before the traces of one more execution in the same partition.
    pub(crate) async fn seen(self, world: &World) -> Seen {
        let last = own(world).await;
        complete(world, Form::Handle, &last, None).await.unwrap();
        Seen { leases: until(self.leases, last.id).await, ends: until(self.ends, last.id).await }
    }
}

async fn until<T>(mut feed: Feed<T>, last: ExecutionId) -> Vec<(ExecutionId, T)> {
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(std::time::Duration::from_secs(10), feed.next()).await;
        match next.expect("the event arrives").expect("the feed goes on").unwrap() {
            (id, _) if id == last => return seen,
            event => seen.push(event),
        }
    }
}

/// Removes a terminal execution with everything that belongs to it.
pub(crate) async fn purge(world: &World, id: ExecutionId) {
    world.advance(1);
    let args = TrimRetentionArgs {
        partition: PartitionKey::from(id.partition()),
        namespace: None,
        lane_id: world.lane(),
        retention_ms: 0,
        now: world.now(),
        batch_size: 1000,
        filter: ScannerFilter::default(),
    };
    assert_eq!(world.backend.trim_retention(args).await.unwrap(), 1);
}
