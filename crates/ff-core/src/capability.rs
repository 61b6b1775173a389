//! What executions require and workers offer. A worker serves an execution when it offers every required token.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::words::words;

/// Most tokens of one set.
pub const CAPS_MAX_TOKENS: usize = 256;

/// Most bytes of one set written as a sorted comma list.
pub const CAPS_MAX_BYTES: usize = 4096;

words! {
    /// Whose capabilities a refusal is about.
    pub enum CapabilitySide {
        /// What an execution requires.
        Required = "required",
        /// What a worker offers.
        Worker = "worker",
    }
}

words! {
    /// What is wrong with a capability list.
    pub enum CapabilityFault {
        /// The list is not a JSON array.
        NotArray = "not_array",
        /// An item of the array is not a string.
        NonStringToken = "non_string_token",
        /// A token without content.
        EmptyToken = "empty_token",
        /// A token with the separator in it.
        CommaInToken = "comma_in_token",
        /// A token with a control character or whitespace.
        ControlOrWhitespace = "control_or_whitespace",
        /// More than [`CAPS_MAX_TOKENS`].
        TooManyTokens = "too_many_tokens",
        /// More than [`CAPS_MAX_BYTES`].
        TooManyBytes = "too_many_bytes",
    }
}

impl CapabilityFault {
    /// The refusal, `required:empty_token` for example.
    #[must_use]
    pub fn refusal(self, side: CapabilitySide) -> EngineError {
        EngineError::validation(ValidationKind::InvalidCapabilities, format_args!("{side}:{self}"))
    }
}

fn token_fault(side: CapabilitySide, token: &str) -> Option<CapabilityFault> {
    let blank = |c: char| c.is_ascii_control() || c == ' ' || (side == CapabilitySide::Worker && c.is_whitespace());
    if token.is_empty() {
        Some(CapabilityFault::EmptyToken)
    } else if token.contains(',') {
        Some(CapabilityFault::CommaInToken)
    } else if token.contains(blank) {
        Some(CapabilityFault::ControlOrWhitespace)
    } else {
        None
    }
}

/// Checks every token, then the number of tokens, then the bytes of the comma list.
///
/// # Errors
/// `InvalidCapabilities` with `<side>:<fault>`.
pub fn check_tokens(side: CapabilitySide, tokens: &BTreeSet<String>) -> Result<()> {
    if let Some(fault) = tokens.iter().find_map(|token| token_fault(side, token)) {
        return Err(fault.refusal(side));
    }
    if tokens.len() > CAPS_MAX_TOKENS {
        return Err(CapabilityFault::TooManyTokens.refusal(side));
    }
    let bytes = tokens.iter().map(String::len).sum::<usize>() + tokens.len().saturating_sub(1);
    if bytes > CAPS_MAX_BYTES {
        return Err(CapabilityFault::TooManyBytes.refusal(side));
    }
    Ok(())
}

/// Decodes and checks the required capabilities of a policy. Nothing is dropped: an empty set means "any worker".
///
/// # Errors
/// `InvalidCapabilities` with `required:<fault>`.
pub fn required_from_json(list: &serde_json::Value) -> Result<BTreeSet<String>> {
    let refuse = |fault: CapabilityFault| fault.refusal(CapabilitySide::Required);
    let items = list.as_array().ok_or_else(|| refuse(CapabilityFault::NotArray))?;
    let tokens = items
        .iter()
        .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| refuse(CapabilityFault::NonStringToken)))
        .collect::<Result<BTreeSet<_>>>()?;
    check_tokens(CapabilitySide::Required, &tokens)?;
    Ok(tokens)
}

/// What a worker offers, as it says so; [`CapabilitySet::check`] decides whether it is acceptable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CapabilitySet {
    /// The tokens.
    #[serde(default)]
    pub tokens: BTreeSet<String>,
}

impl CapabilitySet {
    /// A set of the given tokens.
    pub fn new<T: Into<String>>(tokens: impl IntoIterator<Item = T>) -> Self {
        Self { tokens: tokens.into_iter().map(Into::into).collect() }
    }

    /// Checks the tokens and the limits.
    ///
    /// # Errors
    /// `InvalidCapabilities` with `worker:<fault>`.
    pub fn check(&self) -> Result<()> {
        check_tokens(CapabilitySide::Worker, &self.tokens)
    }
}

/// The canonical set of required capabilities: a sorted comma list. Executions of one class are interchangeable for
/// routing; the empty class matches every worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RequirementClass(Arc<str>);

impl RequirementClass {
    /// The class of these tokens.
    ///
    /// # Errors
    /// `InvalidCapabilities` with `required:<fault>`.
    pub fn new(tokens: &BTreeSet<String>) -> Result<Self> {
        check_tokens(CapabilitySide::Required, tokens)?;
        Ok(Self(tokens.iter().map(String::as_str).collect::<Vec<_>>().join(",").into()))
    }

    /// The class a comma list stands for; order and repetition do not matter.
    ///
    /// # Errors
    /// `InvalidCapabilities` with `required:<fault>`.
    pub fn parse(list: &str) -> Result<Self> {
        if list.is_empty() {
            return Ok(Self::default());
        }
        Self::new(&list.split(',').map(str::to_owned).collect())
    }

