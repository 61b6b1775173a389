//! Answering what an execution waits for, by name.

use ff_core::backend::signals::{
    DeliverApprovalSignalArgs, DeliverSignalArgs, DeliverSignalResult, ListPendingWaitpointsArgs, PendingWaitpointInfo,
    SIGNAL_DEDUP_TTL_MS,
};
use ff_core::backend::subscriptions::{LeaseHistoryEvent, ScannerFilter, Subscription};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::cursor::EventCursor;
use ff_core::error::{EngineError, Entity};
use ff_core::state::WaitpointState;
use serde::Serialize;

use super::{Run, encode};
use crate::error::{Error, Result};
use crate::task::JSON;

/// How long until there is another look for what nobody tells.
const RECHECK_MS: u64 = 1_000;

impl Run {
    /// What it waits for now.
    ///
    /// # Errors
    /// `NotFound` when the execution is gone.
    pub async fn waiting_for(&self) -> Result<Vec<PendingWaitpointInfo>> {
        let mut args = ListPendingWaitpointsArgs { execution_id: self.id(), after: None, limit: None };
        let mut open = Vec::new();
        loop {
            let page = self.client.backend.list_pending_waitpoints(args).await?;
            open.extend(page.entries);
            if page.next_cursor.is_none() {
                return Ok(open);
            }
            args.after = page.next_cursor;
        }
    }

    /// Waits until it waits for something under this name.
    ///
    /// # Errors
    /// [`Error::NoWaitpoint`] when it is over without having waited.
    pub async fn until_waiting(&self, name: &str) -> Result<PendingWaitpointInfo> {
        let filter = ScannerFilter { namespace: Some(self.client.namespace.clone()), instance_tag: None };
        let mut changes = self.client.backend.subscribe_lease_history(EventCursor::TAIL, &filter).await?;
        loop {
            match self.waitpoint(name).await {
                Err(Error::NoWaitpoint { .. }) if self.client.backend.await_outcome(self.id(), 0).await?.is_none() => {}
                found => return found,
            }
            // Whoever begins to wait lets go of its lease. What is handed out before the wait is not told.
            tokio::select! {
                change = self.changed(&mut changes) => change?,
                over = self.client.backend.await_outcome(self.id(), RECHECK_MS) => drop(over?),
            }
        }
    }

    /// Ends when the lease of this execution changes.
    async fn changed(&self, changes: &mut Subscription<LeaseHistoryEvent>) -> Result<()> {
        loop {
            match std::future::poll_fn(|cx| changes.as_mut().poll_next(cx)).await {
                Some(Ok(change)) if change.execution_id == self.id() => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => std::future::pending().await,
            }
        }
    }

    async fn waitpoint(&self, name: &str) -> Result<PendingWaitpointInfo> {
        let mut named: Vec<_> = self.waiting_for().await?;
        named.retain(|open| open.waitpoint_key == name);
        // What it waits at comes before what it has only handed out.
        let waits = named.iter().position(|open| open.state == WaitpointState::Active).unwrap_or(0);
        let found = named.into_iter().nth(waits);
        found.ok_or_else(|| Error::NoWaitpoint { id: self.id(), key: name.to_owned() })
    }

    /// Says yes to what it waits for under this name.
    ///
    /// # Errors
    /// [`Error::NoWaitpoint`] when it does not wait for it.
    pub async fn approve(&self, name: &str, approver: &str) -> Result<DeliverSignalResult> {
        self.decide(name, "approved", approver).await
    }

    /// Says no to what it waits for under this name.
    ///
    /// # Errors
    /// [`Error::NoWaitpoint`] when it does not wait for it.
    pub async fn reject(&self, name: &str, approver: &str) -> Result<DeliverSignalResult> {
        self.decide(name, "rejected", approver).await
    }

    async fn decide(&self, name: &str, decision: &str, approver: &str) -> Result<DeliverSignalResult> {
        let waitpoint = self.waitpoint(name).await?;
        let info = self.client.backend.read_execution_info(self.id()).await?;
        let lane_id = info.ok_or(EngineError::not_found(Entity::Execution))?.lane_id;
        let args = DeliverApprovalSignalArgs {
            execution_id: self.id(),
            lane_id,
            waitpoint_id: waitpoint.waitpoint_id,
            signal_name: decision.to_owned(),
            approver: approver.to_owned(),
            idempotency_suffix: String::new(),
            signal_dedup_ttl_ms: SIGNAL_DEDUP_TTL_MS,
            maxlen: None,
            max_signals_per_execution: None,
        };
        Ok(self.client.backend.deliver_approval_signal(args).await?)
    }

    /// Sends a signal to what it waits for under this name, as a trusted service.
    ///
    /// # Errors
    /// [`Error::NoWaitpoint`] when it does not wait for it.
    pub async fn signal(
        &self,
        name: &str,
        signal: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<DeliverSignalResult> {
        let waitpoint = self.waitpoint(name).await?;
        let partition = self.id().partition().into();
        let token = self.client.backend.read_waitpoint_token(&partition, waitpoint.waitpoint_id).await?;
        let token = token.ok_or_else(|| Error::NoWaitpoint { id: self.id(), key: name.to_owned() })?;
        let args = DeliverSignalArgs {
            payload: Some(encode("the body of a signal", body)?.into()),
            payload_encoding: Some(JSON.to_owned()),
            source_type: "client".to_owned(),
            ..DeliverSignalArgs::new(self.id(), waitpoint.waitpoint_id, signal, token)
        };
        Ok(self.client.backend.deliver_signal(args).await?)
    }

    /// Lets it go on whatever it waits for, as an operator.
    ///
    /// # Errors
    /// When it is not suspended.
    pub async fn resume(&self) -> Result<()> {
        let args = ResumeExecutionArgs::new(self.id(), ResumeTrigger::Operator);
        self.client.backend.resume_execution(args).await?;
        Ok(())
    }
}
