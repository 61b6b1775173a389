//! An operation that stores records as they are.

use ff_core::Result;
use ff_core::partition::Partition;
use ff_engine::records::Record;
use ff_engine::store::{Op, Tx};

pub(crate) struct Write(pub(crate) Vec<Record>);

#[async_trait::async_trait]
impl Op for Write {
    type Out = ();

    fn home(&self) -> Partition {
        self.0.first().map_or(Partition::GLOBAL, |record| record.key().partition)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        self.0.iter().for_each(|record| tx.put_record(record.clone()));
        Ok(())
    }
}
