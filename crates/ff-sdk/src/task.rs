//! A unit of work to submit: alone, as a child, or as a node of a flow.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use ff_core::backend::EngineBackend;
use ff_core::error::EngineError;
use ff_core::ids::{BudgetId, LaneId, QuotaPolicyId};
use ff_core::policy::{
    BackoffStrategy, ExecutionPolicy, PolicyDocument, RetryPolicy, RoutingRequirements, TimeoutPolicy,
};
use ff_core::{Blob, TimestampMs};
use serde::Serialize;

use crate::error::{Error, Result};

/// How payloads of this library are encoded.
pub(crate) const JSON: &str = "json";

/// The lane of tasks and workers that name none.
pub const DEFAULT_LANE: &str = "default";

/// Work for a handler: its kind, its input, and how it wants to be treated.
///
/// Nothing is checked before it is submitted; the first mistake is reported then.
#[derive(Clone, Debug)]
#[must_use = "a task does nothing until it is submitted"]
pub struct Task {
    pub(crate) kind: String,
    pub(crate) payload: Blob,
    pub(crate) payload_encoding: Option<String>,
    pub(crate) lane: Option<LaneId>,
    pub(crate) priority: Option<i32>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) delay: Option<Duration>,
    pub(crate) idempotency_key: Option<String>,
    policy: Option<ExecutionPolicy>,
    fault: Option<Fault>,
}

#[derive(Clone, Debug)]
enum Fault {
    Name(String),
    Input(Arc<serde_json::Error>),
}

impl Task {
    /// A task with this input, written as JSON.
    pub fn new(kind: impl Into<String>, input: &(impl Serialize + ?Sized)) -> Self {
        let mut task = Self::raw(kind, Blob::empty());
        match serde_json::to_vec(input) {
            Ok(bytes) => {
                task.payload = bytes.into();
                task.payload_encoding = Some(JSON.to_owned());
            }
            Err(error) => task.fault = Some(Fault::Input(Arc::new(error))),
        }
        task
    }

    /// A task whose input is these bytes.
    pub fn raw(kind: impl Into<String>, payload: impl Into<Blob>) -> Self {
        Self {
            kind: kind.into(),
            payload: payload.into(),
            payload_encoding: None,
            lane: None,
            priority: None,
            tags: BTreeMap::new(),
            delay: None,
            idempotency_key: None,
            policy: None,
            fault: None,
        }
    }

    /// The queue it waits in.
    pub fn lane(mut self, lane: impl AsRef<str>) -> Self {
        match LaneId::new(lane) {
            Ok(lane) => self.lane = Some(lane),
            Err(error) => self.note(error),
        }
        self
    }

    /// Higher runs first.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// A label, such as `team.name` = `search`.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Not before this time has passed.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Submitting it again with the same key finds the first one.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Tries again so many times after failures, each time later. Without this nothing is tried again.
    pub fn retries(mut self, max_retries: u32) -> Self {
        self.retry().max_retries = max_retries;
        self
    }

    /// The time before a retry: this long at first, doubling up to `longest`.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.retry().backoff = BackoffStrategy::Exponential {
            initial_delay_ms: millis(first),
            max_delay_ms: millis(longest),
            multiplier: 2.0,
            jitter: true,
        };
        self
    }

    /// How long one attempt may run.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts().attempt_timeout_ms = Some(millis(timeout));
        self
    }

    /// How long it may take from submission to its end.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.timeouts().execution_deadline_ms = Some(millis(deadline));
        self
    }

    /// Only for workers that offer this capability.
    pub fn requires(mut self, capability: impl Into<String>) -> Self {
        let routing = self.policy_mut().routing_requirements.get_or_insert_with(RoutingRequirements::default);
        routing.required_capabilities.insert(capability.into());
        self
    }

    /// Waits while this budget is spent.
    pub fn budget(mut self, budget: BudgetId) -> Self {
        self.policy_mut().budget_ids.push(budget);
        self
    }

    /// Waits while this quota is full.
    pub fn quota(mut self, quota: QuotaPolicyId) -> Self {
        self.policy_mut().quota_policy_ids.push(quota);
        self
    }

    /// Changes anything else about how it is treated.
    pub fn policy(mut self, change: impl FnOnce(&mut ExecutionPolicy)) -> Self {
        change(self.policy_mut());
        self
    }

    fn policy_mut(&mut self) -> &mut ExecutionPolicy {
        self.policy.get_or_insert_with(ExecutionPolicy::default)
    }

    fn retry(&mut self) -> &mut RetryPolicy {
        self.policy_mut().retry_policy.get_or_insert_with(RetryPolicy::default)
    }

    fn timeouts(&mut self) -> &mut TimeoutPolicy {
        self.policy_mut().timeout_policy.get_or_insert_with(TimeoutPolicy::default)
    }

    fn note(&mut self, fault: impl Display) {
        self.fault.get_or_insert_with(|| Fault::Name(fault.to_string()));
    }

    /// Reports the first mistake.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.fault {
            None => Ok(()),
            Some(Fault::Name(fault)) => Err(Error::Setup(format!("task {:?}: {fault}", self.kind))),
            Some(Fault::Input(error)) => {
                Err(Error::Setup(format!("the input of task {:?} cannot be written as JSON: {error}", self.kind)))
            }
        }
    }

    /// When it may begin, if not right away.
    pub(crate) async fn start_at(&self, backend: &dyn EngineBackend) -> Result<Option<TimestampMs>, EngineError> {
        match self.delay {
            Some(delay) => Ok(Some(engine_time(backend).await?.plus(millis(delay)))),
            None => Ok(None),
        }
    }

    pub(crate) fn policy_document(&self) -> Option<PolicyDocument> {
        self.policy.as_ref().map(PolicyDocument::from)
    }
}

/// The engine's time.
pub(crate) async fn engine_time(backend: &dyn EngineBackend) -> Result<TimestampMs, EngineError> {
    Ok(TimestampMs(i64::try_from(backend.server_time_ms().await?).unwrap_or(i64::MAX)))
}

/// Whole milliseconds, as the engine counts.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_task_has_no_policy_and_so_is_never_retried() {
        let task = Task::new("greet", "world");
        assert!(task.policy_document().is_none());
        assert_eq!(&*task.payload, b"\"world\"");
        assert!(task.check().is_ok());
    }

    #[test]
    fn the_first_mistake_is_reported_when_the_task_is_used() {
        let task = Task::new("greet", &()).lane("").lane("also bad\n");
        let refusal = task.check().unwrap_err().to_string();
        assert!(refusal.starts_with("task \"greet\": "), "{refusal}");
    }

    #[test]
    fn what_is_said_about_treatment_is_in_the_policy() {
        let task = Task::new("greet", &()).retries(2).requires("gpu").attempt_timeout(Duration::from_secs(3));
        let policy = task.policy_document().expect("a policy").decode().expect("sound");
        assert_eq!(policy.retry_policy.expect("retries").max_retries, 2);
        assert_eq!(policy.timeout_policy.expect("timeouts").attempt_timeout_ms, Some(3_000));
        assert_eq!(policy.routing_requirements.expect("routing").required_capabilities, ["gpu".to_owned()].into());
    }
}
