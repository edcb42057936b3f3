//! `weir vmtp` across a link, against itself and against `peers/vmtp.py`, an
//! implementation that shares nothing with it.

mod common;
#[path = "common/live.rs"]
mod live;

use common::{Folder, bytes, weir};
use live::{Net, Running, net, open_folder};
use weir_lab::net::unprivileged::NOBODY;
use weir_lab::net::{Host, Signal};
use weir_lab::testenv;

const LINK: [&str; 2] = ["--link", "port:eth0"];

/// Starts a server in b; returns it and its entity.
fn serve(net: &Net, folder: &Folder) -> (Running, String) {
    let path = folder.path("");
    let server = net.weir(&[&["vmtp", "serve", &path][..], &LINK].concat());
    let server = server.until("vmtp server").until("ready");
    let said = server.said().to_owned();
    let entity = said.split_whitespace().find(|word| word.contains('@'));
    let entity = entity
        .unwrap_or_else(|| panic!("no entity: {said}"))
        .to_owned();
    (server, entity)
}

fn client(host: &Host, arguments: &[&str]) -> live::Ended {
    let arguments = [&["vmtp"][..], arguments, &LINK].concat();
    Running::start(host, weir([]), &arguments).end()
}

fn python(host: &Host, arguments: &[&str]) -> Running {
    live::peer(host, "vmtp.py", arguments)
}

#[test]
fn files_are_read_whole() {
    let Some(net) = net() else { return };
    let folder = Folder::new("vmtp-read");
    for (name, len) in [
        ("empty", 0),
        ("short", 20),
        ("segment", 16_384),
        ("long", 300_001),
    ] {
        folder.write(name, &bytes(len));
    }
    folder.write(".hidden", b"no");
    let (server, entity) = serve(&net, &folder);
    let out = folder.path("out");
    for (name, len) in [
        ("empty", 0),
        ("short", 20),
        ("segment", 16_384),
        ("long", 300_001),
    ] {
        // By the group of all file servers, and by the server's name.
        for choice in [&[][..], &["--server", &entity][..]] {
            let ended = client(&net.a, &[&["read", name, "-o", &out][..], choice].concat());
            assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
            assert!(std::fs::read(&out).unwrap() == bytes(len), "{name} differs");
        }
    }
    for name in ["absent", ".hidden", "../vmtp-read/short", "/"] {
        let ended = client(&net.a, &["read", name]);
        let code = if name == "/" { 2 } else { 1 };
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(code), ""),
            "{name}: {ended:?}"
        );
    }
    let ended = client(&net.a, &["read", "absent"]);
    assert!(
        ended.stderr.contains("absent: there is no such file"),
        "{ended:?}"
    );
    let ended = server.stop();
    assert_eq!(ended.stdout, "");
}

#[test]
fn servers_are_found_and_probed() {
    let Some(net) = net() else { return };
    let folder = Folder::new("vmtp-ping");
    let (server, entity) = serve(&net, &folder);
    let found = client(&net.a, &["ping", "--json"]);
    assert_eq!(found.json()["servers"][0], *entity, "{found:?}");
    let pinged = client(&net.a, &["ping", &entity, "--count", "20", "--json"]);
    assert_eq!(pinged.json()["answered"], 20, "{pinged:?}");
    assert!(pinged.json()["microseconds"]["median"].as_f64().unwrap() > 0.0);
    // Another number is another port's.
    let number = entity.replace("1045@", "7@");
    let absent = client(&net.a, &["ping", &number]);
    assert_eq!(absent.code, Some(1), "{absent:?}");
    assert!(absent.stderr.contains("does not answer"), "{absent:?}");
    server.stop();
    let silent = client(&net.a, &["ping"]);
    assert_eq!(silent.code, Some(1), "{silent:?}");
    assert!(silent.stderr.contains("no VMTP host on eth0"), "{silent:?}");
}

