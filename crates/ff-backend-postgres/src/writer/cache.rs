//! Rows that were read or written lately. What is here may be old: whoever decides on it has the commit make sure that it is not.

use std::sync::Arc;

use ff_engine::key::Name;
use ff_engine::recent::Recent;

use crate::address::{Address, Stored};

/// Bytes of a record that is worth remembering.
const BYTES_MAX: usize = 4_096;

/// What a row holds; none for one that is not there.
pub(crate) type Row = Option<Arc<Stored>>;

/// Rows by where they are.
#[derive(Debug, Default)]
pub(crate) struct Cache(Recent<Address, Row>);

impl Cache {
    pub(crate) fn get(&self, address: &Address) -> Option<Row> {
        self.0.get(address)
    }

    /// Remembers a row, or that it is not there; forgets what is not worth keeping.
    pub(crate) fn put(&self, address: Address, stored: Row) {
        let is_worth_keeping = match &stored {
            Some(stored) => stored.body.len() <= BYTES_MAX && is_worth_keeping(&address),
            // What an execution lacks is hardly asked for twice.
            None => address.execution().is_none(),
        };
        if is_worth_keeping {
            self.0.put(address, stored);
        } else {
            self.0.forget(&address);
        }
    }

    pub(crate) fn forget(&self, address: &Address) {
        self.0.forget(address);
    }
}

/// Whether a row is likely to be asked for again, and small.
const fn is_worth_keeping(address: &Address) -> bool {
    match address {
        Address::Execution(_) => true,
        Address::Record(key) => !matches!(
            key.name,
            Name::Payload(_) | Name::Outcome(_) | Name::Frame(..) | Name::Summary(..) | Name::Step(..)
        ),
    }
}
