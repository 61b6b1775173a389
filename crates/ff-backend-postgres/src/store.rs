//! The store: what the engine asks, and who answers.

use std::sync::Arc;
use std::time::Duration;

use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::alarms::DueNews;
use ff_engine::clock::StoreClock;
use ff_engine::event::numbered::Extent;
use ff_engine::event::{EventPage, numbered};
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Bounds, Index, Listed, Position, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::{Op, Store};
use ff_engine::topics::Topics;

use crate::address::Address;
use crate::connection::Pool;
use crate::error::explain;
use crate::indexes::{Place, Query};
use crate::intake::{ExpectedIdentity, Identity};
use crate::maintenance;
use crate::news::{Herald, Messengers};
use crate::options::PostgresOptions;
use crate::schema;
use crate::session::{Session, Step};
use crate::standing::{NOBODY, Standing};
use crate::tables;
use crate::value::Value;
use crate::view::View;
use crate::writer::{Shared, Writer};
use crate::young::{Plain, Young};

/// Events that are expected in a row of the log; how many there are decides only how many rows are read at once.
const EVENTS_PER_ROW: usize = 8;

/// How often something is read beside those who change it, before it is made to stand still.
const TRIES_BESIDE: u32 = 3;

/// How long a process that ends may take to tell others.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Records in a database of a Postgres server, shared by any number of processes.
pub struct PostgresStore {
    pub(crate) shared: Arc<Shared>,
    writer: Writer,
    options: PostgresOptions,
    pub(crate) identity: ExpectedIdentity,
    /// Those who tell and hear; ended with the store.
    _messengers: Messengers,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("options", &self.options).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects; makes the schema and its layout when they are missing, and brings an older layout up to date.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do: `InvalidInput` for a schema that is not ours or needs another program,
    /// `Transport` for a server that cannot be reached or does not let us in.
    pub async fn connect(options: PostgresOptions) -> Result<Self> {
        let pool = Pool::connect(&options).await?;
        Self::with_pool(pool, options).await
    }

    /// The same on connections of the caller's own pool, which other parts of the program may go on using: their settings stay as they are.
    /// What our statements need is set at the beginning of each transaction, which costs the server some 40 microseconds each time, and reads
    /// become transactions for it; so a pool that [`PostgresStore::connect`] makes is faster. Everything else is as the pool has it: if its
    /// sessions have `synchronous_commit` off, our commits are as forgetful as its own.
    ///
    /// A pool hears no notifications. Options with a URL, which must lead to the same database, are used for one connection beside the pool that
    /// does; everything else in that URL, and how many connections there may be, is the pool's affair. With
    /// [`PostgresOptions::without_url`] there is no such connection: what this process commits wakes who waits here at once, as ever, but what
    /// other processes commit is noticed only every 30 seconds.
    ///
    /// # Errors
    /// As for [`PostgresStore::connect`], and `InvalidInput` for a URL that leads to another database.
    pub async fn from_pool(connections: deadpool_postgres::Pool, options: PostgresOptions) -> Result<Self> {
        let pool = Pool::from_pool(connections, &options).await?;
        Self::with_pool(pool, options).await
    }

    async fn with_pool(pool: Pool, options: PostgresOptions) -> Result<Self> {
        schema::prepare(&pool, options.schema_name()).await?;
        let name: Arc<str> = options.schema_name().quoted().into();
        let session = Session::new(pool.get().await?, Arc::clone(&name));
        let server = server_time(&session).await?;
        let identity = ExpectedIdentity::new(Identity::read(&session, options.schema_name()).await?);
        drop(session);
        let young = Arc::new(Young::new(options.young_max));
        let shared = Arc::new(Shared {
            standing: Standing::new(Arc::clone(&young), options.young_max > 0),
            young,
            clock: StoreClock::new(options.clock.clone(), server),
            memory: Arc::default(),
            topics: Arc::default(),
            herald: Herald::new(),
            schema: Arc::clone(&name),
            pool: pool.clone(),
        });
        let messengers = Messengers::start(&shared).await?;
        shared.standing.owner(&shared).await?;
        let writer = Writer::start(&shared, options.writers);
        Ok(Self { shared, writer, options, identity, _messengers: messengers })
    }

