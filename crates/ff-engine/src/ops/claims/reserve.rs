//! Listing what is claimable, and reserving it.

use ff_core::backend::claims::{
    ClaimForWorkerArgs, ClaimForWorkerOutcome, IssueClaimGrantArgs, IssueClaimGrantOutcome, ScanEligibleArgs,
};
use ff_core::capability::{CapabilitySide, check_tokens};
use ff_core::error::{ContentionKind, StateKind};
use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use ff_core::{EngineError, Result};
use uuid::Uuid;

use super::check_offer;
use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::ops::check_duration;
use crate::records::Execution;
use crate::scheduler::admission::{Admitted, Denial, admit, withdraw};
use crate::scheduler::grants::{Holder, live_grant, put_grant, require_capabilities, shown};
use crate::scheduler::hunt::{Catch, Prize, Seeker, hunt};
use crate::scheduler::ownership::{grant_kind, is_being_cancelled};
use crate::scheduler::parking::park_denied;
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Claimable executions read at a time.
const SCAN_PAGE: usize = 500;

/// Reserves the best admissible execution for a worker.
pub(super) async fn claim_for_worker<S: Store>(
    engine: &Engine<S>,
    args: ClaimForWorkerArgs,
) -> Result<ClaimForWorkerOutcome> {
    check_duration("grant_ttl_ms", args.grant_ttl_ms)?;
    check_offer(&args.worker_capabilities, args.kinds.as_ref())?;
    let seeker = Seeker {
        lane: &args.lane_id,
        capabilities: &args.worker_capabilities,
        namespaces: args.namespaces.as_ref(),
        kinds: args.kinds.as_ref(),
    };
    let holder = Holder {
        worker_id: args.worker_id,
        worker_instance_id: args.worker_instance_id,
        capabilities: args.worker_capabilities.clone(),
    };
    let prize = Prize::Grant { ttl_ms: args.grant_ttl_ms };
    Ok(match hunt(engine, seeker, &holder, prize, 1).await?.caught.pop() {
        Some(Catch::Granted(grant)) => ClaimForWorkerOutcome::Granted(shown(&grant)),
        _ => ClaimForWorkerOutcome::NoWork,
    })
}

/// The best claimable executions of one lane in one partition.
pub(super) async fn scan<S: Store>(engine: &Engine<S>, args: ScanEligibleArgs) -> Result<Vec<ExecutionId>> {
    let partition = args.partition.parse()?;
    if partition.family() != PartitionFamily::Flow {
        return Err(EngineError::invalid(format_args!("partition: {partition} holds no executions")));
    }
    let index = Index::EligibleIn(partition, args.lane_id);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut ids = Vec::new();
    let mut after = None;
    while ids.len() < limit {
        let page = engine.store.list(std::slice::from_ref(&index), &Bounds::first(SCAN_PAGE).after(after)).await?;
        after = page.last().filter(|_| page.len() == SCAN_PAGE).map(|listed| listed.position.clone());
        let wanted = |execution: &Execution| {
            args.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(&execution.namespace))
        };
        let found = page.into_iter().filter_map(|listed| Execution::try_from(listed.record).ok()).filter(wanted);
        ids.extend(found.map(|execution| execution.id).take(limit - ids.len()));
        if after.is_none() {
            break;
        }
    }
    Ok(ids)
}

/// Reserves one specific execution for a worker.
pub(super) async fn issue_claim_grant<S: Store>(
    engine: &Engine<S>,
    args: IssueClaimGrantArgs,
) -> Result<IssueClaimGrantOutcome> {
    check_duration("grant_ttl_ms", args.grant_ttl_ms)?;
    engine.check_partition(args.execution_id)?;
    let key = Key::execution(args.execution_id);
    let found: Option<Execution> = read_one(&engine.store, key).await?;
    let mut issue = IssueClaimGrant { grant: engine.mint().await?, only_check: true, args };
    if let Some(execution) = found.filter(Execution::needs_admission) {
        engine.run(issue.clone()).await??;
        return issue.admitted(engine, &execution).await;
    }
    issue.only_check = false;
    engine.run(issue).await?
}

#[derive(Clone)]
struct IssueClaimGrant {
    args: IssueClaimGrantArgs,
    grant: Uuid,
    /// Says whether the grant could be issued, without issuing it: who would be refused anyway takes no quota slot.
    only_check: bool,
}

impl IssueClaimGrant {
    /// Issues the grant if budgets and quotas let the execution start; one that is denied is parked and no longer eligible.
    async fn admitted<S: Store>(mut self, engine: &Engine<S>, execution: &Execution) -> Result<IssueClaimGrantOutcome> {
        let until = engine.store.now().await?.plus(self.args.grant_ttl_ms);
        let quotas = match admit(engine, execution, until).await? {
            Admitted::Yes { quotas } => quotas,
            Admitted::No { gate, retry_at, detail } => {
                park_denied(engine, execution, gate, Denial { retry_at, detail }).await?;
                return Err(ContentionKind::ExecutionNotEligible.into());
            }
        };
        self.only_check = false;
        let answer = engine.run(self).await;
        // When it is not known whether the commit happened, the end of the provisional admission tells.
        if !matches!(answer, Ok(Ok(_)) | Err(EngineError::Transport { .. })) {
            withdraw(engine, execution, &quotas).await?;
        }
        answer?
    }
}

#[async_trait::async_trait]
impl Op for IssueClaimGrant {
    type Out = Result<IssueClaimGrantOutcome>;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.args.execution_id;
        [Key::grant(id)].into_iter().chain(Subject::keys(id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<IssueClaimGrantOutcome>> {
        let args = &self.args;
        let mut subject = Subject::load(tx, args.execution_id).await?;
        if !subject.execution.is_eligible() || is_being_cancelled(tx, &subject.execution).await? {
            return Err(ContentionKind::ExecutionNotEligible.into());
        }
        if live_grant(tx, args.execution_id).await?.is_some() {
            return Err(StateKind::GrantAlreadyExists.into());
        }
        if subject.execution.lane != args.lane_id {
            return Err(ContentionKind::ExecutionNotInEligibleSet.into());
        }
        check_tokens(CapabilitySide::Worker, &args.worker_capabilities)?;
        if let Err(mismatch) = require_capabilities(tx, &mut subject, &args.worker_capabilities) {
            return Ok(Err(mismatch));
        }
        let holder = Holder {
            worker_id: args.worker_id.clone(),
            worker_instance_id: args.worker_instance_id.clone(),
            capabilities: args.worker_capabilities.clone(),
        };
        if !self.only_check {
            let kind = grant_kind(&subject.execution);
            put_grant(tx, &subject.execution, kind, &holder, self.grant, args.grant_ttl_ms);
        }
        Ok(Ok(IssueClaimGrantOutcome::Granted { execution_id: args.execution_id }))
    }
}
