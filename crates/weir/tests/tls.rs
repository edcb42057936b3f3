//! Records on encrypted ways, to PostgreSQL and by NATS: no server is believed that is not the right one,
//! and nothing is lost by a wrong one.

mod common;

use common::chunks::chunk;
use common::{Folder, stdout, weir};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::certificates::{Authority, Certificate};
use weir_lab::net::Process;
use weir_lab::postgres::Postgres;
use weir_lab::testenv;
use weir_ledger::Spool;

const LIMIT: Duration = Duration::from_secs(60);

/// A port of the loopback that nothing listens on.
fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// What the mediator says on standard error if it fails.
fn once(config: &str) -> Result<(), String> {
    let run = weir(["mediate", "--config", config, "--once"])
        .output()
        .unwrap();
    if run.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&run.stderr).into_owned())
}

/// Two CAs, each in a folder of its own.
fn authorities(folder: &Folder) -> Option<[Authority; 2]> {
    let right = Authority::new(folder.path("right").as_ref())?;
    let wrong = Authority::new(folder.path("wrong").as_ref())?;
    Some([right, wrong])
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_database_is_believed_by_its_certificate_alone() {
    let folder = Folder::new("tls-postgres");
    let (Some([right, wrong]), Some(mut server)) = (authorities(&folder), Postgres::start()) else {
        return;
    };
    server.psql("CREATE ROLE far LOGIN PASSWORD 'pa55'");
    server.psql("GRANT ALL ON SCHEMA public TO far");
    // Whatever is not encrypted is refused.
    let rules = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
    let file = server.psql("SHOW hba_file");
    fs::write(file, rules).unwrap();
    let port = free_port();
    server.run_with_tls(port, &right.sign("localhost"));
    let config = |tls: &str| {
        let text = format!(
            "store = '{}'\ninterval = '10ms'\n[[counter]]\nspool = '{}'\n[[output]]\nname = 'db'\n\
             format = 'postgresql'\nconnection = 'host=localhost port={port} user=far \
             password=pa55 dbname=postgres {tls}'\n",
            folder.path("ledger"),
            folder.path("one"),
        );
        folder.write("mediator.toml", text.as_bytes())
    };
    let mut spool = Spool::open(folder.path("one").as_ref()).unwrap();
    let mut put = |period: u64| {
        spool
            .store(&mut [chunk("one", period, &[1, 2, 3])], b"")
            .unwrap();
    };
    let counts = "SELECT count(*), sum(packets) FROM weir_usage";
    let there = "SELECT to_regclass('weir_usage') IS NOT NULL";
    put(0);
    let (ca, other) = (right.file(), wrong.file());
    // Of the same name, with another key.
    let same = Authority::new(folder.path("other/right").as_ref()).unwrap();
    let full = |ca: &Path| format!("sslmode=verify-full sslrootcert={}", ca.display());
    let clear = once(&config("sslmode=disable")).unwrap_err();
    assert!(clear.contains("no encryption"), "{clear}");
    for (tls, why) in [
        (full(&other), "name the file of its CA"),
        (full(&same.file()), "name the file of its CA"),
        (
            format!("sslmode=verify-ca sslrootcert={}", other.display()),
            "name the file of its CA",
        ),
        (
            format!("sslmode=require sslrootcert={}", other.display()),
            "name the file of its CA",
        ),
        (
            "sslmode=verify-full sslrootcert=/none.pem".to_owned(),
            "/none.pem",
        ),
    ] {
        let said = once(&config(&tls)).unwrap_err();
        assert!(
            said.contains(why) && said.contains("output db"),
            "{tls}: {said}"
        );
    }
    assert_eq!(
        server.psql(there),
        "f",
        "nothing went to a server that is not believed"
    );
    once(&config(&full(&ca))).unwrap();
    assert_eq!(server.psql(counts), "3|6");
    let encrypted = format!("sslmode=verify-ca sslrootcert={}", ca.display());
    for (period, tls) in [
        (1, "sslmode=require"),
        (2, &*encrypted),
        (3, "sslmode=prefer"),
    ] {
        put(period);
        once(&config(tls)).unwrap();
        assert_eq!(
            server.psql(counts),
            format!("{}|{}", 3 * (period + 1), 6 * (period + 1))
        );
    }
    // Another name: the chain alone may be good.
    server.run_with_tls(port, &right.sign("db.example"));
    put(4);
    let said = once(&config(&full(&ca))).unwrap_err();
    assert!(said.contains("a name that the certificate has"), "{said}");
    assert_eq!(server.psql(counts), "12|24");
    once(&config(&encrypted)).unwrap();
    assert_eq!(server.psql(counts), "15|30");
    // A mediator that runs goes on when the file has the right CA.
    server.run_with_tls(port, &right.sign("localhost"));
    let trusted = folder.path("trusted.pem");
    fs::copy(&other, &trusted).unwrap();
    put(5);
    let config = config(&full(trusted.as_ref()));
    let mut mediator = weir(["mediate", "--config", &config])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let errors = mediator.child_mut().stderr.take().unwrap();
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("name the file of its CA")));
    assert_eq!(server.psql(counts), "15|30");
    fs::copy(&ca, &trusted).unwrap();
    until("it does not go on", || server.psql(counts) == "18|36");
    mediator.signal(Signal::TERM).unwrap();
    assert!(mediator.ended(LIMIT).unwrap().success());
}

/// A NATS server with JetStream, a user and perhaps TLS.
struct Nats {
    process: Process,
    port: u16,
}