    /// How it was opened.
    #[must_use]
    pub const fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// Reads beside everything that is written, at one moment. Of young executions it knows what is read by id; where any is looked for in other
    /// ways, they settle first.
    pub(crate) async fn reading<T, R: Future<Output = Result<T>>>(
        &self,
        how: Look,
        mut known: HashSet<ExecutionId>,
        read: impl Fn(Arc<View>) -> R,
    ) -> Result<T> {
        let shared = &self.shared;
        let mut tries = 0;
        loop {
            tries += 1;
            let owner = shared.standing.owner(shared).await?;
            let turns = shared.standing.turns();
            if owner == NOBODY {
                let view = Arc::new(View::new(shared.session().await?, HashSet::default(), HashMap::default()));
                let out = read(Arc::clone(&view)).await?;
                if shared.standing.is_confirmed(&view.session, owner).await? && shared.standing.turns() == turns {
                    return Ok(out);
                }
                continue;
            }
            // What changes all the time is better looked at where it stands still.
            let _plain = if how == Look::AtLists || tries > TRIES_BESIDE {
                let Some(plain) = shared.settle_all(owner).await? else { continue };
                Some(plain)
            } else {
                None
            };
            let looked = shared.young.looked(&known).await;
            let view = Arc::new(View::new(shared.session().await?, known.clone(), looked.found.clone()));
            let out = read(Arc::clone(&view)).await?;
            let unknown = view.unknown();
            let is_of_one_moment =
                (how == Look::ById && !view.has_read_tables()) || shared.young.is_still(&known, &looked, &unknown);
            if is_of_one_moment && shared.standing.is_confirmed(&view.session, owner).await? {
                return Ok(out);
            }
            known.extend(unknown);
        }
    }

    /// The tables for somebody who changes them behind the back of everybody else: all executions are there as long as it is held.
    pub(crate) async fn plain_tables(&self) -> Result<PlainTables> {
        let shared = &self.shared;
        loop {
            let owner = shared.standing.owner(shared).await?;
            let plain = if owner == NOBODY { None } else { shared.settle_all(owner).await? };
            if owner == NOBODY || plain.is_some() {
                let view = View::new(shared.session().await?, HashSet::default(), HashMap::default());
                return Ok(PlainTables { view, owner, shared: Arc::clone(shared), _plain: plain });
            }
        }
    }

    pub(crate) fn topics(&self) -> &Arc<Topics> {
        &self.shared.topics
    }
}

async fn server_time(session: &Session) -> Result<TimestampMs> {
    let step = Step::new("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    let rows = session.query(&step).await.map_err(explain)?;
    rows.first().map_or(Ok(0), |row| tables::cell(row, 0)).map(TimestampMs)
}

/// How somebody looks for executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// By id alone.
    ById,
    /// At what belongs to them, and then by id.
    AtBelongings,
    /// At lists of them.
    AtLists,
}

impl Look {
    fn at(indexes: &[Index]) -> Self {
        if indexes.iter().any(Place::is_columns) { Self::AtLists } else { Self::AtBelongings }
    }
}

/// The tables, with everything in them for as long as this is held and its owner stays the same.
pub(crate) struct PlainTables {
    pub(crate) view: View,
    /// The owner of the journal.
    pub(crate) owner: i64,
    pub(crate) shared: Arc<Shared>,
    _plain: Option<Plain>,
}

impl Store for PostgresStore {
    const TAG: BackendTag = BackendTag::Postgres;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        self.writer.transact(op).await
    }

    fn spans_partitions(&self) -> bool {
        self.options.fast_paths
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let executions = keys.iter().filter_map(|key| Address::of(key).execution()).collect();
        self.reading(Look::ById, executions, |view| async move { view.load(keys).await }).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        self.reading(Look::at(indexes), owners(indexes), |view| async move { view.list(indexes, bounds).await }).await
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        let indexes = std::slice::from_ref(index);
        self.reading(Look::at(indexes), owners(indexes), |view| async move { view.keys(index, bounds).await }).await
    }

    async fn lowest(&self, indexes: &[Index], above: Option<i64>) -> Result<Option<i64>> {
        self.reading(Look::at(indexes), owners(indexes), |view| async move { lowest(&view, indexes, above).await })
            .await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        let indexes = std::slice::from_ref(index);
        self.reading(Look::at(indexes), owners(indexes), |view| async move { view.count(index).await }).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        let session = self.shared.session().await?;
        let (horizon, extent) = extent(&session, numbered::number(Self::TAG, after).ok()).await?;
        let cursor = |sequence| numbered::cursor(Self::TAG, sequence);
        let after = numbered::resume(Self::TAG, after, extent)?;
        let mut events = Vec::new();
        let mut from = after;
        while events.len() < limit {
            let wanted = (limit - events.len()).div_ceil(EVENTS_PER_ROW) + 1;
            let rows = session.query(&tables::event::after(from, horizon, wanted)).await.map_err(explain)?;
            if let Some(row) = rows.first() {
                // What was trimmed in between is missing from the rows.
                let trimmed = tables::event::trimmed(row)?;
                numbered::resume(Self::TAG, &cursor(from), Extent { trimmed, ..extent })?;
            }
            for row in &rows {
                events.extend(tables::event::read(row)?.into_iter().filter(|(number, _)| *number > from));
            }
            from = events.last().map_or(from, |(number, _)| *number);
            if rows.len() < wanted {
                break;
            }
        }
        events.truncate(limit);
        let next = cursor(events.last().map_or(after, |(sequence, _)| *sequence));
        Ok(EventPage { events: events.into_iter().map(|(at, event)| (cursor(at), event)).collect(), next })
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        let session = self.shared.session().await?;
        let (horizon, _) = extent(&session, None).await?;
        let rows = session.query(&tables::event::trim(before, horizon, limit)).await.map_err(explain)?;
        let count = rows.first().map_or(Ok(0), |row| tables::cell(row, 0)).and_then(tables::number)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        let done = maintenance::reindex(self, partition, Some(partition)).await;
        self.shared.memory.mirrors.forget();
        done
    }

    async fn reindex_in_round(&self, partition: Partition, is_first: bool) -> Result<(u32, u32)> {
        let done = maintenance::reindex_in_round(self, partition, is_first).await;
        self.shared.memory.mirrors.forget();
        done
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.topics().listen(topic).0
    }

    fn listen_due(&self) -> DueNews {
        self.topics().listen_due().0
    }

    async fn tell_others(&self) -> Result<()> {
        let told = async {
            let left = self.shared.standing.leave(&self.shared).await;
            self.shared.herald.tell_rest(&self.shared.pool, &self.shared.schema).await.and(left)
        };
        let too_late = |_| Err(EngineError::Timeout { op: "tell_others", elapsed: LAST_WORDS });
        tokio::time::timeout(LAST_WORDS, told).await.unwrap_or_else(too_late)
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.shared.clock.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        Ok(self.shared.clock.now())
    }
}

