//! Arithmetic of budgets: what a report does, what a release takes back, when a claim must wait.
//!
//! A limit of 0, or none, means unlimited. Dimensions are looked at in name order.

use std::collections::BTreeSet;

use crate::TimestampMs;
use crate::backend::budgets::{
    Amounts, BUDGET_DIMENSIONS_MAX, BreachAction, BudgetScope, CreateBudgetArgs, ReportUsageAdminArgs,
    ReportUsageResult, ScopeType, UsageDimensions,
};
use crate::error::{EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::ids::{LaneId, NameError, Namespace, check_free_string};
use crate::tag::is_tag_key;

/// The largest amount: what every store can hold.
pub const AMOUNT_MAX: u64 = i64::MAX.unsigned_abs();

/// How long a dedup key of a report is remembered.
pub const USAGE_DEDUP_MS: u64 = 24 * 60 * 60 * 1_000;

/// Refuses an amount that some store cannot hold.
///
/// # Errors
/// `InvalidInput` beyond [`AMOUNT_MAX`].
pub fn check_amount(what: &str, amount: u64) -> Result<()> {
    if amount > AMOUNT_MAX {
        return Err(EngineError::invalid(format_args!("{what}: {amount} is beyond {AMOUNT_MAX}")));
    }
    Ok(())
}

/// What a create request defines, once every field is found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetDefinition {
    /// Which executions come under it.
    pub scope: BudgetScope,
    /// What a hard breach does.
    pub on_hard_limit: BreachAction,
    /// What a soft breach does.
    pub on_soft_limit: BreachAction,
    /// The limits of every dimension.
    pub limits: BudgetLimits,
}

/// Limits by dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Usage never exceeds these.
    pub hard: Amounts,
    /// Usage above these is reported.
    pub soft: Amounts,
}

/// Checks a create request and gives what it defines.
///
/// # Errors
/// In order: `InvalidInput` for lists of unequal length, more than [`BUDGET_DIMENSIONS_MAX`] dimensions, a bad or
/// repeated name, a number beyond [`AMOUNT_MAX`], or an unknown action; `InvalidBudgetScope`.
pub fn check_create(args: &CreateBudgetArgs) -> Result<BudgetDefinition> {
    let (dimensions, hard, soft) = (&args.dimensions, &args.hard_limits, &args.soft_limits);
    if dimensions.len() != hard.len() || dimensions.len() != soft.len() {
        return Err(EngineError::invalid("dimensions, hard_limits and soft_limits differ in length"));
    }
    check_dimensions(dimensions.iter())?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = dimensions.iter().find(|dimension| !seen.insert(*dimension)) {
        return Err(EngineError::invalid(format_args!("dimension {twice:?} is given twice")));
    }
    for limit in hard.iter().chain(soft) {
        check_amount("limit", *limit)?;
    }
    check_amount("reset_interval_ms", args.reset_interval_ms)?;
    let on_hard_limit = parse_action("on_hard_limit", &args.on_hard_limit)?;
    if on_hard_limit == BreachAction::Warn {
        return Err(EngineError::invalid("on_hard_limit: warn is for soft limits"));
    }
    let on_soft_limit = parse_action("on_soft_limit", &args.on_soft_limit)?;
    let scope = parse_scope(&args.namespace, &args.scope_type, &args.scope_id)?;
    let by_name = |limits: &[u64]| dimensions.iter().cloned().zip(limits.iter().copied()).collect();
    let limits = BudgetLimits { hard: by_name(hard), soft: by_name(soft) };
    Ok(BudgetDefinition { scope, on_hard_limit, on_soft_limit, limits })
}

fn parse_action(field: &str, text: &str) -> Result<BreachAction> {
    text.parse().map_err(|unknown| EngineError::invalid(format_args!("{field}: {unknown}")))
}

fn check_dimensions<'a>(dimensions: impl ExactSizeIterator<Item = &'a String>) -> Result<()> {
    let len = dimensions.len();
    if len > BUDGET_DIMENSIONS_MAX {
        let detail = format_args!("dimensions: {len} given, at most {BUDGET_DIMENSIONS_MAX} are allowed");
        return Err(EngineError::invalid(detail));
    }
    for dimension in dimensions {
        if dimension.is_empty() {
            return Err(NameError::Empty { what: "dimension" }.into());
        }
        check_free_string("dimension", dimension)?;
    }
    Ok(())
}

