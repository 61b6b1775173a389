//! What a suspended execution waits for.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::words::words;

/// Which signals count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SignalMatcher {
    /// Signals of exactly this name.
    ByName {
        /// The name; not empty.
        name: String,
    },
    /// Every signal.
    Wildcard {},
}

impl SignalMatcher {
    /// Signals of exactly this name.
    pub fn by_name(name: impl Into<String>) -> Self {
        Self::ByName { name: name.into() }
    }

    /// Whether a signal of this name counts.
    #[must_use]
    pub fn accepts(&self, signal_name: &str) -> bool {
        match self {
            Self::ByName { name } => name == signal_name,
            Self::Wildcard {} => true,
        }
    }
}

words! {
    /// What a counting condition counts; repetitions of the same thing count once.
    pub enum CountKind {
        /// Waitpoints that were signalled.
        DistinctWaitpoints = "distinct_waitpoints",
        /// Signals, by id.
        DistinctSignals = "distinct_signals",
        /// Senders, by source type and source identity; all anonymous senders of a type are one.
        DistinctSources = "distinct_sources",
    }
}

words! {
    /// The root of a resume condition, without its content.
    pub enum ConditionKind {
        /// One matching signal on one waitpoint.
        Single = "single",
        /// Nothing but an operator.
        OperatorOnly = "operator_only",
        /// Nothing but the timeout, or an operator.
        TimeoutOnly = "timeout_only",
        /// Several conditions together.
        AllOf = "all_of",
        /// Enough distinct waitpoints, signals or senders.
        Count = "count",
    }
}

/// What must have arrived before a suspended execution goes on. Once it holds, it holds for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResumeCondition {
    /// One matching signal on the waitpoint.
    Single {
        /// Key of the waitpoint.
        waitpoint_key: String,
        /// Which signals count.
        matcher: SignalMatcher,
    },
    /// No signal ever satisfies this; an operator resumes.
    OperatorOnly {},
    /// No signal ever satisfies this; the timeout decides. Needs a timeout.
    TimeoutOnly {},
    /// Every member holds.
    AllOf {
        /// The members; not empty.
        members: Vec<ResumeCondition>,
    },
    /// At least `n` distinct things arrived on the listed waitpoints. Any-of is `n` = 1.
    Count {
        /// How many; not zero.
        n: u32,
        /// What is counted.
        count_kind: CountKind,
        /// Which signals count; all when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        matcher: Option<SignalMatcher>,
        /// Keys of the waitpoints; not empty.
        waitpoints: Vec<String>,
    },
}

impl ResumeCondition {
    /// The kind of the root.
    #[must_use]
    pub const fn kind(&self) -> ConditionKind {
        match self {
            Self::Single { .. } => ConditionKind::Single,
            Self::OperatorOnly {} => ConditionKind::OperatorOnly,
            Self::TimeoutOnly {} => ConditionKind::TimeoutOnly,
            Self::AllOf { .. } => ConditionKind::AllOf,
            Self::Count { .. } => ConditionKind::Count,
        }
    }

    /// Every waitpoint key the condition names.
    #[must_use]
    pub fn waitpoint_keys(&self) -> BTreeSet<&str> {
        match self {
            Self::Single { waitpoint_key, .. } => BTreeSet::from([waitpoint_key.as_str()]),
            Self::OperatorOnly {} | Self::TimeoutOnly {} => BTreeSet::new(),
            Self::AllOf { members } => members.iter().flat_map(Self::waitpoint_keys).collect(),
            Self::Count { waitpoints, .. } => waitpoints.iter().map(String::as_str).collect(),
        }
    }

