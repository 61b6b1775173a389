//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ff_core::{EngineError, Result};
use ff_engine::clock::Clock;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::tls::Tls;

/// Connections to the server, unless told otherwise.
const CONNECTIONS: usize = 16;

/// Connections that commit beside each other, unless told otherwise.
const WRITERS: usize = 2;

/// Executions that wait in the journal, unless told otherwise.
const YOUNG_MAX: usize = 512;

/// How long a host may take to answer the first packet, unless the URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that says nothing for so long is asked whether it is alive, unless the URL says otherwise.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// What the driver takes when the URL says nothing: far too long to notice that a server is gone.
const KEEPALIVE_OF_DRIVER: Duration = Duration::from_secs(2 * 60 * 60);

/// A connection on which nothing arrives for so long is given up, unless the URL says otherwise.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// The schema that everything is kept in: lower-case letters, digits and underscores, so that it means the same with and without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(String);

impl SchemaName {
    /// Bytes of the longest name; Postgres would cut a longer one.
    const BYTES_MAX: usize = 63;

    /// Checks a name.
    ///
    /// # Errors
    /// `InvalidInput` unless it has 1 to 63 lower-case letters, digits and underscores, and begins neither with a digit nor with `pg_`.
    pub fn new(name: &str) -> Result<Self> {
        let fits = (1..=Self::BYTES_MAX).contains(&name.len());
        let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let is_free = !name.starts_with("pg_") && !name.starts_with(|c: char| c.is_ascii_digit());
        if fits && is_plain && is_free {
            return Ok(Self(name.to_owned()));
        }
        Err(EngineError::invalid(format_args!(
            "{name:?} cannot be the name of a schema: use 1 to {} lower-case letters, digits and underscores, and begin neither with a \
             digit nor with pg_",
            Self::BYTES_MAX
        )))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as it stands in statements.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self("flowfabric".to_owned())
    }
}

/// How a store is opened; start with [`PostgresOptions::new`].
#[derive(Clone)]
pub struct PostgresOptions {
    /// Holds the password: never shown.
    pub(crate) server: Config,
    pub(crate) tls: Tls,
    pub(crate) schema: SchemaName,
    pub(crate) connections: usize,
    pub(crate) fast_paths: bool,
    pub(crate) writers: usize,
    pub(crate) young_max: usize,
    /// None takes the server's time.
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

impl PostgresOptions {
    /// A server and a database: `postgres://user:password@host:5432/database`, with the parameters after `?` that Postgres users
    /// know. `sslmode` and `sslrootcert` are explained at [`Tls`]; without them connections are encrypted when the server offers
    /// it. `schema` names the schema, as [`PostgresOptions::schema`] does. Special characters in the password are written as `%40` and so
    /// on.
    ///
    /// # Errors
    /// `InvalidInput` for what is no such URL, and for a parameter that is not known; the message never repeats the password.
    pub fn new(url: &str) -> Result<Self> {
        let Split { url, tls, schema } = split(url)?;
        let mut server: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            EngineError::invalid(format_args!("this is no URL of a Postgres database: {why}. {SHAPE}"))
        })?;
        name_addresses(&mut server);
        if server.get_hosts().is_empty() {
            return Err(EngineError::invalid(format_args!("the URL names no host. {SHAPE}")));
        }
        be_patient_but_not_forever(&mut server);
        if server.get_application_name().is_none() {
            server.application_name("flowfabric");
        }
        Ok(Self { server, tls, schema, ..Self::without_url() })
    }

    /// For [`PostgresStore::from_pool`](crate::PostgresStore::from_pool) alone, when the pool is all there is: such a store does not hear what
    /// other processes commit.
    #[must_use]
    pub fn without_url() -> Self {
        Self {
            server: Config::new(),
            tls: Tls::default(),
            schema: SchemaName::default(),
            connections: CONNECTIONS,
            writers: WRITERS,
            young_max: YOUNG_MAX,
            fast_paths: true,
            clock: None,
        }
    }

    /// The schema that everything is kept in, made when it is missing; `flowfabric` unless told otherwise. Deployments with schemas of
    /// their own share nothing else in a database.
    ///
    /// # Errors
    /// `InvalidInput` for a name that [`SchemaName::new`] refuses.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.schema = SchemaName::new(name)?;
        Ok(self)
    }

    /// Where time comes from, for tests; without one it is the server's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Whether hot operations take their short way; answers are the same either way.
    #[must_use]
    pub const fn fast_paths(mut self, on: bool) -> Self {
        self.fast_paths = on;
        self
    }

    /// How many connections there may be at most, beside the one that waits for news; at least one.
    #[must_use]
    pub const fn connections(mut self, max: usize) -> Self {
        self.connections = if max == 0 { 1 } else { max };
        self
    }

    /// How many connections commit beside each other; at least one.
    #[must_use]
    pub const fn writers(mut self, count: usize) -> Self {
        self.writers = if count == 0 { 1 } else { count };
        self
    }

    /// How many of the newest executions may wait in the journal before they come to their table, while this process is alone on the schema. More of them
    /// make short executions cheaper, and opening the store after a crash and lists dearer. With 0 every execution is in its table at once, and stays visible
    /// there to statements of others.
    #[must_use]
    pub const fn young_max(mut self, executions: usize) -> Self {
        self.young_max = executions;
        self
    }

    /// How connections are encrypted, whatever the URL says.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// The schema that everything is kept in.
    #[must_use]
    pub const fn schema_name(&self) -> &SchemaName {
        &self.schema
    }

    pub(crate) fn names_server(&self) -> bool {
        !self.server.get_hosts().is_empty()
    }

    /// Who connects to what, for messages.
    pub(crate) fn target(&self) -> String {
        let host = |(at, host): (usize, &Host)| {
            let ports = self.server.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                Host::Unix(directory) => format!("{}:{port}", directory.display()),
            }
        };
        let hosts: Vec<String> = self.server.get_hosts().iter().enumerate().map(host).collect();
        let user = self.server.get_user().unwrap_or("this system's user");
        let database = self.server.get_dbname().unwrap_or(user);
        format!("database {database} at {} as {user}", hosts.join(","))
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("server", &self.target())
            .field("tls", &self.tls)
            .field("schema", &self.schema.0)
            .field("connections", &self.connections)
            .field("writers", &self.writers)
            .field("young_max", &self.young_max)
            .finish_non_exhaustive()
    }
}

