//! Lists, and search by what users remember of an execution.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, LaneId, Namespace};
use crate::state::PublicState;
use crate::time::TimestampMs;

/// A tag with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct TagPair {
    /// The key.
    pub key: String,
    /// The value, matched exactly.
    pub value: String,
}

impl TagPair {
    /// Whether these tags hold exactly this pair.
    #[must_use]
    pub fn is_in(&self, tags: &BTreeMap<String, String>) -> bool {
        tags.get(&self.key) == Some(&self.value)
    }
}

/// A lane of one namespace; also the position after it in a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LaneKey {
    /// The tenant.
    pub namespace: Namespace,
    /// The lane.
    pub lane_id: LaneId,
}

/// Lanes in order of namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListLanesPage {
    /// The lanes.
    pub lanes: Vec<LaneKey>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<LaneKey>,
}

/// Executions of one partition in order of id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListExecutionsPage {
    /// The executions.
    pub executions: Vec<ExecutionId>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<ExecutionId>,
}

/// Opaque position in a search; only good for the search that made it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(transparent)]
pub struct SearchCursor(pub String);

/// What to search for; absent filters let everything through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SearchArgs {
    /// Only this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Only this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_id: Option<LaneId>,
    /// Only this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_state: Option<PublicState>,
    /// Only executions with exactly this tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<TagPair>,
    /// Created at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<TimestampMs>,
    /// Created before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_to: Option<TimestampMs>,
    /// Where the previous page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<SearchCursor>,
    /// Most entries of the page.
    #[serde(default = "limit_default")]
    pub limit: u32,
}

const fn limit_default() -> u32 {
    100
}

impl Default for SearchArgs {
    fn default() -> Self {
        Self {
            namespace: None,
            lane_id: None,
            kind: None,
            public_state: None,
            tag: None,
            created_from: None,
            created_to: None,
            cursor: None,
            limit: limit_default(),
        }
    }
}

impl SearchArgs {
    /// Whether an execution with these tags passes every filter.
    #[must_use]
    pub fn matches(&self, execution: &ExecutionSummary, tags: &BTreeMap<String, String>) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| *wanted == execution.namespace)
            && self.lane_id.as_ref().is_none_or(|wanted| *wanted == execution.lane_id)
            && self.kind.as_ref().is_none_or(|wanted| *wanted == execution.execution_kind)
            && self.public_state.is_none_or(|wanted| wanted == execution.public_state)
            && self.tag.as_ref().is_none_or(|wanted| wanted.is_in(tags))
            && self.created_from.is_none_or(|from| from <= execution.created_at)
            && self.created_to.is_none_or(|to| execution.created_at < to)
    }
}

/// One line of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionSummary {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its tenant.
    pub namespace: Namespace,
    /// Its lane.
    pub lane_id: LaneId,
    /// Which handler it is for.
    pub execution_kind: String,
    /// The label users see.
    pub public_state: PublicState,
    /// When it was created.
    pub created_at: TimestampMs,
}

/// Executions that match, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SearchPage {
    /// The executions.
    pub entries: Vec<ExecutionSummary>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<SearchCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer_round_trips, json_round_trips};
    use proptest::prelude::*;

    json_round_trips!(TagPair, LaneKey, SearchCursor, SearchArgs);
    answer_round_trips!(ListLanesPage, ListExecutionsPage, ExecutionSummary, SearchPage);

    #[test]
    fn an_empty_search_asks_for_a_hundred_of_everything() {
        let args: SearchArgs = serde_json::from_str("{}").expect("parses");
        assert_eq!(args, SearchArgs::default());
        assert_eq!(args.limit, 100);
    }

    proptest! {
        #[test]
        fn lanes_order_by_namespace_and_then_by_name(a: LaneKey, b: LaneKey) {
            let key = |k: &LaneKey| (k.namespace.clone(), k.lane_id.clone());
            prop_assert_eq!(a.cmp(&b), key(&a).cmp(&key(&b)));
        }

        #[test]
        fn an_execution_matches_a_search_for_its_own_traits(
            execution: ExecutionSummary,
            tag: TagPair,
            mut tags: BTreeMap<String, String>,
        ) {
            tags.insert(tag.key.clone(), tag.value.clone());
            let args = SearchArgs {
                namespace: Some(execution.namespace.clone()),
                lane_id: Some(execution.lane_id.clone()),
                kind: Some(execution.execution_kind.clone()),
                public_state: Some(execution.public_state),
                tag: Some(tag.clone()),
                created_from: Some(execution.created_at),
                created_to: Some(execution.created_at.plus(1)),
                ..SearchArgs::default()
            };
            prop_assume!(execution.created_at.0 < i64::MAX);
            prop_assert!(args.matches(&execution, &tags));
            prop_assert!(SearchArgs::default().matches(&execution, &tags));

            let ended = SearchArgs { created_to: Some(execution.created_at), ..SearchArgs::default() };
            prop_assert!(!ended.matches(&execution, &tags));
            let other = SearchArgs { kind: Some(format!("{}x", execution.execution_kind)), ..args.clone() };
            prop_assert!(!other.matches(&execution, &tags));
            tags.insert(tag.key, format!("{}x", tag.value));
            prop_assert!(!args.matches(&execution, &tags));
        }
    }
}
