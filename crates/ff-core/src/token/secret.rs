//! Bytes that must not show.

use std::fmt;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Secret bytes: hex in storage, invisible in logs, compared in constant time.
#[derive(Clone)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub(super) struct Secret(pub(super) Vec<u8>);

impl Secret {
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        hex::decode(text.as_bytes()).map(Self).map_err(|_| serde::de::Error::custom("secret is not hex"))
    }
}

/// The key that seals handles. Hex in storage, invisible in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey(Secret);

impl SealKey {
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// Wraps random bytes.
    #[must_use]
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(Secret(bytes.to_vec()))
    }

    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        self.0.mac()
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(redacted)")
    }
}

impl Serialize for SealKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SealKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let secret = Secret::deserialize(deserializer)?;
        let bytes = <[u8; Self::LEN]>::try_from(secret.0);
        bytes.map(Self::new).map_err(|_| serde::de::Error::custom("seal key is not 32 bytes long"))
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for SealKey {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<[u8; Self::LEN]>().prop_map(Self::new).boxed()
    }
}

#[cfg(test)]
mod tests {
    crate::testing::json_round_trips!(SealKey);
}