/// How a URL looks.
const SHAPE: &str = "Write it as postgres://user:password@host:5432/database";

/// A URL without the parameters that the driver does not know.
struct Split {
    url: String,
    tls: Tls,
    schema: SchemaName,
}

/// Takes out the parameters about encryption, of which the driver knows only some, and the schema.
fn split(url: &str) -> Result<Split> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(EngineError::invalid(format_args!("this is no URL of a Postgres database. {SHAPE}")));
    }
    // What follows would be taken for the host and end up in messages.
    if url.matches('@').count() > 1 {
        return Err(EngineError::invalid(
            "the URL has more than one @. Write those in the user or the password as %40",
        ));
    }
    let Some((place, parameters)) = url.split_once('?') else {
        return Ok(Split { url: url.to_owned(), tls: Tls::default(), schema: SchemaName::default() });
    };
    if parameters.contains('@') {
        return Err(EngineError::invalid(
            "the URL has a ? before the @. Write those in the user or the password as %3F",
        ));
    }
    let (mut mode, mut roots, mut schema, mut rest) = (None, None, SchemaName::default(), Vec::new());
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value),
            Some(("sslrootcert", value)) => roots = Some(decoded("sslrootcert", value)?),
            Some(("schema", value)) => schema = SchemaName::new(&decoded("schema", value)?)?,
            _ => rest.push(parameter),
        }
    }
    let tls = Tls::from_parameters(mode, roots.as_deref())?;
    let url = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
    Ok(Split { url, tls, schema })
}

