//! The keys of a deployment and how they change.

use std::collections::BTreeMap;

use hmac::Mac;
use serde::{Deserialize, Serialize};

use super::{SealKey, Secret, TokenError, TokenSubject, WaitpointToken};
use crate::error::{ConflictKind, EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::ids::check_free_string;
use crate::time::TimestampMs;

/// Key id of a first key.
pub const INITIAL_KID: &str = "k1";

/// Longest grace of a retired key: the largest integer that JSON carries exactly.
pub const GRACE_MS_MAX: u64 = (1 << 53) - 1;

/// Hex characters of a seeded secret.
const SEED_HEX_LEN: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
struct SigningKey {
    secret: Secret,
    /// Set when retired; valid through that very millisecond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<TimestampMs>,
}

impl SigningKey {
    /// Whether it is worth nothing once it does not sign any more; retired without an end means that its grace got lost.
    fn is_expired(&self, now: TimestampMs) -> bool {
        self.expires_at.is_none_or(|end| end < now)
    }
}

/// What a rotation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotateDecision {
    /// The new key signs from now on.
    Rotated {
        /// The key that signed before.
        previous_kid: Option<String>,
        /// The key that signs now.
        new_kid: String,
        /// Retired keys whose grace was over and which are gone.
        gc_count: u32,
    },
    /// The key signed already.
    Noop {
        /// That key.
        kid: String,
        /// Whether its secret was missing and is there again; the ring changed and wants saving.
        repaired: bool,
    },
}

/// What a seed did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeedDecision {
    /// The key is installed and signs.
    Seeded {
        /// The key.
        kid: String,
    },
    /// The key is known; nothing changed.
    AlreadySeeded {
        /// The key.
        kid: String,
        /// Whether its secret is the given one.
        same_secret: bool,
    },
}

/// The keys of a deployment: those that sign and verify waitpoint tokens, and the one that seals handles.
///
/// Serialized with its secrets: for storage only. `Debug` shows none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keyring {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    keys: BTreeMap<String, SigningKey>,
    /// Seals handles; never used for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_key: Option<SealKey>,
}

