//! Policies as they arrive.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ExecutionPolicy;
use crate::capability::required_from_json;
use crate::error::{EngineError, Result, ValidationKind};

/// A policy as a caller sends it: any JSON, so that what is wrong with it can be said precisely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyDocument(pub Value);

impl PolicyDocument {
    /// The policy.
    ///
    /// # Errors
    /// `InvalidPolicyJson` when it does not decode, then `InvalidCapabilities` with `required:<fault>`.
    pub fn decode(&self) -> Result<ExecutionPolicy> {
        let fields = object("policy", &self.0)?;
        let required = match fields.get("routing_requirements") {
            None => None,
            Some(routing) => object("routing_requirements", routing)?.get("required_capabilities"),
        };
        for part in ["timeout_policy", "reclaim_backoff", "suspension_policy", "stream_policy"] {
            fields.get(part).map(|value| object(part, value)).transpose()?;
        }
        fields.get("retry_policy").map(check_retry_shape).transpose()?;
        let mut rest = fields.clone();
        if let Some(Value::Object(routing)) = rest.get_mut("routing_requirements") {
            routing.remove("required_capabilities");
        }
        let mut policy: ExecutionPolicy = serde_json::from_value(Value::Object(rest)).map_err(malformed)?;
        if let Some(retry) = &policy.retry_policy {
            retry.check()?;
        }
        if let (Some(routing), Some(list)) = (&mut policy.routing_requirements, required) {
            routing.required_capabilities = required_from_json(list)?;
        }
        Ok(policy)
    }
}

impl From<&ExecutionPolicy> for PolicyDocument {
    fn from(policy: &ExecutionPolicy) -> Self {
        Self(serde_json::to_value(policy).unwrap_or_default())
    }
}

impl From<ExecutionPolicy> for PolicyDocument {
    fn from(policy: ExecutionPolicy) -> Self {
        Self::from(&policy)
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for PolicyDocument {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<ExecutionPolicy>().prop_map(Self::from).boxed()
    }
}

pub(super) fn malformed(why: impl std::fmt::Display) -> EngineError {
    EngineError::validation(ValidationKind::InvalidPolicyJson, format_args!("malformed: {why}"))
}

/// A decoder of structs would take an array for an object.
fn object<'a>(what: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| malformed(format_args!("{what} is not an object")))
}

pub(super) fn check_retry_shape(retry: &Value) -> Result<()> {
    let backoff = object("retry_policy", retry)?.get("backoff");
    backoff.map(|value| object("backoff", value)).transpose()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{BackoffStrategy, RetryPolicy};
    use proptest::prelude::*;
    use serde_json::json;

    fn decode(json: Value) -> Result<ExecutionPolicy> {
        PolicyDocument(json).decode()
    }

    fn refusal(json: Value) -> (ValidationKind, String) {
        match decode(json) {
            Err(EngineError::Validation { kind, detail }) => (kind, detail),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn an_empty_document_is_the_default_policy() {
        assert_eq!(decode(json!({})).expect("decodes"), ExecutionPolicy::default());
        let retrying = decode(json!({"retry_policy": {}})).expect("decodes");
        assert_eq!(retrying.retry_policy, Some(RetryPolicy::default()));
        let fixed = decode(json!({"retry_policy": {"backoff": {"type": "fixed"}}})).expect("decodes");
        assert_eq!(fixed.retry_policy.expect("set").backoff, BackoffStrategy::Fixed { delay_ms: 1000 });
        let growing = decode(json!({"retry_policy": {"backoff": {"type": "exponential"}}})).expect("decodes");
        assert_eq!(growing.retry_policy.expect("set").backoff, BackoffStrategy::default());
    }

    #[test]
    fn unset_options_are_omitted() {
        let PolicyDocument(json) = PolicyDocument::from(&ExecutionPolicy::default());
        assert!(json.as_object().expect("an object").values().all(|value| !value.is_null()));
        assert_eq!(
            json,
            json!({
                "max_replay_count": 10, "budget_ids": [], "quota_policy_ids": [], "max_signals_per_execution": 10000
            })
        );
    }

    #[test]
    fn what_does_not_decode_is_malformed() {
        for bad in [
            json!(null),
            json!([]),
            json!("{}"),
            json!(7),
            json!({"priority": 3}),
            json!({"retry_policy": 3}),
            json!({"retry_policy": []}),
            json!({"retry_policy": {"backoff": ["fixed", 7]}}),
            json!({"timeout_policy": [1, 2]}),
            json!({"suspension_policy": []}),
            json!({"retry_policy": {"max_retries": -1}}),
            json!({"retry_policy": {"backoff": {"type": "fibonacci"}}}),
            json!({"retry_policy": {"backoff": {"type": "exponential", "multiplier": -1.0}}}),
            json!({"suspension_policy": {"timeout_behavior": "explode"}}),
            json!({"routing_requirements": {"preferred_locality": "here"}}),
            json!({"budget_ids": ["nope"]}),
            json!({"routing_requirements": []}),
            json!({"routing_requirements": null}),
        ] {
            let (kind, detail) = refusal(bad.clone());
            assert_eq!(kind, ValidationKind::InvalidPolicyJson, "{bad}");
            assert!(detail.starts_with("malformed"), "{detail}");
        }
    }

    #[test]
    fn bad_required_capabilities_are_refused_never_dropped() {
        let required = |list: Value| refusal(json!({"routing_requirements": {"required_capabilities": list}}));
        for (list, why) in [
            (json!("gpu"), "not_array"),
            (json!(null), "not_array"),
            (json!([1]), "non_string_token"),
            (json!([""]), "empty_token"),
            (json!(["a,b"]), "comma_in_token"),
            (json!(["a b"]), "control_or_whitespace"),
            (json!((0..257).map(|i| i.to_string()).collect::<Vec<_>>()), "too_many_tokens"),
            (json!(["x".repeat(4097)]), "too_many_bytes"),
        ] {
            assert_eq!(required(list), (ValidationKind::InvalidCapabilities, format!("required:{why}")));
        }
    }

    #[test]
    fn a_malformed_document_is_reported_before_its_capabilities() {
        let both = json!({"routing_requirements": {"required_capabilities": 1}, "retry_policy": 1});
        assert_eq!(refusal(both).0, ValidationKind::InvalidPolicyJson);
    }

    proptest! {
        #[test]
        fn a_policy_survives_its_document(policy: ExecutionPolicy) {
            let back = PolicyDocument::from(&policy).decode().expect("decodes");
            prop_assert_eq!(back.requirement().expect("valid"), policy.requirement().expect("valid"));
            prop_assert_eq!(back, policy);
        }
    }
}
