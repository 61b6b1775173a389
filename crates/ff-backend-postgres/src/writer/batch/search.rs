//! How those who look for work in a batch share what stands at the heads of queues.

use std::sync::atomic::Ordering;

use ff_core::Result;
use ff_engine::index::{Bounds, Index, Position};

use super::{Batch, Reader, State};
use crate::tables::Entered;
use crate::writer::foresight::{Foresight, Looked};
use crate::writer::heads::Heads;
use crate::writer::mirrors::{Look, Mirrors, is_queue};

/// Heads that are read at once for all who look for work, unless one of them wants more.
const HEADS_MAX: usize = 256;

/// How many times as many are read where the rest is remembered.
const AHEAD: usize = 8;

/// A part of an index: behind one position, up to another.
pub(super) type Stretch = (Index, Option<Position>, Option<Position>);

impl Batch {
    /// The first entries of an index behind a position that nobody in this batch has taken, and enough of them to be shared by all who look;
    /// and whether they are only known, not read.
    pub(in crate::writer) async fn heads(&self, index: &Index, bounds: &Bounds) -> Result<(Vec<Entered>, bool)> {
        if bounds.reverse {
            return Ok((self.page(index, bounds).await?, false));
        }
        let from = (index.clone(), bounds.after.clone(), bounds.until.clone());
        self.note(index, bounds);
        self.reflect(&from, bounds);
        loop {
            let after = {
                let mut state = self.lock();
                let State { heads, accepted, .. } = &mut *state;
                match heads.get_mut(&from) {
                    None => bounds.after.clone(),
                    Some(heads) => {
                        let left = heads.first(bounds.limit, index, accepted, &self.hand);
                        if left.len() == bounds.limit || heads.more_after.is_none() {
                            return Ok((left, heads.is_mirrored));
                        }
                        heads.more_after.clone()
                    }
                }
            };
            let bounds = Bounds { after, ..bounds.clone() };
            if self.reflect_more(&from, &bounds) {
                continue;
            }
            let bounds = self.ahead(index, &bounds);
            let page = self.page(index, &bounds).await?;
            self.lock().heads.entry(from.clone()).or_default().extend(page, bounds.limit);
        }
    }

    /// So many that there is something for everybody who looks.
    fn shared(&self, bounds: &Bounds) -> Bounds {
        let wanted = bounds.limit.saturating_mul(self.seekers.max(1)) + self.hand.held();
        let limit = wanted.min(bounds.limit.max(HEADS_MAX));
        Bounds { limit, ..bounds.clone() }
    }

    /// So many that there is something for those who look next, too, where the process will know what became of it.
    fn ahead(&self, index: &Index, bounds: &Bounds) -> Bounds {
        let mut bounds = self.shared(bounds);
        if matches!(index, Index::Eligible(..)) && self.mirrors().is_some_and(Mirrors::are_used) {
            bounds.limit = bounds.limit.saturating_mul(AHEAD).min(bounds.limit.max(HEADS_MAX));
        }
        bounds
    }

    /// Takes a part of a list out of its mirror, unless it is here already; says whether it is here.
    fn reflect(&self, from: &Stretch, bounds: &Bounds) -> bool {
        if self.lock().heads.contains_key(from) {
            return true;
        }
        let Some(Look { heads, more_after }) = self.look_into_mirror(&from.0, bounds) else { return false };
        let heads = Heads { left: heads.into(), more_after, is_mirrored: true };
        self.lock().heads.insert(from.clone(), heads);
        true
    }

    /// Goes on with a part of a list out of its mirror, behind what is here; says whether that was of any use.
    fn reflect_more(&self, from: &Stretch, bounds: &Bounds) -> bool {
        if !self.lock().heads.get(from).is_some_and(|heads| heads.is_mirrored) {
            return false;
        }
        match self.look_into_mirror(&from.0, bounds) {
            Some(Look { heads, more_after }) if !heads.is_empty() || more_after.is_none() => {
                let mut state = self.lock();
                let known = state.heads.entry(from.clone()).or_default();
                known.left.extend(heads);
                known.more_after = more_after;
                true
            }
            _ => false,
        }
    }

