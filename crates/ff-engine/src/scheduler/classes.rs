//! Which classes of a lane concern a worker. Reading them costs what they are, not what else the lane has: classes stand in the order
//! of namespace and kind, so whatever lies between two wanted kinds is passed over.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::ids::{LaneId, Namespace};
use ff_core::{Result, TimestampMs};

use super::queue::Seeker;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Listed, Position};
use crate::records::LaneClass;
use crate::store::Store;

/// Classes read at a time by those who want all of them.
const PAGE: usize = 500;

/// Classes read at a time by those who want some kinds. A lane that has fewer is seen whole.
const PAGE_OF_KINDS: usize = 100;

/// Between two looks at work of others that a busy claim affords, in a lane that has too many classes to see them all.
const ROUND_EVERY_MS: u64 = 1_000;

/// Those whose rounds are remembered at most.
const ROUNDS_MAX: usize = 1_000;

/// A walk over the classes of a seeker's lane. Whoever walks lists what `bounds` says, hands it to `take`, and goes on until there are no more bounds.
pub(super) struct Walk<'a> {
    seeker: Seeker<'a>,
    next: Option<Bounds>,
    found: BTreeMap<Position, LaneClass>,
    /// Whether kinds that the seeker does not name were passed over.
    pub(super) is_partial: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(seeker: Seeker<'a>) -> Self {
        Self { next: page_from(seeker, None), seeker, found: BTreeMap::new(), is_partial: false }
    }

    pub(super) fn index(&self) -> Index {
        Index::ClassesOfLane(self.seeker.lane.clone())
    }

    /// What to list next, if anything is left.
    pub(super) fn bounds(&self) -> Option<Bounds> {
        self.next.clone()
    }

    /// Goes on after a page.
    pub(super) fn take(&mut self, page: Vec<Listed>) {
        let is_full = self.next.take().is_some_and(|bounds| page.len() == bounds.limit);
        let last = page.last().filter(|_| is_full).and_then(|listed| LaneClass::try_from(listed.record.clone()).ok());
        self.add(classes(page));
        let Some(last) = last else { return };
        let next = next_place(self.seeker, &last);
        self.is_partial |= self.seeker.kinds.is_some() && next.as_ref() != Some(&last.position());
        self.next = next.and_then(|place| page_from(self.seeker, Some(place)));
    }

    /// Classes that were found in another way.
    fn add(&mut self, classes: impl Iterator<Item = LaneClass>) {
        let seeker = self.seeker;
        self.found.extend(classes.filter(|class| seeker.wants(class)).map(|class| (class.position(), class)));
    }

    /// What was found in the seeker's namespaces, in order, of any kind.
    pub(super) fn found(self) -> Vec<LaneClass> {
        self.found.into_values().collect()
    }
}

fn classes(page: Vec<Listed>) -> impl Iterator<Item = LaneClass> {
    page.into_iter().filter_map(|listed| LaneClass::try_from(listed.record).ok())
}

/// A page from a place on, or from the first place that a seeker wants; none if it wants nothing.
fn page_from(seeker: Seeker<'_>, place: Option<Position>) -> Option<Bounds> {
    let bounds = Bounds::first(if seeker.kinds.is_some() { PAGE_OF_KINDS } else { PAGE });
    let Some(namespaces) = seeker.namespaces else { return Some(bounds.after(place)) };
    let (first, last) = (namespaces.first()?, namespaces.last()?);
    let place = place.unwrap_or_else(|| LaneClass::before_all_of(first));
    Some(bounds.after(Some(place)).until(LaneClass::after_all_of(last)))
}

/// Where to go on after a class: right behind it, or before the next kind or namespace that a seeker wants.
fn next_place(seeker: Seeker<'_>, last: &LaneClass) -> Option<Position> {
    let namespace = &last.namespace;
    if seeker.wants(last) {
        let Some(kinds) = seeker.kinds else { return Some(last.position()) };
        let from_here = (Bound::Included(last.class.kind.as_str()), Bound::Unbounded);
        if let Some(kind) = kinds.range::<str, _>(from_here).next() {
            return Some(LaneClass::before_kind(namespace, kind).max(last.position()));
        }
    }
    let Some(namespaces) = seeker.namespaces else { return Some(LaneClass::after_all_of(namespace)) };
    let next = namespaces.range((Bound::Excluded(namespace), Bound::Unbounded)).next()?;
    match seeker.kinds {
        None => Some(LaneClass::before_all_of(next)),
        Some(kinds) => Some(LaneClass::before_kind(next, kinds.first()?)),
    }
}