/// The executions that lists belong to.
fn owners(indexes: &[Index]) -> HashSet<ExecutionId> {
    indexes.iter().filter_map(|index| Address::of(&index.owner()?).execution()).collect()
}

/// Up to where nothing is missing, and what is left of the log up to there. A reader knows that nothing is missing up to its cursor.
async fn extent(session: &Session, known: Option<u64>) -> Result<(u64, Extent)> {
    let rows = session.query(&tables::event::horizon(known)).await.map_err(explain)?;
    let horizon = rows.first().map_or(Ok(0), |row| tables::cell(row, 0)).and_then(tables::number)?;
    let rows = session.query(&tables::event::extent(horizon)).await.map_err(explain)?;
    let Some(row) = rows.first() else { return Ok((horizon, Extent { trimmed: 0, last: 0 })) };
    let (trimmed, last) = (tables::number(tables::cell(row, 0)?)?, tables::number(tables::cell(row, 1)?)?);
    Ok((horizon, Extent { trimmed, last: last.max(trimmed) }))
}

/// The lowest number above a given one at which an entry stands: one statement, however many indexes may tell.
async fn lowest(view: &View, indexes: &[Index], above: Option<i64>) -> Result<Option<i64>> {
    let bounds = Bounds::first(1).after(above.map(Position::end_of));
    let mut query = Query::new(String::new());
    let mut lowest = None;
    for index in indexes {
        if matches!(Place::of(index), Place::Keys(_)) {
            let first = view.keys(index, &bounds).await?.first().map(|(position, _)| position.major);
            lowest = lowest.into_iter().chain(first).min();
        } else {
            ask_first(&mut query, Place::of(index), above, &bounds);
        }
    }
    if query.sql.is_empty() {
        return Ok(lowest);
    }
    let step = Step::new(format!("SELECT min(major) FROM ({}) AS firsts", query.sql)).with_all(query.values);
    let rows = view.session.query(&step).await.map_err(explain)?;
    let found: Option<i64> = rows.first().map_or(Ok(None), |row| tables::cell(row, 0))?;
    Ok(lowest.into_iter().chain(found).min())
}

/// Asks for the first entry of one more index.
fn ask_first(query: &mut Query, place: Place, above: Option<i64>, bounds: &Bounds) {
    query.push(if query.sql.is_empty() { "(" } else { " UNION ALL (" }, []);
    match place {
        Place::Columns(columns) => {
            query.push(&format!("SELECT {} AS major", columns.number()), []);
            columns.select(query, "", bounds);
        }
        Place::Rows(list) => query.push(
            "SELECT major FROM {s}.entry WHERE list = ? AND major > ? ORDER BY major LIMIT 1",
            // No entry stands at the lowest number.
            [Value::Bytes(list), Value::Big(above.unwrap_or(i64::MIN))],
        ),
        Place::Keys(_) => query.push("SELECT NULL::bigint AS major", []),
    }
    query.push(")", []);
}
