//! Quotas: rate and concurrency admission.

use ff_core::Result;
use ff_core::backend::Quotas;
use ff_core::backend::budgets::BudgetScope;
use ff_core::backend::quotas::{
    CheckAdmissionArgs, CheckAdmissionResult, CreateQuotaPolicyArgs, CreateQuotaPolicyResult, QuotaPolicyLimits,
    ReleaseAdmissionArgs, ReleaseAdmissionResult,
};
use ff_core::ids::{ExecutionId, LeaseEpoch, QuotaPolicyId};
use ff_core::partition::Partition;
use ff_core::rules::quotas::{AdmissionLimits, WINDOW_SECONDS_DEFAULT, check_create, dimension_name};

use super::budgets::{Attach, bind};
use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Execution, QuotaPolicy, QuotaUsage};
use crate::scheduler::admission::free;
use crate::scheduler::slots::{Admit, Because};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

impl<S: Store> Engine<S> {
    /// The ownership a caller without a claim asks for: the running one, else the next. An execution that does not exist yet will
    /// begin with the first.
    async fn epoch_to_admit(&self, execution: ExecutionId) -> Result<(LeaseEpoch, bool)> {
        let found: Option<Execution> = read_one(&self.store, Key::execution(execution)).await?;
        Ok(match found {
            Some(owned) if owned.is_active() => (owned.epoch, true),
            Some(free) => (free.epoch.next(), false),
            None => (LeaseEpoch(0).next(), false),
        })
    }
}

#[async_trait::async_trait]
impl<S: Store> Quotas for Engine<S> {
    async fn create_quota_policy(&self, args: CreateQuotaPolicyArgs) -> Result<CreateQuotaPolicyResult> {
        let scope = check_create(&args)?;
        let home = self.counts().of_quota(args.quota_policy_id);
        let (policy, is_new) = self.run(Create { home, args, scope }).await?;
        bind(self, &policy.namespace, &policy.scope, Attach::Quota(policy.id)).await?;
        let quota_policy_id = policy.id;
        Ok(if is_new {
            CreateQuotaPolicyResult::Created { quota_policy_id }
        } else {
            CreateQuotaPolicyResult::AlreadySatisfied { quota_policy_id }
        })
    }

    async fn check_admission(
        &self,
        quota_policy_id: QuotaPolicyId,
        dimension: &str,
        args: CheckAdmissionArgs,
    ) -> Result<CheckAdmissionResult> {
        let dimension = dimension_name(dimension)?.to_owned();
        let limits = AdmissionLimits::from_args(&args)?;
        self.check_partition(args.execution_id)?;
        let (epoch, inherits) = self.epoch_to_admit(args.execution_id).await?;
        // A caller who never claims must not keep the slot for ever.
        let hold_ms = if limits.window_ms > 0 { limits.window_ms } else { WINDOW_SECONDS_DEFAULT * 1_000 };
        let op = Admit {
            home: self.counts().of_quota(quota_policy_id),
            quota: quota_policy_id,
            dimension,
            execution: args.execution_id,
            epoch,
            inherits,
            limits,
            until: self.store.now().await?.plus(hold_ms),
            sample: self.settings.entropy.uniform(u64::MAX),
        };
        self.run(op).await
    }

    async fn release_admission(&self, args: ReleaseAdmissionArgs) -> Result<ReleaseAdmissionResult> {
        free(self, args.quota_policy_id, args.execution_id, Because::Undone).await?;
        Ok(ReleaseAdmissionResult::Released)
    }

    async fn read_quota_policy_limits(&self, quota_policy_id: QuotaPolicyId) -> Result<Option<QuotaPolicyLimits>> {
        let key = Key::quota_policy(self.counts().of_quota(quota_policy_id), quota_policy_id);
        let policy: Option<QuotaPolicy> = read_one(&self.store, key).await?;
        Ok(policy.map(|policy| policy.limits()))
    }
}

struct Create {
    home: Partition,
    args: CreateQuotaPolicyArgs,
    scope: BudgetScope,
}

#[async_trait::async_trait]
impl Op for Create {
    /// The policy as it is stored, and whether it is new.
    type Out = (QuotaPolicy, bool);

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<(QuotaPolicy, bool)> {
        let id = self.args.quota_policy_id;
        if let Some(found) = tx.get::<QuotaPolicy>(Key::quota_policy(self.home, id)).await? {
            return Ok((found, false));
        }
        let policy = QuotaPolicy {
            home: self.home,
            id,
            namespace: self.args.namespace.clone(),
            scope: self.scope.clone(),
            window_seconds: self.args.window_seconds,
            max_requests_per_window: self.args.max_requests_per_window,
            max_concurrent: self.args.max_concurrent,
            jitter_ms: self.args.jitter_ms,
            created_at: tx.now(),
        };
        tx.put(policy.clone());
        // Admissions under an id that had no policy yet may have counted already.
        if tx.get::<QuotaUsage>(Key::quota_usage(self.home, id)).await?.is_none() {
            tx.put(QuotaUsage::none(self.home, id));
        }
        Ok((policy, true))
    }
}
