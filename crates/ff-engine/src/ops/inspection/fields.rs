//! Stored fields as text, for tools that ask by name.
//!
//! The vocabulary is fixed; whatever is not in it reads as absent. Times are milliseconds, states are their words.
//!
//! | Names | Meaning |
//! |---|---|
//! | `execution_id` `namespace` `lane_id` `execution_kind` `priority` `flow_id` | identity and place |
//! | `lifecycle_phase` `ownership_state` `eligibility_state` `blocking_reason` `blocking_detail` `terminal_outcome` `attempt_state` `public_state` | state |
//! | `created_at` `last_mutation_at` `started_at` `completed_at` `delay_until` `execution_deadline_at` `attempt_timeout_at` `blocked_at` `suspension_timeout_at` | times |
//! | `current_attempt_index` `total_attempt_count` `current_attempt_id` `retry_count` `reclaim_count` `replay_count` `suspension_count` | attempts |
//! | `lease_epoch` `lease_id` `lease_expires_at` `lease_acquired_at` `lease_last_renewed_at` `lease_revoked_at` `lease_revoke_reason` `worker_id` `worker_instance_id` | ownership |
//! | `current_waitpoint_id` `failure_reason` `failure_category` `cancellation_reason` `cancelled_by` | how it stands, how it ended |
//! | `required_capabilities` `budget_ids` `quota_policy_ids` `last_capability_mismatch_at` | admission |
//! | `creator_identity` `idempotency_key` `payload_encoding` | creation |
//! | `progress_percent` `progress_message` `progress_updated_at` | progress |
//! | `signal_count` `last_signal_at` `last_hmac_validation_failed_at` | signals |
//! | `usage.<dimension>` | what the current attempt reported as used |

use std::collections::BTreeMap;

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};

use crate::key::Key;
use crate::records::{AttemptUsage, Definition, Execution, Progress, SignalTally};
use crate::store::Store;
use crate::verbs::read_one;

/// An execution and the records beside it that some names need.
struct Core {
    execution: Execution,
    definition: Option<Definition>,
    progress: Option<Progress>,
    tally: Option<SignalTally>,
    usage: Option<AttemptUsage>,
}

/// The named fields; every name is a key of the answer.
pub(super) async fn read<S: Store>(
    store: &S,
    id: ExecutionId,
    names: &[&str],
) -> Result<BTreeMap<String, Option<String>>> {
    let mut answer: BTreeMap<String, Option<String>> = names.iter().map(|name| ((*name).to_owned(), None)).collect();
    if answer.is_empty() {
        return Ok(answer);
    }
    let Some(execution) = read_one::<Execution, _>(store, Key::execution(id)).await? else { return Ok(answer) };
    let core = load(store, execution).await?;
    for (name, value) in &mut answer {
        *value = field(&core, name);
    }
    Ok(answer)
}

async fn load<S: Store>(store: &S, execution: Execution) -> Result<Core> {
    let id = execution.id;
    let usage = match execution.attempt_count {
        0 => None,
        _ => read_one(store, Key::attempt_usage(id, execution.attempt_index)).await?,
    };
    Ok(Core {
        definition: read_one(store, Key::definition(id)).await?,
        progress: read_one(store, Key::progress(id)).await?,
        tally: read_one(store, Key::signal_tally(id)).await?,
        usage,
        execution,
    })
}

fn field(core: &Core, name: &str) -> Option<String> {
    if let Some(dimension) = name.strip_prefix("usage.") {
        return core.usage.as_ref()?.used.get(dimension).map(u64::to_string);
    }
    identity(core, name)
        .or_else(|| state(&core.execution, name))
        .or_else(|| time(&core.execution, name).map(|at| at.to_string()))
        .or_else(|| counter(core, name).map(|count| count.to_string()))
        .or_else(|| ownership(&core.execution, name))
        .or_else(|| ending(&core.execution, name))
        .or_else(|| beside(core, name))
}

fn identity(core: &Core, name: &str) -> Option<String> {
    let execution = &core.execution;
    Some(match name {
        "execution_id" => execution.id.to_string(),
        "namespace" => execution.namespace.to_string(),
        "lane_id" => execution.lane.to_string(),
        "execution_kind" => execution.kind().to_string(),
        "priority" => execution.priority.to_string(),
        "flow_id" => execution.flow_id?.to_string(),
        "required_capabilities" => execution.class.requirement.as_str().to_owned(),
        "budget_ids" => joined(&execution.budget_ids),
        "quota_policy_ids" => joined(&execution.quota_policy_ids),
        "current_attempt_id" => execution.attempt_id?.to_string(),
        "current_waitpoint_id" => execution.current_waitpoint?.to_string(),
        _ => return None,
    })
}

