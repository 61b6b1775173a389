//! Of those who wait for the same work, one hunts at a time: fifty idle workers cost one hunt per news, not fifty.
//!
//! Whoever has the turn may be a future that nobody polls. So each group counts its looks and shares the news that come after the latest one:
//! those in line see when news stay unheard, and then one of them looks out of turn.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;
use ff_core::ids::{LaneId, Namespace};
use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::OwnedMutexGuard;

use super::queue::Seeker;
use crate::records::LaneClass;

/// Ends when there may be more than a look saw; many can wait for it.
pub(crate) type News = Shared<BoxFuture<'static, ()>>;

/// News that are there already.
pub(crate) fn old_news() -> News {
    let ready: BoxFuture<'static, ()> = Box::pin(std::future::ready(()));
    ready.shared()
}

/// Everything that decides what somebody may find: whatever one hunter of a group leaves, the next one would leave, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    lane: LaneId,
    capabilities: BTreeSet<String>,
    namespaces: Option<BTreeSet<Namespace>>,
    kinds: Option<BTreeSet<String>>,
}

impl Group {
    pub(super) fn of(seeker: Seeker<'_>) -> Self {
        Self {
            lane: seeker.lane.clone(),
            capabilities: seeker.capabilities.clone(),
            namespaces: seeker.namespaces.cloned(),
            kinds: seeker.kinds.cloned(),
        }
    }

    fn awaits(&self, class: &LaneClass) -> bool {
        let Self { lane, capabilities, namespaces, kinds } = self;
        *lane == class.lane
            && Seeker { lane, capabilities, namespaces: namespaces.as_ref(), kinds: kinds.as_ref() }.takes(class)
    }
}

/// How far a group has looked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    /// How many looks began; the number of the latest.
    pub(crate) begun: u64,
    /// The latest one that came to its end.
    pub(crate) finished: u64,
    /// News since the latest one, or old news if it left something.
    pub(crate) news: Option<News>,
    /// Until when others may rely on what the latest one saw.
    fresh_until: TimestampMs,
}

/// What those of one group share.
#[derive(Debug, Default)]
struct Line {
    /// Serves in the order of asking.
    turn: Arc<tokio::sync::Mutex<()>>,
    looks: Mutex<Looks>,
}

/// Those who wait in one group.
#[derive(Debug, Default)]
struct Queue {
    line: Arc<Line>,
    /// How many wait or hunt; with the last of them the queue goes.
    members: usize,
}

type Queues = HashMap<Group, Queue>;

/// The queues of all groups in this process.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    queues: Mutex<Queues>,
}

impl Turnstile {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in line with those who look for the same.
    pub(crate) fn join(&self, seeker: Seeker<'_>) -> Place<'_> {
        let group = Group::of(seeker);
        let mut queues = self.lock();
        let queue = queues.entry(group.clone()).or_default();
        queue.members += 1;
        let line = Arc::clone(&queue.line);
        Place { turnstile: self, group, line }
    }

    /// Whether somebody waits who takes such work when it can be taken.
    pub(crate) fn awaits(&self, class: &LaneClass) -> bool {
        self.lock().keys().any(|group| group.awaits(class))
    }

    /// How many groups have somebody waiting.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> usize {
        self.lock().len()
    }
}

/// Somebody's place in line; it is given up with the value, at any time.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    turnstile: &'a Turnstile,
    group: Group,
    line: Arc<Line>,
}

