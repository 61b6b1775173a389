//! The programs of PostgreSQL on this machine.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::place::said_by;

/// The directory of the server's programs.
pub(super) fn directory() -> Option<PathBuf> {
    let configured = said_by("pg_config", &["--bindir"]).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = configured.into_iter().chain(debian_places()).chain(std::env::split_paths(&path));
    let has = |place: &Path, program| place.join(program).is_file();
    let mut complete = places.filter(|place| ["initdb", "postgres", "psql"].iter().all(|program| has(place, program)));
    complete.next()
}

/// Where Debian puts each major version, the newest first.
fn debian_places() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name().and_then(OsStr::to_str).and_then(|name| name.parse::<u32>().ok());
    let mut versions: Vec<_> =
        entries.map(|entry| entry.path()).filter_map(|path| Some((version(&path)?, path.join("bin")))).collect();
    versions.sort_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, place)| place).collect()
}
