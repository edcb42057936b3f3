//! FreeRADIUS' `radclient` as the access server.

use super::sniff::{SETTLING, answered, logged};
use super::{meter, packets, write_radius_config};
use crate::common::Folder;
use crate::live::{Net, Running};
use crate::net;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Output;
use std::time::Duration;
use weir_lab::net::Signal;
use weir_lab::rng::Rng;
use weir_lab::{testenv, wait};
use weir_ledger::SessionLog;
use weir_meter::sessions::Sessions;
use weir_meter::{Key, KeyKind, SessionEventKind};

pub(super) const SESSIONS: u32 = 10_000;
/// Addresses, each of which passes from session to session.
const ADDRESSES: u32 = 3_000;

/// Requests of one `radclient`.
const PART: usize = 1000;

/// A request of `radclient`.
fn request(status: &str, session: u32, address: u32, delay_s: u32) -> String {
    let [_, _, high, low] = address.to_be_bytes();
    format!(
        "Acct-Status-Type = {status}\nAcct-Session-Id = \"s{session}\"\nUser-Name = \"u{session}\"\n\
         NAS-Identifier = \"nas{}\"\nFramed-IP-Address = 10.9.{high}.{low}\n\
         Acct-Delay-Time = {delay_s}\nAcct-Session-Time = 1\n",
        session % 7
    )
}

/// What the requests come to: sessions that run, whose each address is, and the events of the log:
/// Start or Stop, session and address.
#[derive(Default)]
pub(super) struct Model {
    running: Vec<u32>,
    owners: HashMap<u32, u32>,
    events: Vec<(&'static str, u32, u32)>,
}

/// Requests of sessions that begin, repeat themselves, end, and end before they begin, and each
/// address again and again.
pub(super) fn requests(seed: u64) -> (Vec<String>, Model) {
    let mut random = Rng::new(seed);
    let (mut requests, mut model) = (Vec::new(), Model::default());
    for session in 0..SESSIONS {
        let address = random.below(ADDRESSES as usize) as u32;
        let start = request("Start", session, address, 0);
        let ends = match random.below(10) {
            // Never begun: its Start is late.
            0 => {
                requests.push(request("Stop", session, address, 0));
                requests.push(request("Start", session, address, 8));
                model.events.push(("Stop", session, address));
                continue;
            }
            1..=6 => true,
            _ => false,
        };
        requests.push(start.clone());
        model.events.push(("Start", session, address));
        if random.below(3) == 0 {
            requests.push(start);
        }
        if random.below(2) == 0 {
            requests.push(request("Interim-Update", session, address, 0));
        }
        if ends {
            let stop = request("Stop", session, address, 0);
            requests.extend([stop.clone(), stop]);
            // Late: nothing.
            requests.push(request("Interim-Update", session, address, 4));
            model.events.push(("Stop", session, address));
            model.owners.remove(&address);
        } else {
            model.running.push(session);
            model.owners.insert(address, session);
        }
    }
    (requests, model)
}

/// The events that answered requests stand for, by status and session: the first one that begins a
/// session which has not ended, and its first end.
fn events(answered: Vec<(String, String)>) -> Vec<(String, String)> {
    let (mut begun, mut ended) = (HashSet::new(), HashSet::new());
    let mut events = answered;
    events.retain_mut(|(status, session)| {
        if status == "Stop" {
            return ended.insert(session.clone());
        }
        // An Interim-Update may be the first event received.
        "Start".clone_into(status);
        !ended.contains(session) && begun.insert(session.clone())
    });
    events
}

fn said(output: &Output, what: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains(what));
    let number = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no `{what}`: {text} {output:?}"))
}

/// The configuration of a counter that has room for all sessions.
pub(super) fn write_config(folder: &Folder) {
    write_radius_config(folder);
    let config = folder.path("counter.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("capacity = 64", "capacity = 12000");
    fs::write(&config, text).unwrap();
}

/// `radclient`, and what passes between it and the counter.
pub(super) struct Client<'a> {
    pub(super) net: &'a Net,
    pub(super) folder: &'a Folder,
    /// The port and the secret of the server that it asks.
    pub(super) port: u16,
    pub(super) secret: &'a str,
}

