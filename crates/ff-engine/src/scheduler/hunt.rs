//! The one pipeline behind every claim that looks for work: capability, budgets, quotas, then the lease or the grant.

use std::collections::BTreeSet;

use ff_core::error::EngineError;
use ff_core::ids::{AttemptId, ExecutionId, LeaseEpoch, LeaseId, QuotaPolicyId};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use uuid::Uuid;

use super::admission::{Admitted, Denial, admit, withdraw};
use super::grants::{Holder, live_grant, put_grant};
use super::ownership::{Owned, cancel_if_owed, end_over_cap, grant_kind, reclaim_cap, take};
use super::parking::{Offer, free_routes, park_behind_gates, park_denied, park_unroutable};
pub(crate) use super::queue::Seeker;
use super::queue::{HEADS_PAGE, Queues, heads};
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{Execution, Gate, Grant, GrantKind, Taker};
use crate::store::{Op, Store, Tx};

/// How long an admission waits for the commit of a direct claim.
const DIRECT_ADMISSION_MS: u64 = 5_000;

/// Candidates that one claim looks at in vain before it gives up.
const FRUITLESS_MAX: usize = 4 * HEADS_PAGE;

/// Parked executions that a claim frees when it finds nothing else.
const FREED_MAX: usize = 16;

/// What the worker gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prize {
    /// The execution itself, under a lease.
    Lease {
        /// How long the lease lasts.
        ttl_ms: u64,
    },
    /// A reservation.
    Grant {
        /// How long it holds.
        ttl_ms: u64,
    },
}

/// What was caught.
#[derive(Debug)]
pub(crate) enum Catch {
    /// Ownership.
    Owned(Box<Owned>),
    /// A reservation.
    Granted(Grant),
}

/// Finds up to `count` executions for a worker, best first.
pub(crate) async fn hunt<S: Store>(
    engine: &Engine<S>,
    seeker: Seeker<'_>,
    holder: &Holder,
    prize: Prize,
    count: usize,
) -> Result<Vec<Catch>> {
    let mut hunt = Hunt { engine, holder, prize, wanted: count, caught: Vec::new(), closed: BTreeSet::new() };
    let outcome = hunt.round(seeker).await;
    match outcome {
        // What was taken is taken: the caller must learn of it.
        Err(error) if hunt.caught.is_empty() => Err(error),
        _ => Ok(hunt.caught),
    }
}

struct Hunt<'a, S> {
    engine: &'a Engine<S>,
    holder: &'a Holder,
    prize: Prize,
    wanted: usize,
    caught: Vec<Catch>,
    /// Policies found closed on the way.
    closed: BTreeSet<Gate>,
}