    /// The sorted comma list.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether any worker will do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tokens, sorted.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').filter(|token| !token.is_empty())
    }

    /// Whether a worker with these tokens may serve the class. Case matters.
    #[must_use]
    pub fn is_covered_by(&self, offered: &BTreeSet<String>) -> bool {
        is_on(Fault::CapabilityIgnored) || self.tokens().all(|token| offered.contains(token))
    }

    /// The tokens such a worker lacks, as a sorted comma list; empty when it lacks none.
    #[must_use]
    pub fn missing(&self, offered: &BTreeSet<String>) -> String {
        self.tokens().filter(|token| !offered.contains(*token)).collect::<Vec<_>>().join(",")
    }

    /// Passes when a worker with these tokens may serve the class.
    ///
    /// # Errors
    /// `CapabilityMismatch` with the missing tokens.
    pub fn require(&self, offered: &BTreeSet<String>) -> Result<()> {
        let missing = self.missing(offered);
        if missing.is_empty() {
            return Ok(());
        }
        Err(EngineError::validation(ValidationKind::CapabilityMismatch, missing))
    }
}

impl Default for RequirementClass {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl fmt::Display for RequirementClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RequirementClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequirementClass({:?})", &self.0)
    }
}

impl<'de> Deserialize<'de> for RequirementClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for RequirementClass {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        proptest::collection::btree_set("[a-zé:=]{1,8}", 0..6)
            .prop_map(|tokens| Self::new(&tokens).expect("the pattern yields valid tokens"))
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn set(tokens: &[&str]) -> BTreeSet<String> {
        tokens.iter().map(|t| (*t).to_owned()).collect()
    }

    fn detail(result: Result<impl std::fmt::Debug>) -> String {
        match result {
            Err(EngineError::Validation { kind: ValidationKind::InvalidCapabilities, detail }) => detail,
            other => panic!("not refused as capabilities: {other:?}"),
        }
    }

    #[test]
    fn every_fault_of_a_token_is_named_with_its_side() {
        assert_eq!(detail(RequirementClass::new(&set(&[""]))), "required:empty_token");
        assert_eq!(detail(RequirementClass::new(&set(&["a,b"]))), "required:comma_in_token");
        for bad in ["a b", "a\t", "\u{7f}", "\u{0}x"] {
            assert_eq!(detail(RequirementClass::new(&set(&[bad]))), "required:control_or_whitespace");
            assert_eq!(detail(CapabilitySet::new([bad]).check()), "worker:control_or_whitespace");
        }
        assert_eq!(detail(required_from_json(&json!("gpu"))), "required:not_array");
        assert_eq!(detail(required_from_json(&json!(null))), "required:not_array");
        assert_eq!(detail(required_from_json(&json!(["gpu", 1]))), "required:non_string_token");
        assert_eq!(detail(required_from_json(&json!(["gpu", ""]))), "required:empty_token");
    }

    #[test]
    fn unicode_whitespace_is_refused_only_from_workers() {
        assert!(RequirementClass::new(&set(&["a\u{a0}b"])).is_ok());
        assert_eq!(detail(CapabilitySet::new(["a\u{a0}b"]).check()), "worker:control_or_whitespace");
        assert!(CapabilitySet::new(["größe=42"]).check().is_ok());
    }

    #[test]
    fn both_limits_are_inclusive() {
        let tokens = |n: usize| (0..n).map(|i| format!("{i:04}")).collect::<BTreeSet<_>>();
        assert!(check_tokens(CapabilitySide::Required, &tokens(CAPS_MAX_TOKENS)).is_ok());
        assert_eq!(
            detail(check_tokens(CapabilitySide::Worker, &tokens(CAPS_MAX_TOKENS + 1))),
            "worker:too_many_tokens"
        );
        let bytes = |n: usize| BTreeSet::from(["a".to_owned(), "b".repeat(n - 2)]);
        assert!(RequirementClass::new(&bytes(CAPS_MAX_BYTES)).is_ok_and(|c| c.as_str().len() == CAPS_MAX_BYTES));
        assert_eq!(detail(RequirementClass::new(&bytes(CAPS_MAX_BYTES + 1))), "required:too_many_bytes");
    }

    #[test]
    fn the_empty_requirement_matches_everyone() {
        let any = RequirementClass::default();
        assert!(any.is_empty() && any.is_covered_by(&set(&[])) && any.is_covered_by(&set(&["x"])));
        assert_eq!(any.tokens().count(), 0);
        assert_eq!(any, RequirementClass::new(&set(&[])).expect("empty is fine"));
    }

    #[test]
    fn missing_tokens_are_listed_sorted_and_case_matters() {
        let class = RequirementClass::parse("gpu,cuda,Arch").expect("valid");
        assert_eq!(class.as_str(), "Arch,cuda,gpu");
        assert_eq!(class.missing(&set(&["cuda", "arch"])), "Arch,gpu");
        let refusal = class.require(&set(&["cuda"]));
        assert!(matches!(
            refusal,
            Err(EngineError::Validation { kind: ValidationKind::CapabilityMismatch, detail }) if detail == "Arch,gpu"
        ));
        assert!(class.require(&set(&["gpu", "cuda", "Arch", "more"])).is_ok());
    }

    proptest! {
        #[test]
        fn a_class_is_covered_exactly_when_nothing_is_missing(class: RequirementClass, offered: RequirementClass) {
            let offered: BTreeSet<String> = offered.tokens().map(str::to_owned).collect();
            prop_assert_eq!(class.is_covered_by(&offered), class.missing(&offered).is_empty());
        }

        #[test]
        fn a_class_survives_its_own_text(class: RequirementClass) {
            prop_assert_eq!(&RequirementClass::parse(class.as_str()).expect("canonical"), &class);
        }
    }

    crate::testing::json_round_trips!(CapabilitySet, RequirementClass);
}
