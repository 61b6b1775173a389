//! What goes wrong with a server, in words that say what to do.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ff_core::EngineError;
use ff_core::error::ValidationKind;
use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

/// Raised by our own functions when a record is not as it was read.
const STALE: &str = "FF001";

/// Raised by our own functions when somebody else owns the journal by now, or nobody does.
const DISPOSSESSED: &str = "FF002";

/// A failure of the server or of the way to it, explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(
        "no connection to {target}: {told}. Check that the server runs and can be reached from here, then try again"
    )]
    Unreachable { target: String, told: String },
    #[error(
        "no encrypted connection to {target}: {told}. Check sslmode and sslrootcert, and the certificate of the server"
    )]
    Unencrypted { target: String, told: String },
    #[error(
        "the server does not let us in to {target}: {told}. Check user and password, and who may connect (pg_hba.conf)"
    )]
    Unwelcome { target: String, told: String },
    #[error(
        "a pooler does not let us in to {target}: {told}. Leave that parameter out of the URL and set it for the user instead (ALTER ROLE), or \
         let the pooler ignore it (ignore_startup_parameters)"
    )]
    Unsupported { target: String, told: String },
    #[error("{target} cannot be used: {told}. Create the database, or name another one in the URL")]
    NoDatabase { target: String, told: String },
    #[error("the connection to the server was lost: {0}. The operation may or may not be stored; try again")]
    Lost(String),
    #[error("all {max} connections of this store were busy for {waited:?}. Try again, or allow more connections")]
    NoneFree { max: usize, waited: Duration },
    #[error(
        "the server takes no more connections: {0}. Try again; or let the stores that share it open fewer, or raise its max_connections"
    )]
    Crowded(String),
    #[error("the server is starting, stopping or recovering: {0}. Try again in a moment")]
    Restarting(String),
    #[error(
        "the server's disk is full: {0}. Nothing of this operation was stored; free some space there and try again"
    )]
    DiskFull(String),
    #[error(
        "the server has no memory left: {0}. Nothing of this operation was stored; try again, or give it more (max_locks_per_transaction \
         when it speaks of locks)"
    )]
    OutOfMemory(String),
    #[error(
        "the server only reads: {0}. Connect to the primary, for example with target_session_attrs=read-write in the URL"
    )]
    ReadOnly(String),
    #[error("this user may not do that: {0}. Grant it, or connect as the owner of the schema")]
    Denied(String),
    #[error(
        "the tables are not there: {0}. Was the schema dropped while in use? Open the store again, which makes them"
    )]
    NoLayout(String),
    #[error("another transaction held a lock for too long: {0}. Try again, or end the session that holds it")]
    Locked(String),
    #[error("other transactions came between: {0}. Try again")]
    Conflict(String),
    #[error("the server stopped a statement: {0}. Try again, or raise the statement_timeout of this user")]
    Stopped(String),
    #[error(
        "a pooler gives statements of one session to another: {0}. Set it to session mode, or connect to the server itself"
    )]
    Pooled(String),
    #[error("the server refused a statement: {told}")]
    Driver { told: String, source: Error },
    #[error("{0}")]
    Other(String),
    #[error("the store is closed")]
    Closed,
}

impl Trouble {
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Lost(_)
            | Self::NoneFree { .. }
            | Self::Crowded(_)
            | Self::Restarting(_)
            | Self::DiskFull(_)
            | Self::OutOfMemory(_)
            | Self::Locked(_)
            | Self::Conflict(_)
            | Self::Stopped(_) => true,
            Self::Unencrypted { .. }
            | Self::Unwelcome { .. }
            | Self::Unsupported { .. }
            | Self::NoDatabase { .. }
            | Self::ReadOnly(_)
            | Self::Denied(_)
            | Self::NoLayout(_)
            | Self::Pooled(_)
            | Self::Driver { .. }
            | Self::Other(_)
            | Self::Closed => false,
        }
    }
}

