//! Feeds of what happened, in commit order, resumable by cursor.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use ff_core::backend::Subscriptions;
use ff_core::backend::inspection::TagPair;
use ff_core::backend::subscriptions::{
    CompletionEvent, InstanceTagChange, InstanceTagEvent, LeaseHistoryEvent, ScannerFilter, SignalDeliveryEvent,
    Subscription,
};
use ff_core::cursor::EventCursor;
use ff_core::{EngineError, Result};
use futures_util::stream::unfold;
use tokio::sync::watch;

use crate::engine::Engine;
use crate::event::{Event, EventBody};
use crate::index::Topic;
use crate::store::Store;

/// Events read at once.
const PAGE: usize = 256;

#[async_trait]
impl<S: Store> Subscriptions for Engine<S> {
    async fn subscribe_lease_history(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<LeaseHistoryEvent>> {
        self.feed(cursor, filter, |cursor, event| match (event.body, event.execution_id) {
            (EventBody::Lease(change), Some(execution_id)) => {
                Some(LeaseHistoryEvent { cursor, execution_id, at: event.at, change })
            }
            _ => None,
        })
        .await
    }

    async fn subscribe_completion(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<CompletionEvent>> {
        self.feed(cursor, filter, |cursor, event| match (event.body, event.execution_id) {
            (EventBody::Completion { outcome, flow_id }, Some(execution_id)) => {
                Some(CompletionEvent { cursor, execution_id, flow_id, outcome, at: event.at })
            }
            _ => None,
        })
        .await
    }

    async fn subscribe_signal_delivery(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<SignalDeliveryEvent>> {
        self.feed(cursor, filter, |cursor, event| match (event.body, event.execution_id) {
            (EventBody::Signal { signal_id, waitpoint_id, source_identity, effect }, Some(execution_id)) => {
                Some(SignalDeliveryEvent {
                    cursor,
                    execution_id,
                    signal_id,
                    waitpoint_id: Some(waitpoint_id),
                    source_identity: Some(source_identity).filter(|source| !source.is_empty()),
                    effect,
                    at: event.at,
                })
            }
            _ => None,
        })
        .await
    }

    async fn subscribe_instance_tags(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
    ) -> Result<Subscription<InstanceTagEvent>> {
        self.feed(cursor, filter, |cursor, event| match (event.body, event.execution_id) {
            (EventBody::InstanceTag { key, value }, Some(execution_id)) => Some(InstanceTagEvent {
                cursor,
                execution_id,
                change: InstanceTagChange::Attached,
                tag: TagPair { key, value },
                at: event.at,
            }),
            _ => None,
        })
        .await
    }
}

/// Makes an event of one family out of a log entry; none for entries of other families.
type Pick<T> = fn(EventCursor, Event) -> Option<T>;

impl<S: Store> Engine<S> {
    /// Starts a feed. The cursor is checked and the tail resolved now, so that nothing committed after this call is missed.
    async fn feed<T: Send + 'static>(
        &self,
        cursor: EventCursor,
        filter: &ScannerFilter,
        pick: Pick<T>,
    ) -> Result<Subscription<T>> {
        let start = self.store.events(&cursor, 0).await?.next;
        let feed = Feed {
            store: Arc::clone(&self.store),
            closing: self.closing.subscribe(),
            filter: filter.clone(),
            cursor: start,
            read: VecDeque::new(),
            is_over: false,
            pick,
        };
        Ok(Box::pin(unfold(feed, |mut feed| async move { feed.next().await.map(|item| (item, feed)) })))
    }
}

/// A reader of the log that waits for what is not there yet.
struct Feed<S, T> {
    store: Arc<S>,
    closing: watch::Receiver<bool>,
    filter: ScannerFilter,
    /// After the last entry that was delivered or passed over.
    cursor: EventCursor,
    read: VecDeque<(EventCursor, Event)>,
    is_over: bool,
    pick: Pick<T>,
}

impl<S: Store, T> Feed<S, T> {
    /// The next event; an error is the last item.
    async fn next(&mut self) -> Option<Result<T>> {
        if self.is_over {
            return None;
        }
        loop {
            if let Some(found) = self.next_read() {
                return Some(Ok(found));
            }
            if *self.closing.borrow_and_update() {
                return Some(Err(self.disconnected()));
            }
            let appended = self.store.listen(&Topic::Events);
            match self.store.events(&self.cursor, PAGE).await {
                Ok(page) if page.events.is_empty() => {
                    self.cursor = page.next;
                    tokio::select! {
                        () = appended => {}
                        _ = self.closing.changed() => {}
                    }
                }
                Ok(page) => self.read.extend(page.events),
                Err(expired @ EngineError::CursorExpired { .. }) => {
                    self.is_over = true;
                    return Some(Err(expired));
                }
                Err(_) => return Some(Err(self.disconnected())),
            }
        }
    }

    /// The next entry already read that the subscriber wants.
    fn next_read(&mut self) -> Option<T> {
        while let Some((cursor, event)) = self.read.pop_front() {
            self.cursor = cursor.clone();
            if event.matches(&self.filter)
                && let Some(found) = (self.pick)(cursor, event)
            {
                return Some(found);
            }
        }
        None
    }

    fn disconnected(&mut self) -> EngineError {
        self.is_over = true;
        EngineError::StreamDisconnected { cursor: self.cursor.clone() }
    }
}
