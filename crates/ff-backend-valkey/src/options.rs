//! How a store is opened.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ff_core::{EngineError, Result};
use ff_engine::clock::Clock;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::tls::{ClientCertificate, Tls};

/// What the shape of a URL is, for messages.
const SHAPE: &str = "It looks like redis://user:password@host:6379/0; add ?cluster=true for a cluster";

/// Slots that a new deployment on a cluster uses, unless told otherwise.
const SHARDS_OF_CLUSTER: u16 = 24;

/// The most shards there can be: more than a cluster has use for.
const SHARDS_MAX: u16 = 1_024;

/// After how long a silence a connection is probed, and how often until that is answered.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(3);

/// How long nothing that was sent may be acknowledged, until the connection is given up.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The least and the most that replicas get: 0 would be for ever, and others wait on the same connection meanwhile.
const REPLICAS_PATIENCE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(2));

/// Commands that a store runs by itself or in its functions. Those of the last line are for clusters, replicas, databases with a number, and silent nodes.
const COMMANDS: &str = "+info +function|load +fcall +fcall_ro +subscribe +publish +time +hsetnx +hmget +get +mget +set +mset +unlink +exists \
                        +zadd +zrem +zrange +zcard +zscan +xadd +xrange +xdel +scan \
                        +cluster|slots +zscore +ping +asking +wait +select";

/// What all keys of a deployment begin with, so that several of them share a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(String);

impl KeyPrefix {
    const BYTES_MAX: usize = 32;

    /// Checks a prefix.
    ///
    /// # Errors
    /// `InvalidInput` unless it has 1 to 32 lower-case letters, digits, underscores and hyphens.
    pub fn new(prefix: &str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if (1..=Self::BYTES_MAX).contains(&prefix.len()) && prefix.bytes().all(is_plain) {
            return Ok(Self(prefix.to_owned()));
        }
        Err(EngineError::invalid(format_args!(
            "{prefix:?} cannot be a key prefix: use 1 to {} lower-case letters, digits, underscores and hyphens",
            Self::BYTES_MAX
        )))
    }

    /// The prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for KeyPrefix {
    fn default() -> Self {
        Self("ff".to_owned())
    }
}

/// What a commit waits for beyond the primary itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) patience: Duration,
}

/// How a store is opened; start with [`ValkeyOptions::new`].
#[derive(Clone)]
pub struct ValkeyOptions {
    /// Hold the password: never shown.
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) is_cluster: bool,
    pub(crate) tls: Tls,
    pub(crate) prefix: KeyPrefix,
    pub(crate) shards: Option<u16>,
    pub(crate) fast_paths: bool,
    pub(crate) replicas: Option<Replicas>,
    /// None takes the server's time.
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

