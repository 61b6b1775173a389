//! How a server is to run.

use std::path::{Path, PathBuf};

/// How a server is to run: by default fast and forgetful, for tests of behaviour.
#[derive(Clone, Debug)]
#[must_use]
pub struct ValkeyServerOptions {
    durable: bool,
    directory: PathBuf,
    settings: Vec<(String, String)>,
}

impl Default for ValkeyServerOptions {
    fn default() -> Self {
        Self { durable: false, directory: std::env::temp_dir(), settings: Vec::new() }
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
