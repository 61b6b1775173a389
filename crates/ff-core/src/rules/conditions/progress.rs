//! How far a condition has come.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Node, ROOT, member_path, nodes};
use crate::backend::signals::SignalEffect;
use crate::backend::suspension::{CountKind, ResumeCondition};
use crate::fault::{Fault, is_on};
use crate::ids::{SignalId, WaitpointId};

/// What a condition needs to know about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFacts<'a> {
    /// The signal.
    pub signal_id: SignalId,
    /// The waitpoint it came to.
    pub waitpoint_id: WaitpointId,
    /// The key in that waitpoint's record.
    pub waitpoint_key: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What kind of sender.
    pub source_type: &'a str,
    /// Which sender.
    pub source_identity: &'a str,
}

/// A signal that counted, by waitpoint and id: one sender may use the same id at two waitpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct MatchedSignal {
    /// The waitpoint it came to.
    pub waitpoint_id: WaitpointId,
    /// The signal.
    pub signal_id: SignalId,
}

/// What a signal stands for at one node of a condition; the same thing counts once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Satisfier {
    /// A single condition was met.
    Leaf {},
    /// A waitpoint was signalled.
    Waitpoint {
        /// The waitpoint.
        waitpoint_id: WaitpointId,
    },
    /// A signal arrived.
    Signal {
        /// The signal.
        signal_id: SignalId,
    },
    /// A sender sent.
    Source {
        /// What kind of sender.
        source_type: String,
        /// Which sender.
        source_identity: String,
    },
}

/// What has been counted towards one condition. It belongs to that condition and makes no sense with another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ConditionProgress {
    /// What was counted at each node, by the node's path.
    #[serde(default)]
    satisfiers: BTreeMap<String, BTreeSet<Satisfier>>,
    /// The signals that added something, in order of arrival.
    #[serde(default)]
    matched: Vec<MatchedSignal>,
    /// Whether the condition holds; if so the last matched signal made it.
    #[serde(default)]
    satisfied: bool,
}

impl ConditionProgress {
    /// Whether the condition holds. Once it does, nothing changes any more.
    #[must_use]
    pub const fn is_satisfied(&self) -> bool {
        self.satisfied
    }

    /// The signals that counted, in order of arrival; after a resume, those that explain it.
    #[must_use]
    pub fn matched(&self) -> &[MatchedSignal] {
        &self.matched
    }

    /// The signal that made the condition hold.
    #[must_use]
    pub fn closer(&self) -> Option<MatchedSignal> {
        self.matched.last().copied().filter(|_| self.satisfied)
    }

    /// Counts a signal towards the condition. The order of signals makes no difference to whether it holds in the end.
    pub fn apply(&mut self, condition: &ResumeCondition, signal: &SignalFacts<'_>) -> SignalEffect {
        let composite = matches!(condition, ResumeCondition::AllOf { .. } | ResumeCondition::Count { .. });
        match self.count(condition, signal) {
            Counted::New if self.satisfied => SignalEffect::ResumeConditionSatisfied,
            Counted::New => SignalEffect::AppendedToWaitpoint,
            _ if !composite => SignalEffect::NoOp,
            Counted::Again => SignalEffect::AppendedToWaitpointDuplicate,
            Counted::WrongName => SignalEffect::SignalIgnoredMatcherFailed,
            Counted::Elsewhere => SignalEffect::SignalIgnoredNotInCondition,
        }
    }

    fn count(&mut self, condition: &ResumeCondition, signal: &SignalFacts<'_>) -> Counted {
        let mut best = Counted::Elsewhere;
        for node in nodes(condition).iter().filter(|node| node.lists(signal.waitpoint_key)) {
            let counted = if node.matcher().is_some_and(|matcher| !matcher.accepts(signal.name)) {
                Counted::WrongName
            } else if !self.satisfied && self.record(node, signal) {
                Counted::New
            } else {
                Counted::Again
            };
            best = best.max(counted);
        }
        if best == Counted::New {
            self.matched.push(MatchedSignal { waitpoint_id: signal.waitpoint_id, signal_id: signal.signal_id });
            self.satisfied = self.holds(condition, ROOT);
        }
        best
    }