impl ValkeyOptions {
    /// A server: `redis://user:password@host:6379/0`, or `rediss://` for an encrypted connection; `valkey://` and `valkeys://` mean the
    /// same. Parameters follow a `?` and have an `&` between them:
    ///
    /// | Parameter | Means |
    /// |---|---|
    /// | `cluster=true` | the server is a node of a cluster |
    /// | `prefix=name` | what all keys begin with, as [`prefix`](Self::prefix) says |
    /// | `ca=file` | who vouches for the server, as [`authority`](Self::authority) says |
    /// | `cert=file`, `key=file` | what is shown to the server, as [`client_certificate`](Self::client_certificate) says |
    ///
    /// Special characters in user, password and names of files are written as `%40` and so on.
    ///
    /// Over `rediss://` the certificate of the server is always checked, with its name. Where that cannot be, say with a server that made its
    /// certificate itself, name that certificate as the authority.
    ///
    /// # Errors
    /// `InvalidInput` for what is no such URL, and for a parameter that is not known; the message never repeats the password.
    pub fn new(url: &str) -> Result<Self> {
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        if parameters.contains('@') {
            return Err(EngineError::invalid(
                "the URL has an @ behind a ?. Write them as %40 and %3F where they mean nothing",
            ));
        }
        let (mut certificate, mut key) = (None, None);
        let mut options = Self {
            nodes: vec![node(address)?],
            is_cluster: false,
            tls: Tls::default(),
            prefix: KeyPrefix::default(),
            shards: None,
            fast_paths: true,
            replicas: None,
            clock: None,
        };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            options = match parameter.split_once('=') {
                Some(("cluster", "true")) => options.cluster(true),
                Some(("cluster", "false")) => options.cluster(false),
                Some(("prefix", prefix)) => options.prefix(prefix)?,
                Some(("ca", file)) => options.authority(decoded("ca", file)?)?,
                Some(("cert", file)) => {
                    certificate = Some(decoded("cert", file)?);
                    options
                }
                Some(("key", file)) => {
                    key = Some(decoded("key", file)?);
                    options
                }
                _ => {
                    let name = parameter.split('=').next().unwrap_or_default();
                    return Err(EngineError::invalid(format_args!(
                        "the URL has the parameter {name:?} with a value that is not known: there are cluster=true, prefix=name, ca=file, cert=file and key=file"
                    )));
                }
            };
        }
        match (certificate, key) {
            (Some(certificate), Some(key)) => options.client_certificate(certificate, key),
            (None, None) => Ok(options),
            _ => Err(EngineError::invalid("the URL has one of cert=file and key=file: give both of them or neither")),
        }
    }

    /// Another node of the same cluster, in case the first does not answer.
    ///
    /// # Errors
    /// `InvalidInput` for what is no URL, and for one that differs from the first in being encrypted.
    pub fn node(mut self, url: &str) -> Result<Self> {
        let node = node(url)?;
        if self.nodes.iter().any(|other| is_encrypted_at(other) != is_encrypted_at(&node)) {
            return Err(EngineError::invalid("all nodes of a cluster are redis://, or all are rediss://"));
        }
        self.nodes.push(node);
        Ok(self.cluster(true))
    }

    /// A PEM file with the certificates of the authorities that may vouch for the server; without one they are those that this system
    /// trusts. It is read when the store is opened.
    ///
    /// # Errors
    /// `InvalidInput` unless the connection is encrypted.
    pub fn authority(mut self, file: impl Into<PathBuf>) -> Result<Self> {
        self.must_be_encrypted("an authority")?;
        self.tls.authority = Some(file.into());
        Ok(self)
    }

    /// PEM files with the certificate that this program shows to the server, and with the key to it, for servers that ask for one
    /// (`tls-auth-clients`). They are read when the store is opened.
    ///
    /// # Errors
    /// `InvalidInput` unless the connection is encrypted.
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self> {
        self.must_be_encrypted("a certificate")?;
        self.tls.client = Some(ClientCertificate { certificate: certificate.into(), key: key.into() });
        Ok(self)
    }

    fn must_be_encrypted(&self, what: &str) -> Result<()> {
        if self.is_encrypted() {
            return Ok(());
        }
        Err(EngineError::invalid(format_args!(
            "{what} is of no use on a connection that is not encrypted. Write the URL as rediss://"
        )))
    }

    /// Whether connections are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.nodes.iter().all(is_encrypted_at)
    }

    /// Whether the server is a node of a cluster.
    #[must_use]
    pub const fn cluster(mut self, is_cluster: bool) -> Self {
        self.is_cluster = is_cluster;
        self
    }

    /// What all keys begin with; `ff` unless told otherwise. Deployments with prefixes of their own share nothing else on a server.
    ///
    /// # Errors
    /// `InvalidInput` for what [`KeyPrefix::new`] refuses.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.prefix = KeyPrefix::new(prefix)?;
        Ok(self)
    }

    /// Over how many slots a new deployment spreads, 1 to 1,024; one that exists keeps its number. Without a number it is 1 on a single server and 24
    /// on a cluster. With 1 all work is on one primary, and every queue is in strict order of priority. With more, an operation that looks at a
    /// whole lane asks all of them, and those of different slots may overtake each other.
    #[must_use]
    pub fn shards(mut self, count: u16) -> Self {
        self.shards = Some(count.clamp(1, SHARDS_MAX));
        self
    }

    /// Has every operation answered only after so many replicas have what it wrote (`WAIT`), or fail when that takes too long: then it is
    /// stored on the primary, and lost only if that dies before its replicas catch up. They get 1 ms at least and 2 s at most.
    #[must_use]
    pub const fn wait_for_replicas(mut self, count: u32, patience: Duration) -> Self {
        let (least, most) = REPLICAS_PATIENCE;
        let patience = match patience.as_millis() {
            0 => least,
            millis if millis > most.as_millis() => most,
            _ => patience,
        };
        self.replicas = if count == 0 { None } else { Some(Replicas { count, patience }) };
        self
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

    /// What a user needs at least to use this deployment, as rules of an access list: its keys, its channel, and the commands that a store and
    /// its functions run.
    ///
    /// ```
    /// let options = ff_backend_valkey::ValkeyOptions::new("redis://host?prefix=jobs")?;
    /// println!("ACL SETUSER anna on >password {}", options.access_rules());
    /// # Ok::<(), ff_core::EngineError>(())
    /// ```
    ///
    /// Names of foreign keys can be seen by such a user (`SCAN`), what they hold cannot.
    #[must_use]
    pub fn access_rules(&self) -> String {
        let prefix = self.prefix.as_str();
        format!("~{{{prefix}}}* ~{{{prefix}:*}}* &{{{prefix}}}news {COMMANDS}")
    }

    /// What all keys begin with.
    #[must_use]
    pub const fn key_prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// Over how many slots a new deployment spreads.
    pub(crate) fn new_shards(&self) -> u16 {
        self.shards.unwrap_or(if self.is_cluster { SHARDS_OF_CLUSTER } else { 1 })
    }

    /// Who connects to what, for messages.
    pub(crate) fn target(&self) -> String {
        let address = |node: &ConnectionInfo| match node.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
            other => other.to_string(),
        };
        let nodes: Vec<String> = self.nodes.iter().map(address).collect();
        nodes.join(", ")
    }
}

