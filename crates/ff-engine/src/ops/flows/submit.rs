//! A whole graph in one commit.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::backend::flows::{FlowEdge, FlowNode, SubmitFlowArgs, SubmitFlowResult};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{EdgeId, ExecutionId, FlowId, Namespace, check_free_string};
use ff_core::partition::Partition;
use ff_core::rules::graph::{Graph, check_graph};
use ff_core::state::EdgeState;
use ff_core::tag::validate_new_tags;
use ff_core::{EngineError, Result, TimestampMs};

use super::membership::Attachments;
use super::{check_kind, tags};
use crate::engine::Engine;
use crate::key::Key;
use crate::ops::ingress::create::{Submission, check};
use crate::records::{Edge, EdgeGroup, Flow, FlowTags, ProjectionMark};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Submits a graph, or names the flow that an earlier submission made.
pub(super) async fn submit<S: Store>(engine: &Engine<S>, args: SubmitFlowArgs) -> Result<SubmitFlowResult> {
    let flow_id = identify(engine, &args).await?;
    let home = engine.flow_home(flow_id);
    if read_one::<Flow, S>(&engine.store, Key::flow(home, flow_id)).await?.is_some() {
        return Ok(SubmitFlowResult::Duplicate { flow_id });
    }
    check_kind(&args.flow_kind)?;
    validate_new_tags(&args.tags)?;
    let graph = check_graph(&args.nodes, &args.edges)?;
    let flow = Flow::create(home, flow_id, args.flow_kind.clone(), args.namespace.clone(), engine.store.now().await?);
    engine.run(prepare(engine, flow, args, graph).await?).await
}

/// The flow a submission asks for, or the one its key leads to, or a new one. An id and a key could name two flows, so only one is
/// taken.
async fn identify<S: Store>(engine: &Engine<S>, args: &SubmitFlowArgs) -> Result<FlowId> {
    let key = args.idempotency_key.as_deref().unwrap_or_default();
    check_free_string("idempotency_key", key)?;
    match args.flow_id {
        Some(_) if !key.is_empty() => Err(EngineError::invalid("flow_id and idempotency_key exclude each other")),
        Some(flow) => Ok(flow),
        None if !key.is_empty() => Ok(FlowId::of_submission(&args.namespace, key)),
        None => Ok(FlowId::from_uuid(engine.mint().await?)),
    }
}

/// Checks every member before anything is registered or written, so that a refused graph leaves no trace.
async fn prepare<S: Store>(engine: &Engine<S>, flow: Flow, args: SubmitFlowArgs, graph: Graph) -> Result<SubmitFlow> {
    let now = engine.store.now().await?;
    let attachments = Attachments::of(engine, &flow.namespace, flow.id).await?;
    let mut members = Vec::with_capacity(args.nodes.len());
    for node in &args.nodes {
        let id = ExecutionId::for_flow(flow.id, engine.counts(), engine.uuid_at(now));
        let submission = check(engine, id, creation(id, args.namespace.clone(), node).into()).await?;
        members.push(Member { id, submission });
    }
    for member in &members {
        member.submission.register(engine, &attachments.class(member.submission.class())).await?;
    }
    let edge_ids = args.edges.iter().map(|_| EdgeId::from_uuid(engine.uuid_at(now))).collect();
    Ok(SubmitFlow { flow, args, graph, members, edge_ids, attachments })
}

fn creation(id: ExecutionId, namespace: Namespace, node: &FlowNode) -> CreateExecutionArgs {
    CreateExecutionArgs {
        input_payload: node.input_payload.clone(),
        payload_encoding: node.payload_encoding.clone(),
        priority: node.priority,
        tags: node.tags.clone(),
        policy: node.policy.clone(),
        delay_until: node.delay_until,
        execution_deadline_at: node.execution_deadline_at,
        trace_context: node.trace_context.clone(),
        ..CreateExecutionArgs::new(id, namespace, node.lane_id.clone(), node.execution_kind.clone())
    }
}

