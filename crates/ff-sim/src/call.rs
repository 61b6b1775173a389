//! What an actor asks of the engine, and what comes back.

use std::any::Any;
use std::collections::BTreeSet;

use ff_core::EngineError;
use ff_core::backend::budgets::Amounts;
use ff_core::ids::{
    AttemptIndex, BudgetId, ExecutionId, FlowId, LeaseFence, Namespace, WaitpointId, WorkerId, WorkerInstanceId,
};
use ff_core::rules::retry::FailureClass;
use ff_core::token::WaitpointToken;

/// What a caller shows, and what its call may therefore do.
#[derive(Clone, Debug)]
pub(crate) enum Presents {
    /// The right to do anything: operators, timers, readers.
    Authority,
    /// A worker with what it can do.
    Worker(Box<WorkerShown>),
    /// A worker that holds a grant.
    Grant { worker: WorkerId, instance: WorkerInstanceId },
    /// A submission; `window_ms` is how long its key counts.
    Creation { namespace: Namespace, key: Option<String>, window_ms: u64 },
    /// A signal and its proof.
    Signal(Box<SignalShown>),
    /// Usage to be added.
    Usage { budget: BudgetId, deltas: Amounts, key: Option<String> },
    /// A change of a graph as its author knows it.
    Graph { flow: FlowId, revision: u64 },
}

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub(crate) struct WorkerShown {
    pub(crate) instance: WorkerInstanceId,
    pub(crate) capabilities: BTreeSet<String>,
    /// What it handles; none means everything.
    pub(crate) kinds: Option<BTreeSet<String>>,
}

/// What a signal comes with.
#[derive(Clone, Debug)]
pub(crate) struct SignalShown {
    pub(crate) waitpoint: WaitpointId,
    pub(crate) key: Option<String>,
    pub(crate) dedup_ttl_ms: u64,
    /// The token, be it shown or looked up by the engine.
    pub(crate) token: WaitpointToken,
    /// Whether the token was made for this waitpoint.
    pub(crate) genuine: bool,
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: &'static str,
    pub(crate) detail: String,
    pub(crate) subject: Option<ExecutionId>,
    pub(crate) presents: Presents,
    /// The attempt the caller says it owns.
    pub(crate) fence: Option<(LeaseFence, AttemptIndex)>,
    pub(crate) class: Option<FailureClass>,
}

impl Call {
    /// A call of somebody who may do anything.
    pub(crate) fn new(op: &'static str, detail: impl Into<String>) -> Self {
        Self { op, detail: detail.into(), subject: None, presents: Presents::Authority, fence: None, class: None }
    }

    /// About an execution.
    pub(crate) fn of(mut self, execution: ExecutionId) -> Self {
        self.subject = Some(execution);
        self
    }

    /// With something shown.
    pub(crate) fn with(mut self, presents: Presents) -> Self {
        self.presents = presents;
        self
    }

    /// By somebody who says to own an attempt.
    pub(crate) fn fenced(mut self, fence: LeaseFence, index: AttemptIndex) -> Self {
        self.fence = Some((fence, index));
        self
    }

    /// A failure of this class.
    pub(crate) fn failing(mut self, class: FailureClass) -> Self {
        self.class = Some(class);
        self
    }
}

/// What the caller learns.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// It was done.
    Done(T),
    /// It was refused.
    Refused(EngineError),
    /// Nobody can tell: the connection broke, or the process died.
    Lost,
}

impl<T> Reply<T> {
    /// The answer, if there is one.
    pub(crate) fn done(self) -> Option<T> {
        match self {
            Self::Done(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether it was done.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// A reply as the checker sees it.
#[derive(Clone, Copy)]
pub(crate) enum Answer<'a> {
    Done(&'a dyn Any),
    Refused(&'a EngineError),
    Lost,
}

impl<'a> Answer<'a> {
    /// The answer, if it is one of this type.
    pub(crate) fn is<T: 'static>(&self) -> Option<&'a T> {
        match self {
            Self::Done(answer) => answer.downcast_ref(),
            _ => None,
        }
    }
}
