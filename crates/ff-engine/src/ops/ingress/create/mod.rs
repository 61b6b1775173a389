//! Admitting one execution, once per id and once per idempotency key.
//!
//! Everything outside the execution's partition (lane, scopes, budgets, quotas) is read and registered before the commit; the commit
//! itself looks again for a record with the same key or id.

pub(crate) mod intake;
mod shortcut;

use std::collections::BTreeSet;
use std::sync::Arc;

use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{BudgetId, ExecutionId, ExecutionKind, LaneId, QuotaPolicyId, check_free_string};
use ff_core::partition::Partition;
use ff_core::policy::{DEFAULT_DEDUP_WINDOW_MS, ExecutionPolicy};
use ff_core::tag::validate_new_tags;
use ff_core::{EngineError, Result, TimestampMs};

use super::lanes;
use crate::draft::Draft;
use crate::engine::Engine;
use crate::event::EventBody;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{
    Budget, Dedup, DedupScope, DedupValue, Definition, Execution, ExecutionTags, Gate, Lane, NewExecution, Payload,
    QueueClass, QuotaPolicy, Record, Scope, ScopeBinding,
};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Admits a submission, or names the execution that is there.
pub(super) async fn create<S: Store>(engine: &Engine<S>, args: CreateExecutionArgs) -> Result<CreateExecutionResult> {
    let id = identify(engine, &args).await?;
    let args = Arc::new(args);
    if let Some(shortcut) = shortcut::CreateAtOnce::of(engine, id, &args) {
        if !engine.store.spans_partitions() {
            if let Some(submission) = shortcut.look_ahead(engine).await? {
                return engine.run(Create { submission }).await;
            }
        } else if let Some(answer) = engine.run(shortcut).await? {
            return Ok(answer);
        }
    }
    // Apart, so that the short way does not carry room for it.
    Box::pin(create_step_by_step(engine, id, args)).await
}

/// The general way.
async fn create_step_by_step<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    args: Arc<CreateExecutionArgs>,
) -> Result<CreateExecutionResult> {
    let keys = known_keys(id, &args);
    let now = engine.store.now().await?;
    if let Some(existing) = known(engine.store.read(&keys).await?, now) {
        return Ok(CreateExecutionResult::Duplicate { execution_id: existing });
    }
    let submission = prepare(engine, id, args).await?;
    engine.run(Create { submission }).await
}

/// Cuts a batch where a submission asks for an id or a key that an earlier one asks for, so that what runs at once has no order of its own.
pub(super) fn waves(batch: Vec<CreateExecutionArgs>) -> Vec<Vec<CreateExecutionArgs>> {
    let mut waves: Vec<Vec<CreateExecutionArgs>> = Vec::new();
    let (mut ids, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for args in batch {
        let has_new_id = args.execution_id.is_none_or(|id| ids.insert(id));
        let has_new_key = dedup_scope(&args).is_none_or(|scope| keys.insert(scope));
        match waves.last_mut() {
            Some(wave) if has_new_id && has_new_key => wave.push(args),
            _ => {
                ids = args.execution_id.into_iter().collect();
                keys = dedup_scope(&args).into_iter().collect();
                waves.push(vec![args]);
            }
        }
    }
    waves
}

/// The id a submission asks for, or a new one: where its idempotency key lives when it has one, anywhere else otherwise.
async fn identify<S: Store>(engine: &Engine<S>, args: &CreateExecutionArgs) -> Result<ExecutionId> {
    if let Some(id) = args.execution_id {
        engine.check_partition(id)?;
        return Ok(id);
    }
    let (counts, key, mut uuid) = (engine.counts(), idempotency_key(args), engine.mint().await?);
    if key.is_none() && engine.store.spans_partitions() {
        uuid = engine.neighbourhood.place(counts, uuid);
    }
    Ok(ExecutionId::new(counts.solo_index(&args.namespace, key, uuid), uuid))
}

fn idempotency_key(args: &CreateExecutionArgs) -> Option<&str> {
    args.idempotency_key.as_deref().filter(|key| !key.is_empty())
}

fn dedup_scope(args: &CreateExecutionArgs) -> Option<DedupScope> {
    let key = idempotency_key(args)?.to_owned();
    Some(DedupScope::Creation { namespace: args.namespace.clone(), key })
}

/// Where a known submission would be found: by key first, then by id.
fn known_keys(id: ExecutionId, args: &CreateExecutionArgs) -> Vec<Key> {
    let by_key = dedup_scope(args).map(|scope| Key::dedup(id.partition(), scope));
    by_key.into_iter().chain([Key::execution(id)]).collect()
}

fn known(found: Vec<Option<Record>>, now: TimestampMs) -> Option<ExecutionId> {
    found.into_iter().flatten().find_map(|record| match record {
        Record::Dedup(dedup) if dedup.is_live(now) && !is_on(Fault::CreationKeyIgnored) => match dedup.value {
            DedupValue::Execution(id) => Some(id),
            _ => None,
        },
        Record::Execution(execution) => Some(execution.id),
        _ => None,
    })
}

/// A submission whose input was checked and whose attachments are resolved.
pub(crate) struct Submission {
    id: ExecutionId,
    args: Arc<CreateExecutionArgs>,
    policy: Option<ExecutionPolicy>,
    class: QueueClass,
    budgets: Vec<BudgetId>,
    quotas: Vec<QuotaPolicyId>,
}

/// Checks a submission and resolves its attachments; registers its lane and class, so that claims find it once it is committed.
pub(crate) async fn prepare<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    args: Arc<CreateExecutionArgs>,
) -> Result<Submission> {
    let submission = check(engine, id, args).await?;
    submission.register(engine, &submission.class).await?;
    Ok(submission)
}

