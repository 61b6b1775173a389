//! How a server is to run.

use std::path::{Path, PathBuf};

/// How a server is to run: by default fast and forgetful, for tests of behaviour.
#[derive(Clone, Debug)]
#[must_use]
pub struct ValkeyServerOptions {
    durable: bool,
    directory: PathBuf,
    settings: Vec<(String, String)>,
    is_encrypted: bool,
}

impl Default for ValkeyServerOptions {
    fn default() -> Self {
        Self { durable: false, directory: std::env::temp_dir(), settings: Vec::new(), is_encrypted: false }
    }
}

impl ValkeyServerOptions {
    /// Whether what is written goes to an append-only file: for faults and benchmarks. Without it a killed server loses everything.
    pub const fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Where the server makes its own directory; the place for temporary files unless said otherwise.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// A further setting, such as `maxmemory`. It prevails over settings of the same name before.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Encrypted connections on a second port, with these PEM files: the certificate of the server, its key, and the authority that vouches
    /// for clients, which show a certificate if they want to. Needs a server that was built with TLS.
    pub fn encrypted(mut self, certificate: &Path, key: &Path, authority: &Path) -> Self {
        self.is_encrypted = true;
        let file = |path: &Path| path.display().to_string();
        self.setting("tls-cert-file", file(certificate))
            .setting("tls-key-file", file(key))
            .setting("tls-ca-cert-file", file(authority))
            .setting("tls-auth-clients", "optional")
    }

    pub(super) const fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    pub(super) fn parent(&self) -> &Path {
        &self.directory
    }

    /// All settings in their order.
    pub(super) fn into_settings(self) -> Vec<(String, String)> {
        let own = [("bind", "127.0.0.1"), ("save", ""), ("appendonly", if self.durable { "yes" } else { "no" })];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        own.chain(self.settings).collect()
    }
}
