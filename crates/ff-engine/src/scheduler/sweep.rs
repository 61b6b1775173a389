//! Which classes of a kind are in use: the live executions of the kind tell, in whatever state they are.

use std::collections::{BTreeMap, HashMap};

use ff_core::ids::ExecutionKind;
use ff_core::state::PublicState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, DueKind, Index, Position};
use crate::key::Key;
use crate::records::{Execution, LaneClass, Stored};
use crate::store::Store;
use crate::verbs::list_all;

/// Live executions read at a time.
pub(crate) const PAGE: usize = 500;

/// Pages that are read before others have their turn.
pub(crate) const PAGES: usize = 4;

/// Classes that one sweep decides about.
const CLASSES_MAX: usize = 1_000;

/// How long a sweep may take; much shorter than a class stays fresh.
pub(crate) const SWEEP_MAX_MS: u64 = 60 * 60 * 1000;

/// What is known about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Live executions belong to it: sooner or later they stand in its queue.
    Used,
    /// None does.
    Unused,
    /// Nobody has looked at all of them yet.
    Unknown,
}

/// Sweeps that are not over, by kind. They are lost with the process, and then begin anew.
#[derive(Debug, Default)]
pub(crate) struct Sweeps(HashMap<ExecutionKind, Sweep>);

impl Sweeps {
    /// Goes on with the sweep of a class that is due; says what is known of it, and of others when the sweep is over.
    pub(crate) async fn judge<S: Store>(
        &mut self,
        engine: &Engine<S>,
        class: &LaneClass,
    ) -> Result<(Verdict, Vec<(LaneClass, Verdict)>)> {
        let (key, kind) = (class.key(), &class.class.kind);
        let now = engine.store.now().await?;
        let mut sweep = match self.0.remove(kind).filter(|sweep| !sweep.is_stale(now)) {
            Some(sweep) => sweep,
            None => Sweep::begin(engine, class, now).await?,
        };
        sweep.go_on(engine, kind).await?;
        let verdict = sweep.verdict(&key);
        if !sweep.is_over {
            self.0.insert(kind.clone(), sweep);
            return Ok((verdict, Vec::new()));
        }
        let others: Vec<Key> = sweep.classes.keys().filter(|other| **other != key).cloned().collect();
        let verdicts: Vec<Verdict> = others.iter().map(|other| sweep.verdict(other)).collect();
        let others = others.iter().filter_map(|other| Some(sweep.classes.remove(other)?.class));
        Ok((verdict, others.zip(verdicts).collect()))
    }
}

#[derive(Debug)]
struct Swept {
    class: LaneClass,
    is_used: bool,
}

/// A look at all live executions of a kind.
///
/// They are read newest first, and where one stands in that order never changes, so none is missed that lives from the beginning to the end.
/// Whatever comes in meanwhile makes its class fresh first, because a class that is due is not.
#[derive(Debug)]
struct Sweep {
    began: TimestampMs,
    /// The classes that were due when it began.
    classes: BTreeMap<Key, Swept>,
    after: Option<Position>,
    is_over: bool,
}

impl Sweep {
    async fn begin<S: Store>(engine: &Engine<S>, first: &LaneClass, began: TimestampMs) -> Result<Self> {
        let bounds = Bounds::first(CLASSES_MAX).until(Position::end_of(began.0));
        let due = list_all(&engine.store, &[Index::Due(DueKind::ClassExpiry)], &bounds).await?;
        let due = due.into_iter().filter_map(|found| LaneClass::try_from(found.record?).ok());
        let alike = due.filter(|class| class.class.kind == first.class.kind).chain([first.clone()]);
        let classes: BTreeMap<Key, Swept> = alike.map(|class| (class.key(), Swept { class, is_used: false })).collect();
        Ok(Self { began, classes, after: None, is_over: false })
    }

    /// Reads some pages.
    async fn go_on<S: Store>(&mut self, engine: &Engine<S>, kind: &ExecutionKind) -> Result<()> {
        let live = PublicState::ALL.iter().copied().filter(|state| !state.is_terminal());
        let indexes: Vec<Index> = live.map(|state| Index::KindState(kind.clone(), state)).collect();
        for _ in 0..PAGES {
            let page = list_all(&engine.store, &indexes, &Bounds::first(PAGE).after(self.after.clone())).await?;
            let is_last = page.len() < PAGE;
            self.after = page.last().map(|found| found.position.clone());
            for found in page {
                match found.record.map(Execution::try_from) {
                    Some(Ok(it)) => self.found(&Key::lane_class(it.namespace, it.lane, it.class)),
                    // It may belong to any of them.
                    _ => self.classes.values_mut().for_each(|swept| swept.is_used = true),
                }
            }
            self.is_over = is_last || self.classes.values().all(|swept| swept.is_used);
            if self.is_over {
                break;
            }
        }
        Ok(())
    }

    fn found(&mut self, class: &Key) {
        if let Some(swept) = self.classes.get_mut(class) {
            swept.is_used = true;
        }
    }

    fn verdict(&self, class: &Key) -> Verdict {
        match self.classes.get(class) {
            Some(swept) if swept.is_used => Verdict::Used,
            Some(_) if self.is_over => Verdict::Unused,
            _ => Verdict::Unknown,
        }
    }

    fn is_stale(&self, now: TimestampMs) -> bool {
        self.began.plus(SWEEP_MAX_MS).is_due(now)
    }
}
