//! Holding claimable executions back, and letting them go.

use ff_core::backend::claims::{
    AdmissionBlock, BlockExecutionForAdmissionArgs, BlockExecutionForAdmissionOutcome, BlockRouteArgs,
    BlockRouteOutcome,
};
use ff_core::error::{ContentionKind, ValidationKind};
use ff_core::ids::{ExecutionId, LaneId, check_free_string};
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::Execution;
use crate::store::{Op, Store, Tx};

/// Parks an execution for want of a capable worker.
pub(super) async fn block_route<S: Store>(engine: &Engine<S>, args: BlockRouteArgs) -> Result<BlockRouteOutcome> {
    if args.reason_code != AdmissionBlock::WaitingForCapableWorker.as_str() {
        return Err(unknown_reason(&args.reason_code));
    }
    let execution_id = args.execution_id;
    let detail = Some(args.reason_detail).filter(|detail| !detail.is_empty());
    let block = block(engine, execution_id, args.lane_id, AdmissionBlock::WaitingForCapableWorker, detail).await?;
    Ok(match block {
        Ok(()) => BlockRouteOutcome::Blocked { execution_id },
        Err(message) => BlockRouteOutcome::Rejected { message },
    })
}

/// Parks an execution for any reason of admission.
pub(super) async fn block_for_admission<S: Store>(
    engine: &Engine<S>,
    args: BlockExecutionForAdmissionArgs,
) -> Result<BlockExecutionForAdmissionOutcome> {
    let reason = parse_reason(&args.reason)?;
    let execution_id = args.execution_id;
    Ok(match block(engine, execution_id, args.lane_id, reason, args.reason_detail).await? {
        Ok(()) => BlockExecutionForAdmissionOutcome::Blocked { execution_id, reason },
        Err(message) => BlockExecutionForAdmissionOutcome::Rejected { message },
    })
}

/// Lets a parked execution go; an empty reason means any that can be given.
pub(super) async fn unblock<S: Store>(engine: &Engine<S>, execution: ExecutionId, expected: &str) -> Result<()> {
    let expected = if expected.is_empty() { None } else { Some(parse_reason(expected)?) };
    engine.check_partition(execution)?;
    engine.run(Unblock { execution, expected }).await
}

fn unknown_reason(reason: &str) -> EngineError {
    EngineError::validation(ValidationKind::InvalidBlockingReason, format_args!("{reason:?}"))
}

fn parse_reason(reason: &str) -> Result<AdmissionBlock> {
    reason.parse().map_err(|_| unknown_reason(reason))
}

async fn block<S: Store>(
    engine: &Engine<S>,
    execution: ExecutionId,
    lane: LaneId,
    reason: AdmissionBlock,
    detail: Option<String>,
) -> Result<Result<(), String>> {
    check_free_string("reason_detail", detail.as_deref().unwrap_or_default())?;
    engine.check_partition(execution)?;
    engine.run(Block { execution, lane, reason, detail }).await
}

struct Block {
    execution: ExecutionId,
    lane: LaneId,
    reason: AdmissionBlock,
    detail: Option<String>,
}

#[async_trait::async_trait]
impl Op for Block {
    type Out = Result<(), String>;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<(), String>> {
        let mut subject = Subject::load(tx, self.execution).await?;
        if !subject.execution.is_eligible() {
            return Ok(Err(whereabouts(&subject.execution)));
        }
        if subject.execution.lane != self.lane {
            return Ok(Err(format!("execution is in lane {}", subject.execution.lane)));
        }
        let (eligibility, reason) = (self.reason.eligibility(), self.reason.into());
        subject.execution.block_by_hand(eligibility, reason, self.detail.clone(), tx.now());
        subject.save(tx);
        Ok(Ok(()))
    }
}

fn whereabouts(execution: &Execution) -> String {
    let state = execution.state();
    format!(
        "execution is {}: {}, {}",
        execution.public_state(),
        state.lifecycle_phase,
        if execution.is_runnable() { state.eligibility_state.as_str() } else { state.ownership_state.as_str() }
    )
}

struct Unblock {
    execution: ExecutionId,
    expected: Option<AdmissionBlock>,
}

#[async_trait::async_trait]
impl Op for Unblock {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let mut subject = Subject::load(tx, self.execution).await?;
        let state = subject.execution.state();
        let holds = |block: &AdmissionBlock| {
            block.eligibility() == state.eligibility_state && state.blocking_reason == (*block).into()
        };
        let present = AdmissionBlock::ALL.iter().copied().find(holds);
        if present.is_none() || self.expected.is_some_and(|expected| Some(expected) != present) {
            return Err(ContentionKind::ExecutionNotEligible.into());
        }
        subject.execution.promote(tx.now());
        subject.save(tx);
        Ok(())
    }
}
