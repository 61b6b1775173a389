//! How a server is to run.

use std::path::{Path, PathBuf};

/// How a server is to run: by default fast and forgetful, for tests of behaviour.
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresServerOptions {
    durable: bool,
    max_connections: u32,
    directory: PathBuf,
    settings: Vec<(String, String)>,
}

impl Default for PostgresServerOptions {
    fn default() -> Self {
        Self { durable: false, max_connections: 200, directory: std::env::temp_dir(), settings: Vec::new() }
    }
}

impl PostgresServerOptions {
    /// Whether what is committed is on the disk before the answer (`fsync`, `synchronous_commit`, `full_page_writes`): for faults
    /// and benchmarks. Without it a killed server loses the last commits.
    pub const fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// How many connections there may be at once; 200 unless said otherwise.
    pub const fn max_connections(mut self, max_connections: u32) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// Where the server makes its own directory; the place for temporary files unless said otherwise. Every user must be able to
    /// enter it, and the path of a socket in there must fit in 107 bytes.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// A further setting, such as `shared_preload_libraries`. It prevails over settings of the same name before.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub(super) fn parent(&self) -> &Path {
        &self.directory
    }

    /// All settings in their order.
    pub(super) fn into_settings(self) -> Vec<(String, String)> {
        let durable = if self.durable { "on" } else { "off" };
        let max_connections = self.max_connections.to_string();
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("max_connections", &max_connections),
            ("fsync", durable),
            ("synchronous_commit", durable),
            ("full_page_writes", durable),
            // In the data directory, so that it goes with it, also after a kill.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        own.chain(self.settings).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(options: &PostgresServerOptions, wanted: &str) -> Option<String> {
        options.clone().into_settings().into_iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value)
    }

    #[test]
    fn a_durable_server_flushes_and_another_does_not() {
        for (durable, expected) in [(true, "on"), (false, "off")] {
            let options = PostgresServerOptions::default().durable(durable);
            for name in ["fsync", "synchronous_commit", "full_page_writes"] {
                assert_eq!(value(&options, name).as_deref(), Some(expected), "{name}");
            }
        }
    }

    #[test]
    fn a_setting_prevails_over_what_was_set_before() {
        let options = PostgresServerOptions::default().max_connections(7).setting("max_connections", "9");

        assert_eq!(value(&options, "max_connections").as_deref(), Some("9"));
    }
}
