//! Every suspension that an execution left by going on.

use std::collections::BTreeMap;

use ff_core::backend::inspection::PAGE_LIMIT_MAX;
use ff_core::backend::suspension::{ResumeTrigger, Resumption};
use ff_core::error::Entity;
use ff_core::ids::{ExecutionId, WaitpointId};
use ff_core::state::CloseReason;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Execution, Suspension};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

/// Episodes looked at in one read.
const PAGE: usize = 16;

impl<S: Store> Engine<S> {
    /// The suspensions of this life that ended in a resume, after an ordinal, oldest first.
    pub(super) async fn resumptions(&self, id: ExecutionId, after: Option<u32>, limit: u32) -> Result<Vec<Resumption>> {
        let execution: Option<Execution> = read_one(&self.store, Key::execution(id)).await?;
        let execution = execution.ok_or(EngineError::not_found(Entity::Execution))?;
        let life = execution.replay_count;
        let limit = limit.min(PAGE_LIMIT_MAX) as usize;
        let mut found = Vec::new();
        let mut after = after.max(execution.first_suspension.checked_sub(1));
        while found.len() < limit {
            let bounds = Bounds::first(PAGE).after(after.map(|ordinal| Position::end_of(i64::from(ordinal))));
            let page: Vec<Suspension> = list_of(&self.store, Index::SuspensionsOf(id), bounds).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.ordinal);
            let is_last = page.len() < PAGE;
            let of_this_life = |episode: &Suspension| episode.life == life && episode.was_resumed();
            let episodes = page.into_iter().filter(of_this_life).take(limit - found.len()).collect();
            found.extend(self.explained(id, episodes).await?);
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    async fn explained(&self, id: ExecutionId, episodes: Vec<Suspension>) -> Result<Vec<Resumption>> {
        let named = |episode: &Suspension| {
            let matched: Vec<_> = episode.explaining().map(|one| one.waitpoint_id).collect();
            episode.waitpoints.iter().copied().chain(matched).collect::<Vec<_>>()
        };
        let names = self.waitpoint_keys(id, episodes.iter().flat_map(named).collect()).await?;
        let matched = episodes.iter().flat_map(Suspension::explaining);
        let mut signals = self.signals(id, matched, &names).await?;
        Ok(episodes.into_iter().map(|episode| resumption(&episode, &names, &mut signals)).collect())
    }
}

fn resumption(
    episode: &Suspension,
    names: &BTreeMap<WaitpointId, String>,
    signals: &mut super::observe::Signals,
) -> Resumption {
    let (resumed_at, reason) = episode.closed.unwrap_or((episode.opened_at, CloseReason::Resumed));
    Resumption {
        ordinal: episode.ordinal,
        attempt_index: episode.attempt_index,
        waitpoint_keys: episode.waitpoints.iter().filter_map(|id| names.get(id).cloned()).collect(),
        trigger: episode.trigger.unwrap_or(ResumeTrigger::Signal),
        timed_out: reason == CloseReason::TimedOutAutoResume,
        signals: episode.explaining().filter_map(|one| signals.remove(&(one.waitpoint_id, one.signal_id))).collect(),
        resumed_at,
    }
}
