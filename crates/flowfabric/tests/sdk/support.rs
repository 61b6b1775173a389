//! What the tests of workers and clients share.

use std::time::Duration;

use flowfabric::FlowFabric;
use flowfabric::core::backend::subscriptions::{LeaseChange, LeaseHistoryEvent, ScannerFilter, Subscription};
use flowfabric::core::cursor::EventCursor;
use flowfabric::core::ids::ExecutionId;
use futures_util::StreamExt;

/// Longer than anything here takes; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that is gone with the test.
pub(crate) async fn fabric() -> FlowFabric {
    FlowFabric::open(&crate::store::own()).await.expect("opens")
}

/// Ends with the future, or fails.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// What happens to leases from now on.
pub(crate) struct Leases(Subscription<LeaseHistoryEvent>);

impl Leases {
    /// From now on.
    pub(crate) async fn of(fabric: &FlowFabric) -> Self {
        let backend = fabric.backend();
        Self(backend.subscribe_lease_history(EventCursor::TAIL, &ScannerFilter::default()).await.expect("a feed"))
    }

    /// The next change of one execution's lease that is wanted.
    pub(crate) async fn until(&mut self, id: ExecutionId, wanted: impl Fn(&LeaseChange) -> bool) -> LeaseChange {
        in_time("a change of a lease", async {
            loop {
                let event = self.0.next().await.expect("goes on").expect("an event");
                if event.execution_id == id && wanted(&event.change) {
                    return event.change;
                }
            }
        })
        .await
    }
}
