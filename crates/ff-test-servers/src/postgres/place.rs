//! Where a server lives: its programs, its user, its directory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Attempted, ServerError};

/// What a server is started with, again and again.
pub(super) struct Place {
    /// The directory of this server alone; sockets and the log are in it.
    pub(super) home: PathBuf,
    /// The data directory, in `home`.
    pub(super) data: PathBuf,
    /// Where `postgres` and its like are.
    pub(super) programs: PathBuf,
    /// Who runs them.
    pub(super) account: Account,
}

impl Place {
    /// Finds the programs and makes a directory below `parent`.
    pub(super) fn make(parent: &Path) -> Result<Self, ServerError> {
        let programs = programs().ok_or(ServerError::NotInstalled)?;
        let making = || format!("make a directory for the server in {}", parent.display());
        let directory = tempfile::Builder::new().prefix("ff-postgres-").tempdir_in(parent).attempted(making())?;
        let account = Account::below(fs::metadata(directory.path()).attempted(making())?.uid())?;
        if let Account::Other { uid, gid } = account {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).attempted(making())?;
        }
        let home = fs::canonicalize(directory.keep()).attempted(making())?;
        Ok(Self { data: home.join("data"), home, programs, account })
    }

    /// A program of the server, run by its user, with nothing set by the environment.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(variable);
            }
        }
        command.env("LC_ALL", "C").current_dir(&self.home);
        self.account.apply(&mut command);
        command
    }

    pub(super) fn log(&self) -> PathBuf {
        self.home.join("server.log")
    }

    /// The last lines of the log.
    pub(super) fn end_of_log(&self) -> String {
        end_of(&fs::read(self.log()).unwrap_or_default())
    }
}

/// The last lines of what a program told.
pub(super) fn end_of(told: &[u8]) -> String {
    const LINES: usize = 15;
    let told = String::from_utf8_lossy(told);
    let lines: Vec<_> = told.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Who runs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// Whoever asks for it.
    Own,
    /// Another user, because the server refuses to run as root.
    Other { uid: u32, gid: u32 },
}

impl Account {
    fn below(own_uid: u32) -> Result<Self, ServerError> {
        if own_uid != 0 {
            return Ok(Self::Own);
        }
        let number = |option| said_by("id", &[option, "postgres"])?.parse().ok();
        match (number("-u"), number("-g")) {
            (Some(uid), Some(gid)) => Ok(Self::Other { uid, gid }),
            _ => Err(ServerError::NoUser),
        }
    }

    pub(super) fn apply(self, command: &mut Command) {
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }
}

/// What a program says in one line, if it succeeds.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// The directory of the server's programs.
fn programs() -> Option<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_hands_over_to_another_user() {
        assert_eq!(Account::below(1000).ok(), Some(Account::Own));
        assert_ne!(Account::below(0).ok(), Some(Account::Own));
    }

    #[test]
    fn a_long_report_is_cut_to_its_end() {
        let told: Vec<String> = (0..40).map(|line| format!("line {line}")).collect();

        let end = end_of(told.join("\n").as_bytes());

        assert!(end.starts_with("line 25\n") && end.ends_with("line 39"), "{end}");
        assert_eq!(end_of(b""), "");
    }
}
