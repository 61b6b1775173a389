//! The repository's files, as git sees them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// A text file of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// A file that exists only in a test of a rule.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The part after the last dot of the file's name, if there is one.
    pub fn extension(&self) -> Option<&str> {
        Path::new(&self.path).extension().and_then(|extension| extension.to_str())
    }
}

/// The workspace's root directory.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file below `root` that git tracks or would offer to track; without git, every file outside the
/// folders of builds and fetched dependencies. Binary files are left out.
pub fn text_files(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut paths = match listed_by_git(root) {
        Some(paths) => paths,
        None => walked(root)?,
    };
    paths.sort();
    paths.dedup();
    paths.retain(|path| root.join(path).is_file());
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        if let Some(text) = as_text(fs::read(root.join(&path))?) {
            files.push(SourceFile { path, text });
        }
    }
    Ok(files)
}

fn as_text(bytes: Vec<u8>) -> Option<String> {
    if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() }
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let paths = String::from_utf8(listing.stdout).ok()?;
    let paths: Vec<String> = paths.split_terminator('\0').map(String::from).collect();
    if paths.is_empty() { None } else { Some(paths) }
}

/// Folders that never hold sources, whoever made them.
const SKIPPED: [&str; 3] = [".git", "target", "node_modules"];

fn walked(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_file() {
                found.push(path);
            } else if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_finds_nested_and_hidden_files() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));

        let found = walked(here).unwrap();

        assert!(found.contains(&"Cargo.toml".to_owned()));
        assert!(found.contains(&"src/rules/mod.rs".to_owned()));
        assert!(walked(&root()).unwrap().contains(&".ci/run".to_owned()));
        assert!(!walked(&root()).unwrap().iter().any(|path| path.starts_with("target/")));
    }

    #[test]
    fn the_listing_holds_this_crate() {
        let files = text_files(&root()).unwrap();

        assert!(files.iter().any(|file| file.path == "crates/house-rules/src/repository.rs"));
    }

    #[test]
    fn binary_content_is_not_text() {
        assert_eq!(as_text(vec![0x89, b'P', 0]), None);
        assert_eq!(as_text(vec![0xff, 0xfe]), None);
        assert_eq!(as_text(b"words".to_vec()), Some("words".to_owned()));
    }

    #[test]
    fn an_extension_is_what_follows_the_last_dot() {
        assert_eq!(SourceFile::new("a/b.test.rs", "").extension(), Some("rs"));
        assert_eq!(SourceFile::new("Makefile", "").extension(), None);
    }
}