impl<S: Store> Hunt<'_, S> {
    async fn round(&mut self, seeker: Seeker<'_>) -> Result<()> {
        let queues = Queues::of(self.engine, seeker).await?;
        park_behind_gates(self.engine, &queues.gated, &queues.closed).await?;
        park_unroutable(self.engine, &queues.uncovered).await?;
        self.search(&queues).await?;
        if self.caught.is_empty() && self.free_parked(seeker, &queues).await? {
            self.search(&queues).await?;
        }
        Ok(())
    }

    /// A worker that asks is alive, registered or not: what was parked for want of its capabilities is its work.
    async fn free_parked(&self, seeker: Seeker<'_>, queues: &Queues) -> Result<bool> {
        let offer = Offer { capabilities: seeker.capabilities, registered: false };
        let mut freed = 0;
        for namespace in &queues.serving {
            freed += free_routes(self.engine, namespace, seeker.lane, offer, None, FREED_MAX).await?.count;
        }
        Ok(freed > 0)
    }

    async fn search(&mut self, queues: &Queues) -> Result<()> {
        let mut fruitless = 0;
        let mut after = None;
        while self.caught.len() < self.wanted && fruitless < FRUITLESS_MAX {
            let indexes = queues.indexes(&self.closed);
            if indexes.is_empty() {
                return Ok(());
            }
            let (candidates, next) = heads(self.engine, &indexes, after).await?;
            for candidate in candidates {
                if self.caught.len() >= self.wanted {
                    return Ok(());
                }
                // A lost execution has its slots already.
                if !candidate.is_lost() && candidate.class.gates.iter().any(|gate| self.closed.contains(gate)) {
                    continue;
                }
                match self.try_candidate(&candidate).await? {
                    Some(catch) => self.caught.push(catch),
                    None => fruitless += 1,
                }
            }
            if next.is_none() {
                return Ok(());
            }
            after = next;
        }
        Ok(())
    }

    /// Admission, then the prize. An admission whose prize somebody else got is withdrawn; when it is not known whether the commit
    /// happened, the end of its provisional time tells.
    async fn try_candidate(&mut self, candidate: &Execution) -> Result<Option<Catch>> {
        let patience = match self.prize {
            Prize::Lease { .. } => DIRECT_ADMISSION_MS,
            Prize::Grant { ttl_ms } => ttl_ms,
        };
        let now = self.engine.store.now().await?;
        let until = now.plus(patience);
        let quotas = match admit(self.engine, candidate, until).await? {
            Admitted::Yes { quotas } => quotas,
            Admitted::No { gate, retry_at, detail } => {
                if candidate.class.gates.contains(&gate) {
                    self.closed.insert(gate);
                }
                park_denied(self.engine, candidate, gate, Denial { retry_at, detail }).await?;
                return Ok(None);
            }
        };
        let secure = Secure {
            execution: candidate.id,
            epoch: candidate.epoch,
            holder: self.holder.clone(),
            prize: self.prize,
            until,
            first: self.engine.uuid_at(now),
            second: self.engine.uuid_at(now),
            quotas,
        };
        match self.engine.run(&secure).await {
            Ok(None) | Err(EngineError::Contention(_)) => {
                withdraw(self.engine, candidate.id, &secure.quotas).await?;
                Ok(None)
            }
            caught => caught,
        }
    }
}

/// Takes or reserves one candidate, if it is still there for the taking.
struct Secure {
    execution: ExecutionId,
    /// The epoch that admission saw.
    epoch: LeaseEpoch,
    holder: Holder,
    prize: Prize,
    /// Until then the admission holds.
    until: TimestampMs,
    /// The lease or the grant.
    first: Uuid,
    /// The attempt.
    second: Uuid,
    quotas: Vec<QuotaPolicyId>,
}

#[async_trait::async_trait]
impl Op for Secure {
    type Out = Option<Catch>;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.execution;
        [Key::grant(id), Key::definition(id)].into_iter().chain(Subject::keys(id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<Catch>> {
        let Some(subject) = Subject::find(tx, self.execution).await? else { return Ok(None) };
        let execution = &subject.execution;
        let is_there = execution.epoch == self.epoch && (execution.is_eligible() || execution.reclaim_open);
        if !is_there
            || self.until.is_due(tx.now())
            || !execution.class.requirement.is_covered_by(&self.holder.capabilities)
            || live_grant(tx, self.execution).await?.is_some()
            || cancel_if_owed(tx, &subject).await?
        {
            return Ok(None);
        }
        let kind = grant_kind(execution);
        if kind == GrantKind::Reclaim && execution.reclaim_count >= reclaim_cap(tx, execution, None).await? {
            end_over_cap(tx, subject).await?;
            return Ok(None);
        }
        match self.prize {
            Prize::Grant { .. } => {
                // The grant must not outlive the admission it stands on.
                let (ttl_ms, quotas) = (self.until.since(tx.now()), self.quotas.clone());
                let grant = put_grant(tx, &subject.execution, kind, &self.holder, self.first, quotas, ttl_ms);
                Ok(Some(Catch::Granted(grant)))
            }
            Prize::Lease { ttl_ms } => {
                let taker = Taker {
                    lease_id: LeaseId::from_uuid(self.first),
                    worker_id: self.holder.worker_id.clone(),
                    worker_instance_id: self.holder.worker_instance_id.clone(),
                    ttl_ms,
                };
                let owned = take(tx, subject, taker, AttemptId::from_uuid(self.second), None).await?;
                Ok(Some(Catch::Owned(Box::new(owned))))
            }
        }
    }
}