impl Keyring {
    /// The key that signs.
    #[must_use]
    pub fn current_kid(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// Every key id held, retired ones included.
    pub fn kids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Signs for a waitpoint with the current key.
    ///
    /// # Errors
    /// [`TokenError::NoKeyring`] without a current key.
    pub fn sign(&self, subject: &TokenSubject<'_>) -> Result<WaitpointToken, TokenError> {
        let kid = self.current.as_deref().ok_or(TokenError::NoKeyring)?;
        let key = self.keys.get(kid).ok_or(TokenError::NoKeyring)?;
        let mac = subject.mac(&key.secret).finalize().into_bytes();
        Ok(WaitpointToken::new(format!("{kid}:{}", hex::encode(mac))))
    }

    /// Passes when a key of this ring signed the token for this subject and may still be used.
    ///
    /// # Errors
    /// [`TokenError`]. Only a genuine token is told that it expired.
    pub fn verify(
        &self,
        token: &WaitpointToken,
        subject: &TokenSubject<'_>,
        now: TimestampMs,
    ) -> Result<(), TokenError> {
        let (kid, mac) = token.parts().ok_or(TokenError::Malformed)?;
        if self.keys.is_empty() {
            return Err(TokenError::NoKeyring);
        }
        let key = self.keys.get(kid).ok_or(TokenError::UnknownKid)?;
        let mac = hex::decode(mac).map_err(|_| TokenError::Malformed)?;
        if !is_on(Fault::TokenNotVerified) {
            subject.mac(&key.secret).verify_slice(&mac).map_err(|_| TokenError::Mismatch)?;
        }
        let current = self.current.as_deref() == Some(kid) || is_on(Fault::RetiredKeyHonoured);
        if !current && key.is_expired(now) { Err(TokenError::Expired) } else { Ok(()) }
    }

    /// Installs the first key of a deployment, or finishes a half-done installation. Never replaces a key.
    ///
    /// # Errors
    /// `InvalidInput` when the key id is unusable, the secret is not 64 hex characters, or another key signs.
    pub fn seed(&mut self, kid: &str, secret_hex: &str) -> Result<SeedDecision> {
        check_kid(kid).map_err(EngineError::invalid)?;
        let secret = (secret_hex.len() == SEED_HEX_LEN).then(|| hex::decode(secret_hex).ok()).flatten();
        let secret = Secret(secret.ok_or_else(|| EngineError::invalid("invalid_secret: expected 64 hex characters"))?);
        let kid = kid.to_owned();
        if let Some(key) = self.keys.get(&kid)
            && (self.current.is_some() || key.secret != secret)
        {
            let same_secret = key.secret == secret;
            return Ok(SeedDecision::AlreadySeeded { kid, same_secret });
        }
        if let Some(current) = self.current.as_deref().filter(|current| *current != kid) {
            return Err(EngineError::invalid(format_args!("key {current:?} is current: use rotate")));
        }
        self.install(kid.clone(), secret);
        Ok(SeedDecision::Seeded { kid })
    }

    /// Makes a new key sign. The old one verifies through `now + grace_ms`; retired keys past their grace go.
    /// On an error nothing changes.
    ///
    /// # Errors
    /// In this order: `InvalidKid`, `InvalidSecretHex`, `InvalidGraceMs`, then `RotationConflict` when the key id
    /// holds another secret.
    pub fn rotate(&mut self, kid: &str, secret_hex: &str, grace_ms: u64, now: TimestampMs) -> Result<RotateDecision> {
        check_kid(kid).map_err(|why| EngineError::validation(ValidationKind::InvalidKid, why))?;
        let secret = hex::decode(secret_hex).ok().filter(|bytes| !bytes.is_empty()).map(Secret).ok_or_else(|| {
            EngineError::validation(ValidationKind::InvalidSecretHex, "expected an even number of hex characters")
        })?;
        if grace_ms > GRACE_MS_MAX {
            return Err(EngineError::validation(ValidationKind::InvalidGraceMs, grace_ms));
        }
        let kid = kid.to_owned();
        let is_current = self.current.as_ref() == Some(&kid);
        match self.keys.get(&kid) {
            Some(key) if key.secret != secret && (is_current || !key.is_expired(now)) => {
                return Err(ConflictKind::RotationConflict { kid }.into());
            }
            Some(_) if is_current => return Ok(RotateDecision::Noop { kid, repaired: false }),
            None if is_current => {
                self.install(kid.clone(), secret);
                return Ok(RotateDecision::Noop { kid, repaired: true });
            }
            _ => {}
        }
        let before = self.keys.len();
        let current = self.current.take();
        self.keys.retain(|held, key| current.as_ref() == Some(held) || !key.is_expired(now));
        let gc_count = u32::try_from(before - self.keys.len()).unwrap_or(u32::MAX);
        if let Some(old) = current.as_ref().and_then(|old| self.keys.get_mut(old)) {
            old.expires_at = Some(now.plus(grace_ms));
        }
        self.install(kid.clone(), secret);
        Ok(RotateDecision::Rotated { previous_kid: current, new_kid: kid, gc_count })
    }

    fn install(&mut self, kid: String, secret: Secret) {
        self.keys.insert(kid.clone(), SigningKey { secret, expires_at: None });
        self.current = Some(kid);
    }
}

#[cfg(test)]
impl proptest::arbitrary::Arbitrary for Keyring {
    type Parameters = ();
    type Strategy = proptest::strategy::BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        use proptest::prelude::*;
        any::<(Option<String>, BTreeMap<String, SigningKey>, Option<SealKey>)>()
            .prop_map(|(current, keys, handle_key)| Self { current, keys, handle_key })
            .boxed()
    }
}

