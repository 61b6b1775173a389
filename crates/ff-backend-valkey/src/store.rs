//! The store: what the engine asks, and who answers.

use std::sync::Arc;

use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::DueNews;
use ff_engine::clock::StoreClock;
use ff_engine::event::{Event, EventPage};
use ff_engine::index::{Bounds, Index, Listed, Position, Topic};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use ff_engine::store::{Op, Store};
use futures_util::future::try_join_all;
use redis::Value;
use uuid::Uuid;

use crate::address::{Shard, stored_key};
use crate::connection::Link;
use crate::indexes;
use crate::lists;
use crate::maintenance;
use crate::news::{Herald, Messengers};
use crate::options::ValkeyOptions;
use crate::schema;
use crate::signposts::Signposts;
use crate::tables::event::{Extent, Places};
use crate::tables::{Bring, Look, Seen, event, number};
use crate::tls;
use crate::writer::{Shared, Writer};

/// Records on a Valkey or Redis server or on a cluster of them, shared by any number of processes.
pub struct ValkeyStore {
    pub(crate) shared: Arc<Shared>,
    writer: Writer,
    options: ValkeyOptions,
    /// Those who hear; ended with the store.
    _messengers: Messengers,
}

impl std::fmt::Debug for ValkeyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValkeyStore").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ValkeyStore {
    /// Connects; gives the server our functions, and lays a new deployment out.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do: `InvalidInput` for a deployment that needs another program or has another layout,
    /// `Transport` for a server that cannot be reached, does not let us in, is too old, or may throw keys away.
    pub async fn connect(options: ValkeyOptions) -> Result<Self> {
        let options = tls::read_files(options)?;
        let link = Link::connect(&options).await?;
        let layout = schema::prepare(&link, &options).await?;
        let process = Uuid::new_v4();
        let first = Shard(0);
        let time = Look::default().read(link.ask(&Look::default().command_at(&layout, first)).await?)?.time;
        let shared = Arc::new(Shared {
            clock: StoreClock::new(options.clock.clone(), time),
            memory: Arc::default(),
            signposts: Signposts::default(),
            topics: Arc::default(),
            herald: Herald::new(process),
            process,
            replicas: options.replicas,
            link,
            layout,
        });
        let nodes = {
            let (link, options) = (shared.link.clone(), options.clone());
            move || link.nodes(&options)
        };
        let (channel, topics) = (shared.layout.channel(), Arc::clone(&shared.topics));
        let messengers = Messengers::start(Herald::new(process), channel, nodes, topics).await?;
        let writer = Writer::start(&shared);
        Ok(Self { shared, writer, options, _messengers: messengers })
    }

    /// How it was opened.
    #[must_use]
    pub const fn options(&self) -> &ValkeyOptions {
        &self.options
    }

    /// Over how many slots of a cluster it spreads.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shared.layout.count()
    }

    /// One look at a shard.
    pub(crate) async fn look(&self, shard: Shard, look: &Look) -> Result<Seen> {
        let Shared { link, layout, clock, .. } = &*self.shared;
        let seen = look.read(link.ask(&look.command_at(layout, shard)).await?)?;
        clock.observe(seen.time.0);
        Ok(seen)
    }

    /// What is left of the log of each shard, and what stands in it behind a reader's place.
    async fn logs(&self, places: Option<&Places>, limit: usize) -> Result<Vec<(Extent, Vec<(u64, Event)>)>> {
        let Shared { link, layout, .. } = &*self.shared;
        let log = |shard: Shard| async move {
            let behind = places.and_then(|places| places.0.get(usize::from(shard.0)).copied());
            let entries = if behind.is_some() { limit } else { 0 };
            let behind = behind.unwrap_or(0);
            event::read(link.ask(&event::after(layout, shard, behind, entries)).await?, behind)
        };
        try_join_all(layout.shards().map(log)).await
    }
}

