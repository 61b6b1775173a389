//! News of due work: every entry that is due earlier, nothing else.

use std::sync::Arc;

use ff_core::TimestampMs;
use ff_engine::alarms::DueNews;
use ff_engine::key::Key;
use ff_engine::store::Store;
use futures_util::FutureExt;

use super::{NOW, Write, delayed, write};

/// What is known of entries before a time, without waiting.
fn told(news: &mut DueNews, before: i64) -> Option<i64> {
    news.before(TimestampMs(before)).now_or_never().map(|at| at.0)
}

pub(super) async fn an_entry_that_is_due_earlier_is_told<S: Store>(store: Arc<S>) {
    let mut news = store.listen_due();
    write(&*store, vec![delayed(1, 5_000).into()]).await;
    assert_eq!(told(&mut news, 5_000), None, "it is not due before its time");
    assert_eq!(told(&mut news, 5_001), Some(5_000));
    write(&*store, vec![delayed(2, 9_000).into(), delayed(3, 4_000).into()]).await;
    assert_eq!(told(&mut news, 5_000), Some(4_000));
}

pub(super) async fn a_sleeper_wakes_for_an_earlier_entry_alone<S: Store>(store: Arc<S>) {
    let mut news = store.listen_due();
    let sleeper = tokio::spawn(async move { news.before(TimestampMs(5_000)).await });
    tokio::task::yield_now().await;
    write(&*store, vec![delayed(1, 6_000).into()]).await;
    write(&*store, vec![delayed(2, 4_000).into()]).await;
    assert_eq!(sleeper.await.unwrap(), TimestampMs(4_000));
}

pub(super) async fn news_count_from_the_call_or_from_starting_over<S: Store>(store: Arc<S>) {
    write(&*store, vec![delayed(1, 2_000).into()]).await;
    let mut news = store.listen_due();
    assert_eq!(told(&mut news, 3_000), None);
    write(&*store, vec![delayed(2, 2_500).into()]).await;
    news.start_over();
    assert_eq!(told(&mut news, 3_000), None);
}

pub(super) async fn an_entry_that_stays_or_goes_is_no_news<S: Store>(store: Arc<S>) {
    write(&*store, vec![delayed(1, 2_000).into()]).await;
    let mut news = store.listen_due();
    let mut same = delayed(1, 2_000);
    same.priority = 7;
    write(&*store, vec![same.into()]).await;
    assert_eq!(told(&mut news, 3_000), None, "it stays where it is");
    write(&*store, vec![delayed(1, 8_000).into()]).await;
    assert_eq!(told(&mut news, 3_000), None, "it moves to a later time");
    let deletes = vec![Key::execution(delayed(1, 8_000).id)];
    store.transact(Arc::new(Write { deletes, ..Write::default() })).await.unwrap();
    assert_eq!(told(&mut news, 3_000), None, "it goes");
}

pub(super) async fn a_refused_operation_tells_nothing<S: Store>(store: Arc<S>) {
    let mut news = store.listen_due();
    let records = vec![delayed(1, 2_000).into()];
    store.transact(Arc::new(Write { records, refuse: true, ..Write::default() })).await.unwrap_err();
    assert_eq!(told(&mut news, 3_000), None);
}

pub(super) async fn tidying_changes_nothing<S: Store>(store: Arc<S>) {
    write(&*store, vec![delayed(1, 2_000).into()]).await;
    store.tidy().await.unwrap();
    let key = Key::execution(delayed(1, NOW.0).id);
    assert_eq!(store.read(&[key]).await.unwrap(), [Some(delayed(1, 2_000).into())]);
}
