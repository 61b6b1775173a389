//! Records on their way to a change.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A record that is copied when it is changed, and not before.
#[derive(Clone, Debug)]
pub(crate) struct Draft<R>(Arc<R>);

impl<R> Draft<R> {
    /// As it is to be stored.
    pub(crate) fn shared(&self) -> Arc<R> {
        Arc::clone(&self.0)
    }
}

impl<R> From<R> for Draft<R> {
    fn from(record: R) -> Self {
        Self(Arc::new(record))
    }
}

impl<R> From<Arc<R>> for Draft<R> {
    fn from(record: Arc<R>) -> Self {
        Self(record)
    }
}

impl<R> Deref for Draft<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0
    }
}

impl<R: Clone> DerefMut for Draft<R> {
    fn deref_mut(&mut self) -> &mut R {
        Arc::make_mut(&mut self.0)
    }
}