impl Client<'_> {
    fn send(&self, requests: &[String], secret: &str, more: &[&str]) -> Output {
        let mut text = String::new();
        for request in requests {
            writeln!(text, "{request}").unwrap();
        }
        fs::write(self.folder.path("requests"), text).unwrap();
        let mut client = testenv::program("radclient").unwrap();
        client.args(["-f", &self.folder.path("requests"), "-q", "-s"]);
        client.args(more);
        client.args([&format!("127.0.0.1:{}", self.port), "acct", secret]);
        self.net.b.output(client).unwrap()
    }

    /// Captures the exchange with each of these ports.
    pub(super) fn capture(&self, ports: &[u16]) -> Running {
        let ports: Vec<String> = ports.iter().map(|port| format!("port {port}")).collect();
        // All of it is in the file, however slow `radsniff` is.
        let mut capture = testenv::program("tcpdump").unwrap();
        // Room for all packets: of the default length the buffer holds 256, too few on a busy machine.
        capture.args(["-i", "lo", "-B", "65536", "-s", "2048"]);
        capture.args(["--immediate-mode", "-U", "-Z", "root"]);
        capture.args(["-w", &self.folder.path("pcap")]);
        capture.arg(format!("udp and ({})", ports.join(" or ")));
        Running::start(&self.net.b, capture, &[]).until("listening on")
    }

    /// Sends all requests, each until it is answered, in their order.
    pub(super) fn send_all(&self, requests: &[String]) {
        // Sent in the order of the file, which a socket keeps: the model depends on it. radclient looks
        // through its whole file for each, so it has many short ones.
        for part in requests.chunks(PART) {
            let sent = self.send(part, self.secret, &["-p", "50", "-r", "3", "-t", "20"]);
            assert_eq!(said(&sent, "Lost"), 0, "{sent:?}");
        }
    }

    /// Sends five requests with a wrong secret, which are not answered.
    pub(super) fn guess(&self, requests: &[String]) {
        let more = ["-p", "5", "-r", "1", "-t", "0.2"];
        let wrong = self.send(&requests[..5], "guess", &more);
        assert_eq!(said(&wrong, "Lost"), 5, "{wrong:?}");
    }

    /// Begins a further session, whose packets are then its own.
    pub(super) fn begin_last(&self) {
        let last = request("Start", SESSIONS, 0, 0).replace("10.9.0.0", "10.0.0.1");
        assert_eq!(said(&self.send(&[last], self.secret, &[]), "Lost"), 0);
        self.net.send(9, 100);
    }

    /// Waits until the capture has the further session on this many ports, and what follows it: a busy
    /// machine captures late, and what is not captured when it ends is lost.
    pub(super) fn until_captured(&self, ports: usize) {
        let name = format!("u{SESSIONS}").into_bytes();
        wait::until("the last session's exchange in the capture", || {
            std::thread::sleep(Duration::from_millis(50));
            let file = File::open(self.folder.path("pcap")).unwrap();
            let length = file.metadata().unwrap().len();
            let from = length.saturating_sub(4096);
            let mut last = vec![0; (length - from) as usize];
            file.read_exact_at(&mut last, from).unwrap();
            let found = last.windows(name.len()).filter(|it| **it == *name);
            found.count() >= ports
        });
        std::thread::sleep(SETTLING);
    }

    /// What `radsniff` saw answered on a port.
    pub(super) fn seen(&self, port: u16) -> Vec<(String, String)> {
        let mut radsniff = testenv::program("radsniff").unwrap();
        let port = port.to_string();
        radsniff.args(["-I", &self.folder.path("pcap"), "-x", "-p", &port]);
        radsniff.args(["-f", &format!("udp port {port}")]);
        // By default an answer later than 5.2 s by the clock of the machine is no answer to it.
        radsniff.args(["-T", "3600000"]);
        let printed = radsniff.output().unwrap().stdout;
        let printed = String::from_utf8_lossy(&printed);
        // What it finds wrong with a packet, which explains a missing answer.
        for line in printed.lines().filter(|line| line.contains(" ** ")) {
            println!("radsniff: {line}");
        }
        answered(&printed)
    }
}

