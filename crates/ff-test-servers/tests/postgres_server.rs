//! A server of one's own: it answers, survives a kill with what was committed, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};

fn start(options: PostgresServerOptions) -> PostgresServer {
    PostgresServer::start(options).unwrap_or_else(|error| panic!("{error}"))
}

fn run(server: &PostgresServer, statements: &str) -> String {
    server.run(statements).unwrap_or_else(|error| panic!("{error}"))
}

/// The processes of a server: the one its lock file names, and that one's children.
fn processes(data: &Path) -> BTreeSet<u32> {
    let lock = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let first: u32 = lock.lines().next().unwrap().parse().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    all.filter(|process| *process == first || stat(*process).is_some_and(|(_, parent)| parent == first)).collect()
}

/// The state of a process, and its parent.
fn stat(process: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it may hold anything, also brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn runs(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != "Z" && state != "X")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: not after 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_starts_and_answers_with_its_settings() {
    let options = PostgresServerOptions::default().max_connections(37).setting("work_mem", "5MB");
    let server = start(options.setting("shared_preload_libraries", "pg_stat_statements"));

    assert_eq!(run(&server, "SELECT 40 + 2, 'two'"), "42|two");
    for (name, value) in [
        ("max_connections", "37"),
        ("work_mem", "5MB"),
        ("shared_preload_libraries", "pg_stat_statements"),
        ("fsync", "off"),
        ("synchronous_commit", "off"),
        ("full_page_writes", "off"),
        ("server_encoding", "UTF8"),
        ("listen_addresses", "127.0.0.1"),
    ] {
        assert_eq!(run(&server, &format!("SHOW {name}")), value, "{name}");
    }
    assert_eq!(server.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", server.port()));
    assert!(server.socket_directory().join(format!(".s.PGSQL.{}", server.port())).exists());
    assert!(server.data_directory().join("PG_VERSION").exists());
}

#[test]
fn a_refused_statement_is_told() {
    let server = start(PostgresServerOptions::default());

    let refused = server.run("SELECT * FROM nowhere").unwrap_err().to_string();

    assert!(refused.contains(r#"relation "nowhere" does not exist"#), "{refused}");
}

#[test]
fn a_killed_server_keeps_what_was_committed() {
    let mut server = start(PostgresServerOptions::default().durable(true));
    assert_eq!(run(&server, "SHOW fsync"), "on");
    run(&server, "CREATE TABLE kept (n int)");
    for round in 1..=3 {
        run(&server, &format!("INSERT INTO kept VALUES ({round})"));
        let (url, before) = (server.url(), processes(server.data_directory()));
        assert!(before.len() > 3, "a server is several processes: {before:?}");

        server.kill();

        let left: Vec<_> = before.into_iter().filter(|process| runs(*process)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(server.run("SELECT 1").is_err());
        server.restart().unwrap();
        assert_eq!(server.url(), url);
        assert_eq!(run(&server, "SELECT count(*), sum(n) FROM kept"), format!("{round}|{}", round * (round + 1) / 2));
    }
}

#[test]
fn a_killed_server_forgets_what_was_not_committed() {
    let mut server = start(PostgresServerOptions::default().durable(true));
    run(&server, "CREATE TABLE kept (n int)");
    let mut client = Command::new("psql")
        .args(["--no-psqlrc", "--dbname", &server.url(), "--command"])
        .arg("BEGIN; INSERT INTO kept VALUES (1); SELECT pg_sleep(600); COMMIT")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("the client has written", || run(&server, waits) == "1");

    server.kill();

    assert!(!client.wait().unwrap().success(), "its client is told");
    server.restart().unwrap();
    assert_eq!(run(&server, "SELECT count(*) FROM kept"), "0");
}

#[test]
fn a_running_server_can_be_restarted() {
    let mut server = start(PostgresServerOptions::default().durable(true));
    run(&server, "CREATE TABLE kept AS SELECT 7 AS n");

    server.restart().unwrap();

    assert_eq!(run(&server, "SELECT n FROM kept"), "7");
}

#[test]
fn a_dropped_server_leaves_no_process_and_no_directory() {
    for is_killed in [false, true] {
        let mut server = start(PostgresServerOptions::default());
        let (data, home) = (server.data_directory().to_owned(), server.socket_directory().to_owned());
        let (before, memory) = (processes(&data), memory(&data));
        assert!(before.len() > 3 && before.iter().all(|process| runs(*process)), "{before:?}");
        assert!(memory_exists(&memory));
        if is_killed {
            server.kill();
        }

        server.stop();

        let left: Vec<_> = before.into_iter().filter(|process| runs(*process)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!home.exists() && !data.exists());
        assert!(!memory_exists(&memory), "shared memory is left");
    }
}

/// The segment of shared memory a server holds.
fn memory(data: &Path) -> String {
    let lock = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    lock.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

fn memory_exists(segment: &str) -> bool {
    let all = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    all.lines().any(|line| line.split_whitespace().nth(1) == Some(segment))
}

/// Set for the program that is to be killed, which is this one, started again.
const VICTIM: &str = "FF_TEST_SERVERS_VICTIM";

#[test]
fn a_server_goes_with_a_program_that_is_killed() {
    if std::env::var_os(VICTIM).is_some() {
        wait_for_the_end();
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_goes_with_a_program_that_is_killed", "--nocapture"])
        .env(VICTIM, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let told = lines.find_map(|line| Some(line.unwrap().split_once("data=")?.1.to_owned()));
    let data = std::path::PathBuf::from(told.expect("the victim tells where its server is"));
    let before = processes(&data);
    assert!(before.len() > 3, "{before:?}");

    // The whole group, as a test runner does it that has lost its patience.
    let group = format!("-{}", victim.id());
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
    victim.wait().unwrap();

    wait_until("the server is gone", || !before.iter().any(|process| runs(*process)));
    wait_until("its directory is gone", || !data.parent().unwrap().exists());
}

#[allow(clippy::print_stdout, reason = "the program that kills this one reads it")]
fn wait_for_the_end() -> ! {
    let server = start(PostgresServerOptions::default());
    println!("data={}", server.data_directory().display());
    let _ = std::io::stdin().read(&mut [0]);
    panic!("killed too late");
}

#[test]
fn a_schema_is_removed_after_its_use_unless_it_is_kept() {
    let server = start(PostgresServerOptions::default());
    let schemas: Vec<_> = (0..3).map(|_| server.schema().unwrap()).collect();
    for schema in &schemas {
        run(&server, &format!("CREATE SCHEMA {0}; CREATE TABLE {0}.thing (n int)", schema.name()));
    }
    let left = || run(&server, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'case%' ORDER BY oid");
    assert_eq!(left().lines().count(), 3);

    let [kept, used, last] = schemas.try_into().ok().unwrap();
    let kept = kept.keep();
    drop(used);

    wait_until("one is removed", || left() == format!("{kept}\n{}", last.name()));
}

#[test]
fn several_servers_run_side_by_side() {
    let servers: Vec<_> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..3).map(|_| scope.spawn(|| start(PostgresServerOptions::default()))).collect();
        starting.into_iter().map(|starting| starting.join().unwrap()).collect()
    });

    let ports: BTreeSet<_> = servers.iter().map(PostgresServer::port).collect();

    assert_eq!(ports.len(), 3);
    for server in &servers {
        assert_eq!(run(server, "SHOW port"), server.port().to_string());
    }
}

#[test]
fn a_server_that_cannot_start_says_why_and_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(parent.path(), everybody).unwrap();
    let options = PostgresServerOptions::default().directory(parent.path()).setting("no_such_setting", "1");

    let Err(refused) = PostgresServer::start(options) else { panic!("it starts") };

    assert!(refused.to_string().contains(r#"unrecognized configuration parameter "no_such_setting""#), "{refused}");
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}
