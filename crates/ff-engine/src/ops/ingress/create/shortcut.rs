//! A submission in one transaction, on a store whose transactions look at all partitions; elsewhere in one look and one transaction.
//!
//! It admits what queues in a lane and a class that are known, with no budget and no quota to its name. Everything else, refusals
//! included, is left to the general way.

use std::sync::Arc;

use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::ids::{ExecutionId, ExecutionKind};
use ff_core::partition::Partition;
use ff_core::policy::ExecutionPolicy;
use ff_core::{Result, TimestampMs};

use super::{Submission, check_input, known, known_keys};
use crate::engine::Engine;
use crate::key::Key;
use crate::records::{QueueClass, Record};
use crate::store::{Op, Reach, Store, Tx};

/// Admits a submission that nothing outside its partition has a say in.
pub(super) struct CreateAtOnce {
    submission: Submission,
}

impl CreateAtOnce {
    /// The shortcut for a submission, if what it says about itself allows one.
    pub(super) fn of<S: Store>(engine: &Engine<S>, id: ExecutionId, args: &Arc<CreateExecutionArgs>) -> Option<Self> {
        check_input(engine, args).ok()?;
        let policy = args.policy.as_ref().map(|document| document.decode()).transpose().ok()?;
        let is_attached =
            |policy: &ExecutionPolicy| !policy.budget_ids.is_empty() || !policy.quota_policy_ids.is_empty();
        if policy.as_ref().is_some_and(is_attached) {
            return None;
        }
        let requirement = policy.as_ref().map(ExecutionPolicy::requirement).transpose().ok()?.unwrap_or_default();
        let kind = ExecutionKind::new(&args.execution_kind).ok()?;
        let class = QueueClass { requirement, ..QueueClass::plain(kind) };
        let (budgets, quotas) = (Vec::new(), Vec::new());
        Some(Self { submission: Submission { id, args: Arc::clone(args), policy, class, budgets, quotas } })
    }

    /// The submission, if what is stored now allows to admit it by itself.
    pub(super) async fn look_ahead<S: Store>(self, engine: &Engine<S>) -> Result<Option<Submission>> {
        let found = engine.store.read(&self.decisive_keys()).await?;
        let now = engine.store.now().await?;
        Ok(is_free_to_enter(found, now).then_some(self.submission))
    }

    /// Its lane, its class, and where it would find what is attached to its scopes.
    fn decisive_keys(&self) -> Vec<Key> {
        let Submission { args, class, .. } = &self.submission;
        let (namespace, lane) = (args.namespace.clone(), args.lane_id.clone());
        let own = [Key::lane(namespace.clone(), lane.clone()), Key::lane_class(namespace, lane, class.clone())];
        own.into_iter().chain(self.submission.scope_keys()).collect()
    }
}

/// Whether a lane takes work and knows its class, and nothing is attached to the scopes.
fn is_free_to_enter(found: Vec<Option<Record>>, now: TimestampMs) -> bool {
    let mut found = found.into_iter();
    let is_open = matches!(found.next(), Some(Some(Record::Lane(lane))) if lane.state.accepts());
    let is_known = matches!(found.next(), Some(Some(Record::LaneClass(class))) if class.is_fresh(now));
    is_open && is_known && found.all(|binding| binding.is_none())
}

#[async_trait::async_trait]
impl Op for CreateAtOnce {
    /// The answer; none means that the general way is to be taken.
    type Out = Option<CreateExecutionResult>;

    fn home(&self) -> Partition {
        self.submission.id.partition()
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    fn newborn(&self) -> Option<ExecutionId> {
        self.submission.newborn()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<CreateExecutionResult>> {
        let Submission { id, args, .. } = &self.submission;
        let found = tx.load(&known_keys(*id, args)).await?;
        if let Some(execution_id) = known(found, tx.now()) {
            return Ok(Some(CreateExecutionResult::Duplicate { execution_id }));
        }
        let found = tx.load(&self.decisive_keys()).await?;
        if !is_free_to_enter(found, tx.now()) {
            return Ok(None);
        }
        let execution = self.submission.insert(tx);
        let public_state = execution.public_state();
        Ok(Some(CreateExecutionResult::Created { execution_id: execution.id, public_state }))
    }
}
