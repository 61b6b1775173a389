//! The registry of live worker processes.

pub(crate) mod pulse;

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use ff_core::backend::Workers;
use ff_core::backend::inspection::PAGE_LIMIT_MAX;
use ff_core::backend::workers::{
    HeartbeatWorkerArgs, HeartbeatWorkerOutcome, LIST_WORKERS_LIMIT_DEFAULT, ListWorkersArgs, ListWorkersResult,
    MarkWorkerDeadArgs, MarkWorkerDeadOutcome, RegisterWorkerArgs, RegisterWorkerOutcome, WorkerInfo,
};
use ff_core::capability::{CapabilitySide, check_tokens};
use ff_core::ids::{LaneId, Namespace, WorkerInstanceId, check_free_string};
use ff_core::kinds::check_kinds;
use ff_core::partition::{Partition, of_worker};
use ff_core::state::LaneState;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::event::{Event, EventBody, WorkerChange};
use crate::index::{Bounds, Index, Position, pair_bytes};
use crate::key::Key;
use crate::ops::check_duration;
use crate::records::{Lane, Worker};
use crate::store::{Op, Store, Tx};
use crate::timers::routes::open_route;
use crate::verbs::list_of;

/// Lanes one process may serve.
const LANES_MAX: usize = 1000;

#[async_trait]
impl<S: Store> Workers for Engine<S> {
    async fn register_worker(&self, args: RegisterWorkerArgs) -> Result<RegisterWorkerOutcome> {
        check_registration(&args)?;
        let RegisterWorkerArgs { namespace, lanes, capabilities, kinds, .. } = args.clone();
        let outcome = self.run(Register { args }).await?;
        self.hands.forget();
        self.register_lanes(&namespace, &lanes).await?;
        open_route(self, &namespace, &lanes, &capabilities, kinds.as_ref()).await?;
        Ok(outcome)
    }

    async fn heartbeat_worker(&self, args: HeartbeatWorkerArgs) -> Result<HeartbeatWorkerOutcome> {
        Ok(match pulse::beat(self, args).await? {
            Some(worker) => HeartbeatWorkerOutcome::Refreshed { next_expiry_ms: worker.expires_at() },
            None => HeartbeatWorkerOutcome::NotRegistered,
        })
    }

    async fn mark_worker_dead(&self, args: MarkWorkerDeadArgs) -> Result<MarkWorkerDeadOutcome> {
        check_free_string("reason", &args.reason)?;
        let outcome = self.run(MarkDead { args }).await?;
        self.hands.forget();
        Ok(outcome)
    }

    async fn list_workers(&self, args: ListWorkersArgs) -> Result<ListWorkersResult> {
        let limit = args.limit.unwrap_or(LIST_WORKERS_LIMIT_DEFAULT).min(PAGE_LIMIT_MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut page = ListWorkersResult::default();
        if limit == 0 {
            return Ok(page);
        }
        let now = self.store.now().await?;
        let (mut after, until) = span(&args);
        loop {
            let mut bounds = Bounds::first(limit).after(after);
            bounds.until.clone_from(&until);
            let found: Vec<Worker> = list_of(&self.store, Index::Workers, bounds).await?;
            let is_last = found.len() < limit;
            after = found.last().map(place);
            for worker in found.into_iter().filter(|worker| worker.is_live(now)) {
                if page.entries.len() == limit {
                    page.next_cursor = page.entries.last().map(WorkerInfo::cursor);
                    return Ok(page);
                }
                page.entries.push(info(worker));
            }
            if is_last {
                return Ok(page);
            }
        }
    }
}

/// Where a listing starts and ends: inside one namespace, or anywhere.
fn span(args: &ListWorkersArgs) -> (Option<Position>, Option<Position>) {
    let by_pair = |namespace: &Namespace, instance: &str| Position::by(pair_bytes(namespace.as_str(), instance));
    let cursor = args.after.as_ref().map(|at| by_pair(&at.namespace, at.worker_instance_id.as_str()));
    let Some(namespace) = &args.namespace else { return (cursor, None) };
    let mut last = pair_bytes(namespace.as_str(), "");
    // No byte of a name reaches this one.
    last.push(0xff);
    (cursor.max(Some(by_pair(namespace, ""))), Some(Position::by(last)))
}

fn place(worker: &Worker) -> Position {
    Position::by(pair_bytes(worker.namespace.as_str(), worker.instance.as_str()))
}

fn info(worker: Worker) -> WorkerInfo {
    WorkerInfo {
        worker_id: worker.worker_id,
        worker_instance_id: worker.instance,
        namespace: worker.namespace,
        lanes: worker.lanes,
        capabilities: worker.capabilities,
        kinds: worker.kinds,
        last_heartbeat_ms: worker.last_heartbeat_at,
        liveness_ttl_ms: worker.liveness_ttl_ms,
        registered_at_ms: worker.registered_at,
    }
}

fn check_registration(args: &RegisterWorkerArgs) -> Result<()> {
    check_duration("liveness_ttl_ms", args.liveness_ttl_ms)?;
    if args.lanes.len() > LANES_MAX {
        return Err(EngineError::invalid(format_args!("a worker serves at most {LANES_MAX} lanes")));
    }
    check_kinds(args.kinds.as_ref())?;
    check_tokens(CapabilitySide::Worker, &args.capabilities)
}

impl<S: Store> Engine<S> {
    /// Makes lanes known that were not.
    async fn register_lanes(&self, namespace: &Namespace, lanes: &BTreeSet<LaneId>) -> Result<()> {
        let keys: Vec<Key> = lanes.iter().map(|lane| Key::lane(namespace.clone(), lane.clone())).collect();
        let known = self.store.read(&keys).await?;
        let new: Vec<LaneId> =
            lanes.iter().zip(known).filter(|(_, record)| record.is_none()).map(|(lane, _)| lane.clone()).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.run(RegisterLanes { namespace: namespace.clone(), lanes: new }).await
    }
}

struct RegisterLanes {
    namespace: Namespace,
    lanes: Vec<LaneId>,
}

#[async_trait]
impl Op for RegisterLanes {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn prefetch(&self) -> Vec<Key> {
        self.lanes.iter().map(|lane| Key::lane(self.namespace.clone(), lane.clone())).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        for lane in &self.lanes {
            if tx.get::<Lane>(Key::lane(self.namespace.clone(), lane.clone())).await?.is_none() {
                let since = tx.now();
                tx.put(Lane {
                    namespace: self.namespace.clone(),
                    lane: lane.clone(),
                    state: LaneState::Active,
                    since,
                    reason: String::new(),
                });
            }
        }
        Ok(())
    }
}

/// Appends an event about a registration.
pub(crate) fn announce(tx: &mut dyn Tx, namespace: &Namespace, instance: &WorkerInstanceId, change: WorkerChange) {
    tx.emit(Event {
        partition: of_worker(instance),
        namespace: namespace.clone(),
        execution_id: None,
        tags: BTreeMap::new(),
        at: tx.now(),
        body: EventBody::Worker { instance: instance.clone(), change },
    });
}

/// The live entry of a process; one that lapsed is as good as gone, whether it was swept or not.
async fn live(tx: &mut dyn Tx, namespace: &Namespace, instance: &WorkerInstanceId) -> Result<Option<Worker>> {
    let now = tx.now();
    let stored = tx.get::<Worker>(Key::worker(namespace.clone(), instance.clone())).await?;
    Ok(stored.filter(|worker| worker.is_live(now)))
}

struct Register {
    args: RegisterWorkerArgs,
}

#[async_trait]
impl Op for Register {
    type Out = RegisterWorkerOutcome;

