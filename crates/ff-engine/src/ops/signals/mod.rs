//! Waitpoints, the signals sent to them, and the secrets that sign their tokens.

mod close_waitpoint;
mod create_waitpoint;
mod deliver;
mod pending_waitpoints;
mod secrets;

use std::time::Duration;

use ff_core::backend::Signals;
use ff_core::backend::signals::{
    APPROVAL_CATEGORY, APPROVAL_SOURCE_TYPE, DeliverApprovalSignalArgs, DeliverSignalArgs, DeliverSignalResult,
    ListPendingWaitpointsArgs, ListPendingWaitpointsResult, PendingWaitpoint, RotateWaitpointHmacSecretAllArgs,
    RotateWaitpointHmacSecretAllEntry, RotateWaitpointHmacSecretAllResult, SeedOutcome, SeedWaitpointHmacSecretArgs,
};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, SignalId, WaitpointId, check_free_string};
use ff_core::partition::PartitionKey;
use ff_core::token::WaitpointToken;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::index::Index;
use crate::key::Key;
use crate::records::Waitpoint;
use crate::store::Store;
use crate::verbs::read_one;

use close_waitpoint::CloseWaitpoint;
use create_waitpoint::CreateWaitpoint;
use deliver::{Authority, Deliver};
use secrets::{RotateSecret, SeedSecret};

/// Most signals a waitpoint keeps, whatever a delivery asks for, so that a suspend can count all it buffered.
pub(super) const SIGNALS_KEPT_MAX: usize = 10_000;

impl<S: Store> Engine<S> {
    async fn deliver(
        &self,
        args: DeliverSignalArgs,
        dedup_key: Option<String>,
        authority: Authority,
    ) -> Result<DeliverSignalResult> {
        self.check_partition(args.execution_id)?;
        let signal_id = match args.signal_id {
            Some(id) => id,
            None => SignalId::from_uuid(self.mint().await?),
        };
        let payload_max = self.settings.limits.signal_bytes;
        let keyring = self.keyring().await?;
        self.run(Deliver { args, dedup_key, authority, signal_id, keyring, payload_max }).await?
    }
}

#[async_trait::async_trait]
impl<S: Store> Signals for Engine<S> {
    async fn create_waitpoint(
        &self,
        handle: &Handle,
        waitpoint_key: &str,
        expires_in: Duration,
    ) -> Result<PendingWaitpoint> {
        if waitpoint_key.is_empty() {
            return Err(EngineError::invalid("waitpoint_key is empty"));
        }
        check_free_string("waitpoint_key", waitpoint_key)?;
        let expires_in_ms = u64::try_from(expires_in.as_millis()).unwrap_or(u64::MAX);
        if expires_in_ms == 0 {
            return Err(EngineError::invalid("expires_in is zero"));
        }
        let payload = self.open_handle(handle)?;
        let op = CreateWaitpoint {
            execution: payload.execution_id,
            fence: payload.fence(),
            waitpoint: WaitpointId::from_uuid(self.mint().await?),
            key: waitpoint_key.to_owned(),
            expires_in_ms,
            keyring: self.keyring().await?,
            open: self.store.count(&Index::OpenWaitpointsOf(payload.execution_id)).await?,
        };
        self.run(op).await?
    }

    async fn read_waitpoint_token(
        &self,
        partition: &PartitionKey,
        waitpoint_id: WaitpointId,
    ) -> Result<Option<WaitpointToken>> {
        let key = Key::waitpoint(partition.parse()?, waitpoint_id);
        let waitpoint: Option<Waitpoint> = read_one(&self.store, key).await?;
        Ok(waitpoint.and_then(|waitpoint| waitpoint.token).filter(|token| !token.is_empty()))
    }

    async fn deliver_signal(&self, args: DeliverSignalArgs) -> Result<DeliverSignalResult> {
        let dedup_key = args.dedup_key();
        self.deliver(args, dedup_key, Authority::Token).await
    }

    async fn deliver_approval_signal(&self, args: DeliverApprovalSignalArgs) -> Result<DeliverSignalResult> {
        let dedup_key = args.dedup_key();
        let signal = DeliverSignalArgs {
            signal_category: APPROVAL_CATEGORY.to_owned(),
            source_type: APPROVAL_SOURCE_TYPE.to_owned(),
            source_identity: args.approver,
            idempotency_key: Some(args.idempotency_suffix),
            dedup_ttl_ms: Some(args.signal_dedup_ttl_ms),
            max_signals_per_execution: args.max_signals_per_execution,
            signal_maxlen: args.maxlen,
            ..DeliverSignalArgs::new(
                args.execution_id,
                args.waitpoint_id,
                args.signal_name,
                WaitpointToken::new(String::new()),
            )
        };
        self.deliver(signal, dedup_key, Authority::Lane(args.lane_id)).await
    }

    async fn list_pending_waitpoints(&self, args: ListPendingWaitpointsArgs) -> Result<ListPendingWaitpointsResult> {
        self.open_waitpoints(args).await
    }

    async fn close_waitpoint(
        &self,
        execution_id: ExecutionId,
        waitpoint_id: WaitpointId,
        _now: TimestampMs,
    ) -> Result<()> {
        self.check_partition(execution_id)?;
        self.run(CloseWaitpoint { execution: execution_id, waitpoint: waitpoint_id }).await
    }

    async fn rotate_waitpoint_hmac_secret_all(
        &self,
        args: RotateWaitpointHmacSecretAllArgs,
    ) -> Result<RotateWaitpointHmacSecretAllResult> {
        let result = self.run(RotateSecret { args }).await?;
        Ok(RotateWaitpointHmacSecretAllResult {
            entries: vec![RotateWaitpointHmacSecretAllEntry { partition: 0, result }],
        })
    }

    async fn seed_waitpoint_hmac_secret(&self, args: SeedWaitpointHmacSecretArgs) -> Result<SeedOutcome> {
        self.run(SeedSecret { args }).await
    }
}