fn is_encrypted_at(node: &ConnectionInfo) -> bool {
    matches!(node.addr(), ConnectionAddr::TcpTls { .. })
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

fn node(url: &str) -> Result<ConnectionInfo> {
    // The library would take what follows for a wish not to check certificates.
    if url.contains('#') {
        return Err(EngineError::invalid("the URL has a #. Write those in the user or the password as %23"));
    }
    // What the library says about it may quote the password.
    url.into_connection_info()
        .map(|info| info.set_tcp_settings(tcp_settings()))
        .map_err(|_| EngineError::invalid(format_args!("this is no URL of a Valkey or Redis server. {SHAPE}")))
}

/// Has the system notice when the other side is gone without a word, which else takes it hours, or a quarter of one while it sends.
fn tcp_settings() -> TcpSettings {
    let settings =
        TcpSettings::default().set_keepalive(TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY));
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

impl fmt::Debug for ValkeyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValkeyOptions")
            .field("nodes", &self.target())
            .field("is_cluster", &self.is_cluster)
            .field("is_encrypted", &self.is_encrypted())
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("shards", &self.shards)
            .field("fast_paths", &self.fast_paths)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_tells_server_cluster_and_prefix() {
        let options = ValkeyOptions::new("redis://me:s3cret@host:7000/0?cluster=true&prefix=team-a").unwrap();
        assert!(options.is_cluster);
        assert_eq!(options.key_prefix().as_str(), "team-a");
        assert_eq!(options.target(), "host:7000");
        let shown = format!("{options:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_url_names_the_files_of_an_encrypted_connection() {
        let url = "valkeys://host?ca=%2Fetc%2Fca.pem&cert=own.pem&key=own%20key.pem";
        let options = ValkeyOptions::new(url).unwrap();
        assert!(options.is_encrypted());
        let client = ClientCertificate { certificate: "own.pem".into(), key: "own key.pem".into() };
        assert_eq!(options.tls, Tls { authority: Some("/etc/ca.pem".into()), client: Some(client) });
    }

    #[test]
    fn files_that_would_not_be_used_are_refused() {
        for (url, told) in [
            ("redis://host?ca=ca.pem", "rediss://"),
            ("redis://host?cert=own.pem&key=own.pem", "rediss://"),
            ("rediss://host?cert=own.pem", "both"),
            ("rediss://host?ca=%4", "two hexadecimal digits"),
        ] {
            let error = ValkeyOptions::new(url).unwrap_err().to_string();
            assert!(error.contains(told), "{url}: {error}");
        }
    }

    #[test]
    fn certificates_are_always_checked() {
        for url in ["rediss://host#insecure", "rediss://host?prefix=a#insecure", "rediss://host?insecure=true"] {
            assert!(ValkeyOptions::new(url).is_err(), "{url}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_are_encrypted_all_or_none() {
        for (first, second) in [("redis://a", "rediss://b"), ("rediss://a", "redis://b")] {
            let error = ValkeyOptions::new(first).unwrap().node(second).unwrap_err().to_string();
            assert!(error.contains("all are rediss://"), "{error}");
        }
        assert!(ValkeyOptions::new("rediss://a").unwrap().node("rediss://b").is_ok());
    }

    #[test]
    fn what_is_not_understood_is_refused_without_the_password() {
        for url in [
            "http://me:s3cret@host",
            "redis://me:s3cret@host?cluster=maybe",
            "redis://me:s3cret@host?colour=red",
            "redis://me?s3cret@host",
            "redis://me:x?s3cret=1@host",
            "redis://me:x#s3cret@host",
            "redis://me:x/s3cret@host",
        ] {
            let told = ValkeyOptions::new(url).unwrap_err().to_string();
            assert!(!told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn replicas_get_some_time_and_not_for_ever() {
        for (asked, given) in [(0, 1_000), (999, 1_000), (7_000, 7_000), (u64::MAX, 2_000_000)] {
            let options = ValkeyOptions::new("redis://host").unwrap();
            let replicas = options.wait_for_replicas(2, Duration::from_micros(asked)).replicas.unwrap();
            assert_eq!(replicas, Replicas { count: 2, patience: Duration::from_micros(given) }, "{asked}");
        }
    }

    #[test]
    fn a_prefix_is_a_plain_word() {
        for prefix in ["", "A", "a b", "{a}", "a:b", &"a".repeat(33)] {
            assert!(KeyPrefix::new(prefix).is_err(), "{prefix:?}");
        }
        assert!(KeyPrefix::new("team-1_x").is_ok());
    }
}
