//! Which suspensions make sense, told before anything is loaded. A refusal is `InvalidInput` and starts with its code.

use std::collections::BTreeSet;

use super::{Node, nodes};
use crate::backend::suspension::{CountKind, ResumeCondition, SignalMatcher, SuspendArgs, WaitpointBinding};
use crate::error::{EngineError, Result};
use crate::ids::check_free_string;
use crate::time::TimestampMs;

/// Most composites inside each other; the root composite is the first, leaves do not count.
pub const COMPOSITE_DEPTH_MAX: usize = 4;

/// How far behind the store's clock a caller's timeout may lie.
pub const TIMEOUT_SKEW_MS: u64 = 600_000;

/// Checks the structure of a suspend. What only a pending waitpoint's record can tell is left to
/// [`validate_pending_key`].
///
/// # Errors
/// `InvalidInput` with the code of the first broken rule.
pub fn validate_suspend(args: &SuspendArgs, now: TimestampMs) -> Result<()> {
    let Some(primary) = args.waitpoints.first() else {
        return Err(EngineError::invalid("waitpoints_empty"));
    };
    let nodes = nodes(&args.resume_condition);
    check_single_key(args, primary.key())?;
    check_binding_keys(&args.waitpoints)?;
    check_references(args, primary.key())?;
    check_timeout_only(args, &nodes)?;
    check_signal_names(&nodes)?;
    check_timeout(args.timeout_at, now)?;
    nodes.iter().try_for_each(check_composite)?;
    check_unique_ids(args)?;
    check_unique_keys(args, primary.key())?;
    check_free_strings(args, &nodes)
}

/// Checks the key of the pending waitpoint that a suspend binds as its primary.
///
/// # Errors
/// `InvalidInput` with `waitpoint_key_mismatch`, `referenced_waitpoint_key_missing_binding`,
/// `extra_binding_not_referenced_by_condition` or `duplicate_waitpoint_key`.
pub fn validate_pending_key(args: &SuspendArgs, key: &str) -> Result<()> {
    check_single_key(args, Some(key))?;
    check_references(args, Some(key))?;
    check_unique_keys(args, Some(key))
}

fn refuse(code: &str, path: &str) -> EngineError {
    EngineError::invalid(format_args!("{code} at {path}"))
}

fn check_single_key(args: &SuspendArgs, primary_key: Option<&str>) -> Result<()> {
    match (&args.resume_condition, primary_key) {
        (ResumeCondition::Single { waitpoint_key, .. }, Some(key)) if waitpoint_key != key => {
            Err(EngineError::invalid("waitpoint_key_mismatch"))
        }
        _ => Ok(()),
    }
}

fn check_binding_keys(bindings: &[WaitpointBinding]) -> Result<()> {
    for (index, binding) in bindings.iter().enumerate() {
        let code = match (index, binding.key()) {
            (0, Some("")) => "waitpoint_empty_key",
            (0, _) => continue,
            (_, None) => "additional_waitpoint_binding_must_be_fresh",
            (_, Some("")) => "additional_waitpoint_empty_key",
            (_, Some(_)) => continue,
        };
        return Err(refuse(code, &format!("waitpoints[{index}]")));
    }
    Ok(())
}

/// With several bindings, the bound keys and the keys the condition names are the same set.
fn check_references(args: &SuspendArgs, primary_key: Option<&str>) -> Result<()> {
    let Some((_, additional @ [_, ..])) = args.waitpoints.split_first() else {
        return Ok(());
    };
    let bound: BTreeSet<&str> =
        primary_key.into_iter().chain(additional.iter().filter_map(WaitpointBinding::key)).collect();
    let referenced = args.resume_condition.waitpoint_keys();
    // One unbound key may be that of a pending primary, whose record is not loaded yet.
    let unknown = usize::from(primary_key.is_none());
    if let Some(key) = referenced.difference(&bound).nth(unknown) {
        return Err(EngineError::invalid(format_args!("referenced_waitpoint_key_missing_binding: {key}")));
    }
    match bound.difference(&referenced).next() {
        Some(key) => Err(EngineError::invalid(format_args!("extra_binding_not_referenced_by_condition: {key}"))),
        None => Ok(()),
    }
}

