//! Flows: graphs of tasks, submitted whole.

use std::collections::BTreeMap;

use ff_core::backend::dependencies::{DependencyKind, EdgeDependencyPolicy};
use ff_core::backend::flows::{
    CancelFlowPolicy, CancelFlowResult, CancelFlowWait, FlowEdge, FlowNode, FlowSnapshot, SubmitFlowArgs,
    SubmitFlowResult,
};
use ff_core::error::{EngineError, Entity};
use ff_core::ids::{ExecutionId, FlowId};

use super::{Client, Run, default_lane};
use crate::error::{Error, Result};
use crate::task::Task;

/// A graph of tasks to submit.
#[must_use = "a flow does nothing until it is submitted"]
pub struct FlowBuilder {
    client: Client,
    kind: String,
    idempotency_key: Option<String>,
    tags: BTreeMap<String, String>,
    nodes: Vec<(String, Task, Option<EdgeDependencyPolicy>)>,
    edges: Vec<FlowEdge>,
}

impl Client {
    /// Begins a graph of tasks.
    pub fn flow(&self, kind: impl Into<String>) -> FlowBuilder {
        FlowBuilder {
            client: self.clone(),
            kind: kind.into(),
            idempotency_key: None,
            tags: BTreeMap::new(),
            nodes: Vec::new(),
            edges: Vec::new(),
        }
    }

    /// A flow that was submitted before.
    #[must_use]
    pub fn flow_run(&self, id: FlowId) -> FlowRun {
        FlowRun { client: self.clone(), id, members: BTreeMap::new(), is_duplicate: false }
    }
}

impl FlowBuilder {
    /// Adds a task under a name of its own.
    pub fn node(mut self, name: impl Into<String>, task: Task) -> Self {
        self.nodes.push((name.into(), task, None));
        self
    }

    /// Adds a task that starts when enough of what enters it has ended, as the join says.
    pub fn joining(mut self, name: impl Into<String>, task: Task, join: EdgeDependencyPolicy) -> Self {
        self.nodes.push((name.into(), task, Some(join)));
        self
    }

    /// `to` starts after `from` has completed, and finds its result as [`input`](crate::Context::input) of the name `from`.
    pub fn edge(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.edge_of(DependencyKind::default(), from, to)
    }

    /// As [`edge`](Self::edge), for other ends of `from` than completion.
    pub fn edge_of(mut self, kind: DependencyKind, from: impl Into<String>, to: impl Into<String>) -> Self {
        let from = from.into();
        self.edges.push(FlowEdge { data_passing_ref: Some(from.clone()), from, to: to.into(), kind });
        self
    }

    /// A label of the flow.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Submitting it again with the same key finds the first one.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Submits the whole graph: all of it, or nothing.
    ///
    /// # Errors
    /// When a task or the graph is malformed, or the engine cannot be reached.
    pub async fn submit(self) -> Result<FlowRun> {
        let Self { client, kind, idempotency_key, tags, nodes, edges } = self;
        let mut members = Vec::with_capacity(nodes.len());
        for (name, task, join) in nodes {
            members.push(node(&client, name, task, join).await?);
        }
        let args = SubmitFlowArgs {
            flow_id: None,
            flow_kind: kind,
            namespace: client.namespace.clone(),
            idempotency_key,
            tags,
            nodes: members,
            edges,
        };
        Ok(match client.backend.submit_flow(args).await? {
            SubmitFlowResult::Submitted { flow_id, executions } => {
                FlowRun { client, id: flow_id, members: executions, is_duplicate: false }
            }
            SubmitFlowResult::Duplicate { flow_id } => {
                FlowRun { client, id: flow_id, members: BTreeMap::new(), is_duplicate: true }
            }
        })
    }
}

async fn node(client: &Client, name: String, task: Task, join: Option<EdgeDependencyPolicy>) -> Result<FlowNode> {
    task.check()?;
    if task.idempotency_key.is_some() {
        return Err(Error::Setup(format!("node {name:?}: the flow has the idempotency key, not its nodes")));
    }
    let policy = task.policy_document();
    let delay_until = task.start_at(&*client.backend).await?;
    Ok(FlowNode {
        name,
        lane_id: match task.lane {
            Some(lane) => lane,
            None => default_lane()?,
        },
        execution_kind: task.kind,
        input_payload: task.payload,
        payload_encoding: task.payload_encoding,
        priority: task.priority.unwrap_or_default(),
        tags: task.tags,
        policy,
        delay_until,
        execution_deadline_at: None,
        join,
        trace_context: client.trace.clone(),
    })
}

/// A flow, as a client deals with it.
pub struct FlowRun {
    client: Client,
    id: FlowId,
    members: BTreeMap<String, ExecutionId>,
    is_duplicate: bool,
}

impl FlowRun {
    /// The flow.
    #[must_use]
    pub const fn id(&self) -> FlowId {
        self.id
    }

    /// Whether the submission found a flow with the same idempotency key; its members are not known here then.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        self.is_duplicate
    }

    /// A member by the name it was submitted with.
    #[must_use]
    pub fn run(&self, name: &str) -> Option<Run> {
        self.members.get(name).map(|id| self.client.run(*id))
    }

    /// Everything about the flow.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub async fn describe(&self) -> Result<FlowSnapshot> {
        let snapshot = self.client.backend.describe_flow(self.id).await?;
        Ok(snapshot.ok_or(EngineError::not_found(Entity::Flow))?)
    }

    /// Cancels it with every member that is not over; answers when they are.
    ///
    /// # Errors
    /// When it is over already.
    pub async fn cancel(&self) -> Result<CancelFlowResult> {
        let wait = CancelFlowWait::WaitIndefinite {};
        Ok(self.client.backend.cancel_flow(self.id, CancelFlowPolicy::CancelAll, wait).await?)
    }
}