/// The text that `%2F` and its like stand for.
fn decoded(name: &str, text: &str) -> Result<String> {
    let broken = || EngineError::invalid(format_args!("{name} has a % that is not followed by two hexadecimal digits"));
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).ok_or_else(broken)?;
        bytes.push(u8::from_str_radix(code, 16).map_err(|_| broken())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

/// A server that is given by its address alone is called by it, too: encryption asks for a name.
fn name_addresses(server: &mut Config) {
    if server.get_hosts().is_empty() {
        let addresses: Vec<String> = server.get_hostaddrs().iter().map(ToString::to_string).collect();
        for address in addresses {
            server.host(address);
        }
    }
}

fn be_patient_but_not_forever(server: &mut Config) {
    if server.get_connect_timeout().is_none() {
        server.connect_timeout(CONNECT_TIMEOUT);
    }
    if server.get_tcp_user_timeout().is_none() {
        server.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if server.get_keepalives_idle() == KEEPALIVE_OF_DRIVER {
        server.keepalives_idle(KEEPALIVE_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Roots;

    #[test]
    fn a_url_gives_host_user_database_and_encryption() {
        let options = PostgresOptions::new(
            "postgresql://anna:secret@db.example.org:6432/work?sslmode=verify-full&connect_timeout=3",
        )
        .unwrap();
        assert_eq!(options.target(), "database work at db.example.org:6432 as anna");
        assert_eq!(options.tls, Tls::VerifyFull(Roots::System));
        assert_eq!(options.server.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(options.server.get_password(), Some(b"secret".as_slice()));
    }

    #[test]
    fn a_path_to_certificates_may_be_escaped() {
        let options = PostgresOptions::new("postgres://host/d?sslrootcert=%2Fetc%2Fca.pem&sslmode=verify-ca").unwrap();
        assert_eq!(options.tls, Tls::VerifyCa("/etc/ca.pem".into()));
    }

    #[test]
    fn a_url_may_name_the_schema() {
        for (parameters, schema) in
            [("", "flowfabric"), ("?schema=jobs", "jobs"), ("?sslmode=disable&schema=j%6Fbs", "jobs")]
        {
            let options = PostgresOptions::new(&format!("postgres://host/work{parameters}")).unwrap();
            assert_eq!(options.schema_name().as_str(), schema, "{parameters}");
        }
        let error = PostgresOptions::new("postgres://host/work?schema=Jobs").unwrap_err().to_string();
        assert!(error.contains("lower-case"), "{error}");
    }

    #[test]
    fn what_a_url_says_in_vain_is_refused() {
        for parameter in ["shcema=jobs", "pool_size=3"] {
            let error = PostgresOptions::new(&format!("postgres://host/work?{parameter}")).unwrap_err().to_string();
            assert!(error.contains(parameter.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn sockets_and_addresses_are_hosts_too() {
        let socket = PostgresOptions::new("postgres://anna@%2Fvar%2Frun%2Fpostgresql/work").unwrap();
        assert_eq!(socket.target(), "database work at /var/run/postgresql:5432 as anna");
        let address = PostgresOptions::new("postgres:///work?user=anna&hostaddr=192.0.2.7").unwrap();
        assert_eq!(address.target(), "database work at 192.0.2.7:5432 as anna");
    }

    #[test]
    fn the_password_is_never_shown() {
        let options = PostgresOptions::new("postgres://anna:geheim@host/work?password=geheim").unwrap();
        assert!(!format!("{options:?} {}", options.target()).contains("geheim"));
        for url in [
            "postgres://anna:x@geheim@host/work",
            "postgres://anna:x@geheim?geheim=1@host/work",
            "postgres://anna:geheim@host:port/work",
            "postgres://anna:geheim@host/work?sslmode=maybe",
            "postgres://anna:geheim@/work",
            "geheim",
            "",
        ] {
            let error = PostgresOptions::new(url).unwrap_err().to_string();
            assert!(!error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn the_name_of_a_schema_is_plain() {
        for name in ["flowfabric", "f", "_a1", &"x".repeat(63)] {
            assert_eq!(SchemaName::new(name).unwrap().quoted(), format!("\"{name}\""));
        }
        for name in ["", "Flow", "1a", "pg_flow", "a-b", "a b", "a\"b", "ä", &"x".repeat(64)] {
            let error = SchemaName::new(name).unwrap_err().to_string();
            assert!(error.contains("lower-case"), "{name}: {error}");
        }
    }

    #[test]
    fn there_is_at_least_one_connection() {
        let options = PostgresOptions::new("postgres://host/work").unwrap();
        assert_eq!(options.clone().connections(0).connections, 1);
        assert_eq!(options.connections, CONNECTIONS);
    }
}