impl Model {
    /// Status and session of the events of the log.
    fn expected(&self) -> Vec<(String, String)> {
        let events = self.events.iter();
        let mut expected: Vec<(String, String)> = events
            .map(|(kind, session, _)| ((*kind).to_owned(), format!("s{session}")))
            .collect();
        expected.push(("Start".to_owned(), format!("s{SESSIONS}")));
        expected
    }

    /// What the log comes to is what the requests came to, and what another program saw on the way.
    pub(super) fn check(&self, folder: &Folder, seen: Vec<(String, String)>) {
        assert_eq!(packets(folder, &format!("u{SESSIONS}")), [100, 0]);
        let log = SessionLog::beside(folder.path("test.spool").as_ref()).unwrap();
        let log = log.events(0, u32::MAX >> 1).unwrap();
        assert_eq!(logged(&log), self.expected());
        assert_eq!(events(seen), self.expected());
        for (event, (_, session, address)) in log.iter().zip(&self.events) {
            let (SessionEventKind::Up(info) | SessionEventKind::Down(info)) = &event.kind else {
                panic!("{event:?}")
            };
            let [_, _, high, low] = address.to_be_bytes();
            assert_eq!(info.keys, [Key::Ipv4([10, 9, high, low].into())]);
            assert_eq!(info.subscriber, format!("u{session}"));
        }
        let mut table = Sessions::new(12_000, &[KeyKind::Ipv4], 1);
        for event in &log {
            table.apply(event).unwrap();
        }
        let mut running: Vec<String> = table
            .iter()
            .filter(|(_, session)| !session.has_ended)
            .map(|(_, session)| session.info.subscriber.clone())
            .collect();
        let names = self.running.iter().chain([&SESSIONS]);
        let mut expected: Vec<String> = names.map(|session| format!("u{session}")).collect();
        running.sort_unstable();
        expected.sort_unstable();
        assert_eq!(running, expected);
        for address in 0..ADDRESSES {
            let [_, _, high, low] = address.to_be_bytes();
            let slot = table.of_key(&Key::Ipv4([10, 9, high, low].into()));
            let owner = slot.and_then(|slot| Some(table.get(slot)?.info.subscriber.clone()));
            let expected = self.owners.get(&address);
            let expected = expected.map(|session| format!("u{session}"));
            assert_eq!(owner, expected, "10.9.{high}.{low}");
        }
    }
}

/// Sessions of `radclient`, with duplicates, reordering and addresses that pass on: the log has what was
/// sent, and what `radsniff` saw answered.
#[test]
fn ten_thousand_sessions_of_radclient_come_to_what_they_say() {
    let Some(net) = net() else { return };
    if !testenv::programs(&["radclient", "radsniff", "tcpdump"]) {
        return;
    }
    let folder = Folder::new("live-meter-radclient");
    write_config(&folder);
    let running = meter(&net, &folder, &["--json"]);
    // One run, of seed 0 or WEIR_SEED.
    let mut seeds = weir_lab::seeds::seeds(1);
    let (requests, model) = requests(seeds.next().unwrap());
    let client = Client {
        net: &net,
        folder: &folder,
        port: 1813,
        secret: "s3cret",
    };
    let capture = client.capture(&[1813]);
    client.send_all(&requests);
    client.guess(&requests);
    client.begin_last();
    client.until_captured(1);
    capture.signal_at_once(Signal::INT);
    let captured = capture.end();
    let seen = client.seen(1813);
    let ended = running.stop();
    let radius = &ended.json()["radius"];
    assert_eq!(radius["bad_authenticators"], 5, "{ended:?}");
    assert_eq!(radius["answered"], requests.len() as u64 + 1, "{ended:?}");
    assert_eq!(seen.len(), requests.len() + 1, "{captured:?}");
    model.check(&folder, seen);
}
