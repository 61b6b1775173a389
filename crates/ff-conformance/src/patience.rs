//! Calls that wait, seen from outside.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use crate::world::World;

/// Lets other tasks run until they are all waiting for something.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Whether a future is still waiting.
pub(crate) async fn is_waiting<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}

/// Whether a future waits on, however often it looks: a store that reads on threads of its own has had time to answer it.
pub(crate) async fn keeps_waiting<F: Future + Unpin>(world: &World, future: &mut F) -> bool {
    for _ in 0..20 {
        if !is_waiting(future).await {
            return false;
        }
        // Reads stand in line, so what the future asked for is answered by now.
        world.backend.read_execution_state(world.execution_id()).await.unwrap();
    }
    true
}
