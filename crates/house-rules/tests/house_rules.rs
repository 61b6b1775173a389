//! Applies every house rule to this repository.

use std::{env, fs, process::Command};

use house_rules::{
    Finding,
    repository::{SourceFile, root, text_files},
    rules::{commands, manifests, paths, siblings, sizes, statements, words},
};

/// Files that may exceed the length limit; each needs a reason why cutting it would make it harder to read.
const LONG_FILES: [sizes::LongFile; 0] = [];
/// Files that not every store has; each needs a reason why the others do without.
const STORE_DIFFERENCES: [siblings::Difference; 0] = [];

fn files() -> Vec<SourceFile> {
    text_files(&root()).expect("the repository can be read")
}

fn content(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn assert_none(found: impl IntoIterator<Item = Finding>) {
    let found: Vec<String> = found.into_iter().map(|finding| format!("  {finding}")).collect();
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_source_file_is_overlong() {
    assert_none(sizes::overlong_files(&files(), &LONG_FILES));
}

#[test]
fn few_source_files_are_long() {
    assert_none(sizes::too_many_long_files(&files()));
}

#[test]
fn comments_refer_to_nothing_only_insiders_can_open() {
    assert_none(files().iter().flat_map(words::inside_references));
}

#[test]
fn comments_speak_of_the_present() {
    assert_none(files().iter().flat_map(words::history_words));
}

#[test]
fn every_statement_file_begins_with_its_purpose() {
    assert_none(files().iter().filter_map(statements::missing_purpose));
}

#[test]
fn every_statement_file_explains_its_parameters() {
    assert_none(files().iter().flat_map(statements::unexplained_parameters));
}

#[test]
fn sibling_stores_have_the_same_files() {
    let files = files();
    let stores = siblings::store_files(files.iter().map(|file| file.path.as_str()));
    assert_none(siblings::differences(&stores, &STORE_DIFFERENCES));
}

#[test]
fn the_readme_shows_the_two_commands() {
    assert_none(commands::missing_commands(&content("README.md")));
}

#[test]
fn the_continuous_run_only_calls_the_test_command() {
    assert_none(commands::extra_ci_steps(&content(".ci/run")));
}

#[cfg(unix)]
#[test]
fn the_continuous_run_is_executable() {
    use std::os::unix::fs::PermissionsExt;

    let mode = fs::metadata(root().join(".ci/run")).expect(".ci/run exists").permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "chmod +x .ci/run");
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    assert_none(files().iter().flat_map(paths::machine_paths));
}

#[test]
fn every_crate_is_described_and_follows_the_shared_lints() {
    let files = files();
    let crates = files.iter().filter(|file| file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml"));
    assert_none(crates.flat_map(manifests::incomplete_manifest));
}

#[test]
fn the_workspace_has_exactly_one_program() {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    assert_none(manifests::not_exactly_one_binary(&metadata));
}
