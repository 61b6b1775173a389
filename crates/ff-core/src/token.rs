//! Waitpoint tokens and the keyring that signs them.
//!
//! A token is a bearer secret: whoever has it may signal its waitpoint. It is `kid:<64 lowercase hex>`, an
//! HMAC-SHA256 over execution, waitpoint, key and creation time, each prefixed with its length.

mod keyring;
mod secret;

use std::fmt;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::error::{EngineError, ValidationKind};
use crate::ids::{ExecutionId, WaitpointId};
use crate::time::TimestampMs;

pub use keyring::{GRACE_MS_MAX, INITIAL_KID, Keyring, RotateDecision, SeedDecision};
pub use secret::SealKey;
use secret::Secret;

const MAC_HEX_LEN: usize = 64;
const FINGERPRINT_LEN: usize = 16;

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A bearer secret for one waitpoint. Neither `Debug` nor `Display` shows it; equality takes constant time.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WaitpointToken(String);

impl WaitpointToken {
    /// Wraps a text as given; [`Keyring::verify`] decides whether it is worth anything.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, to store it or to hand it to its owner.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parts(&self) -> Option<(&str, &str)> {
        let (kid, mac) = self.0.split_once(':')?;
        (!kid.is_empty() && mac.len() == MAC_HEX_LEN && is_lower_hex(mac)).then_some((kid, mac))
    }

    /// The key that signed it; empty when malformed.
    #[must_use]
    pub fn kid(&self) -> &str {
        self.parts().map_or("", |(kid, _)| kid)
    }

    /// The first 16 characters of its digest, to recognise it by; empty when malformed.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        self.parts().map_or("", |(_, mac)| &mac[..FINGERPRINT_LEN])
    }
}

impl PartialEq for WaitpointToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for WaitpointToken {}

impl fmt::Display for WaitpointToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            Some((kid, mac)) => write!(f, "{kid}:{}…", &mac[..FINGERPRINT_LEN]),
            None => f.write_str("malformed"),
        }
    }
}

impl fmt::Debug for WaitpointToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitpointToken({self})")
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for WaitpointToken {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        prop_oneof!["[a-z0-9]{1,6}:[0-9a-f]{64}", any::<String>()].prop_map(Self).boxed()
    }
}

/// What a token speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSubject<'a> {
    /// The execution that waits.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its key.
    pub waitpoint_key: &'a str,
    /// When it was created.
    pub created_at: TimestampMs,
}

