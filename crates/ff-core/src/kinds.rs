//! Which kinds of work a worker handles: those it names, or all.

use std::collections::BTreeSet;

use crate::error::{EngineError, Result};
use crate::fault::{Fault, is_on};
use crate::ids::check_free_string;

/// Most kinds that one worker names.
pub const KINDS_MAX: usize = 1000;

/// Checks the kinds that a worker names: at most [`KINDS_MAX`], each a free string.
///
/// # Errors
/// `InvalidInput` that says what is wrong.
pub fn check_kinds(kinds: Option<&BTreeSet<String>>) -> Result<()> {
    let Some(kinds) = kinds else { return Ok(()) };
    if kinds.len() > KINDS_MAX {
        let count = kinds.len();
        return Err(EngineError::invalid(format_args!("kinds: a worker names at most {KINDS_MAX}, not {count}")));
    }
    kinds.iter().try_for_each(|kind| Ok(check_free_string("kinds", kind)?))
}

/// Whether a worker that names these kinds handles one. Case matters.
#[must_use]
pub fn handles(kinds: Option<&BTreeSet<String>>, kind: &str) -> bool {
    is_on(Fault::KindIgnored) || kinds.is_none_or(|kinds| kinds.contains(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(kinds: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
        kinds.into_iter().map(Into::into).collect()
    }

    fn refused(kinds: &BTreeSet<String>) -> String {
        let refusal = check_kinds(Some(kinds)).expect_err("refused");
        assert_eq!(refusal.code(), "invalid_input");
        refusal.to_string()
    }

    #[test]
    fn a_worker_handles_what_it_names_and_one_that_names_nothing_handles_all() {
        let named = set(["mail", ""]);
        assert!(handles(None, "mail") && handles(None, ""));
        assert!(handles(Some(&named), "mail") && handles(Some(&named), ""));
        assert!(!handles(Some(&named), "Mail") && !handles(Some(&named), "bill"));
        assert!(!handles(Some(&BTreeSet::new()), "mail"), "an empty set is not the absence of one");
    }

    #[test]
    fn kinds_are_free_strings_and_not_too_many() {
        assert!(check_kinds(None).is_ok() && check_kinds(Some(&BTreeSet::new())).is_ok());
        let many = |count: usize| set((0..count).map(|n| n.to_string()));
        assert!(check_kinds(Some(&many(KINDS_MAX))).is_ok());
        assert!(refused(&many(KINDS_MAX + 1)).contains("at most 1000, not 1001"));
        assert!(check_kinds(Some(&set(["k".repeat(256)]))).is_ok());
        assert!(refused(&set(["k".repeat(257)])).contains("kinds has 257 bytes"));
        assert!(refused(&set(["a\nb"])).contains("kinds has a forbidden character"));
    }
}