/// The scope of a budget of `namespace`.
///
/// # Errors
/// `InvalidBudgetScope` when the type is empty or unknown, or the id does not fit the type.
pub fn parse_scope(namespace: &Namespace, scope_type: &str, scope_id: &str) -> Result<BudgetScope> {
    read_scope(namespace, scope_type, scope_id)
        .map_err(|detail| EngineError::validation(ValidationKind::InvalidBudgetScope, detail))
}

/// Reads a scope; the error says what is wrong.
pub(super) fn read_scope(namespace: &Namespace, scope_type: &str, scope_id: &str) -> Result<BudgetScope, String> {
    check_free_string("scope_id", scope_id).map_err(|error| error.to_string())?;
    match scope_type.parse::<ScopeType>().map_err(|error| error.to_string())? {
        ScopeType::Policy => Ok(BudgetScope::Policy {}),
        ScopeType::Namespace if scope_id.is_empty() || scope_id == namespace.as_str() => Ok(BudgetScope::Namespace {}),
        ScopeType::Namespace => Err(format!("namespace {scope_id:?} is not its own")),
        ScopeType::Lane => match LaneId::new(scope_id) {
            Ok(lane_id) => Ok(BudgetScope::Lane { lane_id }),
            Err(error) => Err(error.to_string()),
        },
        ScopeType::Flow => match scope_id.parse() {
            Ok(flow_id) => Ok(BudgetScope::Flow { flow_id }),
            Err(error) => Err(format!("flow {scope_id:?}: {error}")),
        },
        ScopeType::Tag => match scope_id.split_once('=') {
            Some((key, value)) if is_tag_key(key) => {
                Ok(BudgetScope::Tag { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("tag {scope_id:?} is not key=value with a namespaced key")),
        },
    }
}

/// What a worker's report adds: its own dimensions, and the fixed ones unless 0.
///
/// # Errors
/// `InvalidInput` for a bad name, too many dimensions, or an amount beyond [`AMOUNT_MAX`].
pub fn usage_deltas(usage: &UsageDimensions) -> Result<Amounts> {
    let fixed = [
        ("input_tokens", usage.input_tokens),
        ("output_tokens", usage.output_tokens),
        ("wall_ms", usage.wall_ms.unwrap_or(0)),
    ];
    let custom = usage.custom.iter().map(|(dimension, delta)| (dimension.as_str(), *delta));
    sum_deltas(custom.chain(fixed.into_iter().filter(|(_, delta)| *delta > 0)))
}

/// What an operator's report adds.
///
/// # Errors
/// `InvalidInput` for lists of unequal length, a bad name, too many dimensions, or an amount beyond [`AMOUNT_MAX`].
pub fn admin_deltas(args: &ReportUsageAdminArgs) -> Result<Amounts> {
    if args.dimensions.len() != args.deltas.len() {
        return Err(EngineError::invalid("dimensions and deltas differ in length"));
    }
    sum_deltas(args.dimensions.iter().map(String::as_str).zip(args.deltas.iter().copied()))
}

/// What a recorded spend adds.
///
/// # Errors
/// `InvalidInput` for a bad name, too many dimensions, or an amount beyond [`AMOUNT_MAX`].
pub fn spend_deltas(deltas: &Amounts) -> Result<Amounts> {
    sum_deltas(deltas.iter().map(|(dimension, delta)| (dimension.as_str(), *delta)))
}

fn sum_deltas<'a>(deltas: impl Iterator<Item = (&'a str, u64)>) -> Result<Amounts> {
    let mut sums = Amounts::new();
    for (dimension, delta) in deltas {
        let sum = sums.entry(dimension.to_owned()).or_default();
        *sum = sum.saturating_add(delta);
        check_amount(dimension, *sum)?;
    }
    check_dimensions(sums.keys())?;
    Ok(sums)
}

/// A limit that is reached or exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Of which dimension.
    pub dimension: String,
    /// How much is used.
    pub current_usage: u64,
    /// How much is allowed.
    pub limit: u64,
}

/// What a report does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageDecision {
    /// Nothing is added: this hard limit would be exceeded. The breach shows usage before the report.
    Refuse(Breach),
    /// Everything is added.
    Add {
        /// New usage of each reported dimension.
        usage: Amounts,
        /// The first soft limit that is exceeded, with usage after the report.
        soft: Option<Breach>,
    },
}

