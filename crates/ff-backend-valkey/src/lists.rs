//! Lists over all shards: one look at each shard that may hold something, whatever the number of indexes.

use std::collections::BTreeMap;

use ff_core::Result;
use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Index, Listed, Position, merge_listed};
use ff_engine::key::Key;
use futures_util::future::try_join_all;

use crate::address::Shard;
use crate::indexes;
use crate::signposts::{Sign, has_signs};
use crate::store::ValkeyStore;
use crate::tables::record::Stored;
use crate::tables::{Bring, Entered, Look, Page};
use crate::writer::Shared;

/// Entries that a shard is asked for beyond its share, because shares are never quite even.
const SPARE: usize = 2;

/// Where to look for what.
#[derive(Default)]
struct Whereabouts<'i> {
    shards: BTreeMap<Shard, Vec<&'i Index>>,
    /// Signs that are to be taken down if they lead to nothing.
    old: HashMap<&'i Index, Vec<Sign>>,
    /// Whether something is looked for everywhere, signs or not.
    is_round: bool,
}

impl<'i> Whereabouts<'i> {
    fn add(&mut self, index: &'i Index, shards: impl IntoIterator<Item = Shard>) {
        for shard in shards {
            self.shards.entry(shard).or_default().push(index);
        }
    }
}

/// What a look at a shard has shown of each index that it was asked for.
struct Part<'i> {
    shard: Shard,
    pages: Vec<(&'i Index, Page)>,
    /// Entries of each index that it was asked for.
    limit: usize,
}

impl Part<'_> {
    /// Whether there may be entries between those that were shown and a position, or anywhere.
    fn hides_before(&self, cut: Option<&Position>) -> bool {
        self.pages.iter().any(|(_, page)| {
            let is_full = page.entered.len() == self.limit;
            is_full && page.entered.last().is_some_and(|last| cut.is_none_or(|cut| last.position < *cut))
        })
    }
}

/// Records that stand in any of some indexes, merged.
pub(crate) async fn records(store: &ValkeyStore, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
    let mut lists = Vec::new();
    for (index, page) in pages(store, indexes, bounds, Bring::Records).await? {
        let mut records: HashMap<Key, Option<Stored>> = page.records.into_iter().collect();
        let mut listed = Vec::with_capacity(page.entered.len());
        for Entered { position, key } in page.entered {
            if let Some(Stored { record, .. }) = records.remove(&key).flatten() {
                listed.push(Listed { index: index.clone(), position, record: record? });
            }
        }
        lists.push(listed);
    }
    Ok(merge_listed(lists, bounds))
}

/// The keys of the records that stand in an index.
pub(crate) async fn keys(store: &ValkeyStore, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
    let pages = pages(store, std::slice::from_ref(index), bounds, Bring::Nothing).await?;
    let mut keys: Vec<_> =
        pages.into_iter().flat_map(|(_, page)| page.entered).map(|at| (at.position, at.key)).collect();
    keys.sort_by(|(a, _), (b, _)| if bounds.reverse { b.cmp(a) } else { a.cmp(b) });
    keys.truncate(bounds.limit);
    Ok(keys)
}

/// A part of each index, from each of the shards that it stands in.
async fn pages<'i>(
    store: &ValkeyStore,
    indexes: &'i [Index],
    bounds: &Bounds,
    bring: Bring,
) -> Result<Vec<(&'i Index, Page)>> {
    let mut whereabouts = find(&store.shared, indexes).await;
    let asked = std::mem::take(&mut whereabouts.shards);
    let limit = first_limit(indexes, bounds, asked.len());
    let looks = asked.into_iter().map(|(shard, indexes)| look(store, shard, indexes, bounds, bring, limit));
    let mut parts = try_join_all(looks).await?;
    if limit < bounds.limit {
        complete(store, &mut parts, bounds, bring).await?;
    }
    tend_signs(&store.shared, whereabouts, &parts, bounds).await;
    Ok(parts.into_iter().flat_map(|part| part.pages).collect())
}

/// Where indexes stand, as signs tell; if nobody tells, it may be anywhere.
async fn find<'i>(shared: &Shared, indexes: &'i [Index]) -> Whereabouts<'i> {
    let Shared { layout, link, signposts, .. } = shared;
    let mut whereabouts = Whereabouts::default();
    let is_signed = |index: &&Index| layout.count() > 1 && has_signs(index);
    let (signed, others): (Vec<&Index>, Vec<&Index>) = indexes.iter().partition(is_signed);
    others.into_iter().for_each(|index| whereabouts.add(index, layout.shards_of(index)));
    let (everywhere, signed): (Vec<&Index>, Vec<&Index>) =
        signed.into_iter().partition(|index| signposts.is_round_due(index));
    whereabouts.is_round = !everywhere.is_empty();
    everywhere.into_iter().for_each(|index| whereabouts.add(index, layout.shards()));
    if signed.is_empty() {
        return whereabouts;
    }
    let asked: Vec<Index> = signed.iter().map(|index| (*index).clone()).collect();
    match signposts.read(link, layout, &asked).await {
        Ok(signs) => {
            for (index, signs) in signed.into_iter().zip(signs) {
                let known = signs.into_iter().filter(|sign| usize::from(sign.shard.0) < layout.count());
                let signs: Vec<Sign> = known.collect();
                whereabouts.add(index, signs.iter().map(|sign| sign.shard));
                let old: Vec<Sign> = signs.into_iter().filter(|sign| sign.is_old).collect();
                if !old.is_empty() {
                    whereabouts.old.insert(index, old);
                }
            }
        }
        Err(error) => {
            tracing::debug!(%error, "no signs can be read; asking every shard");
            signed.into_iter().for_each(|index| whereabouts.add(index, layout.shards()));
        }
    }
    whereabouts
}

