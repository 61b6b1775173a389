//! The one pipeline behind every claim that looks for work: kind and capabilities, budgets, quotas, then the lease or the grant.

use std::collections::BTreeSet;

use ff_core::error::EngineError;
use ff_core::ids::{AttemptId, ExecutionId, LeaseEpoch, LeaseId};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use uuid::Uuid;

use super::admission::{Admitted, Denial, admit, withdraw};
use super::dealing::take_dealt;
use super::grants::{Holder, live_grant, put_grant};
use super::ownership::{Owned, cancel_if_owed, end_over_cap, grant_kind, reclaim_cap, take};
use super::parking::{free_routes, park_behind_gates, park_denied, park_unroutable, parked_routes};
pub(crate) use super::queue::Seeker;
use super::queue::{HEADS_PAGE, Queues, heads, uncovered_round};
use super::shortcut::{TakeHeads, Taken};
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{Execution, Gate, Grant, GrantKind, Taker};
use crate::store::{Op, Store, Tx};

/// How long an admission waits for the commit of a direct claim.
const DIRECT_ADMISSION_MS: u64 = 5_000;

/// Candidates that one claim looks at in vain before it gives up.
pub(super) const FRUITLESS_MAX: usize = 4 * HEADS_PAGE;

/// Executions that one short way takes at once.
const TAKEN_MAX: usize = 256;

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

impl Prize {
    /// How long an admission waits for it.
    pub(super) const fn patience_ms(self) -> u64 {
        match self {
            Self::Lease { .. } => DIRECT_ADMISSION_MS,
            Self::Grant { ttl_ms } => ttl_ms,
        }
    }
}

/// What was caught.
#[derive(Debug)]
pub(crate) enum Catch {
    /// Ownership.
    Owned(Box<Owned>),
    /// A reservation.
    Granted(Grant),
}

/// What a hunt brings home.
#[derive(Debug)]
pub(crate) struct Haul {
    /// What was caught, best first.
    pub(crate) caught: Vec<Catch>,
    /// Whether it gave up with candidates left, and those it tried are out of the way: another hunt gets further.
    pub(crate) is_cut_short: bool,
}

/// Finds up to `count` executions for a worker, best first.
pub(crate) async fn hunt<S: Store>(
    engine: &Engine<S>,
    seeker: Seeker<'_>,
    holder: &Holder,
    prize: Prize,
    count: usize,
) -> Result<Haul> {
    let taken = if engine.store.spans_partitions() {
        take_heads(engine, seeker, holder, prize, count).await
    } else {
        Box::pin(take_dealt(engine, seeker, holder, prize, count)).await
    };
    let Taken { caught, is_partial, is_all_quiet } = taken?;
    if !caught.is_empty() || is_all_quiet {
        if is_partial {
            // Whatever comes of it, what was taken is taken.
            drop(Box::pin(look_round(engine, seeker)).await);
        }
        return Ok(Haul { caught, is_cut_short: false });
    }
    // Apart, so that the short way does not carry room for it.
    Box::pin(hunt_around(engine, seeker, holder, prize, count)).await
}

/// The general way.
async fn hunt_around<S: Store>(
    engine: &Engine<S>,
    seeker: Seeker<'_>,
    holder: &Holder,
    prize: Prize,
    count: usize,
) -> Result<Haul> {
    let mut hunt = Hunt::new(engine, holder, prize, count);
    match hunt.round(seeker).await {
        // What was taken is taken: the caller must learn of it.
        Err(error) if hunt.caught.is_empty() => Err(error),
        _ => Ok(Haul { is_cut_short: hunt.gave_up && hunt.set_aside > 0, caught: hunt.caught }),
    }
}

/// The short way: what stands at the heads of queues that nothing else decides about.
async fn take_heads<S: Store>(
    engine: &Engine<S>,
    seeker: Seeker<'_>,
    holder: &Holder,
    prize: Prize,
    count: usize,
) -> Result<Taken> {
    let now = engine.store.now().await?;
    let ids = (0..count.min(TAKEN_MAX)).map(|_| (engine.uuid_at(now), engine.uuid_at(now))).collect();
    let shortcut = TakeHeads {
        lane: seeker.lane.clone(),
        namespaces: seeker.namespaces.cloned(),
        kinds: seeker.kinds.cloned(),
        in_good_hands: engine.hands.known(),
        holder: holder.clone(),
        prize,
        until: now.plus(prize.patience_ms()),
        ids,
    };
    match engine.run(shortcut).await {
        // One that cannot be taken must not cost the others: the general way takes them one by one.
        Err(EngineError::Contention(_) | EngineError::Validation { .. }) => Ok(Taken::default()),
        taken => taken,
    }
}