impl From<Trouble> for EngineError {
    fn from(trouble: Trouble) -> Self {
        Self::Transport { backend: "postgres", retryable: trouble.is_retryable(), source: Arc::new(trouble) }
    }
}

/// Whether a statement was refused for what it says, and so surely not run; others of its group may do better without it.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let refused = |told: &tokio_postgres::error::DbError| {
        let class = told.code().code().get(..2).unwrap_or_default();
        matches!(class, "21" | "22" | "23" | "54")
    };
    error.as_db_error().is_some_and(refused)
}

/// The tables do not hold what they should.
pub(crate) fn corrupt(detail: impl std::fmt::Display) -> EngineError {
    EngineError::validation(
        ValidationKind::Corruption,
        format_args!("the database is damaged: {detail}. Restore a backup, or use another schema to start anew"),
    )
}

/// Whether two transactions came into each other's way, so that the same one may pass when it is run again.
pub(crate) fn is_conflict(error: &Error) -> bool {
    [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED]
        .into_iter()
        .any(|c| error.code() == Some(c))
}

/// Whether a record was no longer as it was read.
pub(crate) fn is_stale(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == STALE)
}

/// Whether the server says that it has undone the transaction. Who was cut off, or ended by an administrator, may have committed all the same.
pub(crate) fn is_surely_undone(error: &Error) -> bool {
    error.as_db_error().is_some_and(|told| told.parsed_severity() == Some(Severity::Error))
}

/// Whether the journal belongs to somebody else than the commit took for granted.
pub(crate) fn is_dispossession(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == DISPOSSESSED)
}

/// Explains an error of the driver on a connection that stands.
pub(crate) fn explain(error: Error) -> EngineError {
    let told = told(&error);
    let Some(code) = error.code() else {
        return if is_lost(&error) { Trouble::Lost(told) } else { Trouble::Driver { told, source: error } }.into();
    };
    match code.code() {
        // Of `commit`, when nobody runs the operation again.
        STALE | DISPOSSESSED | "40001" | "40P01" => Trouble::Conflict(told),
        "25006" => Trouble::ReadOnly(told),
        "25P03" => Trouble::Lost(told),
        "26000" | "42P05" => Trouble::Pooled(told),
        "3F000" | "42P01" => Trouble::NoLayout(told),
        "42501" => Trouble::Denied(told),
        "53100" => Trouble::DiskFull(told),
        "53200" => Trouble::OutOfMemory(told),
        "53300" => Trouble::Crowded(told),
        "55P03" => Trouble::Locked(told),
        "57014" => Trouble::Stopped(told),
        "57P01" | "57P02" | "57P03" => Trouble::Restarting(told),
        "XX001" | "XX002" => return corrupt(told),
        class if class.starts_with("08") => Trouble::Lost(told),
        _ => Trouble::Driver { told, source: error },
    }
    .into()
}

/// Explains why there is no connection to `target`, which names user, host and database.
pub(crate) fn explain_connect(error: Error, target: &str) -> EngineError {
    let (target, told) = (target.to_owned(), told(&error));
    match error.code().map(SqlState::code) {
        Some("3D000") => Trouble::NoDatabase { target, told }.into(),
        // Poolers have this code for everything; what else they say with it passes.
        Some("08P01") if told.contains("startup parameter") => Trouble::Unsupported { target, told }.into(),
        Some(code) if code.starts_with("28") => Trouble::Unwelcome { target, told }.into(),
        Some(_) => explain(error),
        // The driver has no other way to tell these apart.
        None => match error.to_string().as_str() {
            "error performing TLS handshake" => Trouble::Unencrypted { target, told },
            "authentication error" | "invalid configuration" => Trouble::Unwelcome { target, told },
            _ => Trouble::Unreachable { target, told },
        }
        .into(),
    }
}

/// Whether the error is about the connection, not about what was sent through it.
fn is_lost(error: &Error) -> bool {
    error.is_closed() || error.source().is_some_and(|cause| cause.is::<io::Error>())
}