    /// Whether the node had not counted this before.
    fn record(&mut self, node: &Node<'_>, signal: &SignalFacts<'_>) -> bool {
        let satisfier = match node.condition {
            ResumeCondition::Count { count_kind, .. } => counted_as(*count_kind, signal),
            _ => Satisfier::Leaf {},
        };
        self.satisfiers.entry(pool(&node.path).to_owned()).or_default().insert(satisfier)
    }

    fn holds(&self, condition: &ResumeCondition, path: &str) -> bool {
        let counted = self.satisfiers.get(pool(path)).map_or(0, BTreeSet::len);
        match condition {
            ResumeCondition::Single { .. } => counted > 0,
            ResumeCondition::OperatorOnly {} | ResumeCondition::TimeoutOnly {} => false,
            ResumeCondition::AllOf { members } => {
                members.iter().enumerate().all(|(index, member)| self.holds(member, &member_path(path, index)))
            }
            ResumeCondition::Count { n, .. } => counted >= *n as usize,
        }
    }
}

/// Where the satisfiers of a node are kept: apart from those of all others.
fn pool(path: &str) -> &str {
    if is_on(Fault::SatisfiersPooled) { ROOT } else { path }
}

fn counted_as(kind: CountKind, signal: &SignalFacts<'_>) -> Satisfier {
    match kind {
        CountKind::DistinctWaitpoints => Satisfier::Waitpoint { waitpoint_id: signal.waitpoint_id },
        CountKind::DistinctSignals => Satisfier::Signal { signal_id: signal.signal_id },
        CountKind::DistinctSources => Satisfier::Source {
            source_type: signal.source_type.to_owned(),
            source_identity: signal.source_identity.to_owned(),
        },
    }
}

