//! Children of a running execution, in one commit with their flow and their edges.

use std::collections::BTreeSet;

use async_trait::async_trait;
use ff_core::backend::dependencies::DependencyKind;
use ff_core::backend::flows::{SPAWN_BYTES_MAX, SPAWN_CHILDREN_MAX, SpawnChild};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{BugKind, ConflictKind, ContentionKind, Entity, ValidationKind};
use ff_core::handle::Handle;
use ff_core::ids::{EdgeId, ExecutionId, FlowId, NameError, check_free_string};
use ff_core::partition::Partition;
use ff_core::state::EdgeState;
use ff_core::{EngineError, Result};

use super::membership::{Attachments, open_flow};
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::lifecycle::graph::{child_edge_id, current_group};
use crate::ops::attempts::Actor;
use crate::ops::ingress::create::{Submission, check};
use crate::ops::ingress::lanes::register_class;
use crate::records::{Edge, EdgeGroup, Execution, Flow, ProjectionMark, Record};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// What the flow is called that an execution gets for its children.
const FLOW_KIND: &str = "children";

/// How often the parent may join a flow, or leave what was read of it behind otherwise, while a call is prepared.
const TRIES: usize = 3;

/// Spawns what is not there yet; names all.
pub(super) async fn spawn<S: Store>(
    engine: &Engine<S>,
    handle: &Handle,
    children: Vec<SpawnChild>,
) -> Result<Vec<ExecutionId>> {
    check_names(&children)?;
    check_bytes(&children)?;
    let owner = engine.open_handle(handle)?;
    let actor = Actor::by_handle(&owner);
    for _ in 0..TRIES {
        let plan = plan(engine, &actor, &children).await?;
        if let Some(ids) = engine.run(Spawn { actor, plan }).await?? {
            return Ok(ids);
        }
    }
    Err(ContentionKind::RetryExhausted.into())
}

fn check_names(children: &[SpawnChild]) -> Result<()> {
    if children.len() > SPAWN_CHILDREN_MAX {
        let given = children.len();
        return Err(EngineError::invalid(format_args!("{given} children, at most {SPAWN_CHILDREN_MAX}")));
    }
    let mut names = BTreeSet::new();
    for child in children {
        if child.name.is_empty() {
            return Err(NameError::Empty { what: "name" }.into());
        }
        check_free_string("name", &child.name)?;
        if !names.insert(&child.name) {
            return Err(EngineError::invalid(format_args!("two children are named {:?}", child.name)));
        }
    }
    Ok(())
}

fn check_bytes(children: &[SpawnChild]) -> Result<()> {
    let bytes: usize = children.iter().map(|child| child.input_payload.len()).sum();
    if bytes > SPAWN_BYTES_MAX {
        return Err(EngineError::validation(
            ValidationKind::PayloadTooLarge,
            format_args!("the children have {bytes} bytes of input together, at most {SPAWN_BYTES_MAX} are allowed"),
        ));
    }
    Ok(())
}

/// A child, and how to make it unless it was there before.
struct Child {
    id: ExecutionId,
    name: String,
    submission: Option<Submission>,
}

impl Child {
    const fn edge_id(&self) -> EdgeId {
        child_edge_id(self.id)
    }

    /// Whether the parent spawned it, by what is stored where its edge would be.
    ///
    /// # Errors
    /// `IdTaken` when that is another edge: ids of edges are anybody's choice.
    fn was_spawned(&self, parent: ExecutionId, stored: Option<Record>) -> Result<bool> {
        match stored {
            None => Ok(false),
            Some(Record::Edge(edge)) if self.is_edge(parent, &edge) => Ok(true),
            Some(_) => Err(ConflictKind::IdTaken.into()),
        }
    }

    fn is_edge(&self, parent: ExecutionId, edge: &Edge) -> bool {
        (edge.upstream, edge.downstream, edge.kind) == (self.id, parent, DependencyKind::Finished)
            && edge.data_passing_ref.as_ref() == Some(&self.name)
    }
}

/// What is to be written, prepared from what was read of the parent.
struct Plan {
    /// Of which flow the parent was a member.
    joined: Option<FlowId>,
    /// That flow, or the one it gets.
    flow: FlowId,
    children: Vec<Child>,
    attachments: Attachments,
}

/// The plan of a call. None for who does not own the parent: nothing is looked up or registered, and the commit says why.
async fn plan<S: Store>(engine: &Engine<S>, actor: &Actor, asked: &[SpawnChild]) -> Result<Option<Plan>> {
    let parent: Execution = read_one(&engine.store, Key::execution(actor.execution_id))
        .await?
        .ok_or(EngineError::not_found(Entity::Execution))?;
    if !actor.seems_to_own(&parent, engine.store.now().await?) {
        return Ok(None);
    }
    let flow = match parent.flow_id {
        Some(flow) => flow,
        None => FlowId::of_children(parent.id, engine.counts()).ok_or(EngineError::Bug(BugKind::DanglingReference))?,
    };
    let (children, attachments) = prepare(engine, &parent, flow, asked).await?;
    Ok(Some(Plan { joined: parent.flow_id, flow, children, attachments }))
}