/// What happened, in one line. What the server says about the rows themselves is left out: they are not for logs.
fn told(error: &Error) -> String {
    let told = match (error.as_db_error(), error.source()) {
        (Some(of_server), _) => format!("{} ({})", of_server.message(), of_server.code().code()),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    };
    told.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use ff_core::error::ErrorClass;
    use tokio::io::AsyncWriteExt;
    use tokio_postgres::{Config, NoTls};

    use super::*;

    /// The error that a driver makes of these bytes from a server, and the end of the connection after them.
    async fn error_after(bytes: &[u8]) -> Error {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(bytes).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut config = Config::new();
        config.user("anna").ssl_mode(tokio_postgres::config::SslMode::Disable);
        let connected = config.connect_raw(ours, NoTls).await;
        connected.map(drop).unwrap_err()
    }

    /// The error that a driver makes of an answer with this code.
    async fn error_with(code: &str) -> Error {
        let fields = format!("SFATAL\0VFATAL\0C{code}\0Mtold\nso\0\0");
        let mut message = vec![b'E'];
        message.extend_from_slice(&u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
        message.extend_from_slice(fields.as_bytes());
        error_after(&message).await
    }

    #[tokio::test]
    async fn what_passes_by_itself_can_be_tried_again() {
        for code in [
            "53100", "53200", "53300", "57P01", "57P02", "57P03", "55P03", "40001", "40P01", "57014", "08006", "25P03",
            STALE,
        ] {
            let error = explain(error_with(code).await);
            assert_eq!(error.class(), ErrorClass::Retryable, "{code}: {error}");
        }
    }

    #[tokio::test]
    async fn what_somebody_must_change_is_not_tried_again() {
        for (code, advice) in [
            ("25006", "primary"),
            ("42501", "Grant"),
            ("42P01", "Open the store again"),
            ("3F000", "Open the store again"),
            ("26000", "session mode"),
            ("42P05", "session mode"),
            ("22P02", "refused"),
            ("XX001", "damaged"),
        ] {
            let error = explain(error_with(code).await);
            assert_eq!(error.class(), ErrorClass::Terminal, "{code}: {error}");
            assert!(error.to_string().contains(advice), "{code}: {error}");
        }
    }

    #[tokio::test]
    async fn an_explanation_is_one_line_with_the_code_of_the_server() {
        let error = explain(error_with("53100").await).to_string();
        assert_eq!(
            error,
            "postgres transport: the server's disk is full: told so (53100). Nothing of this operation was stored; free some space \
             there and try again"
        );
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_lost_and_can_be_tried_again() {
        let error = explain(error_after(&[]).await);
        assert_eq!(error.class(), ErrorClass::Retryable);
        assert!(error.to_string().contains("was lost"), "{error}");
    }

    #[tokio::test]
    async fn who_cannot_connect_is_told_where_and_as_whom() {
        for (code, class, advice) in [
            ("28P01", ErrorClass::Terminal, "Check user and password"),
            ("28000", ErrorClass::Terminal, "Check user and password"),
            ("3D000", ErrorClass::Terminal, "Create the database"),
        ] {
            let error = explain_connect(error_with(code).await, "database work at host:5432 as anna");
            assert_eq!(error.class(), class, "{code}: {error}");
            let error = error.to_string();
            assert!(error.contains("work at host:5432 as anna") && error.contains(advice), "{error}");
        }
        let gone = explain_connect(error_after(&[]).await, "host");
        assert_eq!(gone.class(), ErrorClass::Retryable, "{gone}");
        let full = explain_connect(error_with("53300").await, "host");
        assert_eq!(full.class(), ErrorClass::Retryable, "{full}");
    }

    #[tokio::test]
    async fn conflicts_and_stale_records_are_recognised() {
        for (code, conflict, stale) in
            [("40001", true, false), ("40P01", true, false), (STALE, false, true), ("55P03", false, false)]
        {
            let error = error_with(code).await;
            assert_eq!((is_conflict(&error), is_stale(&error)), (conflict, stale), "{code}");
        }
    }
}