#[test]
fn a_second_implementation_reads_through_loss() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("vmtp-python");
    folder.write("file", &bytes(100_000));
    let (server, entity) = serve(&net, &folder);
    for (from, loss) in [("any", "0"), (&*entity, "15")] {
        let out = folder.path("out");
        let own = "9@10.99.0.1";
        let ended = python(&net.a, &["read", "eth0", own, from, "file", loss, &out]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            std::fs::read(&out).unwrap() == bytes(100_000),
            "loss {loss}"
        );
        std::fs::remove_file(&out).unwrap();
    }
    // Five copies of a request: one execution, one response of three packets.
    folder.write("three", &bytes(3000));
    let ended = python(&net.a, &["twice", "eth0", "11@10.99.0.1", &entity, "three"]).end();
    let mut words = ended.stdout.split_whitespace();
    let probes: u32 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    assert!(probes >= 1, "{ended:?}");
    assert_eq!(words.next(), Some("3"), "{ended:?}");
    server.stop();
}

#[test]
fn a_second_implementation_is_read_from_through_loss() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let folder = Folder::new("vmtp-from-python");
    let path = folder.write("original", &bytes(100_000));
    let out = folder.path("out");
    let own = "1045@10.99.0.2";
    let server = python(&net.b, &["serve", "eth0", own, "file", "15", &path]).until("ready");
    let ended = client(&net.a, &["read", "file", "--server", own, "-o", &out]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(std::fs::read(&out).unwrap() == bytes(100_000));
    server.signal(Signal::KILL);
    // Seven parts, each executed once whatever was lost.
    let said = server.end().stderr;
    let executed = said
        .lines()
        .filter(|line| line.starts_with("executed"))
        .count();
    assert_eq!(executed, 7, "{said}");
}

#[test]
fn a_file_without_end_is_an_error() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["python3"]) {
        return;
    }
    let own = "77@10.99.0.2";
    let server = python(&net.b, &["endless", "eth0", own]).until("ready");
    let ended = client(&net.a, &["read", "file", "--server", own]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = format!("{own}: file: only 1 of 16384 bytes at 0 came");
    assert!(ended.stderr.contains(&said), "{ended:?}");
    server.signal(Signal::KILL);
    server.end();
}

#[test]
fn an_ordinary_user_serves_as_the_policy_grants() {
    let Some(net) = net() else { return };
    let folder = open_folder("vmtp-nobody");
    folder.write("file", b"of nobody");
    let (socket, keep) = (folder.path("socket"), folder.path("keep"));
    let policy = format!(
        "[[grant]]\nusers = [{NOBODY}]\ninterfaces = ['eth0']\nfilter = 'ether proto 0x805b'\n\
         send = {{ ethertypes = [0x805b] }}\n"
    );
    let config = folder.write("policy.toml", policy.as_bytes());
    let broker = [
        "broker", "--config", &config, "--socket", &socket, "--keep", &keep,
    ];
    let broker = net.weir(&broker).until("listens on");
    let served = folder.path("");
    let words = ["vmtp", "serve", &served, "--broker", &socket];
    let server = net
        .weir_as_nobody(&[&words[..], &LINK].concat())
        .until("ready");
    let read = client(&net.a, &["read", "file"]);
    assert_eq!(
        (read.code, &*read.stdout),
        (Some(0), "of nobody"),
        "{read:?}"
    );
    server.stop();
    broker.signal(Signal::TERM);
    broker.end();
    let clean = ["broker", "--clean", "--socket", &socket, "--keep", &keep];
    assert_eq!(net.weir(&clean).end().code, Some(0));
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(net) = net() else { return };
    for (words, code, said) in [
        (&["ping", "--link", "tap:tap0"][..], 2, "write port:IF"),
        (&["ping", "--link", "port:eth9"], 1, "eth9"),
        (&["ping", "1045", "--link", "eth0"], 2, "is no VMTP entity"),
        (
            &["serve", "/nonexistent", "--link", "eth0"],
            1,
            "/nonexistent",
        ),
        (
            &["read", "file", "--link", "eth0"],
            1,
            "no file server on eth0 answers",
        ),
    ] {
        let ended = Running::start(&net.a, weir(["vmtp"]), words).end();
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {ended:?}");
    }
}