/// What a signal was worth, from least to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    /// No node listens to its waitpoint.
    Elsewhere,
    /// Nodes listen, but to other names.
    WrongName,
    /// What it stands for was counted before.
    Again,
    /// It added something.
    New,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::suspension::SignalMatcher;
    use proptest::prelude::*;
    use uuid::Uuid;

    crate::testing::json_round_trips!(ConditionProgress, MatchedSignal, Satisfier);

    /// A signal as tests write it; the waitpoint's id follows from its key.
    #[derive(Clone, Debug, proptest_derive::Arbitrary)]
    struct Sent {
        #[proptest(strategy = "0..6u8")]
        id: u8,
        #[proptest(strategy = "\"[a-e]\"")]
        key: String,
        #[proptest(strategy = "\"[xyz]\"")]
        name: String,
        #[proptest(strategy = "\"[u:]{0,2}\"")]
        source_type: String,
        #[proptest(strategy = "\"[u:]{0,2}\"")]
        source_identity: String,
    }

    fn sent(id: u8, key: &str, name: &str, source_identity: &str) -> Sent {
        Sent {
            id,
            key: key.into(),
            name: name.into(),
            source_type: "user".into(),
            source_identity: source_identity.into(),
        }
    }

    impl Sent {
        fn facts(&self) -> SignalFacts<'_> {
            SignalFacts {
                signal_id: SignalId::from_uuid(Uuid::from_u128(self.id.into())),
                waitpoint_id: waitpoint(&self.key),
                waitpoint_key: &self.key,
                name: &self.name,
                source_type: &self.source_type,
                source_identity: &self.source_identity,
            }
        }

        fn matched(&self) -> MatchedSignal {
            MatchedSignal { waitpoint_id: self.facts().waitpoint_id, signal_id: self.facts().signal_id }
        }
    }

    fn waitpoint(key: &str) -> WaitpointId {
        WaitpointId::from_uuid(Uuid::from_u128(key.bytes().map(u128::from).sum()))
    }

    fn single(key: &str, name: &str) -> ResumeCondition {
        ResumeCondition::Single { waitpoint_key: key.into(), matcher: SignalMatcher::by_name(name) }
    }

    fn count(n: u32, count_kind: CountKind, keys: &[&str]) -> ResumeCondition {
        let waitpoints = keys.iter().map(|&key| key.to_owned()).collect();
        ResumeCondition::Count { n, count_kind, matcher: None, waitpoints }
    }

    fn all(members: Vec<ResumeCondition>) -> ResumeCondition {
        ResumeCondition::AllOf { members }
    }

    fn run<'a>(condition: &ResumeCondition, signals: impl IntoIterator<Item = &'a Sent>) -> ConditionProgress {
        let mut progress = ConditionProgress::default();
        for signal in signals {
            progress.apply(condition, &signal.facts());
        }
        progress
    }

    fn effects(condition: &ResumeCondition, signals: &[Sent]) -> Vec<SignalEffect> {
        let mut progress = ConditionProgress::default();
        signals.iter().map(|signal| progress.apply(condition, &signal.facts())).collect()
    }

    /// The definition of a condition, over all signals at once and without any state.
    fn holds_over(condition: &ResumeCondition, signals: &[Sent]) -> bool {
        match condition {
            ResumeCondition::Single { waitpoint_key, matcher } => {
                signals.iter().any(|signal| signal.key == *waitpoint_key && matcher.accepts(&signal.name))
            }
            ResumeCondition::OperatorOnly {} | ResumeCondition::TimeoutOnly {} => false,
            ResumeCondition::AllOf { members } => members.iter().all(|member| holds_over(member, signals)),
            ResumeCondition::Count { n, count_kind, matcher, waitpoints } => {
                let counting = signals.iter().filter(|signal| {
                    waitpoints.contains(&signal.key) && matcher.as_ref().is_none_or(|m| m.accepts(&signal.name))
                });
                let distinct: std::collections::HashSet<_> = counting
                    .map(|signal| match count_kind {
                        CountKind::DistinctWaitpoints => vec![signal.key.clone()],
                        CountKind::DistinctSignals => vec![signal.id.to_string()],
                        CountKind::DistinctSources => vec![signal.source_type.clone(), signal.source_identity.clone()],
                    })
                    .collect();
                distinct.len() >= *n as usize
            }
        }
    }

    #[test]
    fn a_single_condition_ignores_everything_but_its_signal() {
        let condition = single("a", "go");
        let signals =
            [sent(1, "a", "stop", ""), sent(2, "b", "go", ""), sent(3, "a", "go", ""), sent(4, "a", "go", "")];
        assert_eq!(
            effects(&condition, &signals),
            [SignalEffect::NoOp, SignalEffect::NoOp, SignalEffect::ResumeConditionSatisfied, SignalEffect::NoOp,]
        );
        let progress = run(&condition, &signals);
        assert_eq!(progress.matched(), [signals[2].matched()]);
        assert_eq!(progress.closer(), Some(signals[2].matched()));
    }

    #[test]
    fn a_wildcard_takes_any_name() {
        let condition = ResumeCondition::Single { waitpoint_key: "a".into(), matcher: SignalMatcher::Wildcard {} };
        assert_eq!(effects(&condition, &[sent(1, "a", "any", "")]), [SignalEffect::ResumeConditionSatisfied]);
    }

    #[test]
    fn no_signal_resumes_what_only_an_operator_or_a_timeout_may() {
        for condition in [ResumeCondition::OperatorOnly {}, ResumeCondition::TimeoutOnly {}] {
            assert_eq!(effects(&condition, &[sent(1, "a", "go", "")]), [SignalEffect::NoOp]);
            let inside = all(vec![condition, single("a", "go")]);
            assert_eq!(
                effects(&inside, &[sent(1, "a", "go", ""), sent(2, "b", "go", "")]),
                [SignalEffect::AppendedToWaitpoint, SignalEffect::SignalIgnoredNotInCondition]
            );
            assert!(!run(&inside, &[sent(1, "a", "go", "")]).is_satisfied());
        }
    }

    #[test]
    fn a_composite_says_why_a_signal_did_not_count() {
        let condition = all(vec![single("a", "go"), single("b", "go")]);
        let signals = [
            sent(1, "c", "go", ""),
            sent(2, "a", "stop", ""),
            sent(3, "a", "go", ""),
            sent(4, "a", "go", ""),
            sent(5, "b", "go", ""),
        ];
        assert_eq!(
            effects(&condition, &signals),
            [
                SignalEffect::SignalIgnoredNotInCondition,
                SignalEffect::SignalIgnoredMatcherFailed,
                SignalEffect::AppendedToWaitpoint,
                SignalEffect::AppendedToWaitpointDuplicate,
                SignalEffect::ResumeConditionSatisfied,
            ]
        );
        let progress = run(&condition, &signals);
        assert_eq!(progress.matched(), [signals[2].matched(), signals[4].matched()]);
        assert_eq!(progress.closer(), Some(signals[4].matched()));
    }

    #[test]
    fn a_signal_counts_when_one_node_takes_it_though_another_wants_other_names() {
        let condition = all(vec![single("a", "go"), single("a", "done")]);
        assert_eq!(
            effects(&condition, &[sent(1, "a", "go", ""), sent(2, "a", "done", "")]),
            [SignalEffect::AppendedToWaitpoint, SignalEffect::ResumeConditionSatisfied]
        );
    }

    #[test]
    fn nothing_counts_after_the_condition_holds() {
        let condition = count(1, CountKind::DistinctSignals, &["a"]);
        let first = sent(1, "a", "x", "");
        let mut progress = run(&condition, [&first]);
        let before = progress.clone();
        let late = sent(2, "a", "x", "");
        assert_eq!(progress.apply(&condition, &late.facts()), SignalEffect::AppendedToWaitpointDuplicate);
        assert_eq!(progress, before);
        assert_eq!(progress.closer(), Some(first.matched()));
    }

    #[test]
    fn two_approvers_are_needed_when_two_sources_are_counted() {
        let condition = count(2, CountKind::DistinctSources, &["a"]);
        assert_eq!(
            effects(&condition, &[sent(1, "a", "ok", "ann"), sent(2, "a", "ok", "ann"), sent(3, "a", "ok", "bob")]),
            [
                SignalEffect::AppendedToWaitpoint,
                SignalEffect::AppendedToWaitpointDuplicate,
                SignalEffect::ResumeConditionSatisfied,
            ]
        );
    }

    #[test]
    fn a_source_is_not_mistaken_for_another_that_spells_alike() {
        let condition = count(2, CountKind::DistinctSources, &["a"]);
        let mut one = sent(1, "a", "ok", "b:c");
        one.source_type = "a".into();
        let mut two = sent(2, "a", "ok", "c");
        two.source_type = "a:b".into();
        assert!(run(&condition, [&one, &two]).is_satisfied());
    }

    #[test]
    fn one_signal_id_at_two_waitpoints_is_one_signal_and_two_waitpoints() {
        let signals = [sent(1, "a", "x", ""), sent(1, "b", "x", "")];
        assert!(!run(&count(2, CountKind::DistinctSignals, &["a", "b"]), &signals).is_satisfied());
        let progress = run(&count(2, CountKind::DistinctWaitpoints, &["a", "b"]), &signals);
        assert!(progress.is_satisfied());
        assert_eq!(progress.matched(), [signals[0].matched(), signals[1].matched()]);
    }

    #[test]
    fn progress_is_stored_with_the_place_of_each_node() {
        let condition = all(vec![single("a", "x"), all(vec![count(2, CountKind::DistinctSignals, &["a"])])]);
        let json = serde_json::to_value(run(&condition, [&sent(1, "a", "x", "")])).expect("serializes");
        let id = Uuid::from_u128(1);
        assert_eq!(
            json["satisfiers"],
            serde_json::json!({
                "members[0]": [{"type": "leaf"}],
                "members[1].members[0]": [{"type": "signal", "signal_id": id}],
            })
        );
    }

    fn signals() -> impl Strategy<Value = Vec<Sent>> {
        proptest::collection::vec(any::<Sent>(), 0..14)
    }

    proptest! {
        #[test]
        fn signals_in_any_order_come_to_the_definition(
            condition: ResumeCondition,
            (given, shuffled) in signals().prop_flat_map(|given| (Just(given.clone()), Just(given).prop_shuffle())),
        ) {
            let expected = holds_over(&condition, &given);
            prop_assert_eq!(run(&condition, &given).is_satisfied(), expected);
            prop_assert_eq!(run(&condition, &shuffled).is_satisfied(), expected);
        }

        #[test]
        fn before_the_condition_holds_the_order_does_not_even_show(
            condition: ResumeCondition,
            (given, shuffled) in signals().prop_flat_map(|given| (Just(given.clone()), Just(given).prop_shuffle())),
        ) {
            let (one, two) = (run(&condition, &given), run(&condition, &shuffled));
            if !one.is_satisfied() {
                prop_assert_eq!(one.satisfiers, two.satisfiers);
            }
        }

        #[test]
        fn a_satisfied_node_never_becomes_unsatisfied(condition: ResumeCondition, given in signals()) {
            let mut progress = ConditionProgress::default();
            let mut held = BTreeSet::new();
            for signal in &given {
                progress.apply(&condition, &signal.facts());
                let tree = nodes(&condition);
                let holding = tree.iter().filter(|node| progress.holds(node.condition, &node.path));
                let now: BTreeSet<String> = holding.map(|node| node.path.clone()).collect();
                prop_assert!(held.is_subset(&now), "{:?} then {:?}", held, now);
                prop_assert_eq!(now.contains(ROOT), progress.is_satisfied());
                held = now;
            }
        }

        #[test]
        fn the_condition_is_satisfied_exactly_once_and_by_its_closer(condition: ResumeCondition, given in signals()) {
            let told = effects(&condition, &given);
            let closing: Vec<_> = (0..given.len())
                .filter(|&index| told[index] == SignalEffect::ResumeConditionSatisfied)
                .collect();
            let progress = run(&condition, &given);
            prop_assert_eq!(closing.len(), usize::from(progress.is_satisfied()));
            prop_assert_eq!(progress.closer(), closing.first().map(|&index| given[index].matched()));
            let counted = told.iter().filter(|effect| {
                matches!(effect, SignalEffect::AppendedToWaitpoint | SignalEffect::ResumeConditionSatisfied)
            });
            prop_assert_eq!(progress.matched().len(), counted.count());
        }

        #[test]
        fn progress_survives_being_stored_between_signals(condition: ResumeCondition, given in signals()) {
            let mut stored = String::from("{}");
            for signal in &given {
                let mut progress: ConditionProgress = serde_json::from_str(&stored).expect("parses");
                progress.apply(&condition, &signal.facts());
                stored = serde_json::to_string(&progress).expect("serializes");
            }
            let progress: ConditionProgress = serde_json::from_str(&stored).expect("parses");
            prop_assert_eq!(progress, run(&condition, &given));
        }

        #[test]
        fn all_of_n_waitpoints_needs_each_of_them(n in 1..6usize, missing in 0..6usize, repeat in 1..3usize) {
            let keys = ["a", "b", "c", "d", "e", "f"];
            let condition = all(keys[..n].iter().map(|key| single(key, "x")).collect());
            let mut given: Vec<_> = keys[..n].iter().map(|key| sent(1, key, "x", "")).collect();
            prop_assert!(run(&condition, &given).is_satisfied());
            given.remove(missing % n);
            let repeated = given.iter().cycle().take(given.len() * repeat);
            prop_assert!(!run(&condition, repeated).is_satisfied());
        }

        #[test]
        fn count_n_needs_n_distinct_things_of_its_kind(n in 1..6u8, kind: CountKind, repeat in 1..4usize) {
            let keys = ["a", "b", "c", "d", "e", "f"];
            let condition = count(n.into(), kind, &keys);
            let different = |index: u8| match kind {
                CountKind::DistinctWaitpoints => sent(index, keys[usize::from(index)], "x", "same"),
                CountKind::DistinctSignals => sent(index, "a", "x", "same"),
                CountKind::DistinctSources => sent(index, "a", "x", &index.to_string()),
            };
            let given: Vec<_> = (0..n).map(different).collect();
            let too_few = &given[1..];
            let repeated = too_few.iter().cycle().take(too_few.len() * repeat);
            prop_assert!(!run(&condition, repeated).is_satisfied());
            prop_assert!(run(&condition, &given).is_satisfied());
        }

        #[test]
        fn two_counts_do_not_feed_each_other(kind: CountKind, given in signals()) {
            let condition = all(vec![count(1, kind, &["a", "b"]), count(1, kind, &["c", "d"])]);
            let one_side: Vec<_> = given.into_iter().filter(|signal| ["a", "b"].contains(&&*signal.key)).collect();
            prop_assert!(!run(&condition, &one_side).is_satisfied());
        }
    }
}