/// The classes of the seeker's lane that concern it, and some of those that do not.
pub(super) async fn walk<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Vec<LaneClass>> {
    Ok(walked(engine, seeker).await?.found())
}

/// The same, with a further page of those that do not where these are too many to see them all: so all of them are looked at in turn.
pub(super) async fn walk_round<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Vec<LaneClass>> {
    let mut walk = walked(engine, seeker).await?;
    if walk.is_partial {
        let others = round(engine, seeker).await?;
        walk.add(others.into_iter());
    }
    Ok(walk.found())
}

pub(super) async fn walked<'a, S: Store>(engine: &Engine<S>, seeker: Seeker<'a>) -> Result<Walk<'a>> {
    let mut walk = Walk::new(seeker);
    while let Some(bounds) = walk.bounds() {
        let page = engine.store.list(&[walk.index()], &bounds).await?;
        walk.take(page);
    }
    Ok(walk)
}

/// The next classes of the seeker's namespaces, whatever their kind, from where the last round stopped.
pub(super) async fn round<S: Store>(engine: &Engine<S>, seeker: Seeker<'_>) -> Result<Vec<LaneClass>> {
    let rounds = engine.hands.rounds();
    let Some(mut bounds) = page_from(seeker, rounds.place(seeker)) else { return Ok(Vec::new()) };
    bounds.limit = PAGE_OF_KINDS;
    let page = engine.store.list(&[Index::ClassesOfLane(seeker.lane.clone())], &bounds).await?;
    let is_full = page.len() == bounds.limit;
    let classes: Vec<LaneClass> = classes(page).collect();
    let last = classes.last().filter(|_| is_full);
    let next = last.and_then(|last| next_place(Seeker { kinds: None, ..seeker }, last));
    rounds.stop_at(seeker, next, engine.store.now().await?);
    Ok(classes)
}

/// Who goes round: claims for the same namespaces of a lane share what they look at.
type Walker = (LaneId, Option<Vec<Namespace>>);

/// Where a round stopped, and when.
#[derive(Clone, Debug)]
struct Stop {
    place: Option<Position>,
    at: TimestampMs,
}

/// Where this process goes on with its rounds. To forget it means to begin anew.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    stops: Mutex<HashMap<Walker, Stop>>,
}

impl Rounds {
    fn lock(&self) -> MutexGuard<'_, HashMap<Walker, Stop>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody who has better things to do should look round all the same.
    pub(super) fn is_due(&self, seeker: Seeker<'_>, now: TimestampMs) -> bool {
        self.lock().get(&walker(seeker)).is_none_or(|stop| stop.at.plus(ROUND_EVERY_MS).is_due(now))
    }

    fn place(&self, seeker: Seeker<'_>) -> Option<Position> {
        self.lock().get(&walker(seeker)).and_then(|stop| stop.place.clone())
    }

    fn stop_at(&self, seeker: Seeker<'_>, place: Option<Position>, at: TimestampMs) {
        let walker = walker(seeker);
        let mut stops = self.lock();
        if stops.len() >= ROUNDS_MAX && !stops.contains_key(&walker) {
            let oldest =
                stops.iter().min_by(|(a, x), (b, y)| (x.at, a).cmp(&(y.at, b))).map(|(walker, _)| walker.clone());
            oldest.and_then(|oldest| stops.remove(&oldest));
        }
        stops.insert(walker, Stop { place, at });
    }
}

