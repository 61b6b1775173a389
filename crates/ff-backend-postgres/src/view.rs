//! Reading at one moment, beside everything that is written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Index, Listed, Position, merge_listed};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::address::{Address, Satellite, Stored};
use crate::error::explain;
use crate::indexes::Place;
use crate::session::Session;
use crate::tables::{self, Along, Beside, Bring, Entered, Facts};

/// A connection that reads, beside what is known of young executions, which have no rows.
pub(crate) struct View {
    pub(crate) session: Session,
    /// The executions that were looked at before it began to read; those of them that are young.
    known: HashSet<ExecutionId>,
    young: HashMap<ExecutionId, Arc<Stored>>,
    /// Those whose rows were read without that.
    unknown: Mutex<HashSet<ExecutionId>>,
    has_read_tables: AtomicBool,
}

impl View {
    /// One that knows what these executions are, if they are young.
    pub(crate) fn new(session: Session, known: HashSet<ExecutionId>, young: HashMap<ExecutionId, Arc<Stored>>) -> Self {
        Self { session, known, young, unknown: Mutex::default(), has_read_tables: AtomicBool::new(false) }
    }

    /// Executions whose rows were read without knowing whether they are young.
    pub(crate) fn unknown(&self) -> HashSet<ExecutionId> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether anything was read by id that is not young.
    pub(crate) fn has_read_tables(&self) -> bool {
        self.has_read_tables.load(Ordering::Relaxed)
    }

    /// Reads rows, as far as they are not known.
    async fn read(&self, addresses: &[Address]) -> Result<Facts> {
        let mut facts = Facts::default();
        let mut unread = Vec::with_capacity(addresses.len());
        for address in addresses {
            match address {
                Address::Execution(id) if self.young.contains_key(id) => {
                    facts.insert(address.clone(), self.young.get(id).cloned());
                }
                Address::Execution(id) if !self.known.contains(id) => {
                    self.unknown.lock().unwrap_or_else(PoisonError::into_inner).insert(*id);
                    unread.push(address.clone());
                }
                _ => unread.push(address.clone()),
            }
        }
        if !unread.is_empty() {
            self.has_read_tables.store(true, Ordering::Relaxed);
            facts.extend(tables::load(&self.session, &unread).await?);
        }
        Ok(facts)
    }

    /// Records by key, at one moment: that of one statement, unless something stands where only that statement tells.
    pub(crate) async fn load(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let addresses = addresses(keys);
        if tables::are_in_one_table(&addresses) {
            let facts = self.read(&addresses).await?;
            if !keys.iter().any(|key| stands_alone(&facts, key)) {
                return keys.iter().map(|key| record(&facts, key)).collect();
            }
        }
        self.at_one_moment(self.load_here(keys)).await
    }

    /// Records by key, in the transaction that is open.
    pub(crate) async fn load_here(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let facts = self.facts(keys).await?;
        keys.iter().map(|key| record(&facts, key)).collect()
    }

    /// Everything about keys that is stored.
    pub(crate) async fn facts(&self, keys: &[Key]) -> Result<Facts> {
        if keys.is_empty() {
            return Ok(Facts::default());
        }
        let mut facts = self.read(&addresses(keys)).await?;
        let own_rows: Vec<Address> =
            keys.iter().filter(|key| stands_alone(&facts, key)).map(|key| Address::Record(key.clone())).collect();
        if !own_rows.is_empty() {
            facts.extend(tables::load(&self.session, &own_rows).await?);
        }
        Ok(facts)
    }