impl Nats {
    fn start(folder: &Folder, tls: Option<&Certificate>) -> Nats {
        let port = free_port();
        let mut server = testenv::program("nats-server").unwrap();
        server.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js"]);
        server.args(["-sd", &folder.path("jetstream")]);
        server.args(["--user", "weir", "--pass", "pa55"]);
        if let Some(tls) = tls {
            server.arg("--tls");
            server.arg("--tlscert").arg(&tls.certificate);
            server.arg("--tlskey").arg(&tls.key);
        }
        let server = server.stdout(Stdio::null()).stderr(Stdio::null());
        let nats = Nats {
            process: server.spawn().unwrap(),
            port,
        };
        until("the server does not listen", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        nats
    }

    fn end(mut self) {
        self.process.signal(Signal::KILL).unwrap();
        self.process.ended(LIMIT).unwrap();
    }
}

#[test]
fn chunks_go_to_a_nats_server_that_is_believed() {
    let folder = Folder::new("tls-nats");
    if !testenv::programs(&["nats-server"]) {
        return;
    }
    let Some([right, wrong]) = authorities(&folder) else {
        return;
    };
    let spool_path = folder.path("one");
    let mut spool = Spool::open(spool_path.as_ref()).unwrap();
    spool.store(&mut [chunk("one", 0, &[1, 2])], b"").unwrap();
    let refused = |url: &str| {
        let mut ship = weir(["ship", "--spool", &spool_path, "--nats", url]);
        let mut ship = ship.stderr(Stdio::piped()).spawn().unwrap();
        let errors = ship.child_mut().stderr.take().unwrap();
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        let said = lines.find(|line| line.contains("NATS: ")).unwrap();
        ship.signal(Signal::TERM).unwrap();
        assert!(ship.ended(LIMIT).unwrap().success());
        said
    };
    let url = |nats: &Nats, ca: &Path| {
        format!(
            "tls://weir:pa55@localhost:{}?ca={}",
            nats.port,
            ca.display()
        )
    };
    // A server without TLS, and one of another name.
    let nats = Nats::start(&folder, None);
    let said = refused(&url(&nats, &right.file()));
    assert!(said.contains("the server has no TLS"), "{said}");
    nats.end();
    let nats = Nats::start(&folder, Some(&right.sign("nats.example")));
    let said = refused(&url(&nats, &right.file()));
    assert!(said.contains("a name that the certificate has"), "{said}");
    nats.end();
    let nats = Nats::start(&folder, Some(&right.sign("localhost")));
    let said = refused(&url(&nats, &wrong.file()));
    assert!(said.contains("name the file of its CA"), "{said}");
    let clear = format!("nats://weir:pa55@localhost:{}", nats.port);
    let said = refused(&clear);
    assert!(said.contains("write tls://"), "{said}");
    assert_eq!(spool.waiting().unwrap(), 1, "nothing is lost");
    // Both sides go on when the file has the right CA.
    let trusted = folder.path("trusted.pem");
    fs::copy(wrong.file(), &trusted).unwrap();
    let url = url(&nats, trusted.as_ref());
    let text = format!(
        "store = '{}'\ninterval = '10ms'\nnats = '{url}'\n",
        folder.path("ledger")
    );
    let config = folder.write("mediator.toml", text.as_bytes());
    let mut both = [
        weir(["mediate", "--config", &config]),
        weir(["ship", "--spool", &spool_path, "--nats", &url]),
    ]
    .map(|mut command| command.stderr(Stdio::piped()).spawn().unwrap());
    for process in &mut both {
        let errors = process.child_mut().stderr.take().unwrap();
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("name the file of its CA")));
        std::thread::spawn(move || lines.for_each(drop));
    }
    fs::copy(right.file(), &trusted).unwrap();
    until("no ledger has the chunk", || spool.waiting().unwrap() == 0);
    for process in &mut both {
        process.signal(Signal::TERM).unwrap();
        assert!(process.ended(LIMIT).unwrap().success());
    }
    nats.end();
    let usage = weir(["usage", "--store", &folder.path("ledger"), "--json"]);
    let usage = { usage }.output().unwrap();
    let rows: serde_json::Value = serde_json::from_str(&stdout(&usage)).unwrap();
    let packets = rows.as_array().unwrap().iter();
    let packets: u64 = packets.filter_map(|row| row["packets"][0].as_u64()).sum();
    assert_eq!(packets, 3, "{rows}");
}

#[test]
fn a_password_to_another_machine_in_clear_is_refused() {
    let folder = Folder::new("tls-clear");
    let output = "[[output]]\nname = 'db'\nformat = 'postgresql'\nconnection = ";
    for (text, why) in [
        (
            format!("{output}'host=db.example user=u password=pa55'\n"),
            "sslmode=verify-full",
        ),
        (
            format!("{output}'postgres://u:pa55@db.example/x'\n"),
            "sslmode=verify-full",
        ),
        (
            "nats = 'nats://u:pa55@nats.example'\n".to_owned(),
            "write tls://",
        ),
    ] {
        let counter = format!("[[counter]]\nspool = '{}'\n", folder.path("one"));
        let text = match text.strip_prefix("nats") {
            Some(_) => format!("{text}{counter}"),
            None => format!("{counter}{text}"),
        };
        let config = folder.write("mediator.toml", text.as_bytes());
        let check = weir(["mediate", "--config", &config, "--check"])
            .output()
            .unwrap();
        assert_eq!(check.status.code(), Some(2), "{check:?}");
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(said.contains(why) && said.contains("in clear"), "{said}");
        assert!(!said.contains("pa55"), "{said}");
    }
}
