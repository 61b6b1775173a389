//! Connections that are encrypted, and those that should be.

use std::fs;
use std::path::{Path, PathBuf};

use ff_backend_valkey::ValkeyOptions;
use ff_core::error::ErrorClass;
use ff_test_servers::valkey::{ValkeyServer, ValkeyServerOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::{refusal, start, start_cluster, works};

/// An authority and what it has signed, as PEM files.
struct Papers {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Papers {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // By default all have the same name, and whoever has the name of its issuer seems to have signed itself.
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", uuid::Uuid::new_v4()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let papers = Self { directory: tempfile::tempdir().unwrap(), issuer };
        papers.write("ca.pem", &papers.issuer.pem());
        papers
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A certificate for this name, and its key.
    fn sign(&self, name: &str) -> [PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        [
            self.write(&format!("{name}.crt"), &certificate.pem()),
            self.write(&format!("{name}.key"), &key.serialize_pem()),
        ]
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// How a server that is known by this name runs.
    fn server(&self, name: &str) -> ValkeyServerOptions {
        let [certificate, key] = self.sign(name);
        ValkeyServerOptions::default().encrypted(&certificate, &key, &self.ca())
    }
}

fn url(server: &ValkeyServer, host: &str) -> String {
    format!("rediss://{host}:{}", server.tls_port())
}

fn trusting(url: &str, authority: &Path) -> ValkeyOptions {
    ValkeyOptions::new(url).unwrap().authority(authority).unwrap()
}

/// A path as it stands in a URL.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('/', "%2F")
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_done_over_encrypted_connections() {
    let papers = Papers::new();
    let server = start(papers.server("localhost"));
    works(ValkeyOptions::new(&format!("{}?ca={}", url(&server, "localhost"), escaped(&papers.ca()))).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_done_over_encrypted_connections_to_all_nodes_of_a_cluster() {
    let papers = Papers::new();
    let cluster = start_cluster(&papers.server("127.0.0.1"));
    let first = format!("{}?cluster=true", url(&cluster.nodes()[0], "127.0.0.1"));
    works(trusting(&first, &papers.ca()).node(&url(&cluster.nodes()[1], "127.0.0.1")).unwrap()).await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let papers = Papers::new();
    let server = start(papers.server("localhost"));
    let others = Papers::new();
    let localhost = url(&server, "localhost");
    for options in [trusting(&localhost, &others.ca()), ValkeyOptions::new(&localhost).unwrap()] {
        let (class, told) = refusal(options).await;
        assert_eq!(class, ErrorClass::Terminal, "{told}");
        assert!(told.contains("no encrypted connection to localhost") && told.contains("ca=<file>"), "{told}");
        assert!(told.contains("invalid peer certificate"), "{told}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_by_clusters_too() {
    let papers = Papers::new();
    let cluster = start_cluster(&papers.server("127.0.0.1"));
    let first = format!("{}?cluster=true", url(&cluster.nodes()[0], "127.0.0.1"));
    let (class, told) = refusal(trusting(&first, &Papers::new().ca())).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(
        told.contains("no encrypted connection to 127.0.0.1") && told.contains("invalid peer certificate"),
        "{told}"
    );
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let papers = Papers::new();
    let server = start(papers.server("localhost"));
    let (class, told) = refusal(trusting(&url(&server, "127.0.0.1"), &papers.ca())).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("not valid for name") && told.contains("for this host"), "{told}");
}

#[tokio::test]
async fn a_plain_connection_to_a_port_that_wants_encryption_is_refused() {
    let papers = Papers::new();
    let server = start(papers.server("localhost"));
    let (_, told) = refusal(ValkeyOptions::new(&format!("redis://127.0.0.1:{}", server.tls_port())).unwrap()).await;
    assert!(told.contains("rediss://"), "{told}");
}

#[tokio::test]
async fn an_encrypted_connection_to_a_plain_port_is_refused() {
    let papers = Papers::new();
    let server = start(papers.server("localhost"));
    let (_, told) = refusal(trusting(&format!("rediss://localhost:{}", server.port()), &papers.ca())).await;
    assert!(told.contains("redis://"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    let papers = Papers::new();
    let server = start(papers.server("localhost").setting("tls-auth-clients", "yes"));
    let localhost = url(&server, "localhost");

    let (class, told) = refusal(trusting(&localhost, &papers.ca())).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("CertificateRequired") && told.contains("cert=<file>"), "{told}");

    let [certificate, key] = papers.sign("anna");
    let url = format!("{localhost}?ca={}&cert={}&key={}", escaped(&papers.ca()), escaped(&certificate), escaped(&key));
    works(ValkeyOptions::new(&url).unwrap()).await;

    let [_, other_key] = papers.sign("berta");
    let (class, told) =
        refusal(trusting(&localhost, &papers.ca()).client_certificate(&certificate, other_key).unwrap()).await;
    assert_eq!(class, ErrorClass::Terminal, "{told}");
    assert!(told.contains("no encrypted connection"), "{told}");
}
