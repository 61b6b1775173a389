//! The signals that explain a resume.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::Result;
use ff_core::backend::suspension::ResumeSignal;
use ff_core::ids::{AttemptIndex, ExecutionId, SignalId, WaitpointId};
use ff_core::rules::conditions::MatchedSignal;

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Record, Signal, Suspension};
use crate::store::Store;
use crate::verbs::list_of;

/// Episodes looked at in one read.
const PAGE: usize = 16;

/// Signals by waitpoint and id.
pub(super) type Signals = BTreeMap<(WaitpointId, SignalId), ResumeSignal>;

impl<S: Store> Engine<S> {
    /// The signals of the latest suspension from which the attempt went on; none when it never did.
    pub(super) async fn signals_of_resume(
        &self,
        execution: ExecutionId,
        attempt: AttemptIndex,
    ) -> Result<Vec<ResumeSignal>> {
        let Some(episode) = self.last_resumed(execution, attempt).await? else { return Ok(Vec::new()) };
        let matched: Vec<_> = episode.explaining().collect();
        let names = self.waitpoint_keys(execution, matched.iter().map(|one| one.waitpoint_id).collect()).await?;
        let mut signals = self.signals(execution, matched.iter().copied(), &names).await?;
        Ok(matched.iter().filter_map(|one| signals.remove(&(one.waitpoint_id, one.signal_id))).collect())
    }

    /// Signals as a worker is shown them; those that are gone are missing.
    pub(super) async fn signals(
        &self,
        execution: ExecutionId,
        matched: impl Iterator<Item = MatchedSignal> + Send,
        names: &BTreeMap<WaitpointId, String>,
    ) -> Result<Signals> {
        let home = execution.partition();
        let keys: Vec<Key> = matched.map(|one| Key::signal(home, one.waitpoint_id, one.signal_id)).collect();
        let found = self.store.read(&keys).await?;
        Ok(found
            .into_iter()
            .filter_map(|record| match record {
                Some(Record::Signal(signal)) => Some(((signal.waitpoint, signal.id), shown(&signal, names))),
                _ => None,
            })
            .collect())
    }

    async fn last_resumed(&self, execution: ExecutionId, attempt: AttemptIndex) -> Result<Option<Suspension>> {
        let mut bounds = Bounds::last(PAGE);
        loop {
            let page: Vec<Suspension> = list_of(&self.store, Index::SuspensionsOf(execution), bounds).await?;
            let earliest = page.last().map(|episode| (episode.ordinal, episode.attempt_index));
            let found = page.into_iter().find(|episode| episode.attempt_index == attempt && episode.was_resumed());
            match (found, earliest) {
                (Some(episode), _) => return Ok(Some(episode)),
                (None, Some((ordinal, index))) if index >= attempt && ordinal > 0 => {
                    bounds = Bounds::last(PAGE).until(Position::end_of(i64::from(ordinal) - 1));
                }
                _ => return Ok(None),
            }
        }
    }

    /// The keys of waitpoints, by id.
    pub(super) async fn waitpoint_keys(
        &self,
        execution: ExecutionId,
        ids: BTreeSet<WaitpointId>,
    ) -> Result<BTreeMap<WaitpointId, String>> {
        let keys: Vec<Key> = ids.into_iter().map(|id| Key::waitpoint(execution.partition(), id)).collect();
        let found = self.store.read(&keys).await?;
        Ok(found
            .into_iter()
            .filter_map(|record| match record {
                Some(Record::Waitpoint(waitpoint)) => Some((waitpoint.id, waitpoint.key.clone())),
                _ => None,
            })
            .collect())
    }
}

fn shown(signal: &Signal, names: &BTreeMap<WaitpointId, String>) -> ResumeSignal {
    ResumeSignal {
        signal_id: signal.id,
        waitpoint_id: signal.waitpoint,
        waitpoint_key: names.get(&signal.waitpoint).cloned().unwrap_or_default(),
        signal_name: signal.name.clone(),
        signal_category: signal.category.clone(),
        source_type: signal.source_type.clone(),
        source_identity: signal.source_identity.clone(),
        correlation_id: signal.correlation_id.clone().unwrap_or_default(),
        accepted_at: signal.accepted_at,
        payload: signal.payload.clone(),
        payload_encoding: signal.payload_encoding.clone(),
    }
}
