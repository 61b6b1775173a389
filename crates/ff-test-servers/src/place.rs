//! Where a server lives: its directory, its user, its port.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Attempted, ServerError};

/// What a server is started with, again and again.
pub(crate) struct Place {
    /// The directory of this server alone; sockets and the log are in it.
    pub(crate) home: PathBuf,
    /// Who runs them.
    pub(crate) account: Account,
}

impl Place {
    /// Makes a directory below `parent`, whose name begins with `prefix`, for a server that refuses to run as root.
    pub(crate) fn make(parent: &Path, prefix: &str) -> Result<Self, ServerError> {
        Self::make_for(parent, prefix, Account::below)
    }

    /// The same for a server that anybody may run.
    pub(crate) fn make_own(parent: &Path, prefix: &str) -> Result<Self, ServerError> {
        Self::make_for(parent, prefix, |_| Ok(Account::Own))
    }

    fn make_for(
        parent: &Path,
        prefix: &str,
        account: impl FnOnce(u32) -> Result<Account, ServerError>,
    ) -> Result<Self, ServerError> {
        let making = || format!("make a directory for the server in {}", parent.display());
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent).attempted(making())?;
        let account = account(fs::metadata(directory.path()).attempted(making())?.uid())?;
        if let Account::Other { uid, gid } = account {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).attempted(making())?;
        }
        let home = fs::canonicalize(directory.keep()).attempted(making())?;
        Ok(Self { home, account })
    }

    /// A program of the server, run by its user, with nothing set by the environment.
    pub(crate) fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(variable);
            }
        }
        command.env("LC_ALL", "C").current_dir(&self.home);
        self.account.apply(&mut command);
        command
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.home.join("server.log")
    }

    /// The last lines of the log.
    pub(crate) fn end_of_log(&self) -> String {
        end_of(&fs::read(self.log()).unwrap_or_default())
    }
}

/// The last lines of what a program told.
pub(crate) fn end_of(told: &[u8]) -> String {
    const LINES: usize = 15;
    let told = String::from_utf8_lossy(told);
    let lines: Vec<_> = told.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Who runs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// Whoever asks for it.
    Own,
    /// Another user, because the server refuses to run as root.
    Other { uid: u32, gid: u32 },
}

impl Account {
    pub(crate) fn below(own_uid: u32) -> Result<Self, ServerError> {
        if own_uid != 0 {
            return Ok(Self::Own);
        }
        let number = |option| said_by("id", &[option, "postgres"])?.parse().ok();
        match (number("-u"), number("-g")) {
            (Some(uid), Some(gid)) => Ok(Self::Other { uid, gid }),
            _ => Err(ServerError::NoUser),
        }
    }

    pub(crate) fn apply(self, command: &mut Command) {
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }
}

/// What a program says in one line, if it succeeds.
pub(crate) fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// A port nobody listens on, below those that outgoing connections get: otherwise one of them could have it when the server
/// starts again.
pub(crate) fn free_port() -> u16 {
    let candidates = std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).take(1_000);
    let mut free = candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_listened_on() {
        let port = free_port();

        assert!((20_000..32_000).contains(&port));
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }

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
