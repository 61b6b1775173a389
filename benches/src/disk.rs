//! Where measured files live: on a disk, in folders that go away with their user.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

use anyhow::{Context, Result, bail};

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A folder that nobody else uses; removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder below `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{}-{number}", process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// The kind of file system below a folder, which is created; a commit to memory would tell nothing about a disk.
///
/// # Errors
/// When the folder is in memory.
pub fn require_disk(folder: &Path) -> Result<String> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let kind = kind_of(&mounts, &folder).unwrap_or("unknown");
    if matches!(kind, "tmpfs" | "ramfs") {
        bail!("{} is in memory ({kind})", folder.display());
    }
    Ok(kind.to_owned())
}

/// The mount that is deepest above the folder; of several at the same place the last one is visible.
fn kind_of<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (Path::new(fields.next()?), fields.next()?);
        folder.starts_with(place).then(|| (place.components().count(), kind))
    });
    mounted.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str =
        "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/disk xfs rw 0 0\n/dev/c /tmp/disk btrfs rw 0 0\n";

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        for (folder, kind) in [("/srv/x", "ext4"), ("/tmp/x", "tmpfs"), ("/tmpx", "ext4"), ("/tmp/disk/x", "btrfs")] {
            assert_eq!(kind_of(MOUNTS, Path::new(folder)), Some(kind), "{folder}");
        }
    }

    #[test]
    fn a_scratch_folder_goes_away_with_its_user() {
        let scratch = Scratch::new(&std::env::temp_dir().join("ff-bench-test")).unwrap();
        let file = scratch.file("a");
        fs::write(&file, "x").unwrap();
        drop(scratch);

        assert!(!file.exists());
    }
}