    /// The signal names that count on a waitpoint; a wildcard adds none.
    #[must_use]
    pub fn required_signal_names(&self, key: &str) -> BTreeSet<&str> {
        match self {
            Self::Single { waitpoint_key, matcher: SignalMatcher::ByName { name } } if waitpoint_key == key => {
                BTreeSet::from([name.as_str()])
            }
            Self::Count { matcher: Some(SignalMatcher::ByName { name }), waitpoints, .. }
                if waitpoints.iter().any(|listed| listed == key) =>
            {
                BTreeSet::from([name.as_str()])
            }
            Self::AllOf { members } => members.iter().flat_map(|member| member.required_signal_names(key)).collect(),
            _ => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for ResumeCondition {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    /// Conditions over the keys `a` to `d` and the names `x` and `y`, so that signals have a chance to match.
    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        let matcher =
            || prop_oneof!["[xy]".prop_map(|name| SignalMatcher::ByName { name }), Just(SignalMatcher::Wildcard {}),];
        let single = ("[a-d]", matcher()).prop_map(|(waitpoint_key, matcher)| Self::Single { waitpoint_key, matcher });
        let count =
            (1..4u32, any::<CountKind>(), proptest::option::of(matcher()), proptest::collection::vec("[a-d]", 1..4))
                .prop_map(|(n, count_kind, matcher, waitpoints)| Self::Count { n, count_kind, matcher, waitpoints });
        prop_oneof![
            4 => single,
            4 => count,
            1 => Just(Self::OperatorOnly {}),
            1 => Just(Self::TimeoutOnly {}),
        ]
        .prop_recursive(3, 12, 3, |inner| {
            proptest::collection::vec(inner, 1..4).prop_map(|members| Self::AllOf { members })
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::json_round_trips!(SignalMatcher, ResumeCondition);

    #[test]
    fn a_condition_reads_as_one_tagged_object() {
        let condition: ResumeCondition = serde_json::from_str(
            r#"{"type":"all_of","members":[
                {"type":"single","waitpoint_key":"a","matcher":{"type":"by_name","name":"go"}},
                {"type":"count","n":2,"count_kind":"distinct_sources","waitpoints":["b","c"]},
                {"type":"operator_only"}]}"#,
        )
        .expect("a condition");
        assert_eq!(condition.kind(), ConditionKind::AllOf);
        assert_eq!(condition.waitpoint_keys(), BTreeSet::from(["a", "b", "c"]));
        let extra = serde_json::from_str::<ResumeCondition>(r#"{"type":"operator_only","signal":"x"}"#);
        assert!(extra.is_err(), "an unknown field beside a lone tag is refused");
    }

    #[test]
    fn a_kind_is_spelled_as_the_tag_of_its_condition() {
        let conditions = [
            ResumeCondition::Single { waitpoint_key: "a".into(), matcher: SignalMatcher::Wildcard {} },
            ResumeCondition::OperatorOnly {},
            ResumeCondition::TimeoutOnly {},
            ResumeCondition::AllOf { members: vec![] },
            ResumeCondition::Count { n: 1, count_kind: CountKind::DistinctSignals, matcher: None, waitpoints: vec![] },
        ];
        for condition in conditions {
            let json = serde_json::to_value(&condition).expect("serializes");
            assert_eq!(json["type"], condition.kind().as_str());
        }
    }

    #[test]
    fn required_names_are_those_of_the_waitpoint_asked_for() {
        let named = |key: &str, name: &str| ResumeCondition::Single {
            waitpoint_key: key.into(),
            matcher: SignalMatcher::by_name(name),
        };
        let condition = ResumeCondition::AllOf {
            members: vec![
                named("a", "paid"),
                named("b", "sent"),
                ResumeCondition::Single { waitpoint_key: "a".into(), matcher: SignalMatcher::Wildcard {} },
                ResumeCondition::Count {
                    n: 1,
                    count_kind: CountKind::DistinctSignals,
                    matcher: Some(SignalMatcher::by_name("approved")),
                    waitpoints: vec!["a".into(), "c".into()],
                },
            ],
        };
        assert_eq!(condition.required_signal_names("a"), BTreeSet::from(["approved", "paid"]));
        assert_eq!(condition.required_signal_names("c"), BTreeSet::from(["approved"]));
        assert!(condition.required_signal_names("d").is_empty());
    }
}
