//! Encryption of connections: who vouches for the server, and what this program shows it.

use std::path::{Path, PathBuf};

use ff_core::{EngineError, Result};
use redis::{Client, ClientTlsConfig, TlsCertificates};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::options::ValkeyOptions;

/// Files that encrypted connections need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The authorities that may vouch for the server; none means those that this system trusts.
    pub(crate) authority: Option<PathBuf>,
    pub(crate) client: Option<ClientCertificate>,
}

/// What this program shows to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Reads the files that encrypted connections need, so that every connection has what they say.
///
/// # Errors
/// `InvalidInput` for a file that cannot be used.
pub(crate) fn read_files(mut options: ValkeyOptions) -> Result<ValkeyOptions> {
    if !options.is_encrypted() {
        return Ok(options);
    }
    choose_cryptography();
    let certificates = options.tls.certificates()?;
    for node in &mut options.nodes {
        let client = Client::build_with_tls(node.clone(), certificates.clone()).map_err(EngineError::invalid)?;
        *node = client.get_connection_info().clone();
    }
    Ok(options)
}

/// The driver takes what the whole process uses. Somebody else may have chosen; where nobody has, and parts of the program bring several,
/// it would not know which.
fn choose_cryptography() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else was faster, and that is as good.
        let _ = ring::default_provider().install_default();
    }
}

impl Tls {
    fn certificates(&self) -> Result<TlsCertificates> {
        let root_cert = self.authority.as_deref().map(authorities).transpose()?;
        let client_tls = self.client.as_ref().map(ClientCertificate::read).transpose()?;
        Ok(TlsCertificates { client_tls, root_cert })
    }
}

impl ClientCertificate {
    fn read(&self) -> Result<ClientTlsConfig> {
        let (client_cert, client_key) = (content(&self.certificate)?, content(&self.key)?);
        if certificates(&self.certificate, &client_cert)?.is_empty() {
            return Err(unusable(&self.certificate, "it holds no certificate", "the certificate to show"));
        }
        PrivateKeyDer::from_pem_slice(&client_key)
            .map_err(|error| unusable(&self.key, error, "the key to the certificate"))?;
        Ok(ClientTlsConfig { client_cert, client_key })
    }
}

/// The text of a file with at least one certificate of an authority.
fn authorities(path: &Path) -> Result<Vec<u8>> {
    let refuse = |why: &dyn std::fmt::Display| unusable(path, why, "the certificate of the authority");
    let text = content(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, &text)? {
        roots.add(certificate).map_err(|error| refuse(&error))?;
    }
    if roots.is_empty() { Err(refuse(&"it holds no certificate")) } else { Ok(text) }
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    found.map_err(|error| unusable(path, error, "a certificate"))
}

fn content(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| unusable(path, error, "what it should hold"))
}

fn unusable(path: &Path, why: impl std::fmt::Display, wanted: &str) -> EngineError {
    EngineError::invalid(format_args!("{} cannot be used: {why}. Give a PEM file with {wanted}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(parameters: &str) -> String {
        let options = ValkeyOptions::new(&format!("rediss://anna:geheim@host?{parameters}")).unwrap();
        read_files(options).unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let missing = directory.path().join("missing.pem");
        let [empty, missing] = [&empty, &missing].map(|path| path.display().to_string());
        for (parameters, file, why) in [
            (format!("ca={missing}"), &missing, "No such file"),
            (format!("ca={empty}"), &empty, "no certificate"),
            (format!("cert={missing}&key={empty}"), &missing, "No such file"),
            (format!("cert={empty}&key={missing}"), &missing, "No such file"),
            (format!("cert={empty}&key={empty}"), &empty, "no certificate"),
        ] {
            let told = refusal(&parameters);
            assert!(told.contains(file) && told.contains(why) && !told.contains("geheim"), "{parameters}: {told}");
        }
    }

    #[test]
    fn without_files_the_system_says_who_is_trusted() {
        let options = read_files(ValkeyOptions::new("rediss://host").unwrap()).unwrap();
        let files = options.tls.certificates().unwrap();
        assert!(files.root_cert.is_none() && files.client_tls.is_none());
        assert!(CryptoProvider::get_default().is_some());
    }

    #[test]
    fn plain_connections_need_nothing() {
        assert!(!read_files(ValkeyOptions::new("redis://host").unwrap()).unwrap().is_encrypted());
    }
}
