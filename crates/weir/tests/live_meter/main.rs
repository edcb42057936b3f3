//! `weir meter` on a live link: every frame is in one record, whatever happens to the process.

mod beside;
#[path = "../common/mod.rs"]
mod common;
mod dynamic;
mod faults;
mod freeradius;
mod kills;
#[path = "../common/live.rs"]
mod live;
mod measures;
mod pins;
mod radclient;
mod sniff;

use common::counters::PINS;
use common::{Folder, stdout, weir};
use live::{Net, Running};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::testenv;
use weir_ledger::{Ledger, UsageQuery};
use weir_meter::OwnerKind;
use weir_meter::radius::packet::{ACCOUNTING_RESPONSE, attribute, request};

/// A `counter.toml` with more text at its end.
fn write_config(folder: &Folder, more: &str) -> String {
    let path = folder.path("counter.toml");
    let text = format!(
        "counter = \"test\"\nperiod = \"1s\"\ncapacity = 64\nunattributed_max = 256\n{more}\n\
         [[link]]\ninside = \"eth0\"\n[services]\ntest = {{ udp = [9] }}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// Packets of UDP port 9 from the ledger: of the subscriber, and of no session.
fn packets(folder: &Folder, subscriber: &str) -> [u64; 2] {
    let ledger = Ledger::open(folder.path("usage.db").as_ref()).unwrap();
    let query = UsageQuery {
        service: Some("test".to_owned()),
        ..UsageQuery::default()
    };
    let rows = ledger.usage(&query, &jiff::tz::TimeZone::UTC).unwrap();
    let sum = |of_session: bool| {
        let rows = rows.iter().filter(|row| {
            let is_session = row.owner == OwnerKind::Session && row.subscriber == subscriber;
            is_session == of_session
        });
        rows.map(|row| row.packets[0]).sum()
    };
    [sum(true), sum(false)]
}

/// Two hosts; what is metered in b is pinned in file systems of the test's own, which go with it.
fn net() -> Option<Net> {
    let net = live::net()?;
    net.b.own_pins().unwrap();
    Some(net)
}

/// The folders of pins.
fn pins(net: &Net) -> Vec<PathBuf> {
    let folder = net.b.seen(PINS.as_ref());
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    // The file system has two files of the kernel's own.
    paths.filter(|path| path.is_dir()).collect()
}

fn meter(net: &Net, folder: &Folder, more: &[&str]) -> Running {
    let (config, store) = (folder.path("counter.toml"), folder.path("usage.db"));
    let mut arguments = vec!["meter", "--config", &config, "--store", &store];
    arguments.extend(more);
    net.weir(&arguments).until("ready")
}

#[test]
fn a_killed_counter_misses_no_frame_and_counts_none_twice() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-kill");
    let address = "10.0.0.1";
    let list = format!("subscriber,keys\nalice,{address}\n");
    fs::write(folder.path("subscribers.csv"), list).unwrap();
    write_config(&folder, "subscribers = \"subscribers.csv\"");
    let mut sent = 0;
    for round in 0..6 {
        let running = meter(&net, &folder, &[]);
        net.send(9, 500);
        // Once in the middle of a period, once soon after a cut.
        std::thread::sleep(Duration::from_millis(150 * round));
        running.signal(Signal::KILL);
        running.end();
        // While no process runs, the kernel counts.
        net.send(9, 500);
        sent += 1000;
    }
    let ended = meter(&net, &folder, &["--json"]).stop();
    assert!(ended.json()["periods"].as_u64().unwrap() >= 1, "{ended:?}");
    assert_eq!(packets(&folder, "alice"), [sent, 0]);
    let store = folder.path("usage.db");
    let proof = weir(["usage", "--store", &store, "--prove"])
        .output()
        .unwrap();
    assert!(proof.status.success(), "{proof:?}");
    assert!(
        stdout(&proof).contains("link = sessions + unattributed"),
        "{proof:?}"
    );
    // Nothing counts any more, and nothing is left.
    assert_eq!(pins(&net), Vec::<PathBuf>::new());
    net.send(9, 10);
    let ended = meter(&net, &folder, &["--json"]).stop();
    assert_eq!(ended.code, Some(0));
    assert_eq!(packets(&folder, "alice"), [sent, 0]);
}

/// The file `secret`, with `s3cret`.
fn write_secret(folder: &Folder) {
    let secret = folder.path("secret");
    fs::write(&secret, "s3cret\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A configuration with RADIUS, whose secret is `s3cret`.
fn write_radius_config(folder: &Folder) {
    write_secret(folder);
    write_config(
        folder,
        "[radius]\nlisten = \"127.0.0.1:1813\"\n[[radius.client]]\naddress = \"127.0.0.1\"\n\
         secret_file = \"secret\"\n",
    );
}

/// An access server, on the counter's host.
struct AccessServer(UdpSocket);

impl AccessServer {
    fn new(net: &Net) -> AccessServer {
        let socket = net.b.run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.connect("127.0.0.1:1813").unwrap();
        AccessServer(socket)
    }

    /// Sends a request for alice's session at 10.0.0.1: 1 for Start, 2 for Stop.
    fn send(&self, identifier: u8, status: u8, seconds: u8) {
        let attributes: [(u8, &[u8]); 5] = [
            (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, status]),
            (attribute::ACCT_SESSION_ID, b"session"),
            (attribute::USER_NAME, b"alice"),
            (attribute::FRAMED_IP_ADDRESS, &[10, 0, 0, 1]),
            (attribute::ACCT_SESSION_TIME, &[0, 0, 0, seconds]),
        ];
        let request = request(identifier, &attributes, b"s3cret");
        self.0.send(&request).unwrap();
    }

    /// The identifier of an answer that comes within this time.
    fn answer(&self, within: Duration) -> Option<u8> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut answer = [0; 64];
        let length = self.0.recv(&mut answer).ok()?;
        assert_eq!((length, answer[0]), (20, ACCOUNTING_RESPONSE));
        Some(answer[1])
    }
}

#[test]
fn a_radius_session_owns_its_address_while_it_lasts() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-radius");
    write_radius_config(&folder);
    let server = AccessServer::new(&net);
    let account = |identifier: u8, status: u8, seconds: u8| {
        server.send(identifier, status, seconds);
        let answer = server.answer(Duration::from_secs(10));
        assert_eq!(answer, Some(identifier));
    };
    let running = meter(&net, &folder, &[]);
    net.send(9, 100);
    account(1, 1, 0);
    net.send(9, 200);
    running.signal(Signal::KILL);
    running.end();
    // The next process knows the session from the log.
    net.send(9, 300);
    let running = meter(&net, &folder, &["--json"]);
    net.send(9, 400);
    account(2, 2, 1);
    net.send(9, 50);
    let ended = running.stop();
    assert_eq!(ended.json()["radius"]["answered"], 1, "{ended:?}");
    assert_eq!(packets(&folder, "alice"), [900, 150]);
}