    fn home(&self) -> Partition {
        of_worker(&self.args.worker_instance_id)
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::worker(self.args.namespace.clone(), self.args.worker_instance_id.clone())]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<RegisterWorkerOutcome> {
        let args = &self.args;
        let now = tx.now();
        let before = live(tx, &args.namespace, &args.worker_instance_id).await?;
        if before.as_ref().is_some_and(|worker| worker.worker_id != args.worker_id) {
            return Err(EngineError::invalid("instance_id reassigned"));
        }
        announce(tx, &args.namespace, &args.worker_instance_id, WorkerChange::Registered);
        tx.put(Worker {
            namespace: args.namespace.clone(),
            instance: args.worker_instance_id.clone(),
            worker_id: args.worker_id.clone(),
            lanes: args.lanes.clone(),
            capabilities: args.capabilities.clone(),
            kinds: args.kinds.clone(),
            liveness_ttl_ms: args.liveness_ttl_ms,
            registered_at: before.as_ref().map_or(now, |worker| worker.registered_at),
            last_heartbeat_at: now,
        });
        Ok(if before.is_some() { RegisterWorkerOutcome::Refreshed } else { RegisterWorkerOutcome::Registered })
    }
}

struct Heartbeat {
    args: HeartbeatWorkerArgs,
}

#[async_trait]
impl Op for Heartbeat {
    type Out = Option<Worker>;

    fn home(&self) -> Partition {
        of_worker(&self.args.worker_instance_id)
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::worker(self.args.namespace.clone(), self.args.worker_instance_id.clone())]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<Worker>> {
        let (namespace, instance) = (&self.args.namespace, &self.args.worker_instance_id);
        let Some(mut worker) = live(tx, namespace, instance).await? else { return Ok(None) };
        worker.last_heartbeat_at = tx.now();
        announce(tx, namespace, instance, WorkerChange::Heartbeat);
        tx.put(worker.clone());
        Ok(Some(worker))
    }
}

struct MarkDead {
    args: MarkWorkerDeadArgs,
}

#[async_trait]
impl Op for MarkDead {
    type Out = MarkWorkerDeadOutcome;

    fn home(&self) -> Partition {
        of_worker(&self.args.worker_instance_id)
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::worker(self.args.namespace.clone(), self.args.worker_instance_id.clone())]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<MarkWorkerDeadOutcome> {
        let (namespace, instance) = (&self.args.namespace, &self.args.worker_instance_id);
        if live(tx, namespace, instance).await?.is_none() {
            return Ok(MarkWorkerDeadOutcome::NotRegistered);
        }
        tx.delete(Key::worker(namespace.clone(), instance.clone()));
        announce(tx, namespace, instance, WorkerChange::MarkedDead { reason: self.args.reason.clone() });
        Ok(MarkWorkerDeadOutcome::Marked)
    }
}
