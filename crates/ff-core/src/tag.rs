//! Tags: namespaced keys with free values, on executions and flows.

use std::collections::BTreeMap;

use crate::error::{EngineError, Result, ValidationKind};
use crate::ids::NAME_BYTES_MAX;

/// Most bytes of a tag value.
pub const TAG_VALUE_BYTES_MAX: usize = 4096;

/// Most tags of an execution or flow. Every event about it carries all of them.
pub const TAGS_MAX: usize = 256;

/// Whether a key is namespaced: `[a-z][a-z0-9_]*`, a dot, `[a-z0-9_]`, then `[a-z0-9_.]*`; at most 256 bytes.
#[must_use]
pub fn is_tag_key(key: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let Some((namespace, name)) = key.split_once('.') else { return false };
    key.len() <= NAME_BYTES_MAX
        && namespace.starts_with(|c: char| c.is_ascii_lowercase())
        && namespace.bytes().all(word)
        && name.bytes().next().is_some_and(word)
        && name.bytes().all(|b| word(b) || b == b'.')
}

/// Checks a key that is about to be set or read.
///
/// # Errors
/// `InvalidInput` when it breaks the rule of [`is_tag_key`].
pub fn validate_tag_key(key: &str) -> Result<()> {
    if is_tag_key(key) { Ok(()) } else { Err(EngineError::invalid(format_args!("invalid tag key {key:?}"))) }
}

/// Checks a value: any UTF-8, at most [`TAG_VALUE_BYTES_MAX`] bytes.
///
/// # Errors
/// `InvalidInput` when it is longer.
pub fn validate_tag_value(value: &str) -> Result<()> {
    if value.len() <= TAG_VALUE_BYTES_MAX {
        return Ok(());
    }
    let len = value.len();
    Err(EngineError::invalid(format_args!("tag value has {len} bytes, at most {TAG_VALUE_BYTES_MAX} are allowed")))
}

/// Checks how many tags there are, or would be.
///
/// # Errors
/// `InvalidInput` over [`TAGS_MAX`].
pub fn validate_tag_count(count: usize) -> Result<()> {
    if count <= TAGS_MAX {
        return Ok(());
    }
    Err(EngineError::invalid(format_args!("{count} tags, at most {TAGS_MAX} are allowed")))
}

/// Checks the tags a new execution or flow comes with.
///
/// # Errors
/// `InvalidTagKey` with the first bad key, else `InvalidInput` for too many tags or a value that is too long.
pub fn validate_new_tags(tags: &BTreeMap<String, String>) -> Result<()> {
    match tags.keys().find(|key| !is_tag_key(key)) {
        Some(key) => Err(EngineError::validation(ValidationKind::InvalidTagKey, key)),
        None => {
            validate_tag_count(tags.len())?;
            tags.values().try_for_each(|value| validate_tag_value(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_needs_a_namespace_and_a_name() {
        for good in ["a.b", "acme.run_id", "a1_.0", "a._", "a.b.c", "a.b..", "cairn.x.y_z"] {
            assert!(validate_tag_key(good).is_ok(), "{good}");
        }
        for bad in ["", "a", ".a", "a.", "a..b", "A.b", "1a.b", "_a.b", "a.B", "a-b.c", "a.b c", "ä.b", "a.é"] {
            match validate_tag_key(bad) {
                Err(EngineError::Validation { kind: ValidationKind::InvalidInput, detail }) => {
                    assert!(detail.starts_with("invalid tag key"), "{detail}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_key_has_at_most_as_many_bytes_as_any_name() {
        assert!(is_tag_key(&format!("a.{}", "b".repeat(NAME_BYTES_MAX - 2))));
        assert!(!is_tag_key(&format!("a.{}", "b".repeat(NAME_BYTES_MAX - 1))));
    }

    #[test]
    fn creation_names_the_first_bad_key() {
        let tags = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        assert!(validate_new_tags(&tags(&[("a.b", "any\u{0}thing\n")])).is_ok());
        assert!(matches!(
            validate_new_tags(&tags(&[("a.b", ""), ("plain", ""), ("zzz", "")])),
            Err(EngineError::Validation { kind: ValidationKind::InvalidTagKey, detail }) if detail == "plain"
        ));
    }

    #[test]
    fn a_value_is_bounded_inclusively() {
        assert!(validate_tag_value(&"v".repeat(TAG_VALUE_BYTES_MAX)).is_ok());
        assert!(matches!(
            validate_tag_value(&"v".repeat(TAG_VALUE_BYTES_MAX + 1)),
            Err(EngineError::Validation { kind: ValidationKind::InvalidInput, .. })
        ));
    }

    proptest! {
        #[test]
        fn keys_of_the_documented_pattern_pass(key in "[a-z][a-z0-9_]{0,9}\\.[a-z0-9_][a-z0-9_.]{0,9}") {
            prop_assert!(is_tag_key(&key));
        }

        #[test]
        fn no_text_panics(key: String) {
            let _ = validate_tag_key(&key);
        }
    }
}
