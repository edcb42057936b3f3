//! What goes wrong around a counter: disks, links, lists and stores.

use super::{AccessServer, meter, packets, write_config, write_radius_config};
use crate::common::{Folder, stdout, weir};
use crate::live::{Running, WAIT_MAX};
use crate::net;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_lab::command::Command;
use weir_lab::net::{Process, Signal};
use weir_lab::testenv;
use weir_lab::wait::Limited;
use weir_ledger::{Ledger, SessionLog, Spool};
use weir_meter::radius::packet::{attribute, request};
use weir_meter::{Chunk, ChunkId, Manifest, SessionSource, Totals};

/// The proof of all periods.
fn proof(folder: &Folder) -> Value {
    let store = folder.path("usage.db");
    let proof = weir(["usage", "--store", &store, "--prove", "--json"]);
    let proof = { proof }.output().unwrap();
    serde_json::from_str(&stdout(&proof)).unwrap_or_else(|error| panic!("{error}: {proof:?}"))
}

/// Waits until this holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The spool is on a small file system of the counter's own, which another program fills.
#[test]
fn a_full_disk_delays_records_and_answers_and_loses_neither() {
    let Some(net) = net() else { return };
    let Some(unshare) = testenv::program("unshare") else {
        return;
    };
    if !testenv::programs(&["mount", "sh"]) {
        return;
    }
    let folder = Folder::new("live-meter-full");
    write_radius_config(&folder);
    let small = folder.path("small");
    fs::create_dir(&small).unwrap();
    let mut command: Command = unshare;
    command.args(["--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs -o size=2m tmpfs \"$1\" && shift && exec \"$@\"");
    command.args(["sh", &small, env!("CARGO_BIN_EXE_weir")]);
    let (config, store) = (folder.path("counter.toml"), folder.path("usage.db"));
    let spool = format!("{small}/spool");
    let arguments = [
        "meter", "--config", &config, "--store", &store, "--spool", &spool, "--json",
    ];
    let running = Running::start(&net.b, command, &arguments).until("ready");
    let server = AccessServer::new(&net);
    server.send(1, 1, 0);
    assert_eq!(server.answer(WAIT_MAX), Some(1));
    net.send(9, 100);
    // Its mount, by way of its process.
    let inside = PathBuf::from(format!("/proc/{}/root{small}", running.id()));
    let filler = inside.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    for piece in [1 << 16, 512, 1] {
        while file.write_all(&vec![0; piece]).is_ok() {}
    }
    drop(file);
    net.send(9, 200);
    let running = running.until("make room on its disk");
    // The end of the session is not durable, and not answered, however often it is sent.
    for _ in 0..3 {
        server.send(2, 2, 1);
        assert_eq!(server.answer(Duration::from_millis(100)), None);
    }
    // Periods go on after the end of the session: nothing of them is lost.
    net.send(9, 50);
    std::thread::sleep(Duration::from_millis(1100));
    fs::remove_file(&filler).unwrap();
    wait_until("an answer when there is room", || {
        server.send(3, 2, 1);
        server.answer(Duration::from_millis(500)) == Some(3)
    });
    let running = running.until("records: works again");
    // The log is in the same file system: it is copied before that goes.
    for end in ["", "-wal"] {
        let name = format!("spool.sessions{end}");
        fs::copy(inside.join(&name), folder.path(&name)).unwrap();
    }
    let log = SessionLog::beside(folder.path("spool").as_ref()).unwrap();
    let events = log.events(0, 100).unwrap();
    let sources = events.iter().map(|event| event.source);
    assert!(sources.eq([SessionSource::Radius; 2]), "{events:?}");
    drop(log);
    net.send(9, 25);
    let ended = running.stop();
    let radius = &ended.json()["radius"];
    assert!(radius["not_durable"].as_u64().unwrap() >= 1, "{ended:?}");
    assert_eq!(packets(&folder, "alice"), [300, 75]);
    assert_eq!(proof(&folder)["holds"], true);
}

/// The kernel has a session's key before the disk has its event. A kill in between loses and doubles
/// no frame: nothing was answered, and the session begins with the client's next attempt. It has the row
/// again in which its frames were counted, if the request says when it began.
#[test]
fn a_kill_before_a_start_is_durable_loses_no_frame() {
    // Without a time it began when the request came: in another second.
    for (has_time, wait_ms, expected) in [(true, 300, [160, 30]), (false, 1500, [40, 150])] {
        let Some(net) = net() else { return };
        let folder = Folder::new("live-meter-undurable");
        write_radius_config(&folder);
        let config = folder.path("counter.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("\"1s\"", "\"1h\"")).unwrap();
        let running = meter(&net, &folder, &[]);
        let Some(lock) = write_lock(&folder.path("test.spool.sessions")) else {
            return;
        };
        let server = AccessServer::new(&net);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let began = u32::try_from(began.as_secs() - 10).unwrap().to_be_bytes();
        let start = |identifier: u8| {
            let attributes: [(u8, &[u8]); 5] = [
                (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
                (attribute::ACCT_SESSION_ID, b"session"),
                (attribute::USER_NAME, b"alice"),
                (attribute::FRAMED_IP_ADDRESS, &[10, 0, 0, 1]),
                (attribute::EVENT_TIMESTAMP, &began),
            ];
            let some = &attributes[..4 + usize::from(has_time)];
            server
                .0
                .send(&request(identifier, some, b"s3cret"))
                .unwrap();
        };
        start(1);
        assert_eq!(server.answer(Duration::from_millis(wait_ms)), None);
        net.send(9, 100);
        running.signal(Signal::KILL);
        running.end();
        drop(lock);
        net.send(9, 20);
        let running = meter(&net, &folder, &[]);
        // The session is not known.
        net.send(9, 30);
        start(2);
        assert_eq!(server.answer(WAIT_MAX), Some(2));
        net.send(9, 40);
        running.stop();
        assert_eq!(packets(&folder, "alice"), expected, "{has_time}");
        assert_eq!(proof(&folder)["holds"], true);
    }
}

/// Another program that keeps a database from being written, as long as this lasts.
fn write_lock(path: &str) -> Option<Process> {
    let mut command = testenv::program("sqlite3")?;
    command
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let input = process.child_mut().stdin.as_mut().unwrap();
    let text = b"BEGIN IMMEDIATE;\nSELECT 'held';\n";
    input.write_all(text).unwrap();
    let output = process.child_mut().stdout.take().unwrap();
    let mut line = String::new();
    BufReader::new(Limited::new(output, "the lock"))
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "held\n");
    Some(process)
}

