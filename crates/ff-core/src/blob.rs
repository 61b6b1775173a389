//! Opaque bytes: payloads, results, frames, signal bodies. Never interpreted, never re-encoded.

use std::ops::Deref;
use std::sync::Arc;

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire;

/// Shared immutable bytes; base64 in JSON, as they are in compact formats.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Blob(Arc<[u8]>);

impl Blob {
    /// Bytes without content.
    #[must_use]
    pub fn empty() -> Self {
        Self(Arc::default())
    }
}

impl Default for Blob {
    fn default() -> Self {
        Self::empty()
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

/// Content stays out of logs; only its size shows.
impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        wire::write(serializer, Base64Display::new(&self.0, &STANDARD), &self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        wire::read(deserializer)
    }
}

impl wire::TwoForms for Blob {
    const WHAT: &'static str = "bytes";

    fn from_text(text: &str) -> Result<Self, String> {
        STANDARD.decode(text).map(Self::from).map_err(|error| error.to_string())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.into())
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for Blob {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<Vec<u8>>().prop_map(Self::from).boxed()
    }
}
