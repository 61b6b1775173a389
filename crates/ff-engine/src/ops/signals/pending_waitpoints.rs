//! Listing the open waitpoints of an execution.

use ff_core::backend::signals::{ListPendingWaitpointsArgs, ListPendingWaitpointsResult, PendingWaitpointInfo};
use ff_core::error::Entity;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Execution, Suspension, Waitpoint};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

impl<S: Store> Engine<S> {
    pub(super) async fn open_waitpoints(&self, args: ListPendingWaitpointsArgs) -> Result<ListPendingWaitpointsResult> {
        let execution: Option<Execution> = read_one(&self.store, Key::execution(args.execution_id)).await?;
        let execution = execution.ok_or(EngineError::not_found(Entity::Execution))?.id;
        let limit = args.page_size();
        let after = args.after.map(|id| Position::by(*id.uuid().as_bytes()));
        let bounds = Bounds::first(limit + 1).after(after);
        let mut found: Vec<Waitpoint> = list_of(&self.store, Index::OpenWaitpointsOf(execution), bounds).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|last| last.id);
        // By what the waitpoints say, not the execution, which may have gone on between the two looks. Those that are open are bound to one
        // episode at most: it closes all of its own.
        let current: Option<Suspension> = match found.iter().filter_map(|waitpoint| waitpoint.suspension).max() {
            Some(ordinal) => read_one(&self.store, Key::suspension(execution, ordinal)).await?,
            None => None,
        };
        let entries = found.into_iter().map(|waitpoint| shown(waitpoint, current.as_ref())).collect();
        Ok(ListPendingWaitpointsResult { entries, next_cursor })
    }
}

fn shown(waitpoint: Waitpoint, current: Option<&Suspension>) -> PendingWaitpointInfo {
    let bound = current.filter(|episode| waitpoint.suspension == Some(episode.ordinal));
    let names = bound.map(|episode| episode.condition.required_signal_names(&waitpoint.key)).unwrap_or_default();
    PendingWaitpointInfo {
        waitpoint_id: waitpoint.id,
        execution_id: waitpoint.execution,
        state: waitpoint.state,
        condition_kind: bound.map(|episode| episode.condition.kind()),
        required_signal_names: names.into_iter().map(str::to_owned).collect(),
        created_at: waitpoint.created_at,
        activated_at: waitpoint.activated_at,
        expires_at: waitpoint.expires_at.or_else(|| bound.and_then(|episode| episode.timeout_at)),
        token_kid: waitpoint.token.as_ref().map(|token| token.kid().to_owned()).unwrap_or_default(),
        token_fingerprint: waitpoint.token.as_ref().map(|token| token.fingerprint().to_owned()).unwrap_or_default(),
        waitpoint_key: waitpoint.key,
    }
}