impl Place<'_> {
    /// The turn, if nobody has it and nobody waits for it.
    pub(crate) fn turn_now(&self) -> Option<Turn> {
        Arc::clone(&self.line.turn).try_lock_owned().ok()
    }

    /// The turn, after all who asked before.
    pub(crate) async fn turn(&self) -> Turn {
        Arc::clone(&self.line.turn).lock_owned().await
    }

    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.line.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the group has looked.
    pub(crate) fn looks(&self) -> Looks {
        self.lock().clone()
    }

    /// Begins a look; its number. Out of turn (`after` the look that was the latest) only if nobody else began one since.
    pub(crate) fn begin(&self, after: Option<u64>) -> Option<u64> {
        let mut looks = self.lock();
        if after.is_some_and(|after| after != looks.begun) {
            return None;
        }
        looks.begun += 1;
        Some(looks.begun)
    }

    /// Ends a look, with the news since it began. Others may rely on it for a while.
    pub(crate) fn finish(&self, look: u64, news: News, fresh_until: TimestampMs) {
        let mut looks = self.lock();
        if look > looks.finished {
            looks.finished = look;
            looks.news = Some(news);
            looks.fresh_until = fresh_until;
        }
    }

    /// A look that nobody was told of found nothing. It counts like any other, unless one goes on that knows better.
    pub(crate) fn saw_nothing(&self, news: &News, fresh_until: TimestampMs) {
        let mut looks = self.lock();
        if looks.finished == looks.begun {
            let begun = looks.begun + 1;
            *looks = Looks { begun, finished: begun, news: Some(news.clone()), fresh_until };
        }
    }

    /// The news since the latest look of the group, if that found nothing, nothing has happened since, and it is not long ago: to look again
    /// would be in vain.
    pub(crate) fn quiet_since(&self, now: TimestampMs) -> Option<News> {
        let looks = self.looks();
        let is_fresh = looks.finished == looks.begun && !looks.fresh_until.is_due(now);
        looks.news.filter(|news| is_fresh && news.clone().now_or_never().is_none())
    }
}