/// Checks every child that is not there yet before anything is registered or written, so that refused children leave no trace.
async fn prepare<S: Store>(
    engine: &Engine<S>,
    parent: &Execution,
    flow: FlowId,
    asked: &[SpawnChild],
) -> Result<(Vec<Child>, Attachments)> {
    let home = parent.id.partition();
    let mut children: Vec<Child> = Vec::with_capacity(asked.len());
    for child in asked {
        let id = ExecutionId::of_child(parent.id, parent.replay_count, &child.name);
        children.push(Child { id, name: child.name.clone(), submission: None });
    }
    let edges: Vec<Key> = children.iter().map(|child| Key::edge(home, flow, child.edge_id())).collect();
    let known = engine.store.read(&edges).await?;
    let attachments = Attachments::of(engine, &parent.namespace, flow).await?;
    let mut classes = BTreeSet::new();
    for ((child, asked), known) in children.iter_mut().zip(asked).zip(known) {
        if !child.was_spawned(parent.id, known)? {
            let submission = check(engine, child.id, creation(child.id, parent, asked.clone()).into()).await?;
            classes.insert((submission.lane().clone(), attachments.class(submission.class())));
            child.submission = Some(submission);
        }
    }
    for (lane, class) in &classes {
        register_class(engine, &parent.namespace, lane, class).await?;
    }
    Ok((children, attachments))
}

fn creation(id: ExecutionId, parent: &Execution, child: SpawnChild) -> CreateExecutionArgs {
    let lane = child.lane_id.unwrap_or_else(|| parent.lane.clone());
    CreateExecutionArgs {
        input_payload: child.input_payload,
        payload_encoding: child.payload_encoding,
        priority: child.priority.unwrap_or(parent.priority),
        tags: child.tags,
        policy: child.policy,
        delay_until: child.delay_until,
        trace_context: child.trace_context,
        ..CreateExecutionArgs::new(id, parent.namespace.clone(), lane, child.execution_kind)
    }
}

struct Spawn {
    actor: Actor,
    plan: Option<Plan>,
}

#[async_trait]
impl Op for Spawn {
    /// The children, or nothing when the plan does not fit any more.
    type Out = Result<Option<Vec<ExecutionId>>>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let flow = self.plan.as_ref().map(|plan| Key::flow(self.home(), plan.flow));
        flow.into_iter().chain(Subject::keys(self.actor.execution_id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let mut subject = match self.actor.own(tx).await? {
            Ok(subject) => subject,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let fits = |plan: &&Plan| plan.joined == subject.execution.flow_id;
        let Some(plan) = self.plan.as_ref().filter(fits) else { return Ok(Ok(None)) };
        let mut flow = match plan.joined {
            Some(flow) => Some(open_flow(tx, self.home(), flow).await?),
            None => None,
        };
        let fresh = plan.fresh(tx, self.actor.execution_id).await?;
        if !fresh.is_empty() {
            let flow = match &mut flow {
                Some(flow) => flow,
                None => flow.insert(plan.found(tx, &mut subject).await?),
            };
            plan.insert(tx, flow, &subject.execution, &fresh).await?;
        }
        Ok(Ok(Some(plan.children.iter().map(|child| child.id).collect())))
    }
}

impl Plan {
    /// Children that are to be made.
    ///
    /// # Errors
    /// `IdTaken` when somebody else made an execution or an edge with the id of one.
    async fn fresh(&self, tx: &mut dyn Tx, parent: ExecutionId) -> Result<Vec<(&Child, &Submission)>> {
        let asked: Vec<_> =
            self.children.iter().filter_map(|child| Some((child, child.submission.as_ref()?))).collect();
        let edges: Vec<Key> =
            asked.iter().map(|(child, _)| Key::edge(parent.partition(), self.flow, child.edge_id())).collect();
        let known = tx.load(&edges).await?;
        let mut fresh = Vec::new();
        for ((child, submission), known) in asked.into_iter().zip(known) {
            if !child.was_spawned(parent, known)? {
                fresh.push((child, submission));
            }
        }
        let executions: Vec<Key> = fresh.iter().map(|(child, _)| Key::execution(child.id)).collect();
        if tx.load(&executions).await?.iter().any(Option::is_some) {
            return Err(ConflictKind::IdTaken.into());
        }
        Ok(fresh)
    }

    /// The parent founds a flow of its own.
    ///
    /// # Errors
    /// `IdTaken` when somebody else made a flow with its id.
    async fn found(&self, tx: &mut dyn Tx, subject: &mut Subject) -> Result<Flow> {
        let (now, home) = (tx.now(), subject.execution.id.partition());
        if tx.get::<Flow>(Key::flow(home, self.flow)).await?.is_some() {
            return Err(ConflictKind::IdTaken.into());
        }
        let namespace = subject.execution.namespace.clone();
        let mut flow = Flow::create(home, self.flow, FLOW_KIND.to_owned(), namespace, now);
        flow.add_member(now);
        subject.execution.join_flow(flow.id, now);
        subject.save(tx);
        Ok(flow)
    }

    /// Every child is a member that can run at once, and its edge is in force from the start.
    async fn insert(
        &self,
        tx: &mut dyn Tx,
        flow: &mut Flow,
        parent: &Execution,
        fresh: &[(&Child, &Submission)],
    ) -> Result<()> {
        let now = tx.now();
        let (generation, group) = current_group(tx, parent).await?;
        let mut group = group.unwrap_or_else(|| EdgeGroup::empty(flow, parent.id, generation, Default::default()));
        for (child, submission) in fresh {
            let mut execution = submission.insert(tx);
            execution.join_flow(flow.id, now);
            self.attachments.attach(&mut execution);
            tx.put_draft(&execution);
            let edge = Edge {
                home: flow.home,
                flow: flow.id,
                id: child.edge_id(),
                upstream: child.id,
                downstream: parent.id,
                kind: DependencyKind::Finished,
                data_passing_ref: Some(child.name.clone()),
                state: EdgeState::Unsatisfied,
                generation,
                created_at: now,
                spawned: true,
            };
            group.await_child(&edge);
            tx.put(edge);
            flow.add_member(now);
            flow.add_edge(now);
        }
        tx.put(group);
        tx.put(ProjectionMark::for_change(flow.home, flow.id, None, now));
        tx.put(flow.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
