//! Every program of `examples/` on Postgres; each checks itself. They must be built before: `make postgres-sdk` does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::store::SERVER;

fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Programs stand beside the folder of this one.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().with_file_name("examples").join(name)
}

#[test]
fn every_example_runs_on_postgres() {
    let names = names();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        println!("--- {name}");
        let address = format!("{}?schema={}", SERVER.url(), name.replace('-', "_"));
        let ended = Command::new(program(&name)).env("FLOWFABRIC_STORE", address).status().unwrap();
        assert!(ended.success(), "{name}: {ended}");
        let used = format!("SELECT count(*) > 0 FROM {}.execution", name.replace('-', "_"));
        assert_eq!(SERVER.run(&used).unwrap(), "t", "{name} left nothing on the server");
    }
}
