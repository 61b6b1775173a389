//! Work is found, reserved and taken, or held back.

mod blocking;
mod consume;
mod direct;
mod operator;
mod reserve;

use std::collections::BTreeSet;

use ff_core::backend::Claims;
use ff_core::backend::claims::{
    BlockExecutionForAdmissionArgs, BlockExecutionForAdmissionOutcome, BlockRouteArgs, BlockRouteOutcome,
    ClaimExecutionArgs, ClaimExecutionResult, ClaimForWorkerArgs, ClaimForWorkerOutcome, ClaimGrantOutcome,
    ClaimPolicy, ClaimResumedExecutionArgs, ClaimResumedExecutionResult, IssueClaimGrantArgs, IssueClaimGrantOutcome,
    IssueGrantAndClaimArgs, ResumeToken, ScanEligibleArgs,
};
use ff_core::capability::{CapabilitySet, CapabilitySide, check_tokens};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId};
use ff_core::kinds::check_kinds;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Claims for Engine<S> {
    async fn claim(&self, lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy) -> Result<Option<Handle>> {
        Ok(direct::claim(self, lane, capabilities, policy, 1).await?.pop())
    }

    async fn claim_many(
        &self,
        lane: &LaneId,
        capabilities: &CapabilitySet,
        policy: ClaimPolicy,
        count: u32,
    ) -> Result<Vec<Handle>> {
        direct::claim(self, lane, capabilities, policy, usize::try_from(count).unwrap_or(usize::MAX)).await
    }

    async fn claim_for_worker(&self, args: ClaimForWorkerArgs) -> Result<ClaimForWorkerOutcome> {
        reserve::claim_for_worker(self, args).await
    }

    async fn scan_eligible_executions(&self, args: ScanEligibleArgs) -> Result<Vec<ExecutionId>> {
        reserve::scan(self, args).await
    }

    async fn issue_claim_grant(&self, args: IssueClaimGrantArgs) -> Result<IssueClaimGrantOutcome> {
        reserve::issue_claim_grant(self, args).await
    }

    async fn claim_execution(&self, args: ClaimExecutionArgs) -> Result<ClaimExecutionResult> {
        consume::claim_execution(self, args).await
    }

    async fn claim_resumed_execution(&self, args: ClaimResumedExecutionArgs) -> Result<ClaimResumedExecutionResult> {
        consume::claim_resumed_execution(self, args).await
    }

    async fn claim_from_resume_grant(&self, token: ResumeToken) -> Result<Option<Handle>> {
        consume::claim_from_resume_grant(self, token).await
    }

    async fn issue_grant_and_claim(&self, args: IssueGrantAndClaimArgs) -> Result<ClaimGrantOutcome> {
        operator::issue_grant_and_claim(self, args).await
    }

    async fn block_route(&self, args: BlockRouteArgs) -> Result<BlockRouteOutcome> {
        blocking::block_route(self, args).await
    }

    async fn block_execution_for_admission(
        &self,
        args: BlockExecutionForAdmissionArgs,
    ) -> Result<BlockExecutionForAdmissionOutcome> {
        blocking::block_for_admission(self, args).await
    }

    async fn unblock_execution(
        &self,
        execution_id: ExecutionId,
        expected_reason: &str,
        _now: TimestampMs,
    ) -> Result<()> {
        blocking::unblock(self, execution_id, expected_reason).await
    }
}

/// Checks what a worker can do when it asks for any work: a malformed set is a fault of the call as a whole.
fn check_offer(tokens: &BTreeSet<String>, kinds: Option<&BTreeSet<String>>) -> Result<()> {
    check_kinds(kinds)?;
    check_tokens(CapabilitySide::Worker, tokens).map_err(|error| match error {
        EngineError::Validation { detail, .. } => EngineError::invalid(detail),
        other => other,
    })
}