impl UsageDecision {
    /// What the caller is told.
    #[must_use]
    pub fn answer(&self) -> ReportUsageResult {
        match self {
            Self::Refuse(Breach { dimension, current_usage, limit }) => ReportUsageResult::HardBreach {
                dimension: dimension.clone(),
                current_usage: *current_usage,
                hard_limit: *limit,
            },
            Self::Add { soft: Some(Breach { dimension, current_usage, limit }), .. } => ReportUsageResult::SoftBreach {
                dimension: dimension.clone(),
                current_usage: *current_usage,
                soft_limit: *limit,
            },
            Self::Add { soft: None, .. } => ReportUsageResult::Ok,
        }
    }
}

fn amount(amounts: &Amounts, dimension: &str) -> u64 {
    amounts.get(dimension).copied().unwrap_or(0)
}

fn limit(limits: &Amounts, dimension: &str) -> Option<u64> {
    limits.get(dimension).copied().filter(|limit| *limit > 0)
}

/// Decides a report: every hard limit is looked at before anything is added. Reaching a limit exactly is allowed.
///
/// # Errors
/// `InvalidInput` when usage without a hard limit would go beyond [`AMOUNT_MAX`].
pub fn decide_usage(limits: &BudgetLimits, usage: &Amounts, deltas: &Amounts) -> Result<UsageDecision> {
    let sums = || deltas.iter().map(|(name, delta)| (name, amount(usage, name).saturating_add(*delta)));
    for (dimension, sum) in sums() {
        let over = |limit: &u64| sum > *limit && !is_on(Fault::HardLimitIgnored);
        if let Some(limit) = limit(&limits.hard, dimension).filter(over) {
            let current_usage = amount(usage, dimension);
            return Ok(UsageDecision::Refuse(Breach { dimension: dimension.clone(), current_usage, limit }));
        }
    }
    let mut after = Amounts::new();
    let mut soft = None;
    for (dimension, sum) in sums() {
        check_amount(dimension, sum)?;
        if soft.is_none() {
            soft = limit(&limits.soft, dimension).filter(|limit| sum > *limit).map(|limit| Breach {
                dimension: dimension.clone(),
                current_usage: sum,
                limit,
            });
        }
        after.insert(dimension.clone(), sum);
    }
    Ok(UsageDecision::Add { usage: after, soft })
}

/// The first hard limit that usage has reached: while there is one, nothing attached to the budget is claimed.
#[must_use]
pub fn exhausted(limits: &BudgetLimits, usage: &Amounts) -> Option<Breach> {
    limits.hard.iter().find_map(|(dimension, limit)| {
        let current_usage = amount(usage, dimension);
        let reached = *limit > 0 && current_usage >= *limit;
        reached.then(|| Breach { dimension: dimension.clone(), current_usage, limit: *limit })
    })
}

/// What one execution recorded, and in which period between resets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The reset count of the budget when it was written.
    pub generation: u64,
    /// What was recorded in that period.
    pub amounts: Amounts,
}

impl Ledger {
    /// The ledger with more recorded in period `generation`; what an earlier period recorded is void.
    #[must_use]
    pub fn with(mut self, generation: u64, deltas: &Amounts) -> Self {
        if self.generation != generation {
            self = Self { generation, amounts: Amounts::new() };
        }
        for (dimension, delta) in deltas {
            let sum = self.amounts.entry(dimension.clone()).or_default();
            *sum = sum.saturating_add(*delta);
        }
        self
    }
}

/// New usage of each dimension that releasing `ledger` lowers, when the budget is in period `generation`. Usage never
/// falls below 0; a ledger of an earlier period lowers nothing.
#[must_use]
pub fn release(usage: &Amounts, generation: u64, ledger: &Ledger) -> Amounts {
    if ledger.generation != generation && !is_on(Fault::LedgerSurvivesReset) {
        return Amounts::new();
    }
    let lower = |(name, recorded): (&String, &u64)| (name.clone(), amount(usage, name).saturating_sub(*recorded));
    ledger.amounts.iter().map(lower).collect()
}