    /// Records of several indexes in one order.
    pub(crate) async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let has_rows = |index: &Index| matches!(Place::of(index), Place::Columns(_));
        let lists = if let [index] = indexes
            && has_rows(index)
        {
            vec![self.list_one(index, bounds).await?]
        } else {
            self.at_one_moment(async {
                let mut lists = Vec::with_capacity(indexes.len());
                for index in indexes {
                    lists.push(self.list_one(index, bounds).await?);
                }
                Ok(lists)
            })
            .await?
        };
        Ok(merge_listed(lists, bounds))
    }

    async fn list_one(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
        let entered = self.entered(index, bounds, Bring::Rows).await?;
        let without_row: Vec<Key> =
            entered.iter().filter(|entered| entered.row().is_none()).map(|entered| entered.key.clone()).collect();
        let facts = self.facts(&without_row).await?;
        let mut out = Vec::with_capacity(entered.len());
        for Entered { position, key, along } in entered {
            let found = match along {
                Along::Row(row) => Some(row.record.clone()?),
                Along::Nothing | Along::Version(_) => record(&facts, &key)?,
            };
            out.extend(found.map(|record| Listed { index: index.clone(), position, record }));
        }
        Ok(out)
    }

    async fn entered(&self, index: &Index, bounds: &Bounds, bring: Bring) -> Result<Vec<Entered>> {
        let rows = self.session.query(&tables::list(index, bounds, bring)).await.map_err(explain)?;
        let mut page = tables::listed(index, &rows, bring)?;
        if let Place::Keys(range) = Place::of(index)
            && let Some((position, key)) = range.first
            && bounds.contains(&position)
            && self.stands_beside(&key).await?
        {
            let at = if bounds.reverse { page.len() } else { 0 };
            page.insert(at, Entered { position, key, along: Along::Nothing });
            page.truncate(bounds.limit);
        }
        Ok(page)
    }

    async fn stands_beside(&self, key: &Key) -> Result<bool> {
        let facts = self.facts(std::slice::from_ref(key)).await?;
        Ok(matches!(beside(&facts, key), Some(Beside::Held(_))))
    }

    /// Keys of an index.
    pub(crate) async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        let entered = async { self.entered(index, bounds, Bring::Nothing).await };
        let page = if matches!(Place::of(index), Place::Keys(_)) {
            self.at_one_moment(entered).await?
        } else {
            entered.await?
        };
        Ok(page.into_iter().map(|entered| (entered.position, entered.key)).collect())
    }

    /// How many stand in an index.
    pub(crate) async fn count(&self, index: &Index) -> Result<u64> {
        let (step, first) = tables::count(index);
        let counted = async {
            let rows = self.session.query(&step).await.map_err(explain)?;
            rows.first().map_or(Ok(0), |row| tables::cell(row, 0)).and_then(tables::number)
        };
        let Some(key) = first else { return counted.await };
        // The one beside its execution may move to a row of its own between two looks.
        self.at_one_moment(async { Ok(counted.await? + u64::from(self.stands_beside(&key).await?)) }).await
    }

    /// Runs reads that all see the same moment.
    pub(crate) async fn at_one_moment<T>(&self, reads: impl Future<Output = Result<T>>) -> Result<T> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        // Sent in this order, the first read with the beginning.
        let (begun, out) = futures_util::future::join(self.session.begin(begin), reads).await;
        begun.map_err(explain)?;
        self.session.end("COMMIT").await.map_err(explain)?;
        out
    }
}

/// Where keys are looked for. What stands in the same row is read once.
fn addresses(keys: &[Key]) -> Vec<Address> {
    let mut addresses: Vec<Address> = keys.iter().map(Address::of).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn row<'f>(facts: &'f Facts, address: &Address) -> Option<&'f Arc<Stored>> {
    facts.get(address).and_then(Option::as_ref)
}

fn beside<'f>(facts: &'f Facts, key: &Key) -> Option<Beside<'f>> {
    let (id, satellite) = Satellite::of(key)?;
    Some(tables::beside(row(facts, &Address::Execution(id)).map(|row| &**row), satellite))
}

fn stands_alone(facts: &Facts, key: &Key) -> bool {
    matches!(beside(facts, key), Some(Beside::OwnRow))
}

/// The record of a key, by what was read.
pub(crate) fn record(facts: &Facts, key: &Key) -> Result<Option<Record>> {
    let stored = |address| row(facts, &address).map(|row| row.record.clone()).transpose();
    match (&key.name, beside(facts, key)) {
        (Name::Execution(id), _) => stored(Address::Execution(*id)),
        (Name::Fence(id), _) => Ok(stored(Address::Execution(*id))?.map(Record::ownership)),
        (_, Some(Beside::Nothing)) => Ok(None),
        (_, Some(Beside::Held(held))) => held.record(key).map(Some),
        (_, Some(Beside::OwnRow) | None) => stored(Address::Record(key.clone())),
    }
}
