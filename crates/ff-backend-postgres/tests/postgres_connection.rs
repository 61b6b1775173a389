//! Connections: what every session has, what is said when there is none, and how the pool heals.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use ff_backend_postgres::{Pool, PostgresOptions, Roots, Tls};
use ff_core::error::ErrorClass;
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use futures_util::StreamExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use server::{options, pool, start};
use tokio_postgres::AsyncMessage;

const PATIENCE: Duration = Duration::from_secs(30);

/// What one statement answers on a connection of the pool.
async fn ask(pool: &Pool, sql: &str) -> String {
    pool.get().await.unwrap().query_one(sql, &[]).await.unwrap().get(0)
}

/// Why there is no connection.
async fn refusal(options: &PostgresOptions) -> (ErrorClass, String) {
    let error = Pool::connect(options).await.unwrap_err();
    (error.class(), error.to_string())
}

#[tokio::test]
async fn every_session_has_our_settings() {
    let pool = pool().await;
    for (name, value) in [
        ("application_name", "flowfabric"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_bitmapscan", "off"),
        ("jit", "off"),
        ("plan_cache_mode", "force_generic_plan"),
        ("lock_timeout", "10s"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("statement_timeout", "0"),
    ] {
        assert_eq!(ask(&pool, &format!("SHOW {name}")).await, value, "{name}");
    }
}

#[tokio::test]
async fn a_listener_hears_notifications_until_its_connection_ends() {
    let pool = pool().await;
    let listener = pool.listener().await.unwrap().unwrap();
    let (client, mut messages) = (listener.client, listener.messages);
    let listening = async { client.batch_execute("LISTEN news").await.unwrap() };
    tokio::select! {
        () = listening => {}
        message = messages.next() => panic!("{message:?} came before anybody listened"),
    }
    pool.get().await.unwrap().batch_execute("NOTIFY news, 'come'").await.unwrap();
    let Some(Ok(AsyncMessage::Notification(heard))) = messages.next().await else { panic!("no notification") };
    assert_eq!((heard.channel(), heard.payload()), ("news", "come"));

    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN news'";
    pool.get().await.unwrap().batch_execute(end).await.unwrap();
    assert!(matches!(messages.next().await, None | Some(Err(_))));
    assert!(messages.next().await.is_none());
}

#[tokio::test]
async fn who_finds_no_free_connection_in_time_is_told_so() {
    let pool = Pool::connect(&options().connections(1)).await.unwrap();
    let taken = pool.get().await.unwrap();
    // Nothing but the clock can end the wait, so it runs ahead.
    tokio::time::pause();
    let error = pool.get().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retryable);
    assert!(error.to_string().contains("all 1 connections"), "{error}");
    tokio::time::resume();
    drop(taken);
    assert!(pool.get().await.is_ok());
}

#[tokio::test]
async fn a_closed_pool_says_so() {
    let pool = pool().await;
    pool.close();
    let error = pool.get().await.unwrap_err();
    assert_eq!((error.class(), error.to_string().contains("closed")), (ErrorClass::Terminal, true), "{error}");
}

#[tokio::test]
async fn where_nobody_listens_the_server_is_unreachable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nowhere = PostgresOptions::new(&format!("postgres://anna:geheim@127.0.0.1:{port}/work")).unwrap();
    let (class, told) = refusal(&nowhere).await;
    assert_eq!(class, ErrorClass::Retryable);
    assert!(told.contains(&format!("database work at 127.0.0.1:{port} as anna")) && !told.contains("geheim"), "{told}");
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_named() {
    let url = server::url().replace("/postgres", "/nowhere").replace("//nowhere", "//postgres");
    let (class, told) = refusal(&PostgresOptions::new(&url).unwrap()).await;
    assert_eq!(class, ErrorClass::Terminal);
    assert!(told.contains("database nowhere") && told.contains("Create the database"), "{told}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let mut server = start(PostgresServerOptions::default().setting("synchronous_commit", "on"));
    server.run("CREATE ROLE anna LOGIN PASSWORD 'right'").unwrap();
    let rules = server.data_directory().join("pg_hba.conf");
    let others = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, format!("host all anna 127.0.0.1/32 scram-sha-256\n{others}")).unwrap();
    server.restart().unwrap();
    let with = |password: &str| {
        let url = format!("postgres://anna:{password}@127.0.0.1:{}/postgres", server.port());
        PostgresOptions::new(&url).unwrap()
    };

    let (class, told) = refusal(&with("geheim")).await;

    assert_eq!(class, ErrorClass::Terminal);
    assert!(told.contains("as anna") && told.contains("Check user and password"), "{told}");
    assert!(!told.contains("geheim") && !told.contains("right"), "{told}");
    assert_eq!(ask(&Pool::connect(&with("right")).await.unwrap(), "SELECT current_user::text").await, "anna");
}

#[tokio::test]
async fn the_pool_heals_when_the_server_comes_back() {
    let mut server = start(PostgresServerOptions::default());
    let pool = Pool::connect(&PostgresOptions::new(&server.url()).unwrap().connections(4)).await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(pool.get().await.unwrap());
    }
    server.kill();
    for client in &clients {
        assert!(client.batch_execute("SELECT 1").await.is_err());
    }
    drop(clients);
    assert_eq!(pool.get().await.unwrap_err().class(), ErrorClass::Retryable);

    server.restart().unwrap();

    for _ in 0..4 {
        clients_answer(&pool).await;
    }
}

