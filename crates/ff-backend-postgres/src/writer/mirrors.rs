//! What stands at the heads of queues, as this process knows it: from its last look, and from what it has committed since. Where it is alone at
//! a queue, that is the truth, and nobody needs to read it again to take from there.
//!
//! Other processes change queues, too. So a mirror is looked into for a moment only, or until others tell that they put something there;
//! whoever finds nothing there looks for real; and a commit that fails because somebody was faster puts the mirrors away for a while.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Entry, Index, Position};
use ff_engine::key::Key;

use super::mirror::{Mirror, Part};
use crate::address::Entries;
use crate::tables::{Along, Entered};

/// How long work of other processes may be overlooked as long as there is other work to take. Tests let that time pass by hand.
const AGE_MAX: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 50 });

/// For how many times as long as its read took a mirror is good, if that is longer: while somebody's transaction stays open, the server must
/// pass over everything that was taken since to find the heads of a queue.
const READS_WORTH: u32 = 20;

/// The longest that a slow read is good for.
const SLOW_AGE_MAX: Duration = Duration::from_secs(5);

/// How long a mirror is good where others tell what they put there, and nobody does. Those who wait for work look as often, in case that
/// somebody could not tell.
const TOLD_AGE_MAX: Duration = crate::news::SWEEP;

/// How long mirrors are put away after somebody else was faster.
const PAUSE: Duration = Duration::from_millis(250);

/// How long mirrors are good for a moment only after somebody else was faster: what others take they do not tell.
const COMPANY: Duration = Duration::from_secs(30);

/// Mirrors of one process. A worker looks into a few of them.
const MIRRORS_MAX: usize = 256;

/// Where a changed record stood, and where it stands.
#[derive(Clone)]
pub(super) struct Moved {
    pub(super) key: Key,
    pub(super) before: Entries,
    pub(super) after: Entries,
}

/// A read on its way. What is committed meanwhile is noted for it.
pub(super) struct Reading<'m> {
    mirrors: &'m Mirrors,
    number: u64,
    /// What was forgotten, and what was doubted, before it.
    forgotten: u64,
    doubted: u64,
    began: Instant,
}

#[derive(Default)]
struct State {
    lists: HashMap<Index, Mirror>,
    /// Reads on their way, under numbers that grow, and how much had ever been noted when they began.
    reading: BTreeMap<u64, u64>,
    readings: u64,
    /// What was committed since the oldest of them began.
    noted: VecDeque<Moved>,
    /// How much was noted before that, and dropped.
    dropped: u64,
    /// How often everything was forgotten, or doubted.
    forgotten: u64,
    doubted: u64,
    away_until: Option<Instant>,
    /// Until when others are expected to take from the same queues.
    company_until: Option<Instant>,
    /// Whether others are heard when they put something somewhere.
    is_told: bool,
}

impl State {
    fn is_good(&self, mirror: &Mirror, now: Instant) -> bool {
        let is_alone = self.company_until.is_none_or(|until| until < now);
        mirror.good_until >= now || (self.is_told && is_alone && mirror.told_until >= now)
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away_until.is_some_and(|until| until > now)
    }

    fn ever_noted(&self) -> u64 {
        self.dropped + self.noted.len() as u64
    }
}

/// The mirrors of a process.
#[derive(Default)]
pub(crate) struct Mirrors(Mutex<State>);

/// A look at heads.
pub(super) struct Look {
    pub(super) heads: Vec<Entered>,
    /// Behind which position there may be more.
    pub(super) more_after: Option<Position>,
}

