//! Holding executions back: for want of a capable worker, or because a policy is closed.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::ids::{ExecutionId, LeaseEpoch};
use ff_core::partition::Partition;
use ff_core::state::{BlockingReason, EligibilityState};
use ff_core::{Result, TimestampMs};

use super::admission::{CAP_RETRY_MS, Denial};
use super::coverage::{Coverage, Lack, survey};
use super::grants::live_grant;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{Execution, Gate, LaneClass, Route};
use crate::store::{Op, Store, Tx};
use crate::timers::gates;
use crate::verbs::list_all;

/// Heads that one claim parks for want of a capable worker.
const ROUTE_PARKED_MAX: usize = 10;

/// Parks one execution, if it is still claimable and nobody has reserved it.
pub(crate) struct Park {
    pub(crate) execution: ExecutionId,
    pub(crate) eligibility: EligibilityState,
    pub(crate) reason: BlockingReason,
    pub(crate) detail: String,
    pub(crate) gate: Option<Gate>,
    pub(crate) retry_at: Option<TimestampMs>,
}

#[async_trait::async_trait]
impl Op for Park {
    type Out = bool;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        [Key::grant(self.execution)].into_iter().chain(Subject::keys(self.execution)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(mut subject) = Subject::find(tx, self.execution).await? else { return Ok(false) };
        if !subject.execution.is_eligible() || live_grant(tx, self.execution).await?.is_some() {
            return Ok(false);
        }
        let detail = Some(self.detail.clone());
        subject.execution.block(self.eligibility, self.reason, detail, self.gate, self.retry_at, tx.now());
        subject.save(tx);
        Ok(true)
    }
}

/// Puts a lost execution aside that a policy denied, so that it does not stand before others at every claim.
struct Postpone {
    execution: ExecutionId,
    epoch: LeaseEpoch,
    denial: Denial,
}

#[async_trait::async_trait]
impl Op for Postpone {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut subject) = Subject::find(tx, self.execution).await? else { return Ok(()) };
        let now = tx.now();
        if subject.execution.epoch == self.epoch && subject.execution.reclaim_open {
            // Nobody tells a lost execution that the policy opened, so it asks again before long.
            let soon = now.plus(CAP_RETRY_MS);
            subject.execution.postpone_reclaim(self.denial.retry_at.map_or(soon, |at| at.min(soon)), now);
            subject.save(tx);
        }
        Ok(())
    }
}

/// Parks an execution that a policy denied; a lost one is put aside. While a policy that closes for all has one parked, it parks no other: the parked one
/// shows users why they wait and wakes the lane when the policy opens.
pub(crate) async fn park_denied<S: Store>(
    engine: &Engine<S>,
    execution: &Execution,
    gate: Gate,
    denial: Denial,
) -> Result<()> {
    if execution.is_lost() {
        return engine.run(Postpone { execution: execution.id, epoch: execution.epoch, denial }).await;
    }
    let (index, eligibility, reason) = match gate {
        Gate::Budget(id) => {
            (Index::BudgetParked(id), EligibilityState::BlockedByBudget, BlockingReason::WaitingForBudget)
        }
        Gate::Quota(id) => (Index::QuotaParked(id), EligibilityState::BlockedByQuota, BlockingReason::WaitingForQuota),
    };
    if execution.class.gates.contains(&gate) && !engine.store.keys(&index, &Bounds::first(1)).await?.is_empty() {
        return Ok(());
    }
    let park = Park {
        execution: execution.id,
        eligibility,
        reason,
        detail: denial.detail,
        gate: Some(gate),
        retry_at: denial.retry_at,
    };
    if engine.run(park).await? {
        // The policy may have opened since it denied, and then it has looked for the parked too early.
        gates::recheck(engine, gate).await?;
    }
    Ok(())
}

/// Parks the head of each class behind a closed gate, unless the gate has a parked execution already.
pub(crate) async fn park_behind_gates<S: Store>(
    engine: &Engine<S>,
    classes: &[LaneClass],
    closed: &BTreeMap<Gate, Denial>,
) -> Result<()> {
    for (gate, denial) in closed {
        let indexes: Vec<Index> =
            classes.iter().filter(|class| class.class.gates.contains(gate)).map(eligible_index).collect();
        let heads = list_all(&engine.store, &indexes, &Bounds::first(1)).await?;
        for execution in heads.into_iter().filter_map(|head| Execution::try_from(head.record?).ok()) {
            park_denied(engine, &execution, *gate, denial.clone()).await?;
        }
    }
    Ok(())
}

pub(super) fn eligible_index(class: &LaneClass) -> Index {
    Index::Eligible(class.namespace.clone(), class.lane.clone(), class.class.clone())
}

