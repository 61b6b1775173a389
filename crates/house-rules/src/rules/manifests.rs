//! Every crate says what it is and follows the shared lints; one program is enough.

use serde_json::Value;

use crate::{Finding, repository::SourceFile};

/// Finds what a crate's manifest lacks: a description, or the workspace's lints.
pub fn incomplete_manifest(manifest: &SourceFile) -> Vec<Finding> {
    let entries = entries(&manifest.text);
    let value_of = |wanted: &str| entries.iter().find(|(key, _)| key == wanted).map(|(_, value)| *value);
    let described = value_of("package.description").is_some_and(|text| !text.trim_matches(['"', ' ']).is_empty());
    let mut found = Vec::new();
    if !described {
        found.push(Finding::whole(&manifest.path, "give the crate a description"));
    }
    if value_of("lints.workspace") != Some("true") {
        found.push(Finding::whole(&manifest.path, "inherit the lints: `[lints] workspace = true`"));
    }
    found
}

/// Finds programs beyond the one that `cargo run` starts, or its absence. `metadata` is what
/// `cargo metadata --no-deps --format-version 1` prints.
pub fn not_exactly_one_binary(metadata: &Value) -> Vec<Finding> {
    let mut binaries: Vec<String> = items(&metadata["packages"])
        .flat_map(|package| items(&package["targets"]).map(move |target| (package, target)))
        .filter(|(_, target)| items(&target["kind"]).any(|kind| kind == "bin"))
        .map(|(package, target)| format!("{}/{}", text(&package["name"]), text(&target["name"])))
        .collect();
    binaries.sort();
    match binaries.len() {
        1 => vec![],
        0 => vec![Finding::whole("workspace", "has no program for `cargo run`")],
        count => binaries.iter().map(|name| Finding::whole(name, format!("is one of {count} programs"))).collect(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The `key = value` lines of a manifest, each key with its table's name in front.
fn entries(manifest: &str) -> Vec<(String, &str)> {
    let mut table = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim();
            found.push((if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }, value.trim()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(text: &str) -> SourceFile {
        SourceFile::new("crates/a/Cargo.toml", text)
    }

    fn workspace(binaries: &[&str]) -> Value {
        let programs = binaries.iter().map(|name| json!({ "name": name, "kind": ["bin"] }));
        let mut targets: Vec<_> = programs.collect();
        targets.push(json!({ "name": "a", "kind": ["lib"] }));
        targets.push(json!({ "name": "shown", "kind": ["example"] }));
        json!({ "packages": [{ "name": "a", "targets": targets }] })
    }

    #[test]
    fn a_complete_manifest_is_fine() {
        let table = "[package]\nname = \"a\"\ndescription = \"An a\"\n\n[lints]\nworkspace = true\n";
        let dotted = "lints.workspace = true\n[package]\ndescription = \"An a\"\n";

        assert_eq!(incomplete_manifest(&manifest(table)), []);
        assert_eq!(incomplete_manifest(&manifest(dotted)), []);
    }

    #[test]
    fn a_missing_description_is_found() {
        for description in ["", "description = \"\"", "# description = \"An a\"", "[x]\ndescription = \"An a\""] {
            let text = format!("[package]\nname = \"a\"\n{description}\n[lints]\nworkspace = true\n");
            assert_eq!(incomplete_manifest(&manifest(&text)).len(), 1, "{description}");
        }
    }

    #[test]
    fn lints_of_its_own_are_found() {
        for lints in
            ["", "[lints]\nworkspace = false", "[lints.rust]\nmissing_docs = \"warn\"", "[a]\nworkspace = true"]
        {
            let text = format!("[package]\ndescription = \"An a\"\n{lints}\n");
            assert_eq!(incomplete_manifest(&manifest(&text)).len(), 1, "{lints}");
        }
    }

    #[test]
    fn one_program_is_right_none_or_two_are_found() {
        assert_eq!(not_exactly_one_binary(&workspace(&["run"])), []);
        assert_eq!(not_exactly_one_binary(&workspace(&[])).len(), 1);
        assert_eq!(not_exactly_one_binary(&workspace(&["run", "walk"])).len(), 2);
    }
}
