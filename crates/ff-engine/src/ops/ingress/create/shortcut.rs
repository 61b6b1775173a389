//! A submission in one transaction, on a store whose transactions look at all partitions.
//!
//! It admits what queues in a lane and a class that are known, with no budget and no quota to its name. Everything else, refusals
//! included, is left to the general way.

use std::sync::Arc;

use ff_core::Result;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::ids::{ExecutionId, ExecutionKind};
use ff_core::partition::Partition;
use ff_core::policy::ExecutionPolicy;

use super::{Submission, check_input, known, known_keys};
use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Lane, LaneClass, QueueClass};
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

    /// Whether its lane takes work and knows its class, and nothing is attached to its scopes.
    async fn is_free_to_enter(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Submission { args, class, .. } = &self.submission;
        let (namespace, lane) = (args.namespace.clone(), args.lane_id.clone());
        let is_open =
            tx.get::<Lane>(Key::lane(namespace.clone(), lane.clone())).await?.is_some_and(|lane| lane.state.accepts());
        let now = tx.now();
        let is_known = tx.get::<LaneClass>(Key::lane_class(namespace, lane, class.clone())).await?;
        if !is_open || !is_known.is_some_and(|class| class.is_fresh(now)) {
            return Ok(false);
        }
        Ok(tx.load(&self.submission.scope_keys()).await?.iter().all(Option::is_none))
    }
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
        let Submission { id, args, .. } = &self.submission;
        args.execution_id.is_none().then_some(*id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<CreateExecutionResult>> {
        let Submission { id, args, .. } = &self.submission;
        let found = tx.load(&known_keys(*id, args)).await?;
        if let Some(execution_id) = known(found, tx.now()) {
            return Ok(Some(CreateExecutionResult::Duplicate { execution_id }));
        }
        if !self.is_free_to_enter(tx).await? {
            return Ok(None);
        }
        let execution = self.submission.insert(tx);
        let public_state = execution.public_state();
        Ok(Some(CreateExecutionResult::Created { execution_id: execution.id, public_state }))
    }
}