/// Looks now and then at work that the short way passes over, so that it is parked when nobody can do it.
async fn look_round<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<()> {
    if engine.hands.rounds().is_due(seeker, engine.store.now().await?) {
        park_unroutable(engine, &uncovered_round(engine, seeker).await?).await?;
    }
    Ok(())
}

struct Hunt<'a, S> {
    engine: &'a Engine<S>,
    holder: &'a Holder,
    prize: Prize,
    wanted: usize,
    caught: Vec<Catch>,
    /// Policies found closed on the way.
    closed: BTreeSet<Gate>,
    /// Candidates that were denied and parked or postponed, so that nobody finds them at the head again.
    set_aside: usize,
    /// Whether candidates were left when too many had been looked at in vain.
    gave_up: bool,
}

impl<'a, S: Store> Hunt<'a, S> {
    const fn new(engine: &'a Engine<S>, holder: &'a Holder, prize: Prize, wanted: usize) -> Self {
        Self {
            engine,
            holder,
            prize,
            wanted,
            caught: Vec::new(),
            closed: BTreeSet::new(),
            set_aside: 0,
            gave_up: false,
        }
    }

    async fn round(&mut self, seeker: Seeker<'_>) -> Result<()> {
        let queues = Queues::of(self.engine, seeker).await?;
        park_behind_gates(self.engine, &queues.gated, &queues.closed).await?;
        park_unroutable(self.engine, &queues.uncovered).await?;
        self.search(&queues).await?;
        if self.caught.is_empty() && self.free_parked(&queues).await? {
            self.search(&queues).await?;
        }
        Ok(())
    }

    /// A worker that asks is alive, registered or not: what was parked for want of somebody like it is its work. Behind a closed policy
    /// it could not take it, and others would park it again.
    async fn free_parked(&self, queues: &Queues) -> Result<bool> {
        let parked = parked_routes(&queues.open);
        if parked.is_empty() {
            return Ok(false);
        }
        Ok(free_routes(self.engine, &parked, None, FREED_MAX).await?.count > 0)
    }

