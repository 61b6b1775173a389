//! What goes wrong with a server, in words that say what to do.

use std::sync::Arc;

use ff_core::EngineError;
use ff_core::error::ValidationKind;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::options::ValkeyOptions;

/// A failure of the server or of the way to it, explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(
        "no connection to {target}: {told}. Check that the server runs and can be reached from here, and that it {expects}, then try again"
    )]
    Unreachable { target: String, told: String, expects: &'static str },
    #[error(
        "no encrypted connection to {target}: {told}. Check that the certificate of the server is for this host and that its authority is trusted \
         here, or name that (ca=<file>); show a certificate if the server asks for one (cert=<file>&key=<file>)"
    )]
    Insecure { target: String, told: String },
    #[error("the server does not let us in to {target}: {told}. Check user and password")]
    Unwelcome { target: String, told: String },
    #[error(
        "the server does not let us in any more: {0}. Check whether user and password have changed: give the new ones at the next start, or change \
         them back"
    )]
    TurnedAway(String),
    #[error("the connection to the server was lost: {0}. The operation may or may not be stored; try again")]
    Lost(String),
    #[error(
        "the server is starting or busy or lacks replicas, or its cluster is electing a primary or moving a slot: {0}. Try again in a moment"
    )]
    Restarting(String),
    #[error(
        "the server has no memory left: {0}. Nothing of this operation was stored; raise maxmemory, or let retention remove more"
    )]
    OutOfMemory(String),
    #[error("the server cannot save to its disk and takes no writes: {0}. Free some space there and try again")]
    DiskFull(String),
    #[error(
        "{asked} replicas should have this operation, but only {had} told so in time. It is stored on the primary, and lost only if that dies now; \
         try again"
    )]
    TooFewReplicas { asked: u32, had: i64 },
    #[error(
        "this user may not do that: {0}. Allow it (ACL SETUSER) the keys, the channel and the commands that ValkeyOptions::access_rules tells"
    )]
    Denied(String),
    #[error("the server wants to know who we are: {0}. Write user and password into the URL")]
    Unnamed(String),
    #[error("{target} is a node of a cluster. Add cluster=true to its URL")]
    OfCluster { target: String },
    #[error("{target} is a server by itself, and no node of a cluster. Leave cluster=true out of its URL")]
    Alone { target: String },
    #[error("{target} is {what}, and this store needs Valkey 7.2 or Redis 7.0 at least. Use a newer server")]
    TooOld { target: String, what: String },
    #[error(
        "{target} may throw keys away when its memory is full (maxmemory-policy is {policy}), and with them your work. Set maxmemory-policy to \
         noeviction"
    )]
    Evicts { target: String, policy: String },
    #[error("the server refused a command: {0}")]
    Refused(String),
    #[error("the store is closed")]
    Closed,
}

impl Trouble {
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Lost(_)
            | Self::Restarting(_)
            | Self::OutOfMemory(_)
            | Self::DiskFull(_)
            | Self::TooFewReplicas { .. } => true,
            Self::Insecure { .. }
            | Self::Unwelcome { .. }
            | Self::TurnedAway(_)
            | Self::Denied(_)
            | Self::Unnamed(_)
            | Self::OfCluster { .. }
            | Self::Alone { .. }
            | Self::TooOld { .. }
            | Self::Evicts { .. }
            | Self::Refused(_)
            | Self::Closed => false,
        }
    }
}

impl From<Trouble> for EngineError {
    fn from(trouble: Trouble) -> Self {
        Self::Transport { backend: "valkey", retryable: trouble.is_retryable(), source: Arc::new(trouble) }
    }
}

/// What went wrong with a command.
pub(crate) fn explain(error: &RedisError) -> EngineError {
    let told = error.to_string();
    let trouble = match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => Trouble::Denied(told),
        ErrorKind::AuthenticationFailed => Trouble::TurnedAway(told),
        _ if is_passing(error) && error.code().is_some() => Trouble::Restarting(told),
        _ if is_passing(error) => Trouble::Lost(told),
        _ => match error.code() {
            Some("OOM") => Trouble::OutOfMemory(told),
            Some("MISCONF") => Trouble::DiskFull(told),
            Some("NOAUTH") => Trouble::Unnamed(told),
            Some("WRONGPASS") => Trouble::TurnedAway(told),
            // What functions may do is said in other words.
            _ if told.contains("ACL failure in script") => Trouble::Denied(told),
            _ if told.contains("OOM command not allowed") => Trouble::OutOfMemory(told),
            _ => Trouble::Refused(told),
        },
    };
    trouble.into()
}

/// What went wrong with the first connection.
pub(crate) fn explain_connecting(options: &ValkeyOptions, error: &RedisError) -> EngineError {
    let (target, told) = (options.target(), error.to_string());
    let trouble = match error.kind() {
        ErrorKind::AuthenticationFailed => Trouble::Unwelcome { target, told },
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => Trouble::Unwelcome { target, told },
        _ if told.contains("cluster support disabled") => Trouble::Alone { target },
        _ if is_about_trust(&told) => Trouble::Insecure { target, told },
        _ if options.is_encrypted() => {
            Trouble::Unreachable { target, told, expects: "expects encryption on this port (else write redis://)" }
        }
        _ => {
            Trouble::Unreachable { target, told, expects: "expects no encryption on this port (else write rediss://)" }
        }
    };
    trouble.into()
}

/// Whether one side does not take what the other one shows. The driver keeps only the words of that.
fn is_about_trust(told: &str) -> bool {
    ["peer certificate", "fatal alert", "peer is incompatible", "TLS parameters"]
        .iter()
        .any(|words| told.contains(words))
}

/// Whether the same command may well do better in a moment.
pub(crate) fn is_passing(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ResponseError) => is_of_moving_slot(error),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => true,
        // A primary that became a replica while somebody waited, one that has lost its replicas, and one that runs a long script. The library
        // has no names for these.
        ErrorKind::Extension => matches!(error.code(), Some("UNBLOCKED" | "NOREPLICAS" | "BUSY")),
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        ),
        _ => error.is_connection_dropped() || error.is_timeout(),
    }
}

/// Whether a function did not find what it wanted to read because its slot is on its way to another node: all that functions write, the server
/// knows beforehand, so nothing has been written.
fn is_of_moving_slot(error: &RedisError) -> bool {
    let told = error.to_string();
    ["access a non local key", "during rehashing of the slot"].iter().any(|words| told.contains(words))
}

/// Whether the server does not have our functions: it was emptied, or is new to its cluster.
pub(crate) fn lacks_functions(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("Function not found"))
        || error.to_string().contains("Function not found")
}

/// The server does not hold what it should.
pub(crate) fn corrupt(detail: impl std::fmt::Display) -> EngineError {
    EngineError::validation(
        ValidationKind::Corruption,
        format_args!(
            "the server's data is damaged: {detail}. Restore a backup, or use another key prefix to start anew"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_do_better_in_a_moment_is_passing() {
        for (code, passes) in
            [("UNBLOCKED", true), ("NOREPLICAS", true), ("BUSY", true), ("OOM", false), ("WRONGPASS", false)]
        {
            let error = redis::make_extension_error(code.to_owned(), None);
            assert_eq!(is_passing(&error), passes, "{code}");
            assert_eq!(explain(&error).to_string().contains("Try again in a moment"), passes, "{code}");
        }
    }
}
