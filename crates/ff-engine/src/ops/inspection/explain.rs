//! Why an execution is where it is: the state says which question to ask, the records around it answer.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::dependencies::EdgeDependencyPolicy;
use ff_core::backend::inspection::{Explanation, Reason};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::{
    BlockingReason, EdgeGroupState, EdgeState, EligibilityState, LifecyclePhase, OwnershipState, PublicState,
};
use ff_core::{Result, TimestampMs};

use super::gates;
use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Edge, EdgeGroup, Execution, Flow, Grant, Lane, Record, Suspension, Waitpoint};
use crate::scheduler::coverage::{Coverage, Lack, survey};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

/// Upstreams named one by one; a group says how many more there are.
const UPSTREAMS_NAMED_MAX: usize = 20;

/// Edges, groups and waitpoints looked at.
const LOOKED_AT_MAX: usize = 1000;

/// The reasons an execution is where it is; none when it is missing.
pub(super) async fn explain<S: Store>(engine: &Engine<S>, id: ExecutionId) -> Result<Option<Explanation>> {
    let Some(execution) = read_one::<Execution, _>(&engine.store, Key::execution(id)).await? else { return Ok(None) };
    let now = engine.store.now().await?;
    let inquiry = Inquiry { engine, execution: &execution, now };
    let reasons = inquiry.reasons().await?;
    Ok(Some(Explanation { execution_id: id, public_state: execution.public_state(), reasons }))
}

struct Inquiry<'a, S> {
    engine: &'a Engine<S>,
    execution: &'a Execution,
    now: TimestampMs,
}

