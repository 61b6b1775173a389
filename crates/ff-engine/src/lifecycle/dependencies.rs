//! What an execution waits for when it becomes runnable, or asks to wait for.

use ff_core::Result;
use ff_core::rules::edge_groups::{sibling_cancel, verdict};
use ff_core::state::EdgeGroupState;

use super::graph::{current_group, live_upstreams, pass_data};
use crate::records::{EdgeGroup, Execution};
use crate::store::Tx;

/// What a wait for children comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// Nothing is open: it may go on at once.
    Settled,
    /// Something is open.
    Open,
    /// What it waits for cannot happen any more.
    Impossible,
}

/// The undecided group, if there is one.
async fn open_group(tx: &mut dyn Tx, execution: &Execution) -> Result<Option<EdgeGroup>> {
    if execution.flow_id.is_none() {
        return Ok(None);
    }
    Ok(current_group(tx, execution).await?.1)
}

/// Whether edges in force hold back an execution that is about to become claimable.
pub(crate) async fn holds(tx: &mut dyn Tx, execution: &Execution) -> Result<bool> {
    Ok(open_group(tx, execution).await?.is_some_and(|group| holds_back(&group, execution)))
}

/// Whether a group has edges in force that will decide it; those from spawned children count only while the execution waits for its
/// children. One that cannot succeed any more holds back, too: the next edge that settles says so.
pub(crate) fn holds_back(group: &EdgeGroup, execution: &Execution) -> bool {
    let open = group.is_pending() && verdict(group.policy, group.counts) != EdgeGroupState::Satisfied;
    open && group.holding(execution) > 0
}

/// Looks at the group of children spawned since the last wait. A group that is decided already is closed here, because nobody
/// decides it while its downstream runs; children spawned from now on make up the next one.
pub(crate) async fn children(tx: &mut dyn Tx, execution: &mut Execution) -> Result<Children> {
    let Some(group) = open_group(tx, execution).await? else { return Ok(Children::Settled) };
    if group.counts.total == 0 {
        return Ok(Children::Settled);
    }
    match verdict(group.policy, group.counts) {
        EdgeGroupState::Pending => Ok(Children::Open),
        EdgeGroupState::Satisfied => {
            close(tx, execution, group, EdgeGroupState::Satisfied).await?;
            Ok(Children::Settled)
        }
        EdgeGroupState::Impossible => {
            close(tx, execution, group, EdgeGroupState::Impossible).await?;
            Ok(Children::Impossible)
        }
    }
}

async fn close(
    tx: &mut dyn Tx,
    execution: &mut Execution,
    mut group: EdgeGroup,
    decided: EdgeGroupState,
) -> Result<()> {
    let now = tx.now();
    group.decide(decided, now);
    if let Some(reason) = sibling_cancel(group.policy, decided) {
        let siblings = live_upstreams(tx, &group).await?;
        group.owe_cancellations(reason.as_str(), siblings, now);
    }
    if decided == EdgeGroupState::Satisfied {
        pass_data(tx, &group).await?;
        execution.close_generation(group.generation);
    }
    tx.put(group);
    Ok(())
}
