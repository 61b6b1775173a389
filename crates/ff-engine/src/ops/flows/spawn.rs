//! Children of a running execution, in one commit with their flow and their edges.

use std::collections::BTreeSet;

use async_trait::async_trait;
use ff_core::backend::dependencies::DependencyKind;
use ff_core::backend::flows::{SPAWN_CHILDREN_MAX, SpawnChild};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{BugKind, Entity};
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
use crate::records::{Edge, EdgeGroup, Execution, Flow, ProjectionMark};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// What the flow is called that an execution gets for its children.
const FLOW_KIND: &str = "children";

/// Spawns what is not there yet; names all.
pub(super) async fn spawn<S: Store>(
    engine: &Engine<S>,
    handle: &Handle,
    children: Vec<SpawnChild>,
) -> Result<Vec<ExecutionId>> {
    check_names(&children)?;
    let owner = engine.open_handle(handle)?;
    let parent: Execution = read_one(&engine.store, Key::execution(owner.execution_id))
        .await?
        .ok_or(EngineError::not_found(Entity::Execution))?;
    let flow = match parent.flow_id {
        Some(flow) => flow,
        None => FlowId::of_children(parent.id, engine.counts()).ok_or(EngineError::Bug(BugKind::DanglingReference))?,
    };
    let actor = Actor::by_handle(&owner);
    let (children, attachments) = prepare(engine, &parent, flow, children).await?;
    engine.run(Spawn { actor, flow, children, attachments }).await?
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
}

/// Checks every child that is not there yet before anything is registered or written, so that refused children leave no trace.
async fn prepare<S: Store>(
    engine: &Engine<S>,
    parent: &Execution,
    flow: FlowId,
    asked: Vec<SpawnChild>,
) -> Result<(Vec<Child>, Attachments)> {
    let home = parent.id.partition();
    let mut children: Vec<Child> = Vec::with_capacity(asked.len());
    for child in &asked {
        let id = ExecutionId::of_child(parent.id, parent.replay_count, &child.name);
        children.push(Child { id, name: child.name.clone(), submission: None });
    }
    let edges: Vec<Key> = children.iter().map(|child| Key::edge(home, flow, child.edge_id())).collect();
    let known = engine.store.read(&edges).await?;
    let attachments = Attachments::of(engine, &parent.namespace, flow).await?;
    for ((child, asked), known) in children.iter_mut().zip(asked).zip(known) {
        if known.is_none() {
            child.submission = Some(check(engine, child.id, creation(child.id, parent, asked)).await?);
        }
    }
    for submission in children.iter().filter_map(|child| child.submission.as_ref()) {
        submission.register(engine, &attachments.class(submission.class())).await?;
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
    /// The flow of the parent, or the one it gets.
    flow: FlowId,
    children: Vec<Child>,
    attachments: Attachments,
}

#[async_trait]
impl Op for Spawn {
    type Out = Result<Vec<ExecutionId>>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = vec![Key::flow(self.home(), self.flow)];
        keys.extend(Subject::keys(self.actor.execution_id));
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<Vec<ExecutionId>>> {
        let mut subject = match self.actor.own(tx).await? {
            Ok(subject) => subject,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut flow = match subject.execution.flow_id {
            Some(flow) => Some(open_flow(tx, self.home(), flow).await?),
            None => None,
        };
        let fresh = self.fresh(tx).await?;
        if !fresh.is_empty() {
            let flow = match &mut flow {
                Some(flow) => flow,
                None => flow.insert(self.found(tx, &mut subject)),
            };
            self.insert(tx, flow, &subject.execution, &fresh).await?;
        }
        Ok(Ok(self.children.iter().map(|child| child.id).collect()))
    }
}

impl Spawn {
    /// Children that are to be made.
    async fn fresh(&self, tx: &mut dyn Tx) -> Result<Vec<(&Child, &Submission)>> {
        let asked: Vec<_> =
            self.children.iter().filter_map(|child| Some((child, child.submission.as_ref()?))).collect();
        let edges: Vec<Key> =
            asked.iter().map(|(child, _)| Key::edge(self.home(), self.flow, child.edge_id())).collect();
        let known = tx.load(&edges).await?;
        Ok(asked.into_iter().zip(known).filter(|(_, known)| known.is_none()).map(|(child, _)| child).collect())
    }

    /// The parent founds a flow of its own.
    fn found(&self, tx: &mut dyn Tx, subject: &mut Subject) -> Flow {
        let now = tx.now();
        let namespace = subject.execution.namespace.clone();
        let mut flow = Flow::create(self.home(), self.flow, FLOW_KIND.to_owned(), namespace, now);
        flow.add_member(now);
        subject.execution.join_flow(flow.id, now);
        subject.save(tx);
        flow
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
            tx.put(execution);
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