/// Whether an index is of those that are looked at for work.
pub(super) const fn is_queue(index: &Index) -> bool {
    matches!(index, Index::Eligible(..) | Index::Reclaimable(..) | Index::ClassesOfLane(_) | Index::RouteParked(..))
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is read now will be kept.
    pub(super) fn are_used(&self) -> bool {
        !self.lock().is_away(Instant::now())
    }

    /// Begins a read, to be called before it; none while mirrors are of no use.
    pub(super) fn begin_read(&self) -> Option<Reading<'_>> {
        let (mut state, began) = (self.lock(), Instant::now());
        if state.is_away(began) {
            return None;
        }
        state.away_until = None;
        state.readings += 1;
        let (number, noted) = (state.readings, state.ever_noted());
        state.reading.insert(number, noted);
        let (forgotten, doubted) = (state.forgotten, state.doubted);
        Some(Reading { mirrors: self, number, forgotten, doubted, began })
    }

    /// Up to so many of the first entries of a part of a list, if they are known.
    pub(super) fn look(
        &self,
        index: &Index,
        (after, until): (Option<&Position>, Option<&Position>),
        wanted: usize,
    ) -> Option<Look> {
        let state = self.lock();
        let mirror = state.lists.get(index).filter(|mirror| state.is_good(mirror, Instant::now()))?;
        if after.is_some_and(|after| !mirror.is_known(after)) {
            return None;
        }
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), until.map_or(Bound::Unbounded, Bound::Included));
        let is_void = matches!((after, until), (Some(after), Some(until)) if after >= until);
        let mut known = (!is_void).then(|| mirror.heads.range::<Position, _>(range)).into_iter().flatten();
        let entered = |(position, (key, along)): (&Position, &(Key, Along))| Entered {
            position: position.clone(),
            key: key.clone(),
            along: along.clone(),
        };
        let heads: Vec<Entered> = known.by_ref().take(wanted).map(entered).collect();
        let more_after = if known.next().is_some() {
            heads.last().map(|last| last.position.clone())
        } else {
            mirror.known_until.clone().filter(|known| until.is_none_or(|until| known < until))
        };
        Some(Look { heads, more_after })
    }

    /// Follows a commit.
    pub(super) fn follow(&self, moved: &[Moved]) {
        if moved.is_empty() {
            return;
        }
        let mut state = self.lock();
        let State { lists, reading, noted, .. } = &mut *state;
        if !reading.is_empty() {
            noted.extend(moved.iter().cloned());
        }
        // One that nobody looks into would grow with everything that is submitted.
        let now = Instant::now();
        lists.retain(|_, mirror| mirror.good_until.max(mirror.told_until).max(mirror.whole_until) >= now);
        for Moved { key, before, after } in moved {
            for Entry { index, position } in queues(before) {
                if let Some(mirror) = lists.get_mut(index) {
                    mirror.leave(position);
                }
            }
            for Entry { index, position } in queues(after) {
                if let Some(mirror) = lists.get_mut(index) {
                    mirror.enter(position, key);
                }
            }
        }
    }

    /// Forgets everything: something was written that no commit tells of.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        state.forgotten += 1;
        state.lists.clear();
    }

    /// Says whether others are heard from now on when they put something somewhere.
    pub(crate) fn listen(&self, is_told: bool) {
        self.lock().is_told = is_told;
        self.doubt();
    }

    /// Has lists looked at again, and all of them: others have put something there.
    pub(crate) fn doubt(&self) {
        let (mut state, now) = (self.lock(), Instant::now());
        state.doubted += 1;
        for mirror in state.lists.values_mut() {
            (mirror.told_until, mirror.whole_until) = (now, now);
        }
    }

    /// Puts mirrors away for a while: somebody else takes from the same queues.
    pub(super) fn put_away(&self) {
        self.forget();
        let (mut state, now) = (self.lock(), Instant::now());
        (state.away_until, state.company_until) = (Some(now + PAUSE), Some(now + COMPANY));
    }
}

