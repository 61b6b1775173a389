//! Files that are not databases of ours.

use std::path::Path;

use libtest_mimic::Trial;
use rusqlite::Connection;

use crate::kit::{Outcome, filled, finish, is_refused, open, place};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("a_directory_is_refused", a_directory),
        Trial::test("a_missing_directory_is_named", a_missing_directory),
        Trial::test("garbage_is_refused_and_left_alone", garbage),
        Trial::test("a_truncated_file_is_refused", truncated),
        Trial::test("an_empty_file_becomes_a_database", an_empty_file),
        Trial::test("a_database_of_another_application_is_refused_and_left_alone", another_application),
        Trial::test("a_newer_layout_is_refused", a_newer_layout),
        Trial::test("a_path_that_names_no_file_is_refused", no_file),
    ]
}

fn a_directory() -> Outcome {
    let (directory, _) = place()?;
    is_refused(directory.path(), &["is a directory", "give the path of a file in it"])
}

fn a_missing_directory() -> Outcome {
    let (directory, _) = place()?;
    let path = directory.path().join("missing").join("flow.db");
    is_refused(&path, &["missing/flow.db", "its directory does not exist", "Check that its directory exists"])
}

fn garbage() -> Outcome {
    let (_directory, path) = place()?;
    let bytes = b"Dear diary, today I learnt what a database is. ".repeat(500);
    std::fs::write(&path, &bytes)?;
    is_refused(&path, &["flow.db", "is not a database", "Restore a backup, or move the file away"])?;
    is_unchanged(&path, &bytes)
}

fn is_unchanged(path: &Path, bytes: &[u8]) -> Outcome {
    if std::fs::read(path)? == bytes { Ok(()) } else { Err("the file was changed".into()) }
}

fn truncated() -> Outcome {
    let (_directory, path) = place()?;
    filled(&path, 50)?;
    let whole = std::fs::read(&path)?;
    for length in [whole.len() - 4096, whole.len() / 2, whole.len() / 2 + 17, 5_000, 4_096, 50] {
        std::fs::write(&path, &whole[..length])?;
        is_refused(&path, &["flow.db", "is damaged", "malformed", "Restore a backup"])?;
    }
    Ok(())
}

fn an_empty_file() -> Outcome {
    let (_directory, path) = place()?;
    std::fs::write(&path, b"")?;
    filled(&path, 1)?;
    finish(open(&path))?;
    Ok(())
}

fn another_application() -> Outcome {
    for mode in ["DELETE", "WAL"] {
        let (_directory, path) = place()?;
        let db = Connection::open(&path)?;
        db.pragma_update(None, "journal_mode", mode)?;
        db.execute_batch("CREATE TABLE diary (entry TEXT); INSERT INTO diary VALUES ('dear diary')")?;
        drop(db);
        let bytes = std::fs::read(&path)?;
        is_refused(&path, &["flow.db", "another application", "nothing was changed", "Give the path of"])?;
        is_unchanged(&path, &bytes)?;
    }
    Ok(())
}

fn a_newer_layout() -> Outcome {
    let (_directory, path) = place()?;
    filled(&path, 1)?;
    Connection::open(&path)?.execute_batch("UPDATE deployment SET value = 99")?;
    is_refused(&path, &["flow.db", "layout 99", "Upgrade the program"])
}

fn no_file() -> Outcome {
    for name in ["", ":memory:"] {
        is_refused(Path::new(name), &["names no file", "SqliteOptions::memory"])?;
    }
    Ok(())
}