fn joined<T: ToString>(ids: &[T]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn state(execution: &Execution, name: &str) -> Option<String> {
    let state = execution.state();
    let word = match name {
        "lifecycle_phase" => state.lifecycle_phase.as_str(),
        "ownership_state" => state.ownership_state.as_str(),
        "eligibility_state" => state.eligibility_state.as_str(),
        "blocking_reason" => state.blocking_reason.as_str(),
        "blocking_detail" => execution.blocking_detail.as_deref()?,
        "terminal_outcome" => state.terminal_outcome.as_str(),
        "attempt_state" => state.attempt_state.as_str(),
        "public_state" => execution.public_state().as_str(),
        _ => return None,
    };
    Some(word.to_owned())
}

fn time(execution: &Execution, name: &str) -> Option<TimestampMs> {
    match name {
        "created_at" => Some(execution.created_at),
        "last_mutation_at" => Some(execution.last_mutation_at),
        "started_at" => execution.started_at,
        "completed_at" => execution.completed_at,
        "delay_until" => execution.wake_at,
        "execution_deadline_at" => execution.deadline_at,
        "attempt_timeout_at" => execution.attempt_timeout_at,
        "blocked_at" => execution.blocked_at,
        "suspension_timeout_at" => execution.suspension_timeout_at,
        "last_capability_mismatch_at" => execution.last_capability_mismatch_at,
        _ => None,
    }
}

fn counter(core: &Core, name: &str) -> Option<u64> {
    let execution = &core.execution;
    Some(match name {
        "current_attempt_index" => u64::from(execution.attempt_index.0),
        "total_attempt_count" => u64::from(execution.attempt_count),
        "retry_count" => u64::from(execution.retry_count),
        "reclaim_count" => u64::from(execution.reclaim_count),
        "replay_count" => u64::from(execution.replay_count),
        "suspension_count" => u64::from(execution.suspension_count),
        "lease_epoch" => execution.epoch.0,
        "signal_count" => core.tally.as_ref().map_or(0, |tally| tally.recorded),
        _ => return None,
    })
}

fn ownership(execution: &Execution, name: &str) -> Option<String> {
    let lease = execution.lease.as_ref()?;
    let revoked = lease.revoked.as_ref();
    Some(match name {
        "lease_id" => lease.id.to_string(),
        "lease_expires_at" => lease.expires_at.to_string(),
        "lease_acquired_at" => lease.acquired_at.to_string(),
        "lease_last_renewed_at" => lease.renewed_at?.to_string(),
        "lease_revoked_at" => revoked?.0.to_string(),
        "lease_revoke_reason" => revoked?.1.clone(),
        "worker_id" => lease.worker_id.to_string(),
        "worker_instance_id" => lease.worker_instance_id.to_string(),
        _ => return None,
    })
}

fn ending(execution: &Execution, name: &str) -> Option<String> {
    let (failure, cancellation) = (execution.failure.as_ref(), execution.cancellation.as_ref());
    match name {
        "failure_reason" => Some(failure?.reason.clone()),
        "failure_category" => Some(failure?.category.clone()),
        "cancellation_reason" => Some(cancellation?.reason.clone()),
        "cancelled_by" => Some(cancellation?.by.clone()),
        _ => None,
    }
}

fn beside(core: &Core, name: &str) -> Option<String> {
    let (definition, progress, tally) = (core.definition.as_ref(), core.progress.as_ref(), core.tally.as_ref());
    match name {
        "creator_identity" => Some(definition?.creator_identity.clone()),
        "idempotency_key" => definition?.idempotency_key.clone(),
        "payload_encoding" => definition?.payload_encoding.clone(),
        "progress_percent" => Some(progress?.percent?.to_string()),
        "progress_message" => progress?.message.clone(),
        "progress_updated_at" => Some(progress?.updated_at.to_string()),
        "last_signal_at" => Some(tally?.last_signal_at?.to_string()),
        "last_hmac_validation_failed_at" => Some(tally?.last_hmac_validation_failed_at?.to_string()),
        _ => None,
    }
}