#[test]
fn a_link_that_was_made_again_is_a_gap() {
    let Some(net) = net() else { return };
    let Some(mut remove) = testenv::program("ip") else {
        return;
    };
    let Some(mut make) = testenv::program("ip") else {
        return;
    };
    let folder = Folder::new("live-meter-again");
    write_config(&folder, "");
    let running = meter(&net, &folder, &[]);
    net.send(9, 100);
    running.signal(Signal::KILL);
    running.end();
    net.send(9, 20);
    remove.args(["link", "delete", "eth0"]);
    assert!(net.b.output(remove).unwrap().status.success());
    make.args([
        "link", "add", "eth0", "type", "veth", "peer", "name", "other",
    ]);
    assert!(net.b.output(make).unwrap().status.success());
    meter(&net, &folder, &[]).stop();
    // The counters outlived the link, and what is missing is said.
    assert_eq!(packets(&folder, "nobody"), [0, 120]);
    let proof = proof(&folder);
    let periods = proof["periods"].as_array().unwrap();
    let gaps = periods
        .iter()
        .filter(|period| !period["gap_unix_ns"].is_null());
    assert_eq!(gaps.count(), 1, "{proof}");
}

#[test]
fn a_subscriber_that_leaves_the_list_owns_what_was_counted_for_it() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-left");
    let list = |lines: &str| {
        let text = format!("subscriber,keys\n{lines}\n");
        fs::write(folder.path("subscribers.csv"), text).unwrap();
    };
    write_config(&folder, "subscribers = \"subscribers.csv\"");
    list("alice,10.0.0.1\nbob,10.0.0.9");
    let running = meter(&net, &folder, &[]);
    net.send(9, 100);
    running.signal(Signal::KILL);
    running.end();
    net.send(9, 50);
    list("bob,10.0.0.1");
    let running = meter(&net, &folder, &[]);
    net.send(9, 30);
    running.signal(Signal::KILL);
    running.end();
    // Alice is back: the earlier end is no end of this session.
    list("alice,10.0.0.1");
    let running = meter(&net, &folder, &[]);
    net.send(9, 7);
    running.stop();
    assert_eq!(packets(&folder, "alice"), [157, 30]);
    assert_eq!(packets(&folder, "bob"), [30, 157]);
}

/// A chunk that the ledger has with other content, as of two counters with one name.
#[test]
fn a_chunk_that_the_ledger_refuses_holds_up_no_other() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-refused-chunk");
    write_config(&folder, "");
    let chunk = |link: u64| Chunk {
        manifest: Manifest {
            id: ChunkId {
                counter: "test".to_owned(),
                boot_epoch: 1,
                period: 0,
                number: 0,
            },
            last: true,
            monotonic_ns: [0, link],
            unix_ns: [0, 1_000_000_000],
            wall_step_ns: 0,
            records: 0,
            totals: Totals::default(),
            link: Totals::default(),
            lost_inside: 0,
            gap_unix_ns: None,
            interfaces: Vec::new(),
            previous: [0; 32],
        },
        measures: Vec::new(),
        services: Vec::new(),
        owners: Vec::new(),
        records: Vec::new(),
    };
    let mut ledger = Ledger::open(folder.path("usage.db").as_ref()).unwrap();
    ledger.accept(&weir_ledger::encode(&chunk(1))).unwrap();
    drop(ledger);
    let spool = || Spool::open(folder.path("test.spool").as_ref()).unwrap();
    spool().store(&mut [chunk(2)], &[]).unwrap();
    let running = meter(&net, &folder, &[]);
    net.send(9, 40);
    let running = running.until("it stays in the spool");
    running.stop();
    assert_eq!(packets(&folder, "nobody"), [0, 40]);
    assert_eq!(spool().waiting().unwrap(), 1);
}
