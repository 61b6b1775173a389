//! Encryption of connections, and how much of the server's identity is checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ff_core::{EngineError, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How connections are encrypted, in the words of `sslmode`. A Unix socket is never encrypted: nothing can come between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// `disable`: not at all. Who can listen reads everything.
    Disable,
    /// `prefer`: when the server offers it. Nothing is checked, and who stands between can turn it off.
    #[default]
    Prefer,
    /// `require`: always, or no connection. Protects from those who listen, not from those who pretend to be the server: its certificate
    /// is not checked.
    Require,
    /// `verify-ca`: always, and the certificate must come from an authority in this PEM file. Its name is not checked, so any server
    /// with a certificate of that authority will do.
    VerifyCa(PathBuf),
    /// `verify-full`: always, the certificate must come from one of these authorities, and must be for the host that was asked for.
    /// The only mode in which nobody can pretend to be the server.
    VerifyFull(Roots),
}

/// The authorities that may vouch for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Those that this system trusts.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

impl Tls {
    /// What the parameters `sslmode` and `sslrootcert` of a URL ask for.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown mode, a mode that lacks its file, or a file that the mode would ignore.
    pub(crate) fn from_parameters(mode: Option<&str>, roots: Option<&str>) -> Result<Self> {
        let file = |path: &str| PathBuf::from(path);
        match (mode, roots) {
            (Some("disable"), None) => Ok(Self::Disable),
            (Some("prefer") | None, None) => Ok(Self::Prefer),
            (Some("require"), None) => Ok(Self::Require),
            (Some("verify-full"), None | Some("system")) => Ok(Self::VerifyFull(Roots::System)),
            (Some("verify-full"), Some(path)) => Ok(Self::VerifyFull(Roots::File(file(path)))),
            (Some("verify-ca"), None) => Err(EngineError::invalid(
                "sslmode=verify-ca needs sslrootcert=<file with the authority's certificate>; or use sslmode=verify-full",
            )),
            (Some("verify-ca" | "require"), Some("system")) => Err(EngineError::invalid(
                "sslrootcert=system needs sslmode=verify-full: anybody can get a certificate for some host from these authorities",
            )),
            // Who names an authority wants it to be asked; other clients read it so, too.
            (Some("verify-ca" | "require"), Some(path)) => Ok(Self::VerifyCa(file(path))),
            (Some("disable" | "prefer") | None, Some(_)) => Err(EngineError::invalid(
                "sslrootcert is of no use unless sslmode is require, verify-ca or verify-full; add one of them",
            )),
            (Some(_), _) => {
                Err(EngineError::invalid("sslmode must be one of disable, prefer, require, verify-ca, verify-full"))
            }
        }
    }

    pub(crate) const fn mode(&self) -> SslMode {
        match self {
            Self::Disable => SslMode::Disable,
            Self::Prefer => SslMode::Prefer,
            Self::Require | Self::VerifyCa(_) | Self::VerifyFull(_) => SslMode::Require,
        }
    }

    /// What makes encrypted connections of a plain one.
    ///
    /// # Errors
    /// `InvalidInput` when the certificates of the authorities cannot be read.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect> {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match self {
            Self::Disable | Self::Prefer | Self::Require => Arc::new(AnyCertificate(Arc::clone(&provider))),
            Self::VerifyCa(path) => Arc::new(AnyName(verifier(roots_of(path)?, &provider)?)),
            Self::VerifyFull(Roots::File(path)) => verifier(roots_of(path)?, &provider)?,
            Self::VerifyFull(Roots::System) => verifier(system_roots()?, &provider)?,
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(EngineError::invalid)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        // Asked for by servers that begin with the handshake at once (`sslnegotiation=direct`).
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }
}

fn verifier(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(EngineError::invalid)
}

fn roots_of(path: &Path) -> Result<RootCertStore> {
    let unusable = |why: String| {
        EngineError::invalid(format_args!(
            "the certificates in {} cannot be used: {why}. Give a PEM file with the certificate of the authority",
            path.display()
        ))
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() { Err(unusable("there are none".to_owned())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems carry certificates that are too old to be understood; the others count.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(EngineError::invalid(
            "this system has no list of trusted authorities. Install one (often a package `ca-certificates`), or name a file with \
             sslrootcert",
        ));
    }
    Ok(roots)
}

/// Takes every certificate: encryption without identity.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes certificates of known authorities, whatever host they are for.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        // The name is looked at last: when only the name is wrong, the authority is right.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_a_url_are_those_that_users_of_postgres_know() {
        let file = || PathBuf::from("ca.pem");
        for (mode, roots, expected) in [
            (None, None, Tls::Prefer),
            (Some("disable"), None, Tls::Disable),
            (Some("require"), None, Tls::Require),
            (Some("require"), Some("ca.pem"), Tls::VerifyCa(file())),
            (Some("verify-ca"), Some("ca.pem"), Tls::VerifyCa(file())),
            (Some("verify-full"), None, Tls::VerifyFull(Roots::System)),
            (Some("verify-full"), Some("system"), Tls::VerifyFull(Roots::System)),
            (Some("verify-full"), Some("ca.pem"), Tls::VerifyFull(Roots::File(file()))),
        ] {
            assert_eq!(Tls::from_parameters(mode, roots).unwrap(), expected, "{mode:?} {roots:?}");
        }
    }

    #[test]
    fn a_mode_that_would_check_less_than_it_seems_is_refused() {
        for (mode, roots) in [
            (Some("verify-ca"), None),
            (Some("verify-ca"), Some("system")),
            (Some("require"), Some("system")),
            (Some("prefer"), Some("ca.pem")),
            (None, Some("ca.pem")),
            (Some("allow"), None),
        ] {
            assert!(Tls::from_parameters(mode, roots).is_err(), "{mode:?} {roots:?}");
        }
    }

    #[test]
    fn a_file_without_certificates_is_refused_by_name() {
        let error = Tls::VerifyCa(file!().into()).connector().map(drop).unwrap_err().to_string();
        assert!(error.contains(file!()), "{error}");
    }
}