struct Member {
    id: ExecutionId,
    submission: Submission,
}

struct SubmitFlow {
    flow: Flow,
    args: SubmitFlowArgs,
    graph: Graph,
    members: Vec<Member>,
    edge_ids: Vec<EdgeId>,
    attachments: Attachments,
}

#[async_trait]
impl Op for SubmitFlow {
    type Out = SubmitFlowResult;

    fn home(&self) -> Partition {
        self.flow.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.flow.home, self.flow.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<SubmitFlowResult> {
        let flow_id = self.flow.id;
        if tx.get::<Flow>(Key::flow(self.flow.home, flow_id)).await?.is_some() {
            return Ok(SubmitFlowResult::Duplicate { flow_id });
        }
        self.insert_flow(tx);
        self.insert_members(tx);
        self.insert_edges(tx);
        let names = self.args.nodes.iter().map(|node| node.name.clone());
        let executions: BTreeMap<_, _> = names.zip(self.members.iter().map(|member| member.id)).collect();
        Ok(SubmitFlowResult::Submitted { flow_id, executions })
    }
}

impl SubmitFlow {
    fn insert_flow(&self, tx: &mut dyn Tx) {
        let now = tx.now();
        let (home, id) = (self.flow.home, self.flow.id);
        let mut flow = Flow { created_at: now, last_mutation_at: now, ..self.flow.clone() };
        self.members.iter().for_each(|_| flow.add_member(now));
        self.edge_ids.iter().for_each(|_| flow.add_edge(now));
        if !self.args.tags.is_empty() {
            tx.put(FlowTags { home, flow: id, tags: self.args.tags.clone(), updated_at: now });
            tags::emit_attached(tx, &flow, &self.args.tags, &self.args.tags);
        }
        if !self.members.is_empty() {
            tx.put(ProjectionMark::for_change(home, id, None, now));
        }
        tx.put(flow);
    }

    /// Members without inbound edges can run at once, the others wait.
    fn insert_members(&self, tx: &mut dyn Tx) {
        let now = tx.now();
        for (member, inbound) in self.members.iter().zip(&self.graph.inbound) {
            let mut execution = member.submission.insert(tx);
            execution.join_flow(self.flow.id, now);
            self.attachments.attach(&mut execution);
            if *inbound > 0 {
                execution.wait_for_dependencies(now);
            }
            tx.put_draft(&execution);
        }
    }

    /// Every edge is in force from the start.
    fn insert_edges(&self, tx: &mut dyn Tx) {
        let joins = self.args.nodes.iter().map(|node| node.join.unwrap_or_default());
        let mut groups: Vec<EdgeGroup> = (self.members.iter().zip(joins))
            .map(|(member, join)| EdgeGroup::empty(&self.flow, member.id, 0, join))
            .collect();
        for ((asked, id), (from, to)) in self.args.edges.iter().zip(&self.edge_ids).zip(&self.graph.ends) {
            let (Some(upstream), Some(downstream)) = (self.members.get(*from), self.members.get(*to)) else { continue };
            let edge = self.edge(asked, *id, upstream.id, downstream.id, tx.now());
            if let Some(group) = groups.get_mut(*to) {
                group.stage(&edge);
                group.applied += 1;
            }
            tx.put(edge);
        }
        groups.into_iter().filter(|group| group.applied > 0).for_each(|group| tx.put(group));
    }

    fn edge(
        &self,
        asked: &FlowEdge,
        id: EdgeId,
        upstream: ExecutionId,
        downstream: ExecutionId,
        created_at: TimestampMs,
    ) -> Edge {
        Edge {
            home: self.flow.home,
            flow: self.flow.id,
            id,
            upstream,
            downstream,
            kind: asked.kind,
            data_passing_ref: asked.data_passing_ref.clone().filter(|name| !name.is_empty()),
            state: EdgeState::Unsatisfied,
            generation: 0,
            created_at,
            spawned: false,
        }
    }
}