/// The right to hunt; when it is dropped, the next one has it.
pub(crate) type Turn = OwnedMutexGuard<()>;

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.turnstile.lock();
        if let Some(queue) = queues.get_mut(&self.group) {
            queue.members -= 1;
            if queue.members == 0 {
                queues.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ff_core::capability::RequirementClass;
    use ff_core::ids::ExecutionKind;

    use super::*;
    use crate::records::QueueClass;

    fn lane(name: &str) -> LaneId {
        LaneId::new(name).unwrap()
    }

    fn set(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn turns_are_taken_in_the_order_of_asking_and_one_who_leaves_the_line_holds_up_nobody() {
        let turnstile = Turnstile::default();
        let (lane, nothing) = (lane("fast"), set(&[]));
        let seeker = Seeker { lane: &lane, capabilities: &nothing, namespaces: None, kinds: None };
        let places: Vec<Place<'_>> = (0..4).map(|_| turnstile.join(seeker)).collect();
        let first = places[0].turn_now().expect("nobody is there");
        assert!(places[1].turn_now().is_none());
        let mut waiting: Vec<_> = places[1..].iter().map(|place| Box::pin(place.turn())).collect();
        assert!(waiting.iter_mut().all(|turn| turn.as_mut().now_or_never().is_none()));
        drop(waiting.remove(0));
        drop(first);
        assert!(places[1].turn_now().is_none(), "who asks late does not pass those in line");
        assert!(waiting[1].as_mut().now_or_never().is_none());
        let third = waiting[0].as_mut().now_or_never().expect("its turn");
        drop(third);
        assert!(waiting[1].as_mut().now_or_never().is_some());
    }

    #[test]
    fn of_those_who_look_out_of_turn_one_does() {
        let turnstile = Turnstile::default();
        let (lane, nothing) = (lane("fast"), set(&[]));
        let seeker = Seeker { lane: &lane, capabilities: &nothing, namespaces: None, kinds: None };
        let places: Vec<Place<'_>> = (0..3).map(|_| turnstile.join(seeker)).collect();
        let first = places[0].begin(None).unwrap();
        assert_eq!(places[1].begin(Some(first)), Some(first + 1));
        assert_eq!(places[2].begin(Some(first)), None);
        places[1].finish(first + 1, old_news(), TimestampMs(9));
        places[0].finish(first, std::future::pending().boxed().shared(), TimestampMs(9));
        let looks = places[2].looks();
        assert_eq!((looks.begun, looks.finished), (first + 1, first + 1));
        assert!(looks.news.unwrap().now_or_never().is_some(), "the later look knows better");
    }

    #[test]
    fn what_one_saw_holds_for_those_in_line_for_a_while_and_until_something_happens() {
        let turnstile = Turnstile::default();
        let (lane, nothing) = (lane("fast"), set(&[]));
        let seeker = Seeker { lane: &lane, capabilities: &nothing, namespaces: None, kinds: None };
        let (one, other) = (turnstile.join(seeker), turnstile.join(seeker));
        assert!(other.quiet_since(TimestampMs(0)).is_none(), "nobody has looked");
        let (happens, news) = futures_channel();
        let look = one.begin(None).unwrap();
        assert!(other.quiet_since(TimestampMs(0)).is_none(), "the look goes on");
        one.finish(look, news, TimestampMs(100));
        assert!(other.quiet_since(TimestampMs(99)).is_some());
        assert!(other.quiet_since(TimestampMs(100)).is_none(), "it is long ago");
        happens.send(()).unwrap();
        assert!(other.quiet_since(TimestampMs(99)).is_none(), "something has happened");
    }

    fn futures_channel() -> (tokio::sync::oneshot::Sender<()>, News) {
        let (happens, news) = tokio::sync::oneshot::channel::<()>();
        (happens, async { drop(news.await) }.boxed().shared())
    }

    #[test]
    fn work_is_awaited_by_those_who_can_take_it() {
        let turnstile = Turnstile::default();
        let (fast, slow) = (lane("fast"), lane("slow"));
        let (gpu, mail) = (set(&["gpu"]), set(&["mail"]));
        let acme = BTreeSet::from([Namespace::new("acme").unwrap()]);
        let class = |namespace: &str, kind: &str, requirement: &str| LaneClass {
            namespace: Namespace::new(namespace).unwrap(),
            lane: fast.clone(),
            class: QueueClass {
                requirement: RequirementClass::parse(requirement).unwrap(),
                ..QueueClass::plain(ExecutionKind::new(kind).unwrap())
            },
            used_at: TimestampMs(0),
        };
        let seeker = Seeker { lane: &fast, capabilities: &gpu, namespaces: Some(&acme), kinds: Some(&mail) };
        assert!(!turnstile.awaits(&class("acme", "mail", "")));
        let elsewhere = turnstile.join(Seeker { lane: &slow, ..seeker });
        assert!(!turnstile.awaits(&class("acme", "mail", "")));
        let place = turnstile.join(seeker);
        assert!(turnstile.awaits(&class("acme", "mail", "")) && turnstile.awaits(&class("acme", "mail", "gpu")));
        for other in [class("bcme", "mail", ""), class("acme", "bill", ""), class("acme", "mail", "eu")] {
            assert!(!turnstile.awaits(&other), "{other:?}");
        }
        drop((elsewhere, place));
        assert!(!turnstile.awaits(&class("acme", "mail", "")));
    }

    #[test]
    fn only_those_who_look_for_the_same_stand_in_one_line_and_empty_lines_go() {
        let turnstile = Turnstile::default();
        let (fast, slow) = (lane("fast"), lane("slow"));
        let (nothing, gpu, mail) = (set(&[]), set(&["gpu"]), set(&["mail"]));
        let acme = BTreeSet::from([Namespace::new("acme").unwrap()]);
        let plain = Seeker { lane: &fast, capabilities: &nothing, namespaces: None, kinds: None };
        let others = [
            Seeker { lane: &slow, ..plain },
            Seeker { capabilities: &gpu, ..plain },
            Seeker { namespaces: Some(&acme), ..plain },
            Seeker { kinds: Some(&mail), ..plain },
            Seeker { kinds: Some(&nothing), ..plain },
        ];
        let place = turnstile.join(plain);
        let turn = place.turn_now().expect("nobody is there");
        let apart: Vec<_> = others.into_iter().map(|seeker| turnstile.join(seeker)).collect();
        assert!(apart.iter().all(|place| place.turn_now().is_some()));
        assert_eq!(turnstile.groups(), 6);
        let same = turnstile.join(plain);
        assert!(same.turn_now().is_none());
        drop(apart);
        drop((place, turn));
        assert_eq!(turnstile.groups(), 1);
        assert!(same.turn_now().is_some());
        drop(same);
        assert_eq!(turnstile.groups(), 0);
    }
}
