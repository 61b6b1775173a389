//! Brings young executions to their table, when there are enough of them or somebody wants to see them there.

use std::sync::Arc;
use std::time::Duration;

use ff_core::Result;

use super::Shared;
use super::locks::Hold;
use super::plan::{Plan, Signature};
use crate::error::{Trouble, explain, is_dispossession, is_surely_undone};
use crate::session::{Frame, Session, Step};
use crate::tables::journal;
use crate::tables::record::new_version;
use crate::young::{Plain, Settling};

/// How long to wait after one that failed.
const AGAIN: Duration = Duration::from_millis(200);

/// Settles for as long as the writer lives.
pub(super) async fn serve(shared: Arc<Shared>) {
    loop {
        shared.young.crowded.notified().await;
        if let Err(error) = shared.settle(false).await {
            tracing::debug!(%error, "young executions stay in the journal for now");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

impl Shared {
    /// Has everything in the tables, as long as what it answers is held and this owner stays the owner; none if it is not.
    pub(crate) async fn settle_all(self: &Arc<Self>, owner: i64) -> Result<Option<Plain>> {
        let (plain, shared) = (self.young.keep_plain().await, Arc::clone(self));
        // In a task of its own: who stops waiting would leave it open whether they have arrived.
        let settled = tokio::spawn(async move { shared.settle(true).await }).await;
        settled.map_err(|_| Trouble::Closed)??;
        Ok(self.young.is_open(owner).then_some(plain))
    }

    async fn settle(&self, wants_all: bool) -> Result<()> {
        let _settling = self.young.settling.lock().await;
        if !self.young.has_to_settle(wants_all) {
            return Ok(());
        }
        // Before anything is reserved that others may want meanwhile.
        let session = self.session().await?;
        while let Some(settling) = self.young.next_to_settle(wants_all).await {
            self.settle_some(&session, settling).await?;
        }
        Ok(())
    }

    async fn settle_some(&self, session: &Session, settling: Settling) -> Result<()> {
        let version = new_version();
        let mut plan = Plan::settling(&settling.rows, version);
        let after = std::mem::take(&mut plan.after);
        let mut steps = plan.into_steps(&Hold::Nothing, Signature { owner: settling.owner, line: None });
        steps.extend(housekeeping(&settling));
        match session.run(Frame::Whole, &steps).await {
            Ok(_) => {
                for (address, stored) in after {
                    self.remember(address, stored);
                }
                settling.succeed();
                Ok(())
            }
            Err(error) => {
                if is_dispossession(&error) {
                    self.standing.dispossess(settling.owner);
                    settling.fail();
                    return Ok(());
                }
                if is_surely_undone(&error) {
                    settling.fail();
                }
                Err(explain(error))
            }
        }
    }
}

fn housekeeping(settling: &Settling) -> Vec<Step> {
    let (after, until) = settling.lines;
    let mut steps = vec![journal::mark(settling.mark.0)];
    if until > after {
        steps.push(journal::drop_lines(after, until));
    }
    steps
}