impl Store for ValkeyStore {
    const TAG: BackendTag = BackendTag::Valkey;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        self.writer.transact(op).await
    }

    fn spans_partitions(&self) -> bool {
        self.options.fast_paths && self.shards() == 1
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let layout = &self.shared.layout;
        let mut by_shard: std::collections::BTreeMap<Shard, Vec<usize>> = std::collections::BTreeMap::new();
        for (place, key) in keys.iter().enumerate() {
            by_shard.entry(layout.shard_of(key.partition)).or_default().push(place);
        }
        let part = |(shard, places): (Shard, Vec<usize>)| async move {
            let look = Look { keys: places.iter().map(|place| stored_key(&keys[*place])).collect(), ..Look::default() };
            let seen = self.look(shard, &look).await?;
            Ok::<_, ff_core::EngineError>((places, seen.records))
        };
        let mut out = vec![None; keys.len()];
        for (places, records) in try_join_all(by_shard.into_iter().map(part)).await? {
            for (place, stored) in places.into_iter().zip(records) {
                let record = stored.map(|stored| stored.record).transpose()?;
                let is_ownership = matches!(keys[place].name, Name::Fence(_));
                out[place] = if is_ownership { record.map(Record::ownership) } else { record };
            }
        }
        Ok(out)
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        lists::records(self, indexes, bounds).await
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        lists::keys(self, index, bounds).await
    }

    async fn lowest(&self, indexes: &[Index], above: Option<i64>) -> Result<Option<i64>> {
        let bounds = Bounds::first(1).after(above.map(Position::end_of));
        let part = |shard| {
            let mine = indexes.iter().filter(move |index| self.shared.layout.shards_of(index).contains(&shard));
            let pages = mine.map(|index| (index.clone(), bounds.clone(), Bring::Nothing)).collect();
            async move { self.look(shard, &Look { pages, ..Look::default() }).await }
        };
        let seen = try_join_all(self.shared.layout.shards().map(part)).await?;
        let firsts = seen.iter().flat_map(|seen| &seen.pages).filter_map(|page| page.entered.first());
        Ok(firsts.map(|first| first.position.major).min())
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        let Shared { link, layout, .. } = &*self.shared;
        let ask = |name: &str, key: Vec<u8>| {
            let mut command = redis::cmd(name);
            command.arg(key);
            async move { number(&link.ask(&command).await?) }
        };
        let shards = layout.shards_of(index).into_iter();
        let mut counts = try_join_all(shards.map(|shard| ask("ZCARD", layout.list(shard, index)))).await?;
        if let Some((_, key)) = indexes::unlisted(index) {
            counts.push(ask("EXISTS", layout.record(&key)).await?);
        }
        Ok(counts.into_iter().map(i64::unsigned_abs).sum())
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        if after.is_tail() {
            let logs = self.logs(None, 0).await?;
            let next = Places(logs.iter().map(|(extent, _)| extent.last).collect()).cursor();
            return Ok(EventPage { events: Vec::new(), next });
        }
        let mut places = Places::of(after, self.shards())?;
        let logs = self.logs(Some(&places), limit).await?;
        let (extents, logs): (Vec<Extent>, Vec<_>) = logs.into_iter().unzip();
        places.check(&extents)?;
        let mut logs: Vec<_> = logs.into_iter().map(|log| log.into_iter().peekable()).collect();
        let mut events = Vec::new();
        while events.len() < limit {
            // Of what comes next in each log, what happened first.
            let heads = logs.iter_mut().enumerate().filter_map(|(shard, log)| Some((log.peek()?.1.at, shard)));
            let Some((_, shard)) = heads.min() else { break };
            let Some((number, event)) = logs[shard].next() else { break };
            places.0[shard] = number;
            events.push((places.cursor(), event));
        }
        Ok(EventPage { events, next: places.cursor() })
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        let Shared { link, layout, .. } = &*self.shared;
        let mut dropped = 0;
        for shard in layout.shards() {
            let Some(left) = limit.checked_sub(dropped).filter(|left| *left > 0) else { break };
            let answer: Value = link.ask(&event::trim(layout, shard, before, left)).await?;
            dropped += usize::try_from(number(&answer)?).unwrap_or(0);
        }
        Ok(dropped)
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        maintenance::reindex(self, partition).await
    }

    async fn reindex_in_round(&self, partition: Partition, is_first: bool) -> Result<(u32, u32)> {
        maintenance::reindex_in_round(self, partition, is_first).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.shared.topics.listen(topic).0
    }

    fn listen_due(&self) -> DueNews {
        self.shared.topics.listen_due().0
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.shared.clock.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        Ok(self.shared.clock.now())
    }
}
