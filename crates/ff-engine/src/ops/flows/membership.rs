//! Creating flows, and making executions their members.

use std::collections::BTreeSet;

use async_trait::async_trait;
use ff_core::backend::flows::{AddExecutionToFlowArgs, AddExecutionToFlowResult, CreateFlowArgs, CreateFlowResult};
use ff_core::error::{ConflictKind, Entity, StateKind};
use ff_core::ids::{FlowId, Namespace};
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::ops::ingress::lanes::register_class;
use crate::records::{Execution, Flow, Gate, QueueClass, Scope, ScopeBinding};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

pub(crate) struct CreateFlow {
    pub(crate) home: Partition,
    pub(crate) args: CreateFlowArgs,
}

#[async_trait]
impl Op for CreateFlow {
    type Out = CreateFlowResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.args.flow_id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<CreateFlowResult> {
        let CreateFlowArgs { flow_id, flow_kind, namespace } = self.args.clone();
        if tx.get::<Flow>(Key::flow(self.home, flow_id)).await?.is_some() {
            return Ok(CreateFlowResult::AlreadySatisfied { flow_id });
        }
        tx.put(Flow::create(self.home, flow_id, flow_kind, namespace, tx.now()));
        Ok(CreateFlowResult::Created { flow_id })
    }
}

/// Budgets and quotas that a flow brings to its members.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachments {
    binding: Option<ScopeBinding>,
}

impl Attachments {
    pub(super) async fn of<S: Store>(engine: &Engine<S>, namespace: &Namespace, flow: FlowId) -> Result<Self> {
        let scope = Scope::Flow(namespace.clone(), flow);
        Ok(Self { binding: read_one(&engine.store, Key::scope_binding(scope)).await? })
    }

    /// The class that an execution queues in once these are attached to it: quotas close for a class, budgets of a flow do not.
    pub(super) fn class(&self, class: &QueueClass) -> QueueClass {
        let quotas = self.binding.iter().flat_map(|binding| &binding.quotas).map(|quota| Gate::Quota(*quota));
        let gates: BTreeSet<Gate> = class.gates.iter().copied().chain(quotas).collect();
        QueueClass { gates: gates.into_iter().collect(), ..class.clone() }
    }

    /// Attaches them to an execution that is not over.
    pub(super) fn attach(&self, execution: &mut Execution) {
        let Some(binding) = &self.binding else { return };
        if execution.is_terminal() {
            return;
        }
        execution.class = self.class(&execution.class);
        let fresh = |id: &&_| !execution.budget_ids.contains(*id);
        let budgets: Vec<_> = binding.budgets.iter().filter(fresh).copied().collect();
        execution.budget_ids.extend(budgets);
        let fresh = |id: &&_| !execution.quota_policy_ids.contains(*id);
        let quotas: Vec<_> = binding.quotas.iter().filter(fresh).copied().collect();
        execution.quota_policy_ids.extend(quotas);
    }

    /// Makes the class known before an execution enters it.
    pub(super) async fn register<S: Store>(&self, engine: &Engine<S>, execution: &Execution) -> Result<()> {
        let class = self.class(&execution.class);
        if class == execution.class {
            return Ok(());
        }
        register_class(engine, &execution.namespace, &execution.lane, &class).await
    }
}

pub(super) async fn add<S: Store>(
    engine: &Engine<S>,
    args: AddExecutionToFlowArgs,
) -> Result<AddExecutionToFlowResult> {
    let home = engine.flow_home(args.flow_id);
    if args.execution_id.partition() != home {
        return Err(EngineError::invalid(format_args!(
            "execution_id: {} is not in {home}, the partition of its flow",
            args.execution_id
        )));
    }
    let attachments = attachments(engine, home, args).await?;
    engine.run(AddMember { args, attachments }).await
}

/// What the flow brings; nothing when flow or execution are missing, which the commit then refuses.
async fn attachments<S: Store>(
    engine: &Engine<S>,
    home: Partition,
    args: AddExecutionToFlowArgs,
) -> Result<Attachments> {
    let Some(flow) = read_one::<Flow, S>(&engine.store, Key::flow(home, args.flow_id)).await? else {
        return Ok(Attachments::default());
    };
    let attachments = Attachments::of(engine, &flow.namespace, flow.id).await?;
    if attachments.binding.is_some()
        && let Some(execution) = read_one::<Execution, S>(&engine.store, Key::execution(args.execution_id)).await?
    {
        attachments.register(engine, &execution).await?;
    }
    Ok(attachments)
}

struct AddMember {
    args: AddExecutionToFlowArgs,
    attachments: Attachments,
}

#[async_trait]
impl Op for AddMember {
    type Out = AddExecutionToFlowResult;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home(), self.args.flow_id), Key::execution(self.args.execution_id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<AddExecutionToFlowResult> {
        let AddExecutionToFlowArgs { flow_id, execution_id } = self.args;
        let mut flow = open_flow(tx, self.home(), flow_id).await?;
        let mut subject = Subject::load(tx, execution_id).await?;
        if subject.execution.namespace != flow.namespace {
            return Err(EngineError::not_found(Entity::Execution));
        }
        match subject.execution.flow_id {
            Some(current) if current == flow_id => {
                return Ok(AddExecutionToFlowResult::AlreadyMember { execution_id, node_count: flow.node_count });
            }
            Some(_) => return Err(ConflictKind::ExecutionAlreadyInFlow.into()),
            None => {}
        }
        flow.add_member(tx.now());
        subject.execution.join_flow(flow_id, tx.now());
        self.attachments.attach(&mut subject.execution);
        subject.save(tx);
        let new_node_count = flow.node_count;
        tx.put(flow);
        Ok(AddExecutionToFlowResult::Added { execution_id, new_node_count })
    }
}

/// A flow that still takes members and edges.
pub(crate) async fn open_flow(tx: &mut dyn Tx, home: Partition, id: FlowId) -> Result<Flow> {
    let flow = tx.flow(home, id).await?;
    if flow.is_open() { Ok(flow) } else { Err(StateKind::FlowAlreadyTerminal.into()) }
}