/// Checks a submission and resolves its attachments, without a trace.
pub(crate) async fn check<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    args: Arc<CreateExecutionArgs>,
) -> Result<Submission> {
    let policy = args.policy.as_ref().map(|document| document.decode()).transpose()?;
    check_input(engine, &args)?;
    let mut submission = Submission::new(id, policy, args)?;
    submission.check_named(engine).await?;
    submission.attach(engine).await?;
    let lane: Option<Lane> =
        read_one(&engine.store, Key::lane(submission.args.namespace.clone(), submission.args.lane_id.clone())).await?;
    if lane.is_some_and(|lane| !lane.state.accepts()) {
        return Err(StateKind::LaneClosed.into());
    }
    Ok(submission)
}

fn check_input<S: Store>(engine: &Engine<S>, args: &CreateExecutionArgs) -> Result<()> {
    validate_new_tags(&args.tags)?;
    check_free_string("execution_kind", &args.execution_kind)?;
    check_free_string("payload_encoding", args.payload_encoding.as_deref().unwrap_or_default())?;
    check_free_string("creator_identity", &args.creator_identity)?;
    check_free_string("idempotency_key", args.idempotency_key.as_deref().unwrap_or_default())?;
    if let Some(context) = &args.trace_context {
        context.check()?;
    }
    let (size, limit) = (args.input_payload.len(), engine.settings.limits.payload_bytes);
    if size > limit {
        return Err(EngineError::validation(
            ValidationKind::PayloadTooLarge,
            format_args!("input_payload has {size} bytes, at most {limit} are allowed"),
        ));
    }
    Ok(())
}

impl Submission {
    /// A submission to which nothing is attached yet.
    fn new(id: ExecutionId, policy: Option<ExecutionPolicy>, args: Arc<CreateExecutionArgs>) -> Result<Self> {
        let class = QueueClass::plain(ExecutionKind::new(&args.execution_kind)?);
        Ok(Self { id, policy, class, budgets: Vec::new(), quotas: Vec::new(), args })
    }

    /// Its execution, if the id was made for it alone.
    fn newborn(&self) -> Option<ExecutionId> {
        self.args.execution_id.is_none().then_some(self.id)
    }

    /// The class it queues in.
    pub(crate) const fn class(&self) -> &QueueClass {
        &self.class
    }

    /// The lane it enters through.
    pub(crate) fn lane(&self) -> &LaneId {
        &self.args.lane_id
    }

    /// Makes its lane and a class of work known.
    pub(crate) async fn register<S: Store>(&self, engine: &Engine<S>, class: &QueueClass) -> Result<()> {
        lanes::register_class(engine, &self.args.namespace, &self.args.lane_id, class).await
    }

    /// Finds what the policy names and what is attached to the namespace, the lane and the tags.
    async fn attach<S: Store>(&mut self, engine: &Engine<S>) -> Result<()> {
        let (named_budgets, named_quotas) = self.named();
        let (shared_budgets, shared_quotas) = self.scoped(engine).await?;
        let budgets: BTreeSet<_> = named_budgets.iter().chain(&shared_budgets).copied().collect();
        let quotas: BTreeSet<_> = named_quotas.iter().chain(&shared_quotas).copied().collect();
        let gates: BTreeSet<_> =
            shared_budgets.into_iter().map(Gate::Budget).chain(quotas.iter().copied().map(Gate::Quota)).collect();
        self.class.requirement =
            self.policy.as_ref().map(ExecutionPolicy::requirement).transpose()?.unwrap_or_default();
        self.class.gates = gates.into_iter().collect();
        self.budgets = budgets.into_iter().collect();
        self.quotas = quotas.into_iter().collect();
        Ok(())
    }

    /// What the policy names.
    fn named(&self) -> (&[BudgetId], &[QuotaPolicyId]) {
        self.policy.as_ref().map_or((&[], &[]), |policy| (&policy.budget_ids, &policy.quota_policy_ids))
    }