    fn look_into_mirror(&self, index: &Index, bounds: &Bounds) -> Option<Look> {
        let mirrors = self.mirrors().filter(|_| is_queue(index) && !self.is_for_real.load(Ordering::Relaxed))?;
        let part = (bounds.after.as_ref(), bounds.until.as_ref());
        let look = mirrors.look(index, part, self.shared(bounds).limit)?;
        self.learn(&look.heads);
        Some(look)
    }

    /// Whether anything that was accepted came out of a mirror.
    pub(in crate::writer) fn is_mirrored(&self) -> bool {
        self.is_mirrored.load(Ordering::Relaxed)
    }

    /// Forgets what came out of mirrors, so that it is read instead.
    pub(in crate::writer) fn look_for_real(&self) {
        self.is_for_real.store(true, Ordering::Relaxed);
        self.lock().heads.retain(|_, heads| !heads.is_mirrored);
    }

    fn note(&self, index: &Index, bounds: &Bounds) {
        let bounds = match index {
            // A mirror of all classes shows every part of them.
            Index::ClassesOfLane(_) => Bounds::first(bounds.limit),
            _ => bounds.clone(),
        };
        let mut state = self.lock();
        let is_new =
            |(known, at): &(Index, Bounds)| known != index || at.after != bounds.after || at.until != bounds.until;
        // What lies behind a first page is another one the next time.
        if bounds.after.is_none() && state.looked.lists.iter().all(is_new) {
            state.looked.lists.push((index.clone(), bounds));
        }
    }

    /// Asks for what will be needed; says whether that is anything.
    pub(in crate::writer) fn foresee(&self, foresight: &Foresight) -> bool {
        let Looked { lists, rows, .. } = foresight.looked();
        let mut is_mirrored = false;
        for (index, bounds) in lists {
            let from = (index.clone(), bounds.after.clone(), bounds.until.clone());
            if self.reflect(&from, &bounds) {
                is_mirrored = true;
            } else {
                let bounds = self.ahead(&index, &bounds);
                self.lock().wanted.pages.push((index, bounds, Reader::All(from)));
            }
        }
        let mut state = self.lock();
        if !is_mirrored {
            state.wanted.rows.extend(rows);
        }
        !state.wanted.pages.is_empty() || !state.wanted.rows.is_empty()
    }

    /// What was read that may be read again.
    pub(in crate::writer) fn looked(&self) -> Looked {
        self.lock().looked.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::TimestampMs;
    use ff_core::ids::{ExecutionId, ExecutionKind, LaneId, Namespace};
    use ff_engine::hash::HashSet;
    use ff_engine::key::Key;
    use ff_engine::records::QueueClass;
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::super::Known;
    use super::*;
    use crate::tables::Along;
    use crate::writer::Memory;
    use crate::writer::hand::Hands;
    use crate::writer::locks::Hold;

    fn queue() -> Index {
        let class = QueueClass::plain(ExecutionKind::new("task").unwrap());
        Index::Eligible(Namespace::new("acme").unwrap(), LaneId::new("default").unwrap(), class)
    }

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(1, Uuid::from_u128(number))
    }

    fn entered(number: u8) -> Entered {
        let position = Position::new(i64::from(number), [number]);
        Entered { position, key: Key::execution(id(number.into())), along: Along::Nothing }
    }

    #[test]
    fn what_a_mirror_knows_behind_what_others_hold_is_not_read() {
        let (memory, hands) = (Arc::<Memory>::default(), Hands::new(Arc::default()));
        let page: Vec<Entered> = (1..=3).map(entered).collect();
        memory.mirrors.begin_read().unwrap().keep(&queue(), &Bounds::first(10), &page, true);
        let (now, none, hand) = (TimestampMs(1), HashSet::default(), hands.open());
        let known = Known { memory: Some(memory), young: None };
        let batch = Batch::new(now, known, Hold::Nothing, none, 1, hand, false);
        let (first, other) = (Bounds::first(1), hands.open());
        assert!(batch.reflect(&(queue(), None, None), &first) && other.hold(id(1)));

        let (heads, is_mirrored) = batch.heads(&queue(), &first).now_or_never().expect("nothing is read").unwrap();
        assert!(is_mirrored);
        assert_eq!(heads.into_iter().map(|head| head.key).collect::<Vec<_>>(), [Key::execution(id(2))]);
    }
}
