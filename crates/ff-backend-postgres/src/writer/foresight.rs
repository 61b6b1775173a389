//! What those who look for work will read: what they read the last time. A guess that is read in vain costs little, one that is right saves a
//! round trip for each step of the search.

use std::sync::{Mutex, PoisonError};

use ff_engine::index::{Bounds, Index};

use super::batch::Batch;
use crate::address::Address;

/// Lists and rows that are read in advance.
const MOST: usize = 64;

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked {
    pub(super) lists: Vec<(Index, Bounds)>,
    pub(super) rows: Vec<Address>,
    /// How many rows of queues were remembered as they are, and how many were not.
    remembered: [usize; 2],
}

impl Looked {
    pub(super) const fn hits_and_misses(&mut self, is_hit: bool) -> &mut usize {
        if is_hit { &mut self.remembered[0] } else { &mut self.remembered[1] }
    }
}

/// What will be read.
#[derive(Debug, Default)]
pub(super) struct Foresight(Mutex<Looked>);

impl Foresight {
    /// Remembers what a batch has read.
    pub(super) fn learn(&self, batch: &Batch) {
        let mut looked = batch.looked();
        if looked.lists.is_empty() {
            // Nobody searched.
            return;
        }
        looked.lists.truncate(MOST);
        looked.rows.truncate(MOST);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who looked into mirrors alone has learned nothing of rows.
        if looked.remembered == [0, 0] {
            looked.remembered = known.remembered;
        }
        *known = looked;
    }

    /// Whether rows of queues are better read with them than looked for in what is remembered.
    pub(super) fn brings_rows(&self) -> bool {
        let [hits, misses] = self.0.lock().unwrap_or_else(PoisonError::into_inner).remembered;
        misses > hits
    }

    pub(super) fn looked(&self) -> Looked {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