/// When a budget created or reset at `now` starts over; `None` without an interval. Missed periods are not made up for.
#[must_use]
pub fn next_reset_at(now: TimestampMs, reset_interval_ms: u64) -> Option<TimestampMs> {
    (reset_interval_ms > 0).then(|| now.plus(reset_interval_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BudgetId, FlowId};
    use proptest::prelude::*;
    use uuid::Uuid;

    fn amounts<const N: usize>(pairs: [(&str, u64); N]) -> Amounts {
        pairs.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
    }

    fn breach(dimension: &str, current_usage: u64, limit: u64) -> Breach {
        Breach { dimension: dimension.to_owned(), current_usage, limit }
    }

    fn namespace() -> Namespace {
        Namespace::new("acme").unwrap()
    }

    fn create() -> CreateBudgetArgs {
        CreateBudgetArgs {
            budget_id: BudgetId::from_uuid(Uuid::nil()),
            namespace: namespace(),
            scope_type: "policy".into(),
            scope_id: String::new(),
            on_hard_limit: "block".into(),
            on_soft_limit: "warn".into(),
            reset_interval_ms: 0,
            dimensions: vec!["usd".into(), "calls".into()],
            hard_limits: vec![10, 0],
            soft_limits: vec![8, 3],
        }
    }

    fn create_code(change: impl FnOnce(&mut CreateBudgetArgs)) -> &'static str {
        let mut args = create();
        change(&mut args);
        check_create(&args).map_or_else(|error| error.code(), |_| "created")
    }

    #[test]
    fn a_good_request_defines_limits_by_name() {
        let definition = check_create(&create()).unwrap();
        assert_eq!(definition.limits.hard, amounts([("usd", 10), ("calls", 0)]));
        assert_eq!(definition.limits.soft, amounts([("usd", 8), ("calls", 3)]));
        assert_eq!((definition.on_hard_limit, definition.on_soft_limit), (BreachAction::Block, BreachAction::Warn));
        assert_eq!(definition.scope, BudgetScope::Policy {});
    }

    #[test]
    fn bad_requests_are_refused() {
        assert_eq!(create_code(|args| args.hard_limits.truncate(1)), "invalid_input");
        assert_eq!(create_code(|args| args.soft_limits.push(1)), "invalid_input");
        assert_eq!(create_code(|args| args.dimensions[1] = "usd".into()), "invalid_input");
        assert_eq!(create_code(|args| args.dimensions[1] = String::new()), "invalid_input");
        assert_eq!(create_code(|args| args.dimensions[1] = "a\tb".into()), "invalid_input");
        assert_eq!(create_code(|args| args.soft_limits[0] = AMOUNT_MAX + 1), "invalid_input");
        assert_eq!(create_code(|args| args.reset_interval_ms = u64::MAX), "invalid_input");
        assert_eq!(create_code(|args| args.on_hard_limit = "warn".into()), "invalid_input");
        assert_eq!(create_code(|args| args.on_soft_limit = String::new()), "invalid_input");
        assert_eq!(create_code(|args| args.scope_type = String::new()), "invalid_budget_scope");
        let both = |args: &mut CreateBudgetArgs| {
            args.scope_type = String::new();
            args.hard_limits.clear();
        };
        assert_eq!(create_code(both), "invalid_input");
    }

    #[test]
    fn a_budget_has_at_most_64_dimensions() {
        let of_size = |len: usize| {
            create_code(|args| {
                args.dimensions = (0..len).map(|n| n.to_string()).collect();
                args.hard_limits = vec![AMOUNT_MAX; len];
                args.soft_limits = vec![0; len];
            })
        };
        assert_eq!([of_size(0), of_size(64), of_size(65)], ["created", "created", "invalid_input"]);
    }

    #[test]
    fn a_scope_is_read_by_its_type() {
        let scope = |scope_type: &str, scope_id: &str| parse_scope(&namespace(), scope_type, scope_id).ok();
        let flow_id = FlowId::from_uuid(Uuid::from_u128(7));
        let tag = |key: &str, value: &str| Some(BudgetScope::Tag { key: key.into(), value: value.into() });
        assert_eq!(scope("policy", "any label"), Some(BudgetScope::Policy {}));
        assert_eq!(scope("namespace", ""), Some(BudgetScope::Namespace {}));
        assert_eq!(scope("namespace", "acme"), Some(BudgetScope::Namespace {}));
        assert_eq!(scope("namespace", "other"), None);
        assert_eq!(scope("lane", "gpu"), Some(BudgetScope::Lane { lane_id: LaneId::new("gpu").unwrap() }));
        assert_eq!(scope("lane", ""), None);
        assert_eq!(scope("flow", &flow_id.to_string()), Some(BudgetScope::Flow { flow_id }));
        assert_eq!(scope("flow", "seven"), None);
        assert_eq!(scope("tag", "app.team=a=b"), tag("app.team", "a=b"));
        assert_eq!(scope("tag", "app.team="), tag("app.team", ""));
        assert_eq!(scope("tag", "app.team"), None);
        assert_eq!(scope("tag", "=x"), None);
        assert_eq!(scope("tag", "team=x"), None);
        assert_eq!(scope("planet", "earth"), None);
        assert_eq!(parse_scope(&namespace(), "", "").unwrap_err().code(), "invalid_budget_scope");
    }

    #[test]
    fn fixed_dimensions_count_under_their_names_unless_zero() {
        let usage = UsageDimensions {
            input_tokens: 3,
            wall_ms: Some(0),
            custom: amounts([("usd", 0), ("input_tokens", 4)]),
            ..Default::default()
        };
        assert_eq!(usage_deltas(&usage).unwrap(), amounts([("input_tokens", 7), ("usd", 0)]));
        let usage = UsageDimensions { output_tokens: 1, wall_ms: Some(9), ..Default::default() };
        assert_eq!(usage_deltas(&usage).unwrap(), amounts([("output_tokens", 1), ("wall_ms", 9)]));
    }

    #[test]
    fn bad_reports_are_refused() {
        let admin = |dimensions: &[&str], deltas: &[u64]| {
            let dimensions = dimensions.iter().map(ToString::to_string).collect();
            admin_deltas(&ReportUsageAdminArgs { dimensions, deltas: deltas.to_vec(), dedup_key: None })
        };
        assert_eq!(admin(&["a", "b", "a"], &[1, 2, 3]).unwrap(), amounts([("a", 4), ("b", 2)]));
        assert_eq!(admin(&["a"], &[]).unwrap_err().code(), "invalid_input");
        assert_eq!(admin(&[""], &[1]).unwrap_err().code(), "invalid_input");
        assert_eq!(admin(&["a", "a"], &[AMOUNT_MAX, 1]).unwrap_err().code(), "invalid_input");
        assert_eq!(spend_deltas(&amounts([("", 1)])).unwrap_err().code(), "invalid_input");
        assert_eq!(spend_deltas(&amounts([("a", AMOUNT_MAX + 1)])).unwrap_err().code(), "invalid_input");
        let many: Amounts = (0..65).map(|n| (n.to_string(), 1)).collect();
        assert_eq!(spend_deltas(&many).unwrap_err().code(), "invalid_input");
        let huge = UsageDimensions { input_tokens: u64::MAX, ..Default::default() };
        assert_eq!(usage_deltas(&huge).unwrap_err().code(), "invalid_input");
    }

    fn limits() -> BudgetLimits {
        BudgetLimits { hard: amounts([("calls", 0), ("usd", 10)]), soft: amounts([("calls", 3), ("usd", 8)]) }
    }

    fn decide<const N: usize, const M: usize>(usage: [(&str, u64); N], deltas: [(&str, u64); M]) -> UsageDecision {
        decide_usage(&limits(), &amounts(usage), &amounts(deltas)).unwrap()
    }

    #[test]
    fn a_report_that_would_exceed_a_hard_limit_adds_nothing() {
        let decision = decide([("usd", 6)], [("calls", 9), ("usd", 5)]);
        assert_eq!(decision, UsageDecision::Refuse(breach("usd", 6, 10)));
        let answer = ReportUsageResult::HardBreach { dimension: "usd".to_owned(), current_usage: 6, hard_limit: 10 };
        assert_eq!(decision.answer(), answer);
    }

    #[test]
    fn a_hard_limit_may_be_reached_exactly_which_stops_claims() {
        let decision = decide([("usd", 6)], [("usd", 4)]);
        let soft = Some(breach("usd", 10, 8));
        assert_eq!(decision, UsageDecision::Add { usage: amounts([("usd", 10)]), soft });
        assert_eq!(exhausted(&limits(), &amounts([("usd", 10)])), Some(breach("usd", 10, 10)));
        assert_eq!(exhausted(&limits(), &amounts([("usd", 9), ("calls", 1_000)])), None);
    }

    #[test]
    fn the_first_soft_breach_by_name_is_told() {
        let decision = decide([("calls", 3)], [("calls", 1), ("usd", 9)]);
        let answer = ReportUsageResult::SoftBreach { dimension: "calls".to_owned(), current_usage: 4, soft_limit: 3 };
        assert_eq!(decision.answer(), answer);
        assert_eq!(decide([], [("calls", 3), ("usd", 8)]).answer(), ReportUsageResult::Ok);
        assert_eq!(decide([], []).answer(), ReportUsageResult::Ok);
    }

    #[test]
    fn a_dimension_without_limits_counts_up_to_what_stores_can_hold() {
        let full = amounts([("bytes", AMOUNT_MAX)]);
        let added = decide_usage(&limits(), &Amounts::new(), &full).unwrap();
        assert_eq!(added, UsageDecision::Add { usage: full.clone(), soft: None });
        let beyond = decide_usage(&limits(), &full, &amounts([("bytes", 1)]));
        assert_eq!(beyond.unwrap_err().code(), "invalid_input");
    }

    #[test]
    fn a_release_after_a_reset_takes_nothing_from_the_new_period() {
        let ledger = Ledger::default().with(0, &amounts([("usd", 5)]));
        let usage = amounts([("usd", 3)]);
        assert_eq!(release(&usage, 1, &ledger), Amounts::new());
        assert_eq!(release(&usage, 0, &ledger), amounts([("usd", 0)]));
        let next = ledger.with(1, &amounts([("usd", 2)]));
        assert_eq!(next, Ledger { generation: 1, amounts: amounts([("usd", 2)]) });
        assert_eq!(release(&usage, 1, &next), amounts([("usd", 1)]));
    }

    #[test]
    fn the_next_reset_is_measured_from_now() {
        assert_eq!(next_reset_at(TimestampMs(5), 0), None);
        assert_eq!(next_reset_at(TimestampMs(5), 10), Some(TimestampMs(15)));
        assert_eq!(next_reset_at(TimestampMs(5), AMOUNT_MAX), Some(TimestampMs(i64::MAX)));
    }

    fn some_amounts() -> impl Strategy<Value = Amounts> {
        proptest::collection::btree_map("[a-d]", 0..20u64, 0..4)
    }

    proptest! {
        #[test]
        fn usage_never_exceeds_a_hard_limit(
            hard in some_amounts(),
            reports in proptest::collection::vec(some_amounts(), 0..12),
        ) {
            let limits = BudgetLimits { hard, soft: Amounts::new() };
            let mut usage = Amounts::new();
            for deltas in reports {
                let before = usage.clone();
                match decide_usage(&limits, &usage, &deltas).unwrap() {
                    UsageDecision::Add { usage: after, .. } => usage.extend(after),
                    UsageDecision::Refuse(breach) => {
                        prop_assert!(amount(&usage, &breach.dimension) + deltas[&breach.dimension] > breach.limit);
                    }
                }
                for (dimension, limit) in limits.hard.iter().filter(|(_, limit)| **limit > 0) {
                    prop_assert!(amount(&usage, dimension) <= *limit);
                }
                prop_assert!(usage == before || deltas.iter().all(|(d, n)| usage[d] == amount(&before, d) + n));
            }
        }

        #[test]
        fn releasing_every_ledger_leaves_nothing(
            spends in proptest::collection::vec((0..3usize, some_amounts()), 0..12),
        ) {
            let mut usage = Amounts::new();
            let mut ledgers = vec![Ledger::default(); 3];
            for (who, deltas) in spends {
                let decision = decide_usage(&BudgetLimits::default(), &usage, &deltas).unwrap();
                let UsageDecision::Add { usage: after, soft: None } = decision else { panic!("{decision:?}") };
                usage.extend(after);
                ledgers[who] = std::mem::take(&mut ledgers[who]).with(0, &deltas);
            }
            for ledger in &ledgers {
                usage.extend(release(&usage, 0, ledger));
            }
            prop_assert!(usage.values().all(|amount| *amount == 0));
        }
    }
}
