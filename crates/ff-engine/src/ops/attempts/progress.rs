//! The attempt says how far it is.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::handle::HandlePayload;
use ff_core::partition::Partition;
use ff_core::rules::fence::check_light;

use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::records::Progress;
use crate::store::{Op, Tx};

pub(super) struct Report {
    pub(super) owner: HandlePayload,
    pub(super) percent: Option<u8>,
    pub(super) message: Option<String>,
}

#[async_trait]
impl Op for Report {
    type Out = ();

    fn home(&self) -> Partition {
        self.owner.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.owner.execution_id;
        vec![Key::fence(id), Key::progress(id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let id = self.owner.execution_id;
        let stored = stored_ownership(&tx.fence(id).await?);
        check_light(&stored, self.owner.fence(), Some(self.owner.attempt_index), tx.now())?;
        let before = tx.get::<Progress>(Key::progress(id)).await?;
        let (percent, message) = before.map_or((None, None), |before| (before.percent, before.message));
        tx.put(Progress {
            execution: id,
            percent: self.percent.or(percent),
            message: self.message.clone().or(message),
            updated_at: tx.now(),
        });
        Ok(())
    }
}