    async fn search(&mut self, queues: &Queues) -> Result<()> {
        let mut fruitless = 0;
        let mut after = None;
        while self.caught.len() < self.wanted {
            if fruitless >= FRUITLESS_MAX {
                self.gave_up = true;
                return Ok(());
            }
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
        let now = self.engine.store.now().await?;
        let until = now.plus(self.prize.patience_ms());
        let quotas = match admit(self.engine, candidate, until).await? {
            Admitted::Yes { quotas } => quotas,
            Admitted::No { gate, retry_at, detail } => {
                let shared = candidate.class.gates.contains(&gate);
                if shared {
                    self.closed.insert(gate);
                }
                // Behind a shared policy one parked execution stands for all.
                self.set_aside += usize::from(!shared || candidate.is_lost());
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
        };
        match self.engine.run(secure).await {
            Ok(None) | Err(EngineError::Contention(_)) => {
                withdraw(self.engine, candidate, &quotas).await?;
                Ok(None)
            }
            caught => caught,
        }
    }
}

/// Takes or reserves one candidate, if it is still there for the taking.
pub(super) struct Secure {
    pub(super) execution: ExecutionId,
    /// The epoch that admission saw.
    pub(super) epoch: LeaseEpoch,
    pub(super) holder: Holder,
    pub(super) prize: Prize,
    /// Until then the admission holds.
    pub(super) until: TimestampMs,
    /// The lease or the grant.
    pub(super) first: Uuid,
    /// The attempt.
    pub(super) second: Uuid,
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
                let ttl_ms = self.until.since(tx.now());
                let grant = put_grant(tx, &subject.execution, kind, &self.holder, self.first, ttl_ms);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::backend::ingress::CreateExecutionArgs;
    use ff_core::backend::quotas::CreateQuotaPolicyArgs;
    use ff_core::backend::{Ingress, Quotas};
    use ff_core::ids::{LaneId, Namespace, QuotaPolicyId, WorkerId, WorkerInstanceId};
    use ff_core::policy::{ExecutionPolicy, PolicyDocument};

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;
    use crate::scheduler::admission::quota_facts;
    use crate::verbs::read_one;

    /// One execution behind a quota that lets one run at a time.
    struct Scene {
        engine: Engine<MemoryStore>,
        quota: QuotaPolicyId,
        candidate: Execution,
    }

    impl Scene {
        async fn open() -> Self {
            let clock = ManualClock::at(TimestampMs(1_700_000_000_000));
            let engine = Engine::open(MemoryStore::new(Arc::new(clock)), Settings::default()).await.expect("opens");
            let quota = QuotaPolicyId::from_uuid(Uuid::from_u128(1));
            let policy = CreateQuotaPolicyArgs {
                quota_policy_id: quota,
                namespace: namespace(),
                scope_type: "policy".into(),
                scope_id: String::new(),
                window_seconds: 0,
                max_requests_per_window: 0,
                max_concurrent: 1,
                jitter_ms: 0,
            };
            engine.create_quota_policy(policy).await.expect("a quota");
            let id = ExecutionId::solo(&lane(), engine.counts(), Uuid::from_u128(2));
            let policy = ExecutionPolicy { quota_policy_ids: vec![quota], ..ExecutionPolicy::default() };
            let submission = CreateExecutionArgs {
                policy: Some(PolicyDocument::from(policy)),
                ..CreateExecutionArgs::new(id, namespace(), lane(), "task")
            };
            engine.create_execution(submission).await.expect("an execution");
            let candidate = read_one(&engine.store, Key::execution(id)).await.expect("readable").expect("stored");
            Self { engine, quota, candidate }
        }

        /// A claim that found the candidate before anybody took it.
        async fn try_candidate(&self) -> Option<Catch> {
            let holder = holder();
            let mut hunt = Hunt::new(&self.engine, &holder, Prize::Lease { ttl_ms: 30_000 }, 1);
            hunt.try_candidate(&self.candidate).await.expect("an answer")
        }

        async fn admit(&self) -> Vec<QuotaPolicyId> {
            let until = TimestampMs(1_700_000_005_000);
            match admit(&self.engine, &self.candidate, until).await {
                Ok(Admitted::Yes { quotas }) => quotas,
                other => panic!("expected a slot, got {other:?}"),
            }
        }

        async fn holders(&self) -> u64 {
            quota_facts(&self.engine, self.quota).await.expect("facts").expect("bounded").1.holders
        }
    }

    fn namespace() -> Namespace {
        Namespace::new("acme").expect("a name")
    }

    fn lane() -> LaneId {
        LaneId::new("default").expect("a name")
    }

    fn holder() -> Holder {
        Holder {
            worker_id: WorkerId::new("w").expect("a name"),
            worker_instance_id: WorkerInstanceId::new("w-1").expect("a name"),
            capabilities: BTreeSet::new(),
        }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(test)
    }

    #[test]
    fn a_claim_that_comes_too_late_leaves_the_winner_its_slot() {
        run(async {
            let scene = Scene::open().await;
            assert!(scene.try_candidate().await.is_some());
            assert!(scene.try_candidate().await.is_none());
            assert_eq!(scene.holders().await, 1);
        });
    }

    #[test]
    fn a_claim_that_asked_first_and_lost_leaves_the_winner_its_slot() {
        run(async {
            let scene = Scene::open().await;
            let quotas = scene.admit().await;
            assert!(scene.try_candidate().await.is_some(), "another claim counts on the same admission");
            withdraw(&scene.engine, &scene.candidate, &quotas).await.expect("withdrawn");
            assert_eq!(scene.holders().await, 1);
        });
    }

    /// How many of two executions a claim gets when the second one cannot be read in full.
    async fn caught_before_damage(store: MemoryStore) -> usize {
        let engine = Engine::open(store, Settings::default()).await.expect("opens");
        for n in [1, 2] {
            let id = ExecutionId::solo(&lane(), engine.counts(), Uuid::from_u128(n));
            let submission = CreateExecutionArgs::new(id, namespace(), lane(), "task");
            engine.create_execution(submission).await.expect("an execution");
            if n == 2 {
                engine.store.damage(Key::definition(id));
            }
        }
        let (lane, holder) = (lane(), holder());
        let seeker = Seeker { lane: &lane, capabilities: &holder.capabilities, namespaces: None, kinds: None };
        let haul = hunt(&engine, seeker, &holder, Prize::Lease { ttl_ms: 30_000 }, 2).await.expect("what can be taken");
        haul.caught.len()
    }

    #[test]
    fn a_damaged_record_does_not_cost_the_work_before_it() {
        run(async {
            let store = || MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000))));
            assert_eq!(caught_before_damage(store()).await, 1, "the general way");
            assert_eq!(caught_before_damage(store().spanning_partitions()).await, 1, "the shortcut");
        });
    }

    #[test]
    fn a_claim_that_nobody_joined_gives_its_slot_back() {
        run(async {
            let scene = Scene::open().await;
            let quotas = scene.admit().await;
            withdraw(&scene.engine, &scene.candidate, &quotas).await.expect("withdrawn");
            assert_eq!(scene.holders().await, 0);
        });
    }
}