impl<S: Store> Inquiry<'_, S> {
    async fn reasons(&self) -> Result<Vec<Reason>> {
        let state = self.execution.state();
        if state.lifecycle_phase == LifecyclePhase::Terminal {
            return Ok(vec![Reason::Finished { outcome: state.terminal_outcome }]);
        }
        let mut reasons = self.cancelled_flow().await?;
        reasons.extend(match state.lifecycle_phase {
            LifecyclePhase::Active => self.active().await?,
            LifecyclePhase::Suspended => self.suspended().await?,
            _ => self.runnable().await?,
        });
        if reasons.is_empty() {
            // The block is being lifted, or nobody but its author knows what it is for.
            reasons.push(match state.eligibility_state {
                EligibilityState::EligibleNow | EligibilityState::BlockedByRoute => Reason::Claimable,
                _ => Reason::HeldByPolicy,
            });
        }
        Ok(reasons)
    }

    async fn cancelled_flow(&self) -> Result<Vec<Reason>> {
        let Some(flow_id) = self.execution.flow_id else { return Ok(Vec::new()) };
        let key = Key::flow(self.execution.id.partition(), flow_id);
        let flow: Option<Flow> = read_one(&self.engine.store, key).await?;
        let is_cancelled = flow.is_some_and(|flow| !flow.is_open());
        Ok(if is_cancelled { vec![Reason::FlowCancelled { flow_id }] } else { Vec::new() })
    }

    async fn active(&self) -> Result<Vec<Reason>> {
        let execution = self.execution;
        match (&execution.lease, execution.state().ownership_state) {
            (Some(lease), OwnershipState::Leased) if !lease.expires_at.is_due(self.now) => Ok(vec![Reason::Running {
                worker_instance_id: lease.worker_instance_id.clone(),
                lease_expires_at: lease.expires_at,
            }]),
            (_, OwnershipState::LeaseRevoked) => {
                let mut reasons = vec![Reason::LeaseLost { revoked: true, reclaimable_at: None }];
                reasons.extend(self.reservation().await?);
                Ok(reasons)
            }
            _ => {
                let mut reasons = vec![Reason::LeaseLost { revoked: false, reclaimable_at: execution.reclaim_at }];
                reasons.extend(self.reservation().await?);
                reasons.extend(self.what_keeps_claims_away().await?);
                Ok(reasons)
            }
        }
    }

    async fn suspended(&self) -> Result<Vec<Reason>> {
        let execution = self.execution;
        let Some(ordinal) = execution.suspension else { return Ok(Vec::new()) };
        let key = Key::suspension(execution.id, ordinal);
        let Some(suspension) = read_one::<Suspension, _>(&self.engine.store, key).await? else { return Ok(Vec::new()) };
        let open = Index::OpenWaitpointsOf(execution.id);
        let open: Vec<Waitpoint> = list_of(&self.engine.store, open, Bounds::first(LOOKED_AT_MAX)).await?;
        let bound = open.iter().filter(|waitpoint| waitpoint.suspension == Some(ordinal)).count();
        Ok(vec![Reason::Suspended {
            suspension_id: suspension.id,
            waiting_for: suspension.reason,
            timeout_at: execution.suspension_timeout_at,
            open_waitpoints: u32::try_from(bound).unwrap_or(u32::MAX),
        }])
    }

    async fn runnable(&self) -> Result<Vec<Reason>> {
        let execution = self.execution;
        let state = execution.state();
        match state.eligibility_state {
            EligibilityState::NotEligibleUntilTime => Ok(vec![Reason::DelayedUntil {
                at: execution.wake_at.unwrap_or(self.now),
                blocking_reason: state.blocking_reason,
            }]),
            EligibilityState::BlockedByDependencies => self.dependencies().await,
            EligibilityState::BlockedByOperator => Ok(vec![Reason::HeldByOperator]),
            EligibilityState::BlockedByLaneState => {
                let paused = self.paused_lane().await?;
                Ok(if paused.is_empty() { vec![Reason::HeldByPolicy] } else { paused })
            }
            EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota => self.closed_gates().await,
            EligibilityState::BlockedByRoute => self.workers().await,
            _ if state.blocking_reason == BlockingReason::PausedByFlowCancel => Ok(Vec::new()),
            _ => {
                let mut reasons = self.reservation().await?;
                reasons.extend(self.what_keeps_claims_away().await?);
                Ok(reasons)
            }
        }
    }

    /// Everything that stands between an execution that is ready and a claim.
    async fn what_keeps_claims_away(&self) -> Result<Vec<Reason>> {
        let mut reasons = self.paused_lane().await?;
        reasons.extend(self.closed_gates().await?);
        reasons.extend(self.workers().await?);
        Ok(reasons)
    }

    async fn reservation(&self) -> Result<Vec<Reason>> {
        let grant: Option<Grant> = read_one(&self.engine.store, Key::grant(self.execution.id)).await?;
        let live = grant.filter(|grant| grant.is_live(self.now));
        Ok(live.map(|it| Reason::Reserved { worker_id: it.worker_id, until: it.expires_at }).into_iter().collect())
    }

    async fn paused_lane(&self) -> Result<Vec<Reason>> {
        let key = Key::lane(self.execution.namespace.clone(), self.execution.lane.clone());
        let lane: Option<Lane> = read_one(&self.engine.store, key).await?;
        let paused = lane.map(|lane| lane.state).filter(|state| !state.serves());
        Ok(paused.map(|state| Reason::LanePaused { state }).into_iter().collect())
    }

    async fn closed_gates(&self) -> Result<Vec<Reason>> {
        let mut reasons = Vec::new();
        for budget in &self.execution.budget_ids {
            reasons.extend(gates::budget(self.engine, *budget, self.execution).await?);
        }
        for quota in &self.execution.quota_policy_ids {
            reasons.extend(gates::quota(self.engine, *quota, self.execution, self.now).await?);
        }
        Ok(reasons)
    }

    /// Whether a live worker of the namespace and lane handles the kind and has everything that is required.
    async fn workers(&self) -> Result<Vec<Reason>> {
        let Execution { namespace, lane, class, .. } = self.execution;
        let required = || class.requirement.tokens().map(str::to_owned).collect::<BTreeSet<String>>();
        let coverage = survey(self.engine, namespace, lane, &[class.route()]).await?;
        Ok(coverage
            .into_iter()
            .filter_map(|coverage| match coverage {
                Coverage::Served { .. } => None,
                Coverage::Lacking(Lack::Kind) => Some(Reason::NoLiveWorkerHandles { kind: class.kind.to_string() }),
                Coverage::Lacking(Lack::Capabilities { missing }) => {
                    Some(Reason::NoLiveWorkerCovers { required: required(), missing_capabilities: missing })
                }
                Coverage::Lacking(Lack::Anybody) => {
                    Some(Reason::NoLiveWorkerCovers { required: required(), missing_capabilities: required() })
                }
            })
            .collect())
    }

    async fn dependencies(&self) -> Result<Vec<Reason>> {
        let execution = self.execution;
        let index = Index::GroupsInto(execution.id);
        let groups: Vec<EdgeGroup> = list_of(&self.engine.store, index, Bounds::last(LOOKED_AT_MAX)).await?;
        let pending = groups.into_iter().filter(|group| group.state == EdgeGroupState::Pending);
        let mut reasons: Vec<Reason> = pending.map(|group| undecided(&group)).collect();
        if let Some(flow) = execution.flow_id {
            reasons.extend(self.open_upstreams(flow).await?);
        }
        Ok(reasons)
    }

    async fn open_upstreams(&self, flow: FlowId) -> Result<Vec<Reason>> {
        let home = self.execution.id.partition();
        let index = Index::EdgesInto(home, flow, self.execution.id);
        let edges: Vec<Edge> = list_of(&self.engine.store, index, Bounds::first(LOOKED_AT_MAX)).await?;
        let open: Vec<Edge> = edges
            .into_iter()
            .filter(|edge| matches!(edge.state, EdgeState::Staged | EdgeState::Unsatisfied))
            .take(UPSTREAMS_NAMED_MAX)
            .collect();
        let states = self.states(open.iter().map(|edge| edge.upstream)).await?;
        let waits = open.into_iter().filter_map(|edge| {
            let upstream_state = *states.get(&edge.upstream)?;
            Some(Reason::DependencyWaits { edge_id: edge.id, upstream_execution_id: edge.upstream, upstream_state })
        });
        Ok(waits.collect())
    }

    async fn states(&self, ids: impl Iterator<Item = ExecutionId>) -> Result<BTreeMap<ExecutionId, PublicState>> {
        let keys: Vec<Key> = ids.map(Key::execution).collect();
        let found = self.engine.store.read(&keys).await?;
        let states = found.into_iter().flatten().filter_map(|record| match record {
            Record::Execution(execution) => Some((execution.id, execution.public_state())),
            _ => None,
        });
        Ok(states.collect())
    }
}

fn undecided(group: &EdgeGroup) -> Reason {
    let counts = group.counts;
    let needed = match group.policy {
        EdgeDependencyPolicy::AllOf {} => counts.total,
        EdgeDependencyPolicy::AnyOf { .. } => 1,
        EdgeDependencyPolicy::Quorum { k, .. } => u32::try_from(k).unwrap_or(u32::MAX),
    };
    Reason::Group {
        policy: group.policy,
        needed,
        satisfied: counts.succeeded,
        impossible: counts.failed.saturating_add(counts.skipped),
        outstanding: counts.running(),
    }
}