impl Reading<'_> {
    /// The parts of a list that are worth reading to know what comes behind a position, in order. Where a look at everything was slow, what was
    /// taken since is left out for a while.
    pub(super) fn parts(&self, index: &Index, after: Option<&Position>) -> Vec<Part> {
        let state = self.mirrors.lock();
        let mirror = state.lists.get(index).filter(|mirror| mirror.whole_until >= Instant::now());
        mirror.map_or_else(|| vec![(after.cloned(), None)], |mirror| mirror.parts(after))
    }

    /// Keeps what was read of a list, from its beginning or from where its mirror ends, with what was committed meanwhile.
    pub(super) fn keep(&self, index: &Index, bounds: &Bounds, page: &[Entered], is_whole: bool) {
        let mut state = self.mirrors.lock();
        let State { lists, reading, noted, dropped, forgotten, doubted, away_until, .. } = &mut *state;
        // What others told of meanwhile may have come too late for this read.
        let is_doubtful = *doubted != self.doubted;
        if *forgotten != self.forgotten || away_until.is_some() {
            return;
        }
        let known_until = page.last().filter(|_| page.len() == bounds.limit).map(|last| last.position.clone());
        let heads = page.iter().map(|head| (head.position.clone(), (head.key.clone(), kept(&head.along))));
        let mirror = if bounds.after.is_none() {
            let age_max = (self.began.elapsed() * READS_WORTH).clamp(AGE_MAX, SLOW_AGE_MAX);
            if lists.len() >= MIRRORS_MAX {
                lists.clear();
            }
            if lists.get(index).is_some_and(|mirror| mirror.reading > self.number) {
                return;
            }
            let (before, now) = (lists.remove(index), Instant::now());
            let (passed, whole_until) = before.map(|before| (before.passed, before.whole_until)).unzip();
            let whole_age = (self.began.elapsed() * READS_WORTH).min(SLOW_AGE_MAX);
            let mut fresh = Mirror {
                heads: heads.collect(),
                known_until,
                good_until: now + age_max,
                told_until: if is_doubtful { now } else { self.began + TOLD_AGE_MAX },
                whole_until: match whole_until {
                    _ if is_doubtful => now,
                    Some(before) if !is_whole => before,
                    _ => now + whole_age,
                },
                passed: BTreeMap::new(),
                reading: self.number,
            };
            fresh.passed =
                passed.unwrap_or_default().into_iter().filter(|(_, passed)| fresh.is_known(passed)).collect();
            lists.entry(index.clone()).or_insert(fresh)
        } else {
            let Some(mirror) = lists.get_mut(index).filter(|mirror| mirror.known_until == bounds.after) else { return };
            mirror.heads.extend(heads);
            mirror.known_until = known_until;
            mirror
        };
        let since = reading.get(&self.number).map_or(0, |noted| noted.saturating_sub(*dropped));
        let seen = usize::try_from(since).unwrap_or(usize::MAX).min(noted.len());
        for Moved { key, before, after } in noted.range(seen..) {
            queues(before).filter(|entry| entry.index == *index).for_each(|entry| mirror.leave(&entry.position));
            queues(after).filter(|entry| entry.index == *index).for_each(|entry| mirror.enter(&entry.position, key));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.mirrors.lock();
        state.reading.remove(&self.number);
        // Numbers grow with what was noted, so the first one has the least.
        let needed = state.reading.values().next().copied().unwrap_or_else(|| state.ever_noted());
        while state.dropped < needed && state.noted.pop_front().is_some() {
            state.dropped += 1;
        }
    }
}

fn queues(entries: &Entries) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|entry| is_queue(&entry.index))
}

