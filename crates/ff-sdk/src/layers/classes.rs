//! Operations by what they are for.

/// A class of operations that share a rate. Any name makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub &'static str);

impl Class {
    /// Takes work.
    pub const CLAIMS: Self = Self("claims");
    /// Brings work in: executions, flows and their graphs, replays.
    pub const SUBMISSIONS: Self = Self("submissions");
    /// Keeps and ends ownership. Whoever limits it makes workers lose leases and finished work.
    pub const OWNERSHIP: Self = Self("ownership");
    /// Looks without changing anything; feeds, tails and waits for news too.
    pub const READS: Self = Self("reads");
    /// Keeps the store tidy and the connection alive.
    pub const UPKEEP: Self = Self("upkeep");
    /// Everything else that changes something.
    pub const WRITES: Self = Self("writes");
}

/// The class of an operation, unless somebody classifies otherwise.
#[must_use]
pub fn class_of(op: &str) -> Class {
    match op {
        "claim"
        | "claim_many"
        | "claim_for_worker"
        | "claim_execution"
        | "claim_resumed_execution"
        | "claim_from_resume_grant"
        | "issue_claim_grant"
        | "issue_grant_and_claim"
        | "issue_reclaim_grant"
        | "reclaim_execution" => Class::CLAIMS,
        "create_execution"
        | "create_executions"
        | "create_flow"
        | "submit_flow"
        | "add_execution_to_flow"
        | "stage_dependency_edge"
        | "set_edge_group_policy"
        | "apply_dependency_to_child"
        | "replay_execution" => Class::SUBMISSIONS,
        "renew" | "renew_lease" | "complete" | "complete_execution" | "complete_many" | "fail" | "fail_execution"
        | "cancel" | "delay" | "wait_children" | "suspend" | "suspend_by_triple" | "register_worker"
        | "heartbeat_worker" => Class::OWNERSHIP,
        _ if is_read(op) => Class::READS,
        _ if is_upkeep(op) => Class::UPKEEP,
        _ => Class::WRITES,
    }
}

fn is_read(op: &str) -> bool {
    const VERBS: [&str; 8] = ["read_", "get_", "list_", "describe_", "search_", "scan_", "subscribe_", "await_"];
    const OTHERS: [&str; 5] =
        ["explain", "tail_stream", "observe_signals", "resolve_execution_flow_id", "evaluate_flow_eligibility"];
    VERBS.iter().any(|verb| op.starts_with(verb)) || OTHERS.contains(&op)
}

fn is_upkeep(op: &str) -> bool {
    const VERBS: [&str; 6] = ["reconcile_", "expire_", "trim_", "promote_", "drain_", "project_"];
    const OTHERS: [&str; 7] = [
        "mark_lease_expired_if_due",
        "cascade_completion",
        "resolve_dependency",
        "prepare",
        "ping",
        "shutdown_prepare",
        "server_time_ms",
    ];
    VERBS.iter().any(|verb| op.starts_with(verb)) || OTHERS.contains(&op)
}

#[cfg(test)]
mod tests {
    use ff_core::backend::layer::{Repeat, operations, repeats};

    use super::*;

    #[test]
    fn operations_are_classified_by_what_they_are_for() {
        let classes = [
            ("claim_many", Class::CLAIMS),
            ("submit_flow", Class::SUBMISSIONS),
            ("renew", Class::OWNERSHIP),
            ("list_flows", Class::READS),
            ("await_outcome", Class::READS),
            ("await_lost_leases", Class::READS),
            ("trim_retention", Class::UPKEEP),
            ("deliver_signal", Class::WRITES),
        ];
        for (op, class) in classes {
            assert!(repeats(op).is_some(), "{op} is no operation");
            assert_eq!(class_of(op), class, "{op}");
        }
    }

    #[test]
    fn whatever_reads_can_be_repeated() {
        for (op, repeat) in operations().filter(|(op, _)| class_of(op) == Class::READS) {
            assert_eq!(repeat, Repeat::Safe, "{op}");
        }
    }
}
