//! Every program of `examples/` on a server; each checks itself. They must be built before: `make postgres-sdk` and `make valkey-sdk` do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::store;

/// The programs that this kind of store can serve.
fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !store::EXAMPLES_ELSEWHERE.contains(&&**name));
    names.sort();
    names
}

/// Programs stand beside the folder of this one.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().with_file_name("examples").join(name)
}

#[test]
fn every_example_runs_on_a_server() {
    let names = names();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        println!("--- {name}");
        let ended = Command::new(program(&name)).env("FLOWFABRIC_STORE", store::named(&name)).status().unwrap();
        assert!(ended.success(), "{name}: {ended}");
        assert!(store::holds_work(&name), "{name} left nothing on the server");
    }
}
