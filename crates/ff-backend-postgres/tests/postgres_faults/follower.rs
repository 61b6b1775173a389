//! Somebody who follows the history of leases through all faults, and subscribes again where the last subscription ended.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ff_backend_postgres::{PostgresBackend, PostgresStore};
use ff_core::backend::Subscriptions;
use ff_core::backend::subscriptions::{LeaseChange, ScannerFilter};
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, TimestampMs};
use ff_engine::event::{Event, EventBody, numbered};
use ff_engine::store::Store;
use ff_test_load::journal::caller::is_open;
use futures_util::StreamExt;

use crate::site::{Site, finish};

/// How long to wait for what was committed; news that died with their process are made up for in less.
const PATIENCE: Duration = Duration::from_secs(40);

type Seen = (ExecutionId, TimestampMs, LeaseChange);

#[derive(Default)]
struct Notes {
    seen: Vec<Seen>,
    /// How often the subscription ended.
    endings: usize,
    trouble: Option<String>,
}

/// What a follower has seen.
#[derive(Clone, Default)]
pub(crate) struct Follower {
    notes: Arc<Mutex<Notes>>,
}

impl Follower {
    /// Follows from the beginning, for as long as the process lives.
    pub(crate) fn start(site: Site) -> Self {
        let follower = Self::default();
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

    /// Whether it has seen what it has seen in its order, once, without a gap; says whether that is all.
    pub(crate) fn sees(&self, events: &[Event]) -> Result<bool, String> {
        let there: Vec<Seen> = events.iter().filter_map(lease).collect();
        let notes = self.notes.lock().expect("nobody panicked");
        if let Some(trouble) = &notes.trouble {
            return Err(format!("a follower was told: {trouble}"));
        }
        let same = notes.seen.iter().zip(&there).take_while(|(a, b)| a == b).count();
        if same == notes.seen.len() {
            return Ok(same == there.len());
        }
        let (saw, are) = (notes.seen.len(), there.len());
        let next = (notes.seen.get(same), there.get(same));
        Err(format!("a follower saw {saw} of {are} changes, the first {same} as they are: {next:?}"))
    }

    /// Whether it has seen everything; says how often it had to subscribe again.
    pub(crate) fn has_seen(&self, events: &[Event]) -> Result<usize, String> {
        let began = Instant::now();
        while !self.sees(events)? {
            if began.elapsed() > PATIENCE {
                return Err(format!("a follower has not seen everything after {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(self.notes.lock().expect("nobody panicked").endings)
    }
}

fn lease(event: &Event) -> Option<Seen> {
    match (&event.body, event.execution_id) {
        (EventBody::Lease(change), Some(id)) => Some((id, event.at, change.clone())),
        _ => None,
    }
}

/// Ends with what must not happen.
async fn follow(backend: &PostgresBackend, notes: &Mutex<Notes>) -> EngineError {
    let mut cursor = numbered::cursor(PostgresStore::TAG, 0);
    loop {
        match backend.subscribe_lease_history(cursor.clone(), &ScannerFilter::default()).await {
            Ok(mut feed) => {
                while let Some(next) = feed.next().await {
                    let mut notes = notes.lock().expect("nobody panicked");
                    match next {
                        Ok(event) => {
                            cursor = event.cursor;
                            notes.seen.push((event.execution_id, event.at, event.change));
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