fn check_kid(kid: &str) -> Result<(), String> {
    if kid.is_empty() {
        return Err("kid is empty".to_owned());
    }
    if kid.contains(':') {
        return Err("kid has a colon".to_owned());
    }
    check_free_string("kid", kid).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::{ONES, T0, ZEROS, kind, seeded, subject};

    #[test]
    fn a_retired_key_without_an_end_is_expired() {
        let mut ring = seeded();
        let token = ring.sign(&subject("k")).expect("signs");
        ring.rotate("k2", ONES, 1000, T0).expect("rotates");
        ring.keys.get_mut(INITIAL_KID).expect("held").expires_at = None;
        assert_eq!(ring.verify(&token, &subject("k"), T0), Err(TokenError::Expired));
        let gone = ring.rotate("k3", ZEROS, 0, T0).expect("rotates");
        assert!(matches!(gone, RotateDecision::Rotated { gc_count: 1, .. }), "{gone:?}");
    }

    #[test]
    fn a_retired_key_verifies_through_the_end_of_its_grace() {
        let mut ring = seeded();
        let old = ring.sign(&subject("k")).expect("signs");
        let done = ring.rotate("k2", ONES, 1000, T0).expect("rotates");
        let previous_kid = Some("k1".to_owned());
        assert_eq!(done, RotateDecision::Rotated { previous_kid, new_kid: "k2".into(), gc_count: 0 });
        assert_eq!(ring.verify(&old, &subject("k"), T0.plus(1000)), Ok(()));
        assert_eq!(ring.verify(&old, &subject("k"), T0.plus(1001)), Err(TokenError::Expired));
        assert_eq!(ring.verify(&old, &subject("other"), T0.plus(1001)), Err(TokenError::Mismatch));
        let new = ring.sign(&subject("k")).expect("signs");
        assert_eq!(new.kid(), "k2");
        assert_eq!(ring.verify(&new, &subject("k"), TimestampMs(i64::MAX)), Ok(()));
    }

    #[test]
    fn a_rotation_drops_keys_past_their_grace() {
        let mut ring = seeded();
        ring.rotate("k2", ONES, 1000, T0).expect("rotates");
        let again = ring.rotate("k3", "ab", 0, T0.plus(1000)).expect("rotates");
        assert!(matches!(again, RotateDecision::Rotated { gc_count: 0, .. }), "the grace is inclusive");
        let last = ring.rotate("k4", "cd", 0, T0.plus(1001)).expect("rotates");
        assert!(matches!(last, RotateDecision::Rotated { gc_count: 2, .. }), "{last:?}");
        assert_eq!(ring.kids().collect::<Vec<_>>(), ["k3", "k4"]);
        let token = WaitpointToken::new(format!("k1:{ZEROS}"));
        assert_eq!(ring.verify(&token, &subject("k"), T0), Err(TokenError::UnknownKid));
    }

    #[test]
    fn rotating_to_the_current_key_changes_nothing_or_repairs_it() {
        let mut ring = seeded();
        assert_eq!(
            ring.rotate("k1", ZEROS, 0, T0).expect("noop"),
            RotateDecision::Noop { kid: "k1".into(), repaired: false }
        );
        assert_eq!(ring, seeded());
        ring.keys.clear();
        assert_eq!(ring.sign(&subject("k")), Err(TokenError::NoKeyring));
        assert_eq!(
            ring.rotate("k1", ZEROS, 0, T0).expect("repair"),
            RotateDecision::Noop { kid: "k1".into(), repaired: true }
        );
        assert_eq!(ring, seeded());
    }

    #[test]
    fn a_key_id_never_changes_its_secret_while_it_is_known() {
        let mut ring = seeded();
        let conflict = |result: Result<RotateDecision>| match result {
            Err(EngineError::Conflict(ConflictKind::RotationConflict { kid })) => kid == "k1",
            _ => false,
        };
        assert!(conflict(ring.rotate("k1", ONES, 0, T0)));
        ring.rotate("k2", ONES, 10, T0).expect("rotates");
        let before = ring.clone();
        assert!(conflict(ring.rotate("k1", ONES, 0, T0.plus(10))), "retired, still in its grace");
        assert_eq!(ring, before);
        let back = ring.rotate("k1", ZEROS, 0, T0).expect("the retired key may return");
        assert!(matches!(back, RotateDecision::Rotated { gc_count: 0, .. }));
        let token = ring.sign(&subject("k")).expect("signs");
        assert_eq!((token.kid(), ring.verify(&token, &subject("k"), TimestampMs(i64::MAX))), ("k1", Ok(())));
    }

    #[test]
    fn a_key_id_past_its_grace_is_free_again() {
        let mut ring = seeded();
        ring.rotate("k2", ONES, 10, T0).expect("rotates");
        let done = ring.rotate("k1", "abcd", 0, T0.plus(11)).expect("rotates");
        assert!(matches!(done, RotateDecision::Rotated { gc_count: 1, .. }));
    }

    #[test]
    fn rotation_arguments_are_refused_in_order() {
        let mut ring = Keyring::default();
        for kid in ["", "a:b", "a\nb"] {
            assert_eq!(kind(ring.rotate(kid, "", u64::MAX, T0)).0, ValidationKind::InvalidKid);
        }
        for secret in ["", "abc", "zz"] {
            assert_eq!(kind(ring.rotate("k", secret, u64::MAX, T0)).0, ValidationKind::InvalidSecretHex);
        }
        assert_eq!(kind(ring.rotate("k", "ab", GRACE_MS_MAX + 1, T0)).0, ValidationKind::InvalidGraceMs);
        let first = ring.rotate("k", "ab", GRACE_MS_MAX, T0).expect("rotates");
        assert_eq!(first, RotateDecision::Rotated { previous_kid: None, new_kid: "k".into(), gc_count: 0 });
    }

    #[test]
    fn a_seed_installs_once() {
        let mut ring = seeded();
        let again = |same_secret| SeedDecision::AlreadySeeded { kid: "k1".into(), same_secret };
        assert_eq!(ring.seed("k1", ZEROS).expect("known"), again(true));
        assert_eq!(ring.seed("k1", ONES).expect("known"), again(false));
        assert_eq!(ring, seeded());
        let (kind_of, detail) = kind(ring.seed("k2", ONES));
        assert!(kind_of == ValidationKind::InvalidInput && detail.contains("use rotate"), "{detail}");
        ring.rotate("k2", ONES, 10, T0).expect("rotates");
        assert_eq!(ring.seed("k1", ZEROS).expect("retired but known"), again(true));
        for (kid, secret) in [("", ZEROS), ("a:b", ZEROS), ("k", "ab"), ("k", &"z".repeat(64)), ("k", "")] {
            assert_eq!(kind(ring.seed(kid, secret)).0, ValidationKind::InvalidInput);
        }
    }

    #[test]
    fn a_half_done_seed_is_finished() {
        let seed = |mut ring: Keyring| ring.seed("k1", ZEROS).map(|done| (done, ring)).expect("finishes");
        let done = SeedDecision::Seeded { kid: "k1".into() };
        assert_eq!(seed(Keyring { keys: BTreeMap::new(), ..seeded() }), (done.clone(), seeded()));
        assert_eq!(seed(Keyring { current: None, ..seeded() }), (done, seeded()));
    }

    #[test]
    fn secrets_do_not_show() {
        let mut ring = seeded();
        ring.handle_key = Some(SealKey::new([0x11; 32]));
        let token = ring.sign(&subject("k")).expect("signs");
        let shown = format!("{ring:?} {token:?} {token}");
        let mac = token.expose().split_once(':').expect("two parts").1;
        assert!(!shown.contains(mac) && shown.contains(token.fingerprint()), "{shown}");
        assert!(!shown.contains("0000") && !shown.contains("1111") && !shown.contains("17, 17"), "{shown}");
    }

    #[test]
    fn a_stored_ring_refuses_bad_secrets_without_repeating_them() {
        for json in [
            r#"{"keys":{"k1":{"secret":"xyz"}}}"#,
            r#"{"keys":{},"handle_key":"abcd"}"#,
            r#"{"keys":{"k1":{"secret":"ab","more":1}}}"#,
        ] {
            let error = serde_json::from_str::<Keyring>(json).expect_err("must be refused").to_string();
            assert!(!error.contains("xyz") && !error.contains("abcd"), "{error}");
        }
    }

    crate::testing::json_round_trips!(Keyring);
}