fn check_timeout_only(args: &SuspendArgs, nodes: &[Node<'_>]) -> Result<()> {
    let waits_for_timeout = nodes.iter().any(|node| matches!(node.condition, ResumeCondition::TimeoutOnly {}));
    if waits_for_timeout && args.timeout_at.is_none() {
        return Err(EngineError::invalid("timeout_only_without_deadline"));
    }
    Ok(())
}

fn check_signal_names(nodes: &[Node<'_>]) -> Result<()> {
    match nodes.iter().find(|node| matches!(node.matcher(), Some(SignalMatcher::ByName { name }) if name.is_empty())) {
        Some(node) => Err(refuse("empty_signal_name", &node.path)),
        None => Ok(()),
    }
}

fn check_timeout(timeout_at: Option<TimestampMs>, now: TimestampMs) -> Result<()> {
    match timeout_at {
        Some(at) if at.plus(TIMEOUT_SKEW_MS) < now => Err(EngineError::invalid("timeout_at_in_past")),
        _ => Ok(()),
    }
}

fn check_composite(node: &Node<'_>) -> Result<()> {
    if node.depth > COMPOSITE_DEPTH_MAX {
        return Err(refuse("composite_depth_exceeded", &node.path));
    }
    let code = match node.condition {
        ResumeCondition::AllOf { members } if members.is_empty() => "allof_empty_members",
        ResumeCondition::Count { n: 0, .. } => "count_n_zero",
        ResumeCondition::Count { waitpoints, .. } if waitpoints.is_empty() => "count_waitpoints_empty",
        ResumeCondition::Count { n, count_kind: CountKind::DistinctWaitpoints, waitpoints, .. }
            if *n as usize > waitpoints.iter().collect::<BTreeSet<_>>().len() =>
        {
            "count_exceeds_waitpoint_set"
        }
        _ => return Ok(()),
    };
    Err(refuse(code, &node.path))
}

fn check_unique_ids(args: &SuspendArgs) -> Result<()> {
    let mut seen = BTreeSet::new();
    match args.waitpoints.iter().map(WaitpointBinding::waitpoint_id).find(|id| !seen.insert(*id)) {
        Some(id) => Err(EngineError::invalid(format_args!("duplicate_waitpoint_id: {id}"))),
        None => Ok(()),
    }
}

fn check_unique_keys(args: &SuspendArgs, primary_key: Option<&str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    let additional = args.waitpoints.iter().skip(1).filter_map(WaitpointBinding::key);
    match primary_key.into_iter().chain(additional).find(|key| !seen.insert(*key)) {
        Some(key) => Err(EngineError::invalid(format_args!("duplicate_waitpoint_key: {key}"))),
        None => Ok(()),
    }
}

fn check_free_strings(args: &SuspendArgs, nodes: &[Node<'_>]) -> Result<()> {
    for key in args.waitpoints.iter().filter_map(WaitpointBinding::key).chain(args.resume_condition.waitpoint_keys()) {
        check_free_string("waitpoint_key", key)?;
    }
    for matcher in nodes.iter().filter_map(Node::matcher) {
        if let SignalMatcher::ByName { name } = matcher {
            check_free_string("signal_name", name)?;
        }
    }
    check_free_string("continuation_metadata_pointer", args.continuation_metadata_pointer.as_deref().unwrap_or(""))?;
    check_free_string("idempotency_key", args.idempotency_key.as_deref().unwrap_or(""))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::suspension::SuspensionReasonCode;
    use crate::error::ValidationKind;
    use crate::ids::{SuspensionId, WaitpointId};
    use proptest::prelude::*;
    use uuid::Uuid;

    const NOW: TimestampMs = TimestampMs(10_000_000);

    fn waitpoint(bits: u128) -> WaitpointId {
        WaitpointId::from_uuid(Uuid::from_u128(bits))
    }

    fn fresh(bits: u128, key: &str) -> WaitpointBinding {
        WaitpointBinding::Fresh { waitpoint_id: waitpoint(bits), waitpoint_key: key.into() }
    }

    fn pending(bits: u128) -> WaitpointBinding {
        WaitpointBinding::UsePending { waitpoint_id: waitpoint(bits) }
    }

    fn single(key: &str) -> ResumeCondition {
        ResumeCondition::Single { waitpoint_key: key.into(), matcher: SignalMatcher::Wildcard {} }
    }

    fn all(members: Vec<ResumeCondition>) -> ResumeCondition {
        ResumeCondition::AllOf { members }
    }

    fn count(n: u32, count_kind: CountKind, waitpoints: &[&str]) -> ResumeCondition {
        let waitpoints = waitpoints.iter().map(|&key| key.to_owned()).collect();
        ResumeCondition::Count { n, count_kind, matcher: None, waitpoints }
    }

    fn nested(levels: usize) -> ResumeCondition {
        (0..levels).fold(single("a"), |inner, _| all(vec![inner]))
    }

    fn suspend(waitpoints: Vec<WaitpointBinding>, resume_condition: ResumeCondition) -> SuspendArgs {
        let id = SuspensionId::from_uuid(Uuid::from_u128(99));
        let mut args = SuspendArgs::new(id, fresh(0, ""), resume_condition, SuspensionReasonCode::WaitingForSignal);
        args.waitpoints = waitpoints;
        args
    }

    fn detail(result: Result<()>) -> String {
        match result {
            Ok(()) => "ok".into(),
            Err(EngineError::Validation { kind: ValidationKind::InvalidInput, detail }) => detail,
            Err(other) => panic!("not invalid input: {other:?}"),
        }
    }

    fn verdict(waitpoints: Vec<WaitpointBinding>, condition: ResumeCondition) -> String {
        detail(validate_suspend(&suspend(waitpoints, condition), NOW))
    }

    #[test]
    fn ordinary_suspensions_are_accepted() {
        assert_eq!(verdict(vec![fresh(1, "a")], single("a")), "ok");
        assert_eq!(verdict(vec![pending(1)], single("a")), "ok");
        assert_eq!(verdict(vec![fresh(1, "a")], ResumeCondition::OperatorOnly {}), "ok");
        assert_eq!(verdict(vec![fresh(1, "a"), fresh(2, "b")], all(vec![single("a"), single("b")])), "ok");
        assert_eq!(verdict(vec![pending(1), fresh(2, "b")], all(vec![single("a"), single("b")])), "ok");
    }

    #[test]
    fn a_suspend_needs_a_waitpoint() {
        assert_eq!(verdict(vec![], single("a")), "waitpoints_empty");
    }

    #[test]
    fn a_single_condition_names_its_primary_waitpoint() {
        assert_eq!(verdict(vec![fresh(1, "a")], single("b")), "waitpoint_key_mismatch");
    }

    #[test]
    fn keys_are_not_empty_and_only_the_primary_may_be_pending() {
        let both = || all(vec![single("a"), single("b")]);
        assert_eq!(
            verdict(vec![fresh(1, "a"), pending(2)], both()),
            "additional_waitpoint_binding_must_be_fresh at waitpoints[1]"
        );
        assert_eq!(
            verdict(vec![fresh(1, "a"), fresh(2, "b"), fresh(3, "")], both()),
            "additional_waitpoint_empty_key at waitpoints[2]"
        );
        assert_eq!(verdict(vec![fresh(1, "")], single("")), "waitpoint_empty_key at waitpoints[0]");
    }

    #[test]
    fn several_bindings_and_the_condition_name_the_same_keys() {
        let bindings = || vec![fresh(1, "a"), fresh(2, "b")];
        let three = all(vec![single("a"), single("b"), count(1, CountKind::DistinctSignals, &["c"])]);
        assert_eq!(verdict(bindings(), three), "referenced_waitpoint_key_missing_binding: c");
        assert_eq!(verdict(bindings(), single("a")), "extra_binding_not_referenced_by_condition: b");
        assert_eq!(
            verdict(bindings(), ResumeCondition::OperatorOnly {}),
            "extra_binding_not_referenced_by_condition: a"
        );
    }

    #[test]
    fn a_lone_binding_need_not_cover_every_key_of_a_composite() {
        assert_eq!(verdict(vec![fresh(1, "a")], count(1, CountKind::DistinctSignals, &["a", "b"])), "ok");
    }

    #[test]
    fn at_most_one_unbound_key_can_be_that_of_a_pending_primary() {
        let three = all(vec![single("a"), single("b"), single("c")]);
        assert_eq!(verdict(vec![pending(1), fresh(2, "b")], three), "referenced_waitpoint_key_missing_binding: c");
    }

    #[test]
    fn the_key_of_a_pending_primary_is_checked_once_it_is_known() {
        let check =
            |waitpoints, condition, key: &str| detail(validate_pending_key(&suspend(waitpoints, condition), key));
        let both = || all(vec![single("a"), single("b")]);
        assert_eq!(check(vec![pending(1)], single("a"), "a"), "ok");
        assert_eq!(check(vec![pending(1)], single("a"), "z"), "waitpoint_key_mismatch");
        assert_eq!(check(vec![pending(1), fresh(2, "b")], both(), "a"), "ok");
        assert_eq!(check(vec![pending(1), fresh(2, "b")], both(), "z"), "referenced_waitpoint_key_missing_binding: a");
        let only_b = count(1, CountKind::DistinctSignals, &["b"]);
        assert_eq!(
            check(vec![pending(1), fresh(2, "b")], only_b.clone(), "z"),
            "extra_binding_not_referenced_by_condition: z"
        );
        assert_eq!(check(vec![pending(1), fresh(2, "b")], only_b, "b"), "duplicate_waitpoint_key: b");
    }

    #[test]
    fn waiting_for_a_timeout_needs_one() {
        let mut args = suspend(vec![fresh(1, "a")], ResumeCondition::TimeoutOnly {});
        assert_eq!(detail(validate_suspend(&args, NOW)), "timeout_only_without_deadline");
        args.timeout_at = Some(NOW.plus(1));
        assert_eq!(detail(validate_suspend(&args, NOW)), "ok");
        let inside = all(vec![single("a"), ResumeCondition::TimeoutOnly {}]);
        assert_eq!(verdict(vec![fresh(1, "a")], inside), "timeout_only_without_deadline");
    }

    #[test]
    fn an_empty_signal_name_is_not_a_wildcard() {
        let empty = || SignalMatcher::by_name("");
        let leaf = ResumeCondition::Single { waitpoint_key: "a".into(), matcher: empty() };
        assert_eq!(verdict(vec![fresh(1, "a")], leaf.clone()), "empty_signal_name at <root>");
        assert_eq!(verdict(vec![fresh(1, "a")], all(vec![single("a"), leaf])), "empty_signal_name at members[1]");
        let counted = ResumeCondition::Count {
            n: 1,
            count_kind: CountKind::DistinctSignals,
            matcher: Some(empty()),
            waitpoints: vec!["a".into()],
        };
        assert_eq!(verdict(vec![fresh(1, "a")], counted), "empty_signal_name at <root>");
    }

    #[test]
    fn a_timeout_may_lie_ten_minutes_back_and_no_more() {
        let mut args = suspend(vec![fresh(1, "a")], single("a"));
        args.timeout_at = Some(TimestampMs(NOW.0 - 600_000));
        assert_eq!(detail(validate_suspend(&args, NOW)), "ok");
        args.timeout_at = Some(TimestampMs(NOW.0 - 600_001));
        assert_eq!(detail(validate_suspend(&args, NOW)), "timeout_at_in_past");
        args.timeout_at = Some(TimestampMs(i64::MAX));
        assert_eq!(detail(validate_suspend(&args, NOW)), "ok");
    }

    #[test]
    fn composites_have_members_and_can_be_met() {
        let one = |condition| verdict(vec![fresh(1, "a")], condition);
        assert_eq!(one(all(vec![])), "allof_empty_members at <root>");
        assert_eq!(
            one(all(vec![single("a"), all(vec![single("a"), all(vec![])])])),
            "allof_empty_members at members[1].members[1]"
        );
        assert_eq!(one(count(0, CountKind::DistinctSignals, &["a"])), "count_n_zero at <root>");
        assert_eq!(one(count(1, CountKind::DistinctSignals, &[])), "count_waitpoints_empty at <root>");
    }

    #[test]
    fn only_a_count_of_waitpoints_is_bounded_by_their_number() {
        let one = |condition| verdict(vec![fresh(1, "a")], condition);
        assert_eq!(one(count(2, CountKind::DistinctWaitpoints, &["a"])), "count_exceeds_waitpoint_set at <root>");
        assert_eq!(one(count(2, CountKind::DistinctWaitpoints, &["a", "a"])), "count_exceeds_waitpoint_set at <root>");
        assert_eq!(one(count(2, CountKind::DistinctSignals, &["a"])), "ok");
        assert_eq!(one(count(2, CountKind::DistinctSources, &["a"])), "ok");
    }

    #[test]
    fn four_composites_inside_each_other_are_enough() {
        assert_eq!(verdict(vec![fresh(1, "a")], nested(4)), "ok");
        assert_eq!(
            verdict(vec![fresh(1, "a")], nested(5)),
            "composite_depth_exceeded at members[0].members[0].members[0].members[0]"
        );
        let counted = (0..4).fold(count(1, CountKind::DistinctSignals, &["a"]), |inner, _| all(vec![inner]));
        assert!(verdict(vec![fresh(1, "a")], counted).starts_with("composite_depth_exceeded"));
    }

    #[test]
    fn ids_and_keys_are_not_used_twice_in_one_call() {
        let both = || all(vec![single("a"), single("b")]);
        let id = waitpoint(1);
        assert_eq!(verdict(vec![fresh(1, "a"), fresh(1, "b")], both()), format!("duplicate_waitpoint_id: {id}"));
        assert_eq!(verdict(vec![pending(1), fresh(1, "b")], both()), format!("duplicate_waitpoint_id: {id}"));
        assert_eq!(verdict(vec![fresh(1, "a"), fresh(2, "a")], single("a")), "duplicate_waitpoint_key: a");
        assert_eq!(verdict(vec![fresh(1, "a"), fresh(2, "b"), fresh(3, "b")], both()), "duplicate_waitpoint_key: b");
    }

    #[test]
    fn free_strings_are_short_and_printable() {
        let long = "k".repeat(257);
        assert!(verdict(vec![fresh(1, &long)], single(&long)).starts_with("waitpoint_key has 257 bytes"));
        let mut args = suspend(vec![fresh(1, "a")], single("a"));
        args.idempotency_key = Some("a\nb".into());
        assert!(detail(validate_suspend(&args, NOW)).starts_with("idempotency_key has a forbidden character"));
        args.idempotency_key = None;
        args.continuation_metadata_pointer = Some("p".repeat(257));
        assert!(detail(validate_suspend(&args, NOW)).starts_with("continuation_metadata_pointer has 257 bytes"));
        args.continuation_metadata_pointer = None;
        args.resume_condition =
            ResumeCondition::Single { waitpoint_key: "a".into(), matcher: SignalMatcher::by_name("x\u{7f}") };
        assert!(detail(validate_suspend(&args, NOW)).starts_with("signal_name has a forbidden character"));
    }

    #[test]
    fn the_first_broken_rule_of_the_list_is_reported() {
        let mut args = suspend(vec![fresh(1, "a"), fresh(1, "")], single("b"));
        args.timeout_at = Some(TimestampMs(0));
        assert_eq!(detail(validate_suspend(&args, NOW)), "waitpoint_key_mismatch");
        args.resume_condition = all(vec![]);
        assert_eq!(detail(validate_suspend(&args, NOW)), "additional_waitpoint_empty_key at waitpoints[1]");
        args.waitpoints.pop();
        assert_eq!(detail(validate_suspend(&args, NOW)), "timeout_at_in_past");
        args.timeout_at = None;
        assert_eq!(detail(validate_suspend(&args, NOW)), "allof_empty_members at <root>");
    }

    proptest! {
        #[test]
        fn any_request_gets_a_verdict_and_every_refusal_is_invalid_input(args: SuspendArgs, now: TimestampMs) {
            detail(validate_suspend(&args, now));
        }

        #[test]
        fn a_condition_over_bound_keys_is_accepted(condition: ResumeCondition) {
            let keys = condition.waitpoint_keys();
            prop_assume!(!keys.is_empty());
            let waitpoints = keys.iter().zip(1..).map(|(key, bits)| fresh(bits, key)).collect();
            let mut args = suspend(waitpoints, condition.clone());
            args.timeout_at = Some(NOW);
            let verdict = detail(validate_suspend(&args, NOW));
            // The generator keeps to the rules except that it may count more waitpoints than it lists.
            prop_assert!(verdict == "ok" || verdict.starts_with("count_exceeds_waitpoint_set"), "{}", verdict);
        }
    }
}
