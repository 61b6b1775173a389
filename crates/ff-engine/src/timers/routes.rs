//! Work that was parked for want of a capable worker is released when one comes.

use std::collections::BTreeSet;

use ff_core::Result;
use ff_core::ids::{LaneId, Namespace};

use crate::engine::Engine;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn open_route<S: Store>(
    _engine: &Engine<S>,
    _namespace: &Namespace,
    _lanes: &BTreeSet<LaneId>,
    _capabilities: &BTreeSet<String>,
) -> Result<()> {
    Ok(())
}