fn walker(seeker: Seeker<'_>) -> Walker {
    (seeker.lane.clone(), seeker.namespaces.map(|namespaces| namespaces.iter().cloned().collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ff_core::ids::ExecutionKind;

    use super::*;
    use crate::records::{QueueClass, Record};

    fn lane() -> LaneId {
        LaneId::new("default").unwrap()
    }

    fn class(namespace: &str, kind: &str) -> LaneClass {
        LaneClass {
            namespace: Namespace::new(namespace).unwrap(),
            lane: lane(),
            class: QueueClass::plain(ExecutionKind::new(kind).unwrap()),
            used_at: TimestampMs(0),
        }
    }

    /// A lane in which every namespace has as many kinds, `k0000` and on.
    fn lane_of(namespaces: &[&str], kinds: usize) -> BTreeMap<Position, LaneClass> {
        let all = namespaces.iter().flat_map(|namespace| (0..kinds).map(|n| class(namespace, &format!("k{n:04}"))));
        all.map(|class| (class.position(), class)).collect()
    }

    struct Walked {
        found: Vec<(String, String)>,
        /// How many were read.
        read: usize,
        is_partial: bool,
    }

    fn walked(stored: &BTreeMap<Position, LaneClass>, namespaces: Option<&[&str]>, kinds: Option<&[&str]>) -> Walked {
        let namespaces = namespaces.map(|names| names.iter().map(|name| Namespace::new(*name).unwrap()).collect());
        let kinds: Option<BTreeSet<String>> = kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect());
        let (lane, nothing) = (lane(), BTreeSet::new());
        let seeker =
            Seeker { lane: &lane, capabilities: &nothing, namespaces: namespaces.as_ref(), kinds: kinds.as_ref() };
        let mut walk = Walk::new(seeker);
        let mut read = 0;
        while let Some(bounds) = walk.bounds() {
            let inside = stored.iter().filter(|(position, _)| bounds.contains(position)).take(bounds.limit);
            let listed = |(position, class): (&Position, &LaneClass)| Listed {
                index: walk.index(),
                position: position.clone(),
                record: Record::from(class.clone()),
            };
            let page: Vec<Listed> = inside.map(listed).collect();
            read += page.len();
            walk.take(page);
        }
        let is_partial = walk.is_partial;
        let named = |class: LaneClass| (class.namespace.to_string(), class.class.kind.to_string());
        let wanted = |(_, kind): &(String, String)| kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        Walked { found: walk.found().into_iter().map(named).filter(wanted).collect(), read, is_partial }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(namespace, kind)| ((*namespace).to_owned(), (*kind).to_owned())).collect()
    }

    #[test]
    fn classes_of_other_namespaces_are_not_read() {
        let stored = lane_of(&["a", "acme", "acme2", "b"], 700);
        let walked = walked(&stored, Some(&["acme"]), None);
        assert_eq!((walked.found.len(), walked.read, walked.is_partial), (700, 700, false));
        assert!(walked.found.iter().all(|(namespace, _)| namespace == "acme"));
    }

    #[test]
    fn a_lane_with_few_classes_is_seen_whole_at_once() {
        let stored = lane_of(&["acme"], PAGE_OF_KINDS - 1);
        let walked = walked(&stored, Some(&["acme"]), Some(&["k0050"]));
        assert_eq!((walked.read, walked.is_partial), (PAGE_OF_KINDS - 1, false));
        assert_eq!(walked.found, pairs(&[("acme", "k0050")]));
    }

    #[test]
    fn of_many_kinds_only_the_neighbourhood_of_those_that_are_named_is_read() {
        let stored = lane_of(&["acme", "bcme"], 9_000);
        let walked = walked(&stored, Some(&["acme", "bcme"]), Some(&["k0050", "k4000", "k8999"]));
        assert_eq!(
            walked.found,
            pairs(&[
                ("acme", "k0050"),
                ("acme", "k4000"),
                ("acme", "k8999"),
                ("bcme", "k0050"),
                ("bcme", "k4000"),
                ("bcme", "k8999"),
            ])
        );
        assert!(walked.read <= 7 * PAGE_OF_KINDS && walked.is_partial, "{}", walked.read);
    }

    #[test]
    fn every_class_that_is_named_is_found_whoever_asks() {
        let stored = lane_of(&["a", "b", "c"], 350);
        let kinds: Vec<String> = (0..350).step_by(3).map(|n| format!("k{n:04}")).collect();
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        for namespaces in [None, Some(&["a", "c"][..]), Some(&["b"]), Some(&["b", "x"]), Some(&[])] {
            let wanted = |namespace: &str| namespaces.is_none_or(|namespaces| namespaces.contains(&namespace));
            let count = ["a", "b", "c"].into_iter().filter(|namespace| wanted(namespace)).count();
            assert_eq!(walked(&stored, namespaces, Some(&kinds)).found.len(), kinds.len() * count);
            assert_eq!(walked(&stored, namespaces, None).found.len(), 350 * count);
            assert_eq!(walked(&stored, namespaces, Some(&[])).found.len(), 0);
        }
    }
}
