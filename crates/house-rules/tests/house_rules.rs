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
const STORE_DIFFERENCES: [siblings::Difference; 48] = [
    postgres("client.rs", "a connection that others may use, too; nobody else has those to a file"),
    postgres(
        "column.rs",
        "short forms for columns that are written anew with each change; on SQLite most executions come to their table once",
    ),
    postgres(
        "intake.rs",
        "notes of transactions that callers begin on the server; SQLite has one writer, and such a transaction would hold it up",
    ),
    postgres("news/alarm.rs", "what others hear of although its process dies; whoever shares a file looks at the file"),
    postgres("news/company.rs", "whether other processes hear them; whoever shares a file looks at the file"),
    postgres("news/words.rs", "what they say; a file has no such channel"),
    postgres(
        "session.rs",
        "one connection at a time, with statements sent without waiting; a library is called directly",
    ),
    postgres("short.rs", "keys within what an index of Postgres can hold; SQLite has no such limit"),
    postgres(
        "tables/created.rs",
        "a table that keeps creation out of rows that change often; SQLite updates only the indexes that change",
    ),
    postgres("value.rs", "parameters in the types of Postgres; SQLite takes values as they come"),
    postgres("view.rs", "reads at one moment on a connection of the pool; SQLite has threads for that, in readers.rs"),
    postgres(
        "writer/batch/mod.rs",
        "what operations that are decided side by side know together; on SQLite they run one after another",
    ),
    postgres("writer/batch/search.rs", "how those of them that look for work share it; on SQLite each one reads anew"),
    postgres("standing.rs", "who may keep executions in the journal; SQLite's file says it with a lock"),
    postgres(
        "writer/changes.rs",
        "what a change does to indexes, known before anything is sent; on SQLite tables apply it as they write",
    ),
    postgres(
        "writer/foresight.rs",
        "what a search will read, asked for in one round trip; on SQLite a read is a call of a function",
    ),
    postgres("writer/hand.rs", "what desks beside each other have chosen; SQLite has one writer"),
    postgres(
        "writer/locks.rs",
        "what a commit takes for itself on a server that others write, too; SQLite locks the file",
    ),
    postgres("writer/mirror.rs", "a queue as the process knows it; SQLite has it at hand"),
    postgres("writer/mirrors.rs", "all of them, and for how long they are good; SQLite has them at hand"),
    postgres(
        "writer/settler.rs",
        "brings executions from the journal to their table beside everybody else; SQLite's one writer does it",
    ),
    postgres(
        "young/rows.rs",
        "young executions by id, age and queue; SQLite has no desks that reserve them, and so room for it in mod.rs",
    ),
    servers(
        "address.rs",
        "what of the server holds a record, and in which version; SQLite has one writer at a time and no versions",
    ),
    servers("news.rs", "notifications between processes through the server; a file has no such channel"),
    servers("tls.rs", "encryption of connections; a file has none"),
    servers(
        "writer/cache.rs",
        "records with versions that may be old; SQLite's writer forgets its own when somebody else writes",
    ),
    servers("writer/heads.rs", "beginnings of queues for many who look at once; on SQLite they look one after another"),
    servers("writer/plan.rs", "a whole commit, sent at once; on SQLite each statement runs when it is needed"),
    servers("writer/queue.rs", "collects a group for a desk; SQLite's writer does, in group.rs"),
    sql("tables/entry.rs", "index entries in a table of their own; Valkey has a sorted set for each index"),
    sql("tables/execution.rs", "a table with columns that indexes are made of; Valkey has one form for all records"),
    sql("tables/journal.rs", "a log that spares short executions their table; Valkey writes to memory first"),
    sql("young/lines.rs", "what such a log says; Valkey has none"),
    sql("young/mod.rs", "executions that are in such a log alone; Valkey has none"),
    sql("young/tests.rs", "that nothing of them is lost; Valkey has none"),
    valkey("cluster.rs", "who of several servers has what; a database of Postgres is on one"),
    valkey(
        "functions.lua",
        "what the server does in one step; Postgres has it in its migrations, SQLite in the library",
    ),
    valkey("lists.rs", "reads of lists that stand in many shards; the others have every list in one place"),
    valkey("signposts.rs", "which shards may hold something of a queue; the others have every queue in one place"),
    valkey("writer/batch.rs", "what operations of one commit know together; Postgres has two files for more of it"),
    sqlite("readers.rs", "threads for calls that block; the driver of Postgres does not block"),
    sqlite(
        "tables/satellite.rs",
        "records in the row of their execution, read on their own; on Postgres they come with it, see address.rs",
    ),
    sqlite("watch.rs", "notices writes of other processes to a file; a server tells"),
    sqlite("writer/checkpointer.rs", "moves pages from the log into the file; a server does that itself"),
    sqlite("writer/flusher.rs", "flushes the log and answers then; a server does that itself"),
    sqlite("writer/group.rs", "collects a group between threads; on Postgres tasks do, in queue.rs"),
    sqlite("writer/tests.rs", "what has not been flushed is not told; a server flushes before it answers"),
    sqlite(
        "young/stream.rs",
        "lines in slots that are written over and over; a server gives rows away and takes them back itself",
    ),
];
const POSTGRES: &str = "ff-backend-postgres";
const SQLITE: &str = "ff-backend-sqlite";
const VALKEY: &str = "ff-backend-valkey";

const fn postgres(file: &'static str, reason: &'static str) -> siblings::Difference {
    siblings::Difference { stores: &[POSTGRES], file, reason }
}

const fn sqlite(file: &'static str, reason: &'static str) -> siblings::Difference {
    siblings::Difference { stores: &[SQLITE], file, reason }
}

const fn valkey(file: &'static str, reason: &'static str) -> siblings::Difference {
    siblings::Difference { stores: &[VALKEY], file, reason }
}

const fn servers(file: &'static str, reason: &'static str) -> siblings::Difference {
    siblings::Difference { stores: &[POSTGRES, VALKEY], file, reason }
}

const fn sql(file: &'static str, reason: &'static str) -> siblings::Difference {
    siblings::Difference { stores: &[POSTGRES, SQLITE], file, reason }
}

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
