//! A source file holds one idea.

use crate::{Finding, repository::SourceFile};

/// No Rust file is longer than this.
pub const LINES_MAX: usize = 700;
/// Files beyond this many lines are long ...
pub const LONG_LINES: usize = 500;
/// ... and at most one file in this many is long.
pub const FILES_PER_LONG_FILE: usize = 20;

/// A file that may be longer than [`LINES_MAX`], and why.
#[derive(Clone, Copy, Debug)]
pub struct LongFile {
    /// The file.
    pub path: &'static str,
    /// Why cutting it would make it harder to read.
    pub reason: &'static str,
}

/// Finds Rust files with more than [`LINES_MAX`] lines, and allowances that are not needed or not justified.
pub fn overlong_files(files: &[SourceFile], allowed: &[LongFile]) -> Vec<Finding> {
    let overlong: Vec<_> = rust_files(files).filter(|file| lines(file) > LINES_MAX).collect();
    let excess = overlong
        .iter()
        .filter(|file| !allowed.iter().any(|allowance| allowance.path == file.path))
        .map(|file| Finding::whole(&file.path, format!("{} lines, at most {LINES_MAX}: split it", lines(file))));
    let stale = allowed
        .iter()
        .filter(|allowance| !overlong.iter().any(|file| file.path == allowance.path))
        .map(|allowance| Finding::whole(allowance.path, "needs no allowance for its length: remove it"));
    let unjustified = allowed
        .iter()
        .filter(|allowance| allowance.reason.trim().is_empty())
        .map(|allowance| Finding::whole(allowance.path, "is allowed to be long without a reason"));
    excess.chain(stale).chain(unjustified).collect()
}

/// Finds all files with more than [`LONG_LINES`] lines when they are more than one in [`FILES_PER_LONG_FILE`].
pub fn too_many_long_files(files: &[SourceFile]) -> Vec<Finding> {
    let total = rust_files(files).count();
    let long: Vec<_> = rust_files(files).filter(|file| lines(file) > LONG_LINES).collect();
    if long.len() * FILES_PER_LONG_FILE <= total {
        return vec![];
    }
    long.iter()
        .map(|file| Finding::whole(&file.path, format!("{} lines, one of {} in {total}", lines(file), long.len())))
        .collect()
}

fn rust_files(files: &[SourceFile]) -> impl Iterator<Item = &SourceFile> {
    files.iter().filter(|file| file.extension() == Some("rs"))
}

fn lines(file: &SourceFile) -> usize {
    file.text.lines().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(lines: usize) -> SourceFile {
        SourceFile::new(format!("{lines}.rs"), "x\n".repeat(lines))
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let found = overlong_files(&[file_of(LINES_MAX), file_of(LINES_MAX + 1)], &[]);

        assert_eq!(found, [Finding::whole("701.rs", "701 lines, at most 700: split it")]);
    }

    #[test]
    fn an_allowance_must_be_needed_and_justified() {
        let needed = LongFile { path: "701.rs", reason: "one table" };
        let stale = LongFile { path: "gone.rs", reason: "one table" };
        let silent = LongFile { path: "701.rs", reason: " " };
        let files = [file_of(701)];

        assert_eq!(overlong_files(&files, &[needed]), []);
        assert_eq!(overlong_files(&files, &[needed, stale]).len(), 1);
        assert_eq!(overlong_files(&files, &[silent]).len(), 1);
    }

    #[test]
    fn one_long_file_in_twenty_is_enough() {
        let mut files = vec![file_of(501)];
        files.extend((1..20).map(file_of));

        assert_eq!(too_many_long_files(&files), []);
        files.push(file_of(502));
        assert_eq!(too_many_long_files(&files).len(), 2);
    }

    #[test]
    fn other_files_may_be_long() {
        let table = SourceFile::new("table.json", "x\n".repeat(9000));

        assert_eq!(overlong_files(std::slice::from_ref(&table), &[]), []);
        assert_eq!(too_many_long_files(&[table]), []);
    }
}