    /// Refuses budgets and quotas that do not exist, or that belong to another tenant: nothing a policy names is ignored.
    async fn check_named<S: Store>(&self, engine: &Engine<S>) -> Result<()> {
        let (budgets, quotas) = self.named();
        for id in budgets {
            let budget: Option<Budget> =
                read_one(&engine.store, Key::budget(engine.counts().of_budget(*id), *id)).await?;
            if budget.is_none_or(|budget| budget.namespace != self.args.namespace) {
                return Err(EngineError::invalid(format_args!("unknown budget {id}")));
            }
        }
        for id in quotas {
            let key = Key::quota_policy(engine.counts().of_quota(*id), *id);
            let quota: Option<QuotaPolicy> = read_one(&engine.store, key).await?;
            if quota.is_none_or(|quota| quota.namespace != self.args.namespace) {
                return Err(EngineError::invalid(format_args!("unknown quota policy {id}")));
            }
        }
        Ok(())
    }

    /// Where it would find what is attached to its namespace, its lane and its tags.
    fn scope_keys(&self) -> Vec<Key> {
        let namespace = &self.args.namespace;
        let tags = self.args.tags.iter().map(|(key, value)| Scope::Tag {
            namespace: namespace.clone(),
            key: key.clone(),
            value: value.clone(),
        });
        [Scope::Namespace(namespace.clone()), Scope::Lane(namespace.clone(), self.args.lane_id.clone())]
            .into_iter()
            .chain(tags)
            .map(Key::scope_binding)
            .collect()
    }

    async fn scoped<S: Store>(&self, engine: &Engine<S>) -> Result<(BTreeSet<BudgetId>, BTreeSet<QuotaPolicyId>)> {
        let keys = self.scope_keys();
        let mut attached = (BTreeSet::new(), BTreeSet::new());
        for record in engine.store.read(&keys).await?.into_iter().flatten() {
            if let Ok(binding) = ScopeBinding::try_from(record) {
                attached.0.extend(binding.budgets);
                attached.1.extend(binding.quotas);
            }
        }
        Ok(attached)
    }

    fn deadline(&self, now: TimestampMs) -> Option<TimestampMs> {
        let relative = || self.policy.as_ref()?.timeout_policy?.execution_deadline_ms;
        self.args.execution_deadline_at.or_else(|| relative().map(|ms| now.plus(ms)))
    }

    /// Writes the execution and everything beside it.
    pub(crate) fn insert(&self, tx: &mut dyn Tx) -> Draft<Execution> {
        let now = tx.now();
        let args = &self.args;
        let execution: Draft<Execution> = Execution::create(
            NewExecution {
                id: self.id,
                namespace: args.namespace.clone(),
                lane: args.lane_id.clone(),
                class: self.class.clone(),
                priority: args.priority,
                delay_until: args.delay_until,
                deadline_at: self.deadline(now),
                budget_ids: self.budgets.clone(),
                quota_policy_ids: self.quotas.clone(),
                retention_ms: self.policy.as_ref().and_then(|policy| policy.retention_ms),
                tagged: !args.tags.is_empty(),
            },
            now,
        )
        .into();
        tx.put_draft(&execution);
        tx.put(Payload { execution: self.id, payload: args.input_payload.clone(), inputs: Default::default() });
        tx.put(Definition {
            execution: self.id,
            policy: self.policy.clone(),
            payload_encoding: args.payload_encoding.clone(),
            creator_identity: args.creator_identity.clone(),
            idempotency_key: idempotency_key(args).map(str::to_owned),
            trace_context: args.trace_context.clone(),
        });
        self.insert_tags(tx, &execution);
        self.remember_key(tx);
        execution
    }

    fn insert_tags(&self, tx: &mut dyn Tx, execution: &Draft<Execution>) {
        let tags = &self.args.tags;
        if tags.is_empty() {
            return;
        }
        let now = tx.now();
        tx.put(ExecutionTags { execution: self.id, created_at: now, tags: tags.clone(), updated_at: now });
        let subject = Subject { execution: execution.clone(), tags: tags.clone() };
        for (key, value) in tags {
            subject.emit(tx, EventBody::InstanceTag { key: key.clone(), value: value.clone() });
        }
    }

    fn remember_key(&self, tx: &mut dyn Tx) {
        let window = match &self.policy {
            Some(policy) => policy.dedup_window(),
            None => Some(DEFAULT_DEDUP_WINDOW_MS),
        };
        if let (Some(scope), Some(window)) = (dedup_scope(&self.args), window) {
            tx.put(Dedup {
                home: self.id.partition(),
                scope,
                value: DedupValue::Execution(self.id),
                expires_at: tx.now().plus(window),
            });
        }
    }
}

struct Create {
    submission: Submission,
}

#[async_trait::async_trait]
impl Op for Create {
    type Out = CreateExecutionResult;

    fn home(&self) -> Partition {
        self.submission.id.partition()
    }

    fn newborn(&self) -> Option<ExecutionId> {
        self.submission.newborn()
    }

    fn prefetch(&self) -> Vec<Key> {
        known_keys(self.submission.id, &self.submission.args)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<CreateExecutionResult> {
        let found = tx.load(&self.prefetch()).await?;
        if let Some(execution_id) = known(found, tx.now()) {
            return Ok(CreateExecutionResult::Duplicate { execution_id });
        }
        let execution = self.submission.insert(tx);
        Ok(CreateExecutionResult::Created { execution_id: execution.id, public_state: execution.public_state() })
    }
}
