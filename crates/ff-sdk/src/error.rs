//! What can go wrong for a client, and how a handler says that its work did not succeed.

use std::fmt;
use std::time::Duration;

use ff_core::error::{ContentionKind, EngineError, Entity, StateKind};
use ff_core::ids::ExecutionId;
use ff_core::rules::retry::FailureClass;
use serde::Serialize;
use serde_json::Value;

use crate::client::Ending;

/// Everything that a client or the setup of a worker can run into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused, or could not be reached.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A value cannot be written as JSON.
    #[error("{what} cannot be written as JSON: {source}")]
    Encode {
        /// Which value.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// Stored bytes are not what the caller expects.
    #[error("{what} is not the expected type: {source}")]
    Decode {
        /// Which bytes.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// An argument cannot be used; nothing was sent.
    #[error("{0}")]
    Setup(String),
    /// The execution is over without a result.
    #[error("execution {id} {ending}")]
    Ended {
        /// The execution.
        id: ExecutionId,
        /// How it ended.
        ending: Ending,
    },
    /// The execution is not over yet.
    #[error("execution {id} did not end within {waited:?}")]
    StillRunning {
        /// The execution.
        id: ExecutionId,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The execution waits for nothing of this name.
    #[error("execution {id} has no open waitpoint {key:?}")]
    NoWaitpoint {
        /// The execution.
        id: ExecutionId,
        /// The name that was asked for.
        key: String,
    },
}

/// The answer of clients and of the setup of workers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a handler ends when it does not succeed.
///
/// Any error turns into a failure that may be retried, by the policy of the execution; [`permanent`](Self::permanent) says that
/// repeating cannot help. The waits of [`Context`](crate::Context) also end a handler this way: it runs again when the wait is over.
pub struct TaskError(pub(crate) Stop);

/// Why a handler stopped.
pub(crate) enum Stop {
    /// It failed.
    Failed(Failure),
    /// The engine could not do what was asked, through no fault of the work.
    Hindered(String),
    /// The execution waits; the handler runs again later.
    Parked,
    /// The execution is no longer this worker's.
    Lost,
}

/// A failure as it is reported.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) class: FailureClass,
    pub(crate) message: String,
    pub(crate) detail: Option<Value>,
}

/// What a handler answers.
pub type TaskResult<T = ()> = std::result::Result<T, TaskError>;

impl TaskError {
    /// A failure that may pass by itself.
    pub fn transient(message: impl fmt::Display) -> Self {
        Self::of(FailureClass::Transient, message)
    }

    /// A failure that repeating cannot help.
    pub fn permanent(message: impl fmt::Display) -> Self {
        Self::of(FailureClass::Permanent, message)
    }

    /// A failure of the given class.
    pub fn of(class: FailureClass, message: impl fmt::Display) -> Self {
        Self(Stop::Failed(Failure { class, message: message.to_string(), detail: None }))
    }

    /// A failure that may pass by itself, from any kind of error, `anyhow`'s and boxed ones included.
    pub fn any(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::transient(with_causes(&*error.into()))
    }

    /// What an error of the engine means for the work: a refusal of what was asked stays a refusal; when the engine cannot be reached, or is too
    /// busy, the work is done later, and that is no failure.
    pub(crate) fn from_engine(error: &EngineError) -> Self {
        match error {
            EngineError::Transport { .. }
            | EngineError::Timeout { .. }
            | EngineError::ResourceExhausted { .. }
            | EngineError::Contention(ContentionKind::RetryExhausted) => Self(Stop::Hindered(error.to_string())),
            EngineError::Contextual { source, .. } => Self::from_engine(source),
            EngineError::Contention(_) => Self::transient(error),
            _ => Self::permanent(error),
        }
    }

    /// Adds a document for programs; a value that cannot be written as JSON becomes its error text.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Serialize) -> Self {
        if let Stop::Failed(failure) = &mut self.0 {
            failure.detail =
                Some(serde_json::to_value(detail).unwrap_or_else(|error| Value::String(error.to_string())));
        }
        self
    }

    /// Whether it only says that the handler runs again later.
    #[must_use]
    pub const fn is_parked(&self) -> bool {
        matches!(self.0, Stop::Parked)
    }

    /// Whether the execution is no longer this worker's: cancelled, taken over, expired.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self.0, Stop::Lost)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Stop::Failed(failure) => write!(f, "{}: {}", failure.class, failure.message),
            Stop::Hindered(why) => write!(f, "done later, because the engine cannot: {why}"),
            Stop::Parked => f.write_str("waiting; the handler runs again when the wait is over"),
            Stop::Lost => f.write_str("the execution is no longer this worker's"),
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::transient(with_causes(&error))
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Many errors repeat their cause.
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = cause.source();
    }
    message
}

/// Whether an error of a call by handle says that the caller does not own the execution any more.
pub(crate) fn is_loss(error: &EngineError) -> bool {
    match error {
        EngineError::State(kind) => matches!(
            kind,
            StateKind::StaleLease
                | StateKind::LeaseExpired
                | StateKind::LeaseRevoked
                | StateKind::StaleOwnerCannotAppend
                | StateKind::StreamClosed
        ),
        EngineError::Contention(kind) => {
            matches!(kind, ContentionKind::ExecutionNotActive(_) | ContentionKind::NoActiveLease)
        }
        EngineError::NotFound { entity } => *entity == Entity::Execution,
        EngineError::Contextual { source, .. } => is_loss(source),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn any_error_becomes_a_failure_that_may_be_retried_and_keeps_its_causes() {
        let cause = "x".parse::<i32>().unwrap_err();
        let error = TaskError::from(Outer(cause.clone()));
        assert_eq!(error.to_string(), format!("transient: outer: {cause}"));
    }

    #[test]
    fn losing_a_lease_is_told_from_other_errors() {
        assert!(is_loss(&EngineError::State(StateKind::LeaseExpired)));
        assert!(is_loss(&EngineError::not_found(Entity::Execution)));
        assert!(!is_loss(&EngineError::not_found(Entity::Budget)));
        assert!(!is_loss(&EngineError::invalid("x")));
    }
}