async fn clients_answer(pool: &Pool) {
    let began = Instant::now();
    loop {
        match pool.get().await {
            Ok(client) if client.batch_execute("SELECT 1").await.is_ok() => return,
            other => assert!(began.elapsed() < PATIENCE, "{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_socket_needs_no_encryption() {
    let server = start(PostgresServerOptions::default());
    let directory = server.socket_directory().display().to_string().replace('/', "%2F");
    let url = format!("postgres://postgres@{directory}:{}/postgres?sslmode=require", server.port());
    let pool = Pool::connect(&PostgresOptions::new(&url).unwrap()).await.unwrap();
    assert_eq!(ask(&pool, "SELECT 'here'").await, "here");
}

/// A server with a certificate for this name, and the authority that vouches for it.
fn encrypted_server(name: &str, authority: &Path) -> PostgresServer {
    let mut server = start(PostgresServerOptions::default());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(authority, issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let data = server.data_directory().to_owned();
    let owner = fs::metadata(&data).unwrap();
    for (file, text) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())] {
        let path = data.join(file);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    server.run("ALTER SYSTEM SET ssl = on").unwrap();
    server.restart().unwrap();
    server
}

#[tokio::test]
async fn encryption_checks_as_much_as_its_mode_says() {
    let directory = tempfile::tempdir().unwrap();
    let [right, wrong] = ["right.pem", "wrong.pem"].map(|name| directory.path().join(name));
    let server = encrypted_server("localhost", &right);
    fs::write(
        &wrong,
        CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap().pem(),
    )
    .unwrap();
    let at =
        |host: &str| PostgresOptions::new(&format!("postgres://postgres@{host}:{}/postgres", server.port())).unwrap();
    let full = |path: &Path| Tls::VerifyFull(Roots::File(path.to_owned()));
    let encrypted = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

    for (host, tls, expected) in [
        ("127.0.0.1", Tls::Disable, "false"),
        ("127.0.0.1", Tls::Prefer, "true"),
        ("127.0.0.1", Tls::Require, "true"),
        ("127.0.0.1", Tls::VerifyCa(right.clone()), "true"),
        ("localhost", full(&right), "true"),
    ] {
        let pool = Pool::connect(&at(host).tls(tls.clone())).await.unwrap_or_else(|error| panic!("{tls:?}: {error}"));
        assert_eq!(ask(&pool, encrypted).await, expected, "{tls:?}");
        pool.listener().await.unwrap();
    }
    for (host, tls) in [
        ("127.0.0.1", full(&right)),
        ("localhost", full(&wrong)),
        ("localhost", Tls::VerifyCa(wrong.clone())),
        ("localhost", Tls::VerifyFull(Roots::System)),
    ] {
        let (class, told) = refusal(&at(host).tls(tls.clone())).await;
        assert_eq!(class, ErrorClass::Terminal, "{tls:?}: {told}");
        assert!(told.contains("no encrypted connection") && told.contains("certificate"), "{tls:?}: {told}");
    }
}

#[tokio::test]
async fn a_server_without_encryption_is_refused_where_it_is_required() {
    let (class, told) = refusal(&options().tls(Tls::Require)).await;
    assert_eq!(class, ErrorClass::Terminal);
    assert!(told.contains("does not support TLS"), "{told}");
    Pool::connect(&options().tls(Tls::Prefer)).await.unwrap();
}
