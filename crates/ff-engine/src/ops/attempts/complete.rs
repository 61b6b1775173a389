//! The attempt succeeds.

use async_trait::async_trait;
use ff_core::partition::Partition;
use ff_core::rules::replay::Call;
use ff_core::{Blob, Result};

use super::{Actor, Admitted, check_size};
use crate::key::Key;
use crate::lifecycle::{Ending, Subject, finish};
use crate::store::{Op, Tx};

pub(super) struct Complete {
    pub(super) actor: Actor,
    pub(super) result: Option<Blob>,
    pub(super) result_bytes_max: usize,
}

#[async_trait]
impl Op for Complete {
    /// Whether quotas are owed the end of this ownership.
    type Out = Result<bool>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.actor.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<bool>> {
        let subject = match self.actor.enter(tx, Call::Complete).await? {
            Admitted::Owner(subject) => subject,
            Admitted::Repeated(..) => return Ok(Ok(false)),
            Admitted::Refused(error) => return Ok(Err(error)),
        };
        check_size("result", self.result.as_ref(), self.result_bytes_max)?;
        let ending = Ending::success(self.result.clone()).taken(!self.actor.is_owner());
        let ended = finish(tx, *subject, ending).await?;
        Ok(Ok(ended.owes_quotas()))
    }
}
