//! Knowing one store is knowing all: stores repeat the same file names.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

/// Every store lives in `crates/` under a name with this beginning.
pub const STORE_PREFIX: &str = "ff-backend-";

/// A file that not every store has, and why.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// The stores that have it, in the order of their names.
    pub stores: &'static [&'static str],
    /// The file, relative to the store's `src`.
    pub file: &'static str,
    /// Why the others do not need it.
    pub reason: &'static str,
}

/// The files below `src` of every store, by the store's crate name.
pub fn store_files<'a>(paths: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, BTreeSet<String>> {
    let mut stores: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in paths {
        let Some((store, rest)) = path.strip_prefix("crates/").and_then(|path| path.split_once('/')) else { continue };
        if let Some(file) = rest.strip_prefix("src/").filter(|_| store.starts_with(STORE_PREFIX)) {
            stores.entry(store.to_owned()).or_default().insert(file.to_owned());
        }
    }
    stores
}

/// Finds files that one store has and another lacks, unless the difference is declared; and declared differences that
/// do not exist or have no reason.
pub fn differences(stores: &BTreeMap<String, BTreeSet<String>>, declared: &[Difference]) -> Vec<Finding> {
    let files: BTreeSet<&String> = stores.values().flatten().collect();
    let is_declared = |file: &str| declared.iter().any(|difference| difference.file == file);
    let mut found = Vec::new();
    for file in files.into_iter().filter(|file| !is_declared(file)) {
        let owners = owners(stores, file).join(" and ");
        let lacking = stores.iter().filter(|(_, others)| !others.contains(file));
        found.extend(lacking.map(|(store, _)| {
            Finding::whole(format!("crates/{store}/src/{file}"), format!("is missing, while {owners} has it"))
        }));
    }
    found.extend(declared.iter().filter_map(|difference| stale(stores, difference)));
    found
}

/// The stores that have a file, in the order of their names.
fn owners<'s>(stores: &'s BTreeMap<String, BTreeSet<String>>, file: &str) -> Vec<&'s str> {
    stores.iter().filter(|(_, files)| files.contains(file)).map(|(store, _)| store.as_str()).collect()
}

fn stale(stores: &BTreeMap<String, BTreeSet<String>>, difference: &Difference) -> Option<Finding> {
    let Difference { stores: declared, file, reason } = difference;
    let owners = owners(stores, file);
    let complaint = if owners.len() == stores.len() {
        "is declared as a difference and every store has it"
    } else if owners != *declared {
        "is declared as a difference of other stores than those that have it"
    } else if reason.trim().is_empty() {
        "is declared as a difference without a reason"
    } else {
        return None;
    };
    Some(Finding::whole(format!("{}: src/{file}", declared.join(" and ")), complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: [&str; 7] = [
        "crates/ff-backend-one/src/lib.rs",
        "crates/ff-backend-one/src/fast/claim.rs",
        "crates/ff-backend-one/sql/a.sql",
        "crates/ff-backend-two/src/lib.rs",
        "crates/ff-backend-two/src/keys.rs",
        "crates/ff-core/src/ids.rs",
        "README.md",
    ];
    const KEYS: Difference =
        Difference { stores: &["ff-backend-two"], file: "keys.rs", reason: "names of keys; tables name themselves" };

    #[test]
    fn only_sources_of_stores_are_compared() {
        let stores = store_files(TREE);

        assert_eq!(stores.keys().collect::<Vec<_>>(), ["ff-backend-one", "ff-backend-two"]);
        assert_eq!(stores["ff-backend-one"].iter().collect::<Vec<_>>(), ["fast/claim.rs", "lib.rs"]);
    }

    #[test]
    fn a_file_that_a_sibling_lacks_is_found() {
        let found = differences(&store_files(TREE), &[]);

        assert_eq!(
            found,
            [
                Finding::whole("crates/ff-backend-two/src/fast/claim.rs", "is missing, while ff-backend-one has it"),
                Finding::whole("crates/ff-backend-one/src/keys.rs", "is missing, while ff-backend-two has it"),
            ]
        );
    }

    #[test]
    fn a_declared_difference_is_accepted() {
        let found = differences(&store_files(TREE), &[KEYS]);

        assert_eq!(found.len(), 1);
        assert!(found[0].place.ends_with("fast/claim.rs"));
    }

    #[test]
    fn a_declaration_must_exist_differ_and_have_a_reason() {
        let stores = store_files(TREE.into_iter().filter(|path| !path.ends_with("claim.rs")));
        let gone = Difference { file: "gone.rs", ..KEYS };
        let shared = Difference { file: "lib.rs", ..KEYS };
        let silent = Difference { reason: "", ..KEYS };
        let foreign = Difference { stores: &["ff-backend-one", "ff-backend-two"], ..KEYS };

        assert_eq!(differences(&stores, &[KEYS]), []);
        assert_eq!(differences(&stores, &[KEYS, gone]).len(), 1);
        assert_eq!(differences(&stores, &[KEYS, shared]).len(), 1);
        assert_eq!(differences(&stores, &[silent]).len(), 1);
        assert_eq!(differences(&stores, &[foreign]).len(), 1);
    }

    #[test]
    fn equal_trees_and_a_lone_store_have_no_differences() {
        let equal = ["crates/ff-backend-one/src/lib.rs", "crates/ff-backend-two/src/lib.rs"];

        assert_eq!(differences(&store_files(equal), &[]), []);
        assert_eq!(differences(&store_files(TREE.into_iter().take(3)), &[]), []);
        assert_eq!(differences(&BTreeMap::new(), &[]), []);
    }
}