/// A version says nothing that is not remembered elsewhere.
fn kept(along: &Along) -> Along {
    match along {
        Along::Row(stored) => Along::Row(stored.clone()),
        Along::Nothing | Along::Version(_) => Along::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use ff_core::TimestampMs;
    use ff_core::ids::{ExecutionId, ExecutionKind, LaneId, Namespace};
    use ff_engine::records::{QueueClass, RANK_PRIORITY_MAX, rank};
    use uuid::Uuid;

    use super::super::mirror::{HEADS_MAX, before_all};
    use super::*;

    fn queue() -> Index {
        let class = QueueClass::plain(ExecutionKind::new("mail").unwrap());
        Index::Eligible(Namespace::new("acme").unwrap(), LaneId::new("default").unwrap(), class)
    }

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(1, Uuid::from_u128(number))
    }

    fn position(number: u128) -> Position {
        Position::of(i64::try_from(number).unwrap(), id(number))
    }

    fn page(numbers: &[u128]) -> Vec<Entered> {
        let head = |number: &u128| Entered {
            position: position(*number),
            key: Key::execution(id(*number)),
            along: Along::Nothing,
        };
        numbers.iter().map(head).collect()
    }

    fn moved(number: u128, before: bool, after: bool) -> Moved {
        let entries = |stands: bool| -> Entries {
            stands.then(|| Entry { index: queue(), position: position(number) }).into_iter().collect()
        };
        Moved { key: Key::execution(id(number)), before: entries(before), after: entries(after) }
    }

    /// A mirror of what was read, with this limit.
    fn mirrors(numbers: &[u128], limit: usize) -> Mirrors {
        let mirrors = Mirrors::default();
        mirrors.begin_read().unwrap().keep(&queue(), &Bounds::first(limit), &page(numbers), true);
        mirrors
    }

    fn seen(mirrors: &Mirrors, wanted: usize) -> Option<Vec<Key>> {
        mirrors.look(&queue(), (None, None), wanted).map(|look| look.heads.into_iter().map(|head| head.key).collect())
    }

    fn keys(numbers: &[u128]) -> Option<Vec<Key>> {
        Some(numbers.iter().map(|number| Key::execution(id(*number))).collect())
    }

    #[test]
    fn a_mirror_follows_what_the_process_commits() {
        let mirrors = mirrors(&[1, 3], 10);
        mirrors.follow(&[moved(1, true, false), moved(2, false, true), moved(3, true, true)]);
        assert_eq!(seen(&mirrors, 10), keys(&[2, 3]));
        let look = mirrors.look(&queue(), (None, None), 1).unwrap();
        assert_eq!(look.more_after, Some(position(2)), "there is more behind what was asked for");
    }

    #[test]
    fn what_lies_behind_the_known_beginning_is_not_taken_for_its_end() {
        let mirrors = mirrors(&[1, 3], 2);
        mirrors.follow(&[moved(2, false, true), moved(9, false, true)]);
        let look = mirrors.look(&queue(), (None, None), 4).unwrap();
        assert_eq!((look.heads.len(), look.more_after), (3, Some(position(3))), "the rest must be read");
        let rest = Bounds::first(5).after(Some(position(3)));
        mirrors.begin_read().unwrap().keep(&queue(), &rest, &page(&[5, 9]), true);
        assert_eq!(seen(&mirrors, 9), keys(&[1, 2, 3, 5, 9]));
        assert_eq!(mirrors.look(&queue(), (None, None), 9).unwrap().more_after, None);
    }

    #[test]
    fn what_is_committed_during_a_read_counts_whether_the_read_saw_it_or_not() {
        let (read_before, read_after) = (page(&[1]), page(&[2]));
        for read in [read_before, read_after] {
            let mirrors = Mirrors::default();
            let reading = mirrors.begin_read().unwrap();
            mirrors.follow(&[moved(1, true, false), moved(2, false, true)]);
            reading.keep(&queue(), &Bounds::first(10), &read, true);
            drop(reading);
            assert_eq!(seen(&mirrors, 10), keys(&[2]));
            assert_eq!(mirrors.lock().noted.len(), 0, "nobody needs it any more");
        }
    }

    #[test]
    fn reads_that_overlap_keep_no_more_than_the_oldest_of_them_needs() {
        let mirrors = Mirrors::default();
        let mut reading = mirrors.begin_read().unwrap();
        for number in 1..10 {
            mirrors.follow(&[moved(number, false, true)]);
            reading = mirrors.begin_read().unwrap();
            assert_eq!(mirrors.lock().noted.len(), 0, "the one before is over");
        }
        mirrors.follow(&[moved(10, false, true)]);
        reading.keep(&queue(), &Bounds::first(10), &page(&[9]), true);
        assert_eq!(seen(&mirrors, 10), keys(&[9, 10]));
    }

    #[test]
    fn a_read_that_was_on_its_way_when_everything_was_forgotten_is_not_kept() {
        let mirrors = Mirrors::default();
        let reading = mirrors.begin_read().unwrap();
        mirrors.forget();
        reading.keep(&queue(), &Bounds::first(10), &page(&[1]), true);
        assert_eq!(seen(&mirrors, 10), None);
    }

    /// After a look at everything that took so long that nobody wants to repeat it soon.
    fn after_slow_look(numbers: &[u128]) -> Mirrors {
        let mirrors = mirrors(numbers, 10);
        let in_a_while = Instant::now() + Duration::from_secs(60);
        mirrors.lock().lists.values_mut().for_each(|mirror| mirror.whole_until = in_a_while);
        mirrors
    }

    fn parts(mirrors: &Mirrors) -> Vec<Part> {
        mirrors.begin_read().unwrap().parts(&queue(), None)
    }

    #[test]
    fn what_was_taken_since_a_slow_look_is_not_passed_over_again() {
        let mirrors = after_slow_look(&[1, 2, 3, 4]);
        mirrors.follow(&[moved(1, true, false), moved(2, true, false)]);
        let begin = Some(before_all(0));
        assert_eq!(parts(&mirrors), [(None, begin.clone()), (Some(position(2)), None)]);
        mirrors.follow(&[moved(4, true, false)]);
        assert_eq!(parts(&mirrors)[1].0, Some(before_all(3)), "what still stands is read again");
        mirrors.begin_read().unwrap().keep(&queue(), &Bounds::first(10), &page(&[3]), false);
        mirrors.follow(&[moved(3, true, false)]);
        assert_eq!(parts(&mirrors), [(None, begin), (Some(position(4)), None)], "the rest is remembered");
    }

    #[test]
    fn each_priority_has_a_beginning_of_its_own() {
        let lowest = rank(RANK_PRIORITY_MAX - 7, TimestampMs(0));
        let low = u128::try_from(lowest).unwrap();
        let mirrors = after_slow_look(&[1, 2, low + 1, low + 2]);
        mirrors.follow(&[moved(1, true, false), moved(low + 1, true, false)]);
        let between = (Some(position(1)), Some(before_all(lowest)));
        let rest = (Some(position(low + 1)), None);
        assert_eq!(parts(&mirrors), [(None, Some(before_all(0))), between, rest.clone()]);

        let behind = |number| mirrors.begin_read().unwrap().parts(&queue(), Some(&position(number)));
        assert_eq!(behind(2), [(Some(position(2)), Some(before_all(lowest))), rest]);
        assert_eq!(behind(low + 2), [(Some(position(low + 2)), None)]);
    }

    #[test]
    fn whole_lists_are_read_where_others_may_have_put_something_or_nothing_is_known() {
        let mirrors = after_slow_look(&[1, 2]);
        mirrors.follow(&[moved(1, true, false)]);
        mirrors.doubt();
        assert_eq!(parts(&mirrors), [(None, None)]);

        let mirrors = after_slow_look(&(1..=10).collect::<Vec<_>>());
        mirrors.follow(&[moved(20, true, false)]);
        assert_eq!(parts(&mirrors), [(None, None)], "others may stand before it");
    }

    #[test]
    fn a_part_of_a_list_is_known_as_far_as_the_list_is() {
        let mirrors = mirrors(&[1, 2, 3, 4], 4);
        let look = |after: u128, until: Option<u128>| {
            let (after, until) = (position(after), until.map(position));
            let look = mirrors.look(&queue(), (Some(&after), until.as_ref()), 2)?;
            Some((look.heads.into_iter().map(|head| head.position).collect::<Vec<_>>(), look.more_after))
        };
        assert_eq!(look(1, Some(2)), Some((vec![position(2)], None)));
        assert_eq!(look(1, None), Some((vec![position(2), position(3)], Some(position(3)))));
        assert_eq!(look(3, Some(9)), Some((vec![position(4)], Some(position(4)))), "behind it nothing is known");
        assert_eq!(look(3, Some(1)), Some((vec![], None)));
        assert_eq!(look(5, None), None);
    }

    /// When a moment has passed.
    fn later(mirrors: &Mirrors) {
        let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        mirrors.lock().lists.values_mut().for_each(|mirror| mirror.good_until = past);
    }

    #[test]
    fn a_mirror_is_good_for_longer_where_others_tell_what_they_put_there() {
        let mirrors = Mirrors::default();
        let read = || mirrors.begin_read().unwrap().keep(&queue(), &Bounds::first(10), &page(&[1]), true);
        read();
        later(&mirrors);
        assert_eq!(seen(&mirrors, 1), None, "nobody would tell");

        mirrors.listen(true);
        read();
        later(&mirrors);
        assert_eq!(seen(&mirrors, 1), keys(&[1]));
        mirrors.doubt();
        assert_eq!(seen(&mirrors, 1), None, "somebody has told");
    }

    #[test]
    fn what_others_tell_of_during_a_read_makes_it_good_for_a_moment_only() {
        let mirrors = Mirrors::default();
        mirrors.listen(true);
        let reading = mirrors.begin_read().unwrap();
        mirrors.doubt();
        reading.keep(&queue(), &Bounds::first(10), &page(&[1]), true);
        assert_eq!(seen(&mirrors, 1), keys(&[1]));
        later(&mirrors);
        assert_eq!(seen(&mirrors, 1), None);
    }

    #[test]
    fn in_company_a_mirror_is_good_for_a_moment_only() {
        let mirrors = Mirrors::default();
        mirrors.listen(true);
        mirrors.put_away();
        mirrors.lock().away_until = None;
        mirrors.begin_read().unwrap().keep(&queue(), &Bounds::first(10), &page(&[1]), true);
        assert_eq!(seen(&mirrors, 1), keys(&[1]));
        later(&mirrors);
        assert_eq!(seen(&mirrors, 1), None);
    }

    #[test]
    fn a_mirror_does_not_grow_without_end() {
        let mirrors = after_slow_look(&[1]);
        let most = HEADS_MAX as u128;
        for number in 2..=most + 5 {
            mirrors.follow(&[moved(number, false, true)]);
        }
        let look = mirrors.look(&queue(), (None, None), HEADS_MAX).unwrap();
        assert_eq!((look.heads.len(), look.more_after), (HEADS_MAX, Some(position(most))));
    }

    #[test]
    fn mirrors_are_put_away_where_others_take_from_the_same_queues() {
        let mirrors = mirrors(&[1], 10);
        mirrors.put_away();
        assert_eq!(seen(&mirrors, 1), None);
        assert!(mirrors.begin_read().is_none());
    }
}