impl TokenSubject<'_> {
    fn mac(&self, secret: &Secret) -> Hmac<Sha256> {
        let mut mac = secret.mac();
        let execution = self.execution_id.to_string();
        let waitpoint = self.waitpoint_id.to_string();
        let created_at = self.created_at.0.to_be_bytes();
        let parts = [execution.as_bytes(), waitpoint.as_bytes(), self.waitpoint_key.as_bytes(), &created_at];
        for part in parts {
            mac.update(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Why a token is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not `kid:<64 lowercase hex>`.
    #[error("token is malformed")]
    Malformed,
    /// Signed by a key this ring does not have. A ring that may be out of date is worth reading again.
    #[error("token has an unknown key id")]
    UnknownKid,
    /// Genuine, but its key was retired and the grace is over.
    #[error("token_expired")]
    Expired,
    /// Signed for something else, or not by us.
    #[error("token does not match")]
    Mismatch,
    /// There is no key to sign or verify with.
    #[error("hmac_secret_not_initialized")]
    NoKeyring,
}

/// A caller cannot tell a malformed token from a forged one or from one for another waitpoint.
impl From<TokenError> for EngineError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::NoKeyring => Self::invalid(error),
            TokenError::Expired => Self::validation(ValidationKind::InvalidToken, error),
            TokenError::Malformed | TokenError::UnknownKid | TokenError::Mismatch => {
                Self::validation(ValidationKind::InvalidToken, "invalid_token")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use proptest::prelude::*;

    pub(super) const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
    pub(super) const ONES: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    pub(super) const T0: TimestampMs = TimestampMs(1_700_000_000_000);

    pub(super) fn subject(key: &str) -> TokenSubject<'_> {
        TokenSubject {
            execution_id: "{fp:0}:550e8400-e29b-41d4-a716-446655440000".parse().expect("valid"),
            waitpoint_id: "11111111-1111-1111-1111-111111111111".parse().expect("valid"),
            waitpoint_key: key,
            created_at: T0,
        }
    }

    pub(super) fn seeded() -> Keyring {
        let mut ring = Keyring::default();
        ring.seed(INITIAL_KID, ZEROS).expect("an empty ring takes a seed");
        ring
    }

    pub(super) fn kind(result: Result<impl std::fmt::Debug>) -> (ValidationKind, String) {
        match result {
            Err(EngineError::Validation { kind, detail }) => (kind, detail),
            other => panic!("not a validation error: {other:?}"),
        }
    }

    #[test]
    fn a_token_is_the_hmac_of_the_length_prefixed_tuple() {
        let token = seeded().sign(&subject("wpk:a")).expect("a key is there");
        assert_eq!(token.expose(), "k1:8c25396a0b2cc98ef664dae9df929904d661503b5f47496c3c24c033d9d61912");
        assert_eq!((token.kid(), token.fingerprint()), ("k1", "8c25396a0b2cc98e"));
    }

    #[test]
    fn a_token_speaks_for_its_own_waitpoint_only() {
        let ring = seeded();
        let own = subject("wpk:a");
        let token = ring.sign(&own).expect("signs");
        assert_eq!(ring.verify(&token, &own, T0), Ok(()));
        let id = ExecutionId::new(1, own.execution_id.uuid());
        let others = [
            subject("wpk:b"),
            TokenSubject { execution_id: id, ..own },
            TokenSubject { waitpoint_id: WaitpointId::from_uuid(uuid::Uuid::nil()), ..own },
            TokenSubject { created_at: T0.plus(1), ..own },
        ];
        for other in others {
            assert_eq!(ring.verify(&token, &other, T0), Err(TokenError::Mismatch), "{other:?}");
        }
    }

    #[test]
    fn a_text_that_is_no_token_is_malformed() {
        let ring = seeded();
        let upper = format!("k1:{}", "A".repeat(64));
        for text in ["", ":", "k1", "k1:", "k1:abc", &upper, &format!(":{ZEROS}"), &format!("k1:{ZEROS}0")] {
            let token = WaitpointToken::new(text);
            assert_eq!(ring.verify(&token, &subject("k"), T0), Err(TokenError::Malformed), "{text}");
            assert_eq!((token.kid(), token.fingerprint(), token.to_string().as_str()), ("", "", "malformed"));
        }
    }

    #[test]
    fn refusals_look_alike_except_for_genuine_expired_tokens() {
        let refused = |e: TokenError| kind(Err::<(), _>(e.into()));
        let alike = (ValidationKind::InvalidToken, "invalid_token".to_owned());
        for error in [TokenError::Malformed, TokenError::UnknownKid, TokenError::Mismatch] {
            assert_eq!(refused(error), alike);
        }
        assert_eq!(refused(TokenError::Expired), (ValidationKind::InvalidToken, "token_expired".to_owned()));
        assert_eq!(
            refused(TokenError::NoKeyring),
            (ValidationKind::InvalidInput, "hmac_secret_not_initialized".to_owned())
        );
    }

    #[test]
    fn an_empty_ring_neither_signs_nor_verifies() {
        let ring = Keyring::default();
        assert_eq!(ring.sign(&subject("k")), Err(TokenError::NoKeyring));
        let token = seeded().sign(&subject("k")).expect("signs");
        assert_eq!(ring.verify(&token, &subject("k"), T0), Err(TokenError::NoKeyring));
    }

    proptest! {
        #[test]
        fn no_token_text_panics(ring: Keyring, token: WaitpointToken) {
            let _ = ring.verify(&token, &subject("k"), T0);
            let _ = format!("{token:?} {}", token.fingerprint());
        }

        #[test]
        fn one_altered_character_ruins_a_token(at in 3usize..67, key in ".{0,8}") {
            let ring = seeded();
            let token = ring.sign(&subject(&key)).expect("signs");
            let mut text = token.expose().to_owned().into_bytes();
            text[at] = if text[at] == b'0' { b'1' } else { b'0' };
            let forged = WaitpointToken::new(String::from_utf8(text).expect("ascii"));
            prop_assert_eq!(ring.verify(&forged, &subject(&key), T0), Err(TokenError::Mismatch));
        }
    }

    crate::testing::json_round_trips!(WaitpointToken);
}
