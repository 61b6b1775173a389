//! Children: work that a handler gives to others, and waits for.

use std::marker::PhantomData;

use ff_core::backend::flows::SpawnChild;
use ff_core::ids::ExecutionId;
use serde::de::DeserializeOwned;

use super::Context;
use crate::client::Ending;
use crate::error::{TaskError, TaskResult};
use crate::handler::decode;
use crate::task::Task;

/// A child, and the type of its result.
#[derive(Debug)]
pub struct Child<T> {
    /// The execution.
    pub id: ExecutionId,
    /// Its name among the children of its parent.
    pub name: String,
    result: PhantomData<fn() -> T>,
}

/// A child that did not complete, as its parent sees it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("child {name:?} {ending}")]
pub struct ChildFailed {
    /// The child's name.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
}

impl Context {
    /// Gives work to others. The name tells the children of one parent apart: when the handler runs again, it finds the same child.
    ///
    /// # Errors
    /// When the task is malformed, the flow was cancelled, or the execution is no longer this worker's.
    pub async fn spawn<T>(&self, name: impl Into<String>, task: Task) -> TaskResult<Child<T>> {
        let spawned = self.spawn_all(vec![(name.into(), task)]).await?;
        spawned.into_iter().next().ok_or_else(|| TaskError::transient("a spawn answered no child"))
    }

    /// [Spawns](Self::spawn) several at once.
    ///
    /// # Errors
    /// As for one; all of them exist, or none.
    pub async fn spawn_all<T>(&self, tasks: Vec<(String, Task)>) -> TaskResult<Vec<Child<T>>> {
        let mut children = Vec::with_capacity(tasks.len());
        for (name, task) in tasks {
            children.push(self.child(name, task).await?);
        }
        let names: Vec<String> = children.iter().map(|child| child.name.clone()).collect();
        let ids = self.guarded(self.backend().spawn_children(&self.parts().handle, children)).await?;
        Ok(ids.into_iter().zip(names).map(|(id, name)| Child { id, name, result: PhantomData }).collect())
    }

    async fn child(&self, name: String, task: Task) -> TaskResult<SpawnChild> {
        task.check().map_err(TaskError::permanent)?;
        if task.idempotency_key.is_some() {
            return Err(TaskError::permanent(format!("child {name:?} has its name for a key; it cannot have another")));
        }
        let delay_until = self.asked(task.start_at(self.backend())).await?;
        let policy = task.policy_document();
        Ok(SpawnChild {
            name,
            execution_kind: task.kind,
            input_payload: task.payload,
            payload_encoding: task.payload_encoding,
            lane_id: task.lane,
            priority: task.priority,
            tags: task.tags,
            policy,
            delay_until,
            trace_context: self.trace().cloned(),
        })
    }

    /// The result of a child. Until it and all other children are over the execution waits, without holding a worker.
    ///
    /// # Errors
    /// [`ChildFailed`], as a failure of this handler, when it did not complete; one for which [`TaskError::is_parked`] holds while it
    /// runs. Hand both on with `?`, or use [`join_all`](Self::join_all) to look at failures.
    pub async fn join<T: DeserializeOwned>(&self, child: &Child<T>) -> TaskResult<T> {
        let mut results = self.join_all(std::slice::from_ref(child)).await?;
        match results.pop() {
            Some(Ok(result)) => Ok(result),
            // It stays as it ended: trying again finds the same.
            Some(Err(failed)) => Err(TaskError::permanent(failed)),
            None => Err(TaskError::transient("a join answered nothing")),
        }
    }

    /// The results of children, in their order, once all children are over, those that are not asked for included.
    ///
    /// # Errors
    /// One for which [`TaskError::is_parked`] holds while some run; hand it on with `?`. A child that did not complete is data.
    pub async fn join_all<T: DeserializeOwned>(
        &self,
        children: &[Child<T>],
    ) -> TaskResult<Vec<Result<T, ChildFailed>>> {
        let mut results = Vec::with_capacity(children.len());
        for child in children {
            let Some(outcome) = self.asked(self.backend().await_outcome(child.id, 0)).await? else {
                return self.parked(self.backend().wait_children(&self.parts().handle)).await;
            };
            results.push(match Ending::of(outcome) {
                Ok(result) => Ok(decode(&result.unwrap_or_default()).map_err(|error| {
                    TaskError::permanent(format!("the result of child {:?} is of another type: {error}", child.name))
                })?),
                Err(ending) => Err(ChildFailed { name: child.name.clone(), ending }),
            });
        }
        Ok(results)
    }
}
