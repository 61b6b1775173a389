//! A reader of the event log, and whether it has seen what there was to see.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ff_core::Result;
use ff_core::cursor::EventCursor;
use ff_core::partition::Partition;
use ff_engine::event::Event;
use ff_engine::index::Topic;
use ff_engine::store::Store;
use serde::{Deserialize, Serialize};

/// Events read at once.
const PAGE: usize = 500;

/// An event, short enough to be told: where it belongs, and what makes it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Glimpse {
    pub partition: Partition,
    pub digest: u64,
}

impl Glimpse {
    /// Of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let mut hasher = DefaultHasher::new();
        format!("{event:?}").hash(&mut hasher);
        Self { partition: event.partition, digest: hasher.finish() }
    }
}

/// Somebody who reads from the beginning and goes on after what it has read.
#[derive(Debug)]
pub struct Reader {
    cursor: EventCursor,
}

/// The cursor before the first event of a store. Behind the byte that names the store a cursor holds numbers of events, one for each log that
/// the store has, and no event has the number 0.
///
/// # Errors
/// Those of the store.
pub async fn beginning<S: Store>(store: &S) -> Result<EventCursor> {
    let mut bytes = store.events(&EventCursor::TAIL, 0).await?.next.as_bytes().to_vec();
    bytes.iter_mut().skip(1).for_each(|byte| *byte = 0);
    Ok(EventCursor::from_bytes(bytes))
}

impl Reader {
    /// One who has read nothing of a store yet.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn of<S: Store>(store: &S) -> Result<Self> {
        beginning(store).await.map(|cursor| Self { cursor })
    }

    /// What is there beyond what was read, as much as is read at once.
    ///
    /// # Errors
    /// Those of the store; the next call goes on where this one began.
    pub async fn read<S: Store>(&mut self, store: &S) -> Result<Vec<Glimpse>> {
        let page = store.events(&self.cursor, PAGE).await?;
        self.cursor = page.next;
        Ok(page.events.iter().map(|(_, event)| Glimpse::of(event)).collect())
    }

    /// The same, and waits until there is something. May be dropped at any time.
    ///
    /// # Errors
    /// Those of the store; the next call goes on where this one began.
    pub async fn next<S: Store>(&mut self, store: &S) -> Result<Vec<Glimpse>> {
        loop {
            let news = store.listen(&Topic::Events);
            let read = self.read(store).await?;
            if !read.is_empty() {
                return Ok(read);
            }
            news.await;
        }
    }
}

/// Whether a reader saw each event once, those of a partition in their order.
///
/// # Errors
/// The first partition that it saw otherwise.
pub fn saw_everything_once(seen: &[Glimpse], events: &[Event]) -> std::result::Result<(), String> {
    let (seen, there) = (by_partition(seen.iter().copied()), by_partition(events.iter().map(Glimpse::of)));
    for partition in seen.keys().chain(there.keys()) {
        let (seen, there) = (seen.get(partition).map_or(&[][..], Vec::as_slice), there.get(partition));
        let there = there.map_or(&[][..], Vec::as_slice);
        if seen != there {
            let same = seen.iter().zip(there).take_while(|(a, b)| a == b).count();
            let (saw, are) = (seen.len(), there.len());
            return Err(format!("{partition:?}: a reader saw {saw} of {are} events, from number {same} on other ones"));
        }
    }
    Ok(())
}

fn by_partition(events: impl Iterator<Item = Glimpse>) -> BTreeMap<Partition, Vec<u64>> {
    let mut all: BTreeMap<Partition, Vec<u64>> = BTreeMap::new();
    for Glimpse { partition, digest } in events {
        all.entry(partition).or_default().push(digest);
    }
    all
}
