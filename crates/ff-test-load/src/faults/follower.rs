//! Somebody who follows the history of leases through all faults, and subscribes again where the last subscription ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ff_core::backend::Subscriptions;
use ff_core::backend::subscriptions::{LeaseChange, ScannerFilter};
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{EngineError, TimestampMs};
use ff_engine::Engine;
use ff_engine::event::{Event, EventBody};
use ff_engine::store::Store;
use futures_util::StreamExt;

use crate::feed::beginning;
use crate::journal::caller::is_open;
use crate::site::{Site, finish};

/// How long to wait for what was committed; news that died with their process are made up for in less.
const PATIENCE: Duration = Duration::from_secs(40);

type Seen = (ExecutionId, TimestampMs, LeaseChange);

/// Changes by partition: only those of one partition have an order.
type Changes = BTreeMap<Partition, Vec<Seen>>;

#[derive(Default)]
struct Notes {
    seen: Changes,
    /// How often the subscription ended.
    endings: usize,
    trouble: Option<String>,
}

/// What a follower has seen.
pub(super) struct Follower {
    notes: Arc<Mutex<Notes>>,
    /// Whether what it saw may be gone later, because a server took over that did not have it yet.
    sees_more: bool,
}

impl Follower {
    /// Follows from the beginning, for as long as the process lives.
    pub(super) fn start(site: impl Site, sees_more: bool) -> Self {
        let follower = Self { notes: Arc::default(), sees_more };
        let notes = Arc::clone(&follower.notes);
        std::thread::spawn(move || {
            let trouble = finish(async {
                match site.open(None).await {
                    Ok(backend) => follow(&backend, &notes).await,
                    Err(error) => error,
                }
            });
            notes.lock().expect("nobody panicked").trouble = Some(format!("{trouble:?}"));
        });
        follower
    }

    /// Whether it has seen what is there in its order, once, without a gap; says whether that is all.
    pub(super) fn sees(&self, events: &[Event]) -> Result<bool, String> {
        let there = by_partition(events);
        let notes = self.notes.lock().expect("nobody panicked");
        if let Some(trouble) = &notes.trouble {
            return Err(format!("a follower was told: {trouble}"));
        }
        let mut is_all = true;
        for partition in notes.seen.keys().chain(there.keys()) {
            let of = |changes: &Changes| changes.get(partition).cloned().unwrap_or_default();
            let (seen, there) = (of(&notes.seen), of(&there));
            let seen = if self.sees_more { lasting(seen, &there).0 } else { seen };
            is_all &= begins(&seen, &there)?;
        }
        Ok(is_all)
    }

    /// Whether it has seen everything; says how often it had to subscribe again, and how often it was told something again.
    pub(super) fn has_seen(&self, events: &[Event]) -> Result<(usize, usize), String> {
        let began = Instant::now();
        while !self.sees(events)? {
            if began.elapsed() > PATIENCE {
                return Err(format!("a follower has not seen everything after {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (notes, there) = (self.notes.lock().expect("nobody panicked"), by_partition(events));
        let again = there
            .iter()
            .map(|(partition, there)| notes.seen.get(partition).map_or(0, |seen| lasting(seen.clone(), there).1));
        Ok((notes.endings, again.sum()))
    }
}

/// What was seen of what is there, as it was seen last, and how often it was seen before. A change that a server took with it when it died is
/// told again once another one has it.
fn lasting(seen: Vec<Seen>, there: &[Seen]) -> (Vec<Seen>, usize) {
    let known: Vec<Seen> = seen.into_iter().filter(|change| there.contains(change)).collect();
    let is_last = |(place, change): &(usize, &Seen)| !known[place + 1..].contains(change);
    let last: Vec<Seen> = known.iter().enumerate().filter(is_last).map(|(_, change)| change.clone()).collect();
    let again = known.len() - last.len();
    (last, again)
}

/// Whether what was seen is the beginning of what is there; says whether it is all of it.
fn begins(seen: &[Seen], there: &[Seen]) -> Result<bool, String> {
    let same = seen.iter().zip(there).take_while(|(a, b)| a == b).count();
    if same == seen.len() {
        return Ok(same == there.len());
    }
    let next = (seen.get(same), there.get(same));
    let (saw, are) = (seen.len(), there.len());
    Err(format!("a follower saw {saw} of {are} changes of a partition, the first {same} as they are: {next:?}"))
}

fn by_partition(events: &[Event]) -> Changes {
    let mut changes = Changes::new();
    for event in events {
        if let (EventBody::Lease(change), Some(id)) = (&event.body, event.execution_id) {
            changes.entry(id.partition()).or_default().push((id, event.at, change.clone()));
        }
    }
    changes
}

/// Ends with what must not happen.
async fn follow<S: Store>(backend: &Engine<S>, notes: &Mutex<Notes>) -> EngineError {
    let mut cursor = match beginning(backend.store()).await {
        Ok(cursor) => cursor,
        Err(error) => return error,
    };
    loop {
        match backend.subscribe_lease_history(cursor.clone(), &ScannerFilter::default()).await {
            Ok(mut feed) => {
                while let Some(next) = feed.next().await {
                    let mut notes = notes.lock().expect("nobody panicked");
                    match next {
                        Ok(event) => {
                            cursor = event.cursor;
                            let of_partition = notes.seen.entry(event.execution_id.partition()).or_default();
                            of_partition.push((event.execution_id, event.at, event.change));
                        }
                        Err(EngineError::StreamDisconnected { cursor: after }) => {
                            cursor = after;
                            notes.endings += 1;
                        }
                        Err(error) if is_open(&error) => notes.endings += 1,
                        Err(error) => return error,
                    }
                }
            }
            Err(error) if is_open(&error) => {}
            Err(error) => return error,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