/// Parks heads of classes that no live registered worker serves and no claim of this process waits for; a worker that does frees them when
/// it registers or beats.
pub(crate) async fn park_unroutable<S: Store>(engine: &Engine<S>, uncovered: &[LaneClass]) -> Result<()> {
    if uncovered.is_empty() {
        return Ok(());
    }
    let now = engine.store.now().await?;
    let known = engine.hands.known();
    let unknown = uncovered.iter().filter(|class| !known.has(class, now));
    let (awaited, unknown): (Vec<&LaneClass>, Vec<&LaneClass>) =
        unknown.partition(|class| engine.turnstile.awaits(class));
    engine.hands.learn(awaited.into_iter().map(|class| (class.clone(), now.plus(u64::MAX))).collect(), now);
    let indexes: Vec<Index> = unknown.iter().map(|class| eligible_index(class)).collect();
    // Where nothing waits, it does not matter who could serve it.
    if indexes.is_empty() || list_all(&engine.store, &indexes, &Bounds::first(1)).await?.is_empty() {
        return Ok(());
    }
    let lacking = lacking(engine, &unknown, now).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    let indexes: Vec<Index> = lacking.keys().cloned().collect();
    for head in list_all(&engine.store, &indexes, &Bounds::first(ROUTE_PARKED_MAX)).await? {
        let Some(Ok(execution)) = head.record.map(Execution::try_from) else { continue };
        if let Some(lack) = lacking.get(&head.index) {
            engine.run(unroutable(&execution, lack)).await?;
        }
    }
    Ok(())
}

/// The queues of those classes that nobody serves, and what is lacking; keeps in mind which the others are.
async fn lacking<S: Store>(
    engine: &Engine<S>,
    classes: &[&LaneClass],
    now: TimestampMs,
) -> Result<BTreeMap<Index, Lack>> {
    let mut lacking = BTreeMap::new();
    let mut served = Vec::new();
    // Classes are listed by namespace, and all are of one lane.
    for neighbours in classes.chunk_by(|a, b| a.namespace == b.namespace) {
        let routes: Vec<Route> = neighbours.iter().map(|class| class.class.route()).collect();
        let coverage = survey(engine, &neighbours[0].namespace, &neighbours[0].lane, &routes).await?;
        for (class, coverage) in neighbours.iter().zip(coverage) {
            match coverage {
                Coverage::Served { until } => served.push(((*class).clone(), until)),
                Coverage::Lacking(lack) => drop(lacking.insert(eligible_index(class), lack)),
            }
        }
    }
    engine.hands.learn(served, now);
    Ok(lacking)
}

fn unroutable(execution: &Execution, lack: &Lack) -> Park {
    Park {
        execution: execution.id,
        eligibility: EligibilityState::BlockedByRoute,
        reason: BlockingReason::WaitingForCapableWorker,
        detail: lack.detail(&execution.lane, &execution.class.route()),
        gate: None,
        retry_at: None,
    }
}

/// Where executions of these classes wait when no live worker serves them.
pub(crate) fn parked_routes<'a>(classes: impl IntoIterator<Item = &'a LaneClass>) -> Vec<Index> {
    let parked =
        |class: &LaneClass| Index::RouteParked(class.namespace.clone(), class.lane.clone(), class.class.route());
    // Classes that differ in their gates only wait in one place.
    classes.into_iter().map(parked).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Where executions of these classes are kept that somebody parked.
pub(crate) fn held_routes<'a>(classes: impl IntoIterator<Item = &'a LaneClass>) -> Vec<Index> {
    let held = |class: &LaneClass| Index::RouteHeld(class.namespace.clone(), class.lane.clone(), class.class.route());
    let plain = classes.into_iter().filter(|class| class.class.requirement.is_empty());
    plain.map(held).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Frees what is parked in these places, at most `limit` from `after` on. Says where to go on, if there is more.
pub(crate) async fn free_routes<S: Store>(
    engine: &Engine<S>,
    parked: &[Index],
    after: Option<Position>,
    limit: usize,
) -> Result<Freed> {
    let found = list_all(&engine.store, parked, &Bounds::first(limit).after(after)).await?;
    let next = if found.len() == limit { found.last().map(|found| found.position.clone()) } else { None };
    let mut freed = 0;
    for parked in found {
        let Some(Ok(execution)) = parked.record.map(Execution::try_from) else { continue };
        freed += usize::from(engine.run(FreeRoute { execution: execution.id }).await?);
    }
    Ok(Freed { count: freed, next })
}

/// What freeing parked executions did.
pub(crate) struct Freed {
    pub(crate) count: usize,
    pub(crate) next: Option<Position>,
}

struct FreeRoute {
    execution: ExecutionId,
}

#[async_trait::async_trait]
impl Op for FreeRoute {
    type Out = bool;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(mut subject) = Subject::find(tx, self.execution).await? else { return Ok(false) };
        if subject.execution.state().eligibility_state != EligibilityState::BlockedByRoute {
            return Ok(false);
        }
        subject.execution.promote(tx.now());
        subject.save(tx);
        Ok(true)
    }
}