/// What each shard is asked for at first. Of queues that stand in many shards, each is likely to have its share of what comes first.
fn first_limit(indexes: &[Index], bounds: &Bounds, shards: usize) -> usize {
    let is_thrifty = shards > 1 && !bounds.reverse && indexes.iter().all(has_signs);
    if is_thrifty { bounds.limit.min(bounds.limit.div_ceil(shards) + SPARE) } else { bounds.limit }
}

/// Asks those shards again that may have more of what comes first.
async fn complete(store: &ValkeyStore, parts: &mut [Part<'_>], bounds: &Bounds, bring: Bring) -> Result<()> {
    let mut shown: Vec<&Position> =
        parts.iter().flat_map(|part| &part.pages).flat_map(|(_, page)| &page.entered).map(|at| &at.position).collect();
    shown.sort();
    let cut = bounds.limit.checked_sub(1).and_then(|last| shown.get(last)).map(|cut| (*cut).clone());
    let short = parts.iter_mut().filter(|part| part.hides_before(cut.as_ref()));
    let again = short.map(|part| async move {
        let indexes = part.pages.iter().map(|(index, _)| *index).collect();
        *part = look(store, part.shard, indexes, bounds, bring, bounds.limit).await?;
        Ok::<_, ff_core::EngineError>(())
    });
    try_join_all(again).await.map(drop)
}

/// A look at a shard, and as many more as it takes to find so many.
async fn look<'i>(
    store: &ValkeyStore,
    shard: Shard,
    indexes: Vec<&'i Index>,
    bounds: &Bounds,
    bring: Bring,
    limit: usize,
) -> Result<Part<'i>> {
    let mut asked = limit;
    loop {
        let mut part = look_once(store, shard, &indexes, bounds, bring, asked).await?;
        // A member whose record is gone must not hide who stands behind it.
        let is_short = |page: &Page| page.entered.len() == asked && page.dangling().count() > asked - limit;
        if bring == Bring::Nothing || !part.pages.iter().any(|(_, page)| is_short(page)) {
            part.limit = limit;
            part.pages.iter_mut().for_each(|(_, page)| page.keep_found(bring, limit));
            return Ok(part);
        }
        asked = asked.saturating_mul(2);
    }
}

async fn look_once<'i>(
    store: &ValkeyStore,
    shard: Shard,
    indexes: &[&'i Index],
    bounds: &Bounds,
    bring: Bring,
    limit: usize,
) -> Result<Part<'i>> {
    let unlisted: Vec<_> = indexes.iter().map(|index| indexes::unlisted(index)).collect();
    let bounds = Bounds { limit, ..bounds.clone() };
    let keys = unlisted.iter().flatten().map(|(_, key)| key.clone()).collect();
    let pages = indexes.iter().map(|index| ((*index).clone(), bounds.clone(), bring)).collect();
    let mut seen = store.look(shard, &Look { keys, pages }).await?;
    let mut records = seen.records.into_iter();
    for (page, unlisted) in seen.pages.iter_mut().zip(unlisted) {
        if let Some((position, key)) = unlisted
            && let Some(stored) = records.next().flatten()
        {
            page.records.push((key.clone(), Some(stored)));
            page.add_unlisted(Entered { position, key }, &bounds);
        }
    }
    Ok(Part { shard, pages: indexes.iter().copied().zip(seen.pages).collect(), limit })
}

/// Takes down old signs that led to nothing, and puts up what a look everywhere has shown.
async fn tend_signs(shared: &Shared, whereabouts: Whereabouts<'_>, parts: &[Part<'_>], bounds: &Bounds) {
    let Shared { layout, link, signposts, .. } = shared;
    let shown = |shard: Shard, index: &Index| {
        let pages = parts.iter().filter(|part| part.shard == shard).flat_map(|part| &part.pages);
        pages.into_iter().any(|(of, page)| *of == index && !page.entered.is_empty())
    };
    if bounds.after.is_none() && bounds.until.is_none() && bounds.limit > 0 {
        let mut vain: HashMap<Index, Vec<Sign>> = HashMap::default();
        for (index, mut signs) in whereabouts.old {
            signs.retain(|sign| !shown(sign.shard, index));
            if !signs.is_empty() {
                vain.insert(index.clone(), signs);
            }
        }
        signposts.take_down(link, layout, &vain).await;
    }
    if whereabouts.is_round {
        for part in parts {
            let found = part.pages.iter().filter(|(_, page)| !page.entered.is_empty());
            let found = found.map(|(index, _)| (*index).clone()).collect();
            signposts.put_up(link, layout, part.shard, found).await;
        }
    }
}
