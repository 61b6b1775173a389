//! Files that this user may not use. Permissions do not bind the superuser, so another user tries.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::kit::{OPEN, Outcome, filled, says};

/// Nobody, on every Unix.
const NOBODY: u32 = 65_534;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("a_file_that_may_not_be_read_is_named", unreadable),
        Trial::test("a_file_that_may_not_be_written_is_named", unwritable),
        Trial::test("a_directory_that_may_not_be_written_is_named", unwritable_directory),
        Trial::test("a_directory_that_may_not_be_entered_is_named", closed_directory),
        Trial::test("a_file_that_may_be_used_by_another_user_is_opened", usable),
    ]
}

/// A directory with a database, and a program that another user may run.
struct Stage {
    directory: tempfile::TempDir,
    program: PathBuf,
    database: PathBuf,
}

fn is_superuser() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn allow(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

impl Stage {
    fn new() -> Result<Self, Failed> {
        let directory = tempfile::tempdir()?;
        let data = directory.path().join("data");
        std::fs::create_dir(&data)?;
        let (program, database) = (directory.path().join("program"), data.join("flow.db"));
        // Where the program was built, another user may not look.
        std::fs::copy(std::env::current_exe()?, &program)?;
        allow(directory.path(), 0o755)?;
        allow(&program, 0o755)?;
        filled(&database, 1)?;
        Ok(Self { directory, program, database })
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// What the other user is told.
    fn open(&self, path: &Path) -> Result<String, Failed> {
        let mut command = Command::new(&self.program);
        command.env(OPEN, path).env_remove("LD_LIBRARY_PATH");
        if is_superuser() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // Whoever removes the directory must be able to enter it.
        allow(&self.data(), 0o755)?;
        if output.status.success() { Ok(said) } else { Err(format!("the child failed: {output:?}").into()) }
    }

    fn is_refused(&self, path: &Path, parts: &[&str]) -> Outcome {
        says(&self.open(path)?, parts)
    }
}

fn unreadable() -> Outcome {
    let stage = Stage::new()?;
    for mode in [0o000, 0o200] {
        allow(&stage.database, mode)?;
        stage.is_refused(&stage.database, &["flow.db", "cannot be opened", "readable and writable for this user"])?;
    }
    Ok(())
}

fn unwritable() -> Outcome {
    let stage = Stage::new()?;
    allow(&stage.data(), 0o777)?;
    for mode in [0o444, if is_superuser() { 0o644 } else { 0o400 }] {
        allow(&stage.database, mode)?;
        stage.is_refused(
            &stage.database,
            &["flow.db", "this user may not write it", "Make the file and its directory writable"],
        )?;
        allow(&stage.data(), 0o777)?;
    }
    Ok(())
}

fn unwritable_directory() -> Outcome {
    let stage = Stage::new()?;
    allow(&stage.database, 0o666)?;
    allow(&stage.data(), 0o555)?;
    stage.is_refused(&stage.database, &["flow.db", "cannot be written", "Make the file and its directory writable"])?;
    allow(&stage.data(), 0o555)?;
    stage.is_refused(&stage.data().join("new.db"), &["new.db", "cannot be opened", "may write in it"])
}

fn closed_directory() -> Outcome {
    let stage = Stage::new()?;
    allow(&stage.data(), if is_superuser() { 0o700 } else { 0o000 })?;
    stage.is_refused(&stage.database, &["flow.db", "Permission denied", "may write in it"])
}

fn usable() -> Outcome {
    let stage = Stage::new()?;
    allow(&stage.database, 0o666)?;
    allow(&stage.data(), 0o777)?;
    says(&stage.open(&stage.database)?, &["opened"])
}