#[test]
fn what_cannot_be_metered_is_refused_with_a_remedy() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-refused");
    let config = write_config(&folder, "");
    let store = folder.path("usage.db");
    let first = meter(&net, &folder, &[]);
    let began = Instant::now();
    let second = net
        .weir(&["meter", "--config", &config, "--store", &store])
        .end();
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(
        second.stderr.contains("eth0 is metered already by process"),
        "{second:?}"
    );
    first.stop();
    for (more, why) in [
        (
            "each_address = true",
            "each_address: counted in captures only",
        ),
        ("[radius]\nlisten = \"[::]:1813\"", "[[radius.client]]"),
    ] {
        write_config(&folder, more);
        let ended = net
            .weir(&["meter", "--config", &config, "--store", &store])
            .end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
}

#[test]
fn counters_of_an_earlier_configuration_are_the_sessions_last_periods() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-previous");
    let list = "subscriber,keys\nalice,10.0.0.1\n";
    fs::write(folder.path("subscribers.csv"), list).unwrap();
    let config = write_config(&folder, "subscribers = \"subscribers.csv\"");
    let running = meter(&net, &folder, &[]);
    net.send(9, 300);
    running.signal(Signal::KILL);
    running.end();
    net.send(9, 200);
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("capacity = 64", "capacity = 65");
    fs::write(&config, text).unwrap();
    let running = meter(&net, &folder, &[]);
    assert!(running.said().contains("earlier configuration"));
    net.send(9, 100);
    running.stop();
    assert_eq!(packets(&folder, "alice"), [600, 0]);
}

#[test]
fn clean_takes_everything_off_the_link() {
    let Some(net) = net() else { return };
    let folder = Folder::new("live-meter-clean");
    let config = write_config(&folder, "");
    let running = meter(&net, &folder, &[]);
    running.signal(Signal::KILL);
    running.end();
    assert_eq!(pins(&net).len(), 1);
    for _ in 0..2 {
        let ended = net.weir(&["meter", "--config", &config, "--clean"]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(pins(&net), Vec::<PathBuf>::new());
    }
    net.send(9, 100);
    meter(&net, &folder, &[]).stop();
    assert_eq!(packets(&folder, "nobody"), [0, 0]);
}

#[test]
fn a_capacity_beyond_the_kernels_is_refused_before_it_runs() {
    let folder = Folder::new("live-meter-capacity");
    let config = write_config(&folder, "");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("capacity = 64", "capacity = 4194305");
    fs::write(&config, text).unwrap();
    let checked = weir(["meter", "--config", &config, "--check"])
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(errors.contains("at most 4194304"), "{errors}");
}

#[test]
fn an_interface_that_goes_ends_the_counter_with_its_records() {
    let Some(net) = net() else { return };
    let Some(mut ip) = testenv::program("ip") else {
        return;
    };
    let folder = Folder::new("live-meter-gone");
    write_config(&folder, "");
    let running = meter(&net, &folder, &[]);
    net.send(9, 100);
    ip.args(["link", "delete", "eth0"]);
    let deleted = net.b.output(ip).unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("eth0 has gone"), "{ended:?}");
    assert_eq!(packets(&folder, "nobody"), [0, 100]);
}
