//! `--meter` of bridge and router, `weir meter` in the wire and at a mirror port: what the generator
//! sends is what the records have, whatever happens to the process that forwards.

mod chain;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/live.rs"]
mod live;
mod mirror;
mod policing;
mod route;

use common::{Folder, counters, stdout, weir};
use live::{Ended, Running, WAIT_MAX};
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use weir_lab::load::{Generator, Rate, Sending, Sent, Sink, Udp};
use weir_lab::net::{Device, Host, Linear, Offloads, Signal};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_lab::wait;
use weir_ledger::{Ledger, UsageQuery};
use weir_link::bpf::Hook;
use weir_meter::OwnerKind;

/// The first of the addresses that send, and how many there are; the first half are subscribers.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 0);
const SOURCES: u32 = 200;
/// Where they send to.
const TO: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);

/// The generator's port, which is service `test`.
const PORT: u16 = 5000;

/// Hosts a, middle and b, as a line.
struct Net(Linear);

impl std::ops::Deref for Net {
    type Target = Linear;

    fn deref(&self) -> &Linear {
        &self.0
    }
}

fn net() -> Option<Net> {
    if !testenv::root() {
        return None;
    }
    let net = Net(Linear::new(Offloads::OFF).unwrap());
    // Pins of file systems of the test's own, which go with it.
    net.middle.own_pins().unwrap();
    Some(net)
}

/// Frames of all sources in turn.
fn udp(from: &Device, to: &Device) -> Udp {
    Udp {
        src_addresses: SOURCES,
        dst_port: PORT,
        ..Udp::new(from.mac(), to.mac(), FIRST, TO)
    }
}

/// A counter's configuration, its list of subscribers and its store.
struct Files(Folder);

impl Files {
    fn new(name: &str, more: &str) -> Files {
        let folder = Folder::new(name);
        let mut list = String::from("subscriber,key\n");
        for number in 0..SOURCES / 2 {
            let address = Ipv4Addr::from_bits(FIRST.to_bits() + number);
            list.push_str(&format!("subscriber-{number},{address}\n"));
        }
        fs::write(folder.path("subscribers.csv"), list).unwrap();
        let files = Files(folder);
        files.configure(more);
        files
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "counter = \"test\"\nperiod = \"1s\"\ncapacity = 256\nunattributed_max = 1024\n\
             subscribers = \"subscribers.csv\"\n{more}\n[services]\ntest = {{ udp = [{PORT}] }}\n"
        );
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> String {
        self.0.path("counter.toml")
    }

    fn store(&self) -> String {
        self.0.path("usage.db")
    }

    /// Packets of service `test`, up and down: of subscribers, and of others.
    fn packets(&self) -> [[u64; 2]; 2] {
        let ledger = Ledger::open(self.store().as_ref()).unwrap();
        let query = UsageQuery {
            service: Some("test".to_owned()),
            ..UsageQuery::default()
        };
        let rows = ledger.usage(&query, &jiff::tz::TimeZone::UTC).unwrap();
        let mut sums = [[0; 2]; 2];
        for row in rows {
            let sum = &mut sums[usize::from(row.owner != OwnerKind::Session)];
            sum[0] += row.packets[0];
            sum[1] += row.packets[1];
        }
        sums
    }

    /// The records have what was sent, once, and add up.
    fn assert_has(&self, sent: u64) {
        let [[known, _], [others, _]] = self.packets();
        assert_eq!(known + others, sent);
        // Sources come in turn.
        assert!(known.abs_diff(others) <= sent / 100 + u64::from(SOURCES));
        let store = self.store();
        let proof = weir(["usage", "--store", &store, "--prove"]).output();
        let proof = proof.unwrap();
        assert!(proof.status.success(), "{proof:?}");
        let said = stdout(&proof);
        assert!(said.contains("link = sessions + unattributed"), "{said}");
    }

    /// The interfaces themselves have counted as much, in all periods together.
    fn assert_interfaces_have(&self, sent: u64) {
        let ledger = Ledger::open(self.store().as_ref()).unwrap();
        let periods = ledger.prove(None, None).unwrap().periods;
        let own = periods
            .iter()
            .filter_map(|period| period.interfaces.as_ref());
        let sums = own.fold((0, 0), |(frames, more), it| {
            (frames + it.frames, more + it.more_packets)
        });
        assert_eq!(sums, (sent, 0), "{periods:?}");
    }

    /// Frames that were counted, and then lost inside weir.
    fn lost(&self) -> u64 {
        let ledger = Ledger::open(self.store().as_ref()).unwrap();
        let periods = ledger.prove(None, None).unwrap().periods;
        periods.iter().map(|period| period.lost_inside).sum()
    }

    /// Starts a metered command, until frames flow.
    fn run(&self, host: &Host, arguments: &[&str]) -> Running {
        let (config, store) = (self.config(), self.store());
        let more = ["--meter", &config, "--store", &store];
        let arguments = [arguments, &more].concat();
        Running::start(host, weir([]), &arguments).until("ready")
    }
}

const BRIDGE: &str = "[[link]]\ninside = \"left\"\n";

fn bridge(net: &Net, files: &Files, options: &[&str]) -> Running {
    files.run(
        &net.middle,
        &[&["bridge", "left", "right"], options].concat(),
    )
}

/// Takes off what a bridge has left.
struct Cleaned<'a>(&'a Net);

impl Cleaned<'_> {
    fn clean(&self) -> Ended {
        let arguments = ["bridge", "left", "right", "--clean"];
        Running::start(&self.0.middle, weir([]), &arguments).end()
    }
}

impl Drop for Cleaned<'_> {
    fn drop(&mut self) {
        self.clean();
    }
}

fn wait_sent(sending: &Sending<'_>, more: u64) {
    let until = sending.sent() + more;
    while sending.sent() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills, hangs and restarts of a bridge while frames come, at moments of this seed.
fn through_trouble(name: &str, seed: u64, options: &[&str]) {
    let Some(net) = net() else { return };
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let files = Files::new(name, BRIDGE);
    let _cleaned = Cleaned(&net);
    if options.contains(&"--flow-cache") {
        // As devices that take redirected frames.
        let polling = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        for device in [&net.eth_a, &net.left, &net.right, &net.eth_b] {
            device.set_offloads(polling).unwrap();
        }
    }
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let mut running = Some(bridge(&net, &files, options));
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let sending = generator
        .start(u64::MAX, Rate::PerSecond(20_000.0))
        .unwrap();
    for round in 0..8 {
        wait_sent(&sending, 1000 + rng.below(8000) as u64);
        let now = running.take().unwrap();
        if round % 2 == 0 {
            now.signal(Signal::KILL);
            now.end();
            wait_sent(&sending, rng.below(3000) as u64);
            running = Some(bridge(&net, &files, options));
        } else {
            now.signal(Signal::STOP);
            wait_sent(&sending, 1000 + rng.below(3000) as u64);
            now.signal(Signal::CONT);
            running = Some(now);
        }
    }
    let sent = sending.stop().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    running.unwrap().stop();
    assert!(sink.counted().unwrap().frames > sent.frames / 4, "{sent:?}");
    files.assert_has(sent.frames - sent.dropped);
}

#[test]
fn a_bridge_counts_each_frame_once_through_kills_and_hangs() {
    through_trouble("metering-bridge", 1, &["--hang-ms", "20"]);
}

#[test]
fn with_cached_verdicts_too() {
    through_trouble(
        "metering-cached",
        2,
        &["--hang-ms", "20", "--flow-cache", "on"],
    );
}

#[test]
fn with_the_hosts_bypass_too() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-kernel", BRIDGE);
    let cleaned = Cleaned(&net);
    let options = ["--bypass", "kernel", "--hang-ms", "10000"];
    let running = bridge(&net, &files, &options);
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let rate = Rate::PerSecond(20_000.0);
    let mut sum = 0;
    let mut add = |sent: Sent| sum += sent.frames - sent.dropped;
    add(generator.send(4000, rate).unwrap());
    running.signal(Signal::KILL);
    running.end();
    // The host has them, and they count.
    add(generator.send(4000, rate).unwrap());
    let running = bridge(&net, &files, &options);
    add(generator.send(4000, rate).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    running.stop();
    // The interfaces are as before.
    assert_eq!(net.attached(), [false, false]);
    files.assert_has(sum);
    assert_eq!(cleaned.clean().code, Some(0));
}

/// The programs of the other version go on, which count and forward: the bridge changes neither links nor
/// counters before it knows that it can read them.
#[test]
fn counters_of_another_version_go_on_in_the_wire() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-version", BRIDGE);
    let _cleaned = Cleaned(&net);
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let mut sum = 0;
    let mut send = || {
        let sent = generator.send(2000, Rate::PerSecond(20_000.0)).unwrap();
        sum += sent.frames - sent.dropped;
        sum
    };
    let running = bridge(&net, &files, &[]);
    let first = send();
    running.signal(Signal::KILL);
    running.end();
    let (passed, mut last) = (sink.counted().unwrap().frames, first);
    let version = counters::set_version(&net.middle, 99);
    let (config, store) = (files.config(), files.store());
    for _ in 0..2 {
        let arguments = [
            "bridge", "left", "right", "--meter", &config, "--store", &store,
        ];
        let refused = Running::start(&net.middle, weir([]), &arguments).end();
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for words in ["layout 99", "start the version", "--clean"] {
            assert!(refused.stderr.contains(words), "{refused:?}");
        }
        assert_eq!(net.attached(), [true, true]);
        last = send();
    }
    wait::until("the kernel has forwarded them", || {
        sink.counted().unwrap().frames - passed >= last - first
    });
    // The version that made them finds everything.
    counters::set_version(&net.middle, version);
    let running = bridge(&net, &files, &[]);
    send();
    std::thread::sleep(Duration::from_millis(200));
    running.stop();
    files.assert_has(sum);
}

#[test]
fn the_wire_of_weir_meter_counts_on_when_it_has_ended() {
    let Some(net) = net() else { return };
    let files = Files::new(
        "metering-wire",
        "[[link]]\ninside = \"left\"\noutside = \"right\"\n",
    );
    let _cleaned = Cleaned(&net);
    let (config, store) = (files.config(), files.store());
    let meter = |more: &[&str]| {
        let arguments = [&["meter", "--config", &config], more].concat();
        Running::start(&net.middle, weir([]), &arguments)
    };
    let live = ["--store", &*store, "--json"];
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let rate = Rate::PerSecond(20_000.0);
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let before = net.right.counters().unwrap().tx_dropped;
    let mut sum = 0;
    for _ in 0..2 {
        let running = meter(&live).until("ready");
        for _ in 0..2 {
            let sent = generator.send(2000, rate).unwrap();
            sum += sent.frames - sent.dropped;
        }
        std::thread::sleep(Duration::from_millis(200));
        let ended = running.stop();
        assert!(
            ended.json()["link"]["packets"][0].as_u64() >= Some(4000),
            "{ended:?}"
        );
        // The kernel joins the links, and counts.
        let sent = generator.send(2000, rate).unwrap();
        sum += sent.frames - sent.dropped;
    }
    std::thread::sleep(Duration::from_millis(200));
    meter(&live).until("ready").stop();
    let dropped = net.right.counters().unwrap().tx_dropped - before;
    let lost = files.lost();
    let arrived = sink.counted().unwrap().frames;
    assert!(
        arrived + lost + dropped + 100 >= sum,
        "{arrived} of {sum}, {lost} lost, {dropped} dropped"
    );
    files.assert_has(sum);
    files.assert_interfaces_have(sum);
    assert_eq!(meter(&["--clean"]).end().code, Some(0));
    assert_eq!(net.attached(), [false, false]);
}

/// `weir bridge --meter`, and `weir meter` as a bridge.
#[test]
fn metrics_of_forwarding_and_counter_are_at_one_address() {
    let Some(net) = net() else { return };
    for is_bridge in [true, false] {
        let links = if is_bridge {
            BRIDGE
        } else {
            "[[link]]\ninside = \"left\"\noutside = \"right\"\n"
        };
        let files = Files::new("metering-metrics", links);
        let _cleaned = Cleaned(&net);
        let (config, store, json) = (files.config(), files.store(), files.0.path("stats.json"));
        let shown = ["--metrics", "127.0.0.1:0"];
        let running = if is_bridge {
            bridge(&net, &files, &shown)
        } else {
            let words = ["meter", "--config", &config, "--store", &store];
            let words = [&words[..], &["--stats-json", &json], &shown].concat();
            Running::start(&net.middle, weir([]), &words).until("ready")
        };
        let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
        let sent = generator.send(2000, Rate::PerSecond(20_000.0)).unwrap();
        let sum = sent.frames - sent.dropped;
        // When the period of a second is durable.
        let began = Instant::now();
        let counted = |text: &str| {
            let line = "weir_meter_packets_total{direction=\"up\"} ";
            let value = text.split_once(line)?.1.lines().next()?;
            value.parse::<u64>().ok()
        };
        let mut text = running.metrics(&net.middle);
        while counted(&text) < Some(sum) {
            assert!(began.elapsed() < WAIT_MAX, "{text}");
            std::thread::sleep(Duration::from_millis(50));
            text = running.metrics(&net.middle);
        }
        for line in [
            "\nweir_bridge_rx_frames_total{link=\"left\"} ",
            "\nweir_bridge_dropped_total{reason=\"vlan\"} 0\n",
            "\nweir_meter_sessions 100\n",
            "\nweir_meter_lost_inside_total ",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let ended = running.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        if !is_bridge {
            let said = fs::read_to_string(&json).unwrap();
            let said: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(said["link"]["packets"][0].as_u64() >= Some(sum), "{said}");
            assert!(said["lost_inside"].is_u64(), "{said}");
        }
    }
}

#[test]
fn frames_that_a_bridge_loses_are_reported_beside() {
    let Some(net) = net() else { return };
    let files = Files::new("metering-lost", BRIDGE);
    let _cleaned = Cleaned(&net);
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let options = ["--hang-ms", "60000", "--ring", "64", "--tx-burst", "off"];
    let running = bridge(&net, &files, &options);
    let before = net.right.counters().unwrap().tx_dropped;
    let mut generator = Generator::new(&net.eth_a, &udp(&net.eth_a, &net.eth_b)).unwrap();
    let sending = generator.start(8000, Rate::PerSecond(20_000.0)).unwrap();
    wait_sent(&sending, 1000);
    running.signal(Signal::STOP);
    wait_sent(&sending, 2000);
    running.signal(Signal::CONT);
    let sent = sending.wait().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    running.stop();
    let sum = sent.frames - sent.dropped;
    files.assert_has(sum);
    let lost = files.lost();
    let dropped = net.right.counters().unwrap().tx_dropped - before;
    assert!(lost > 0);
    let began = Instant::now();
    while sink.counted().unwrap().frames + lost + dropped < sum && began.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(sink.counted().unwrap().frames + lost + dropped, sum);
}

#[test]
fn sides_that_make_no_sense_are_refused() {
    let Some(net) = net() else { return };
    for (links, why) in [
        ("", "say which of left, right"),
        (
            "[[link]]\ninside = \"middle\"\n",
            "inside = \"middle\": the interfaces here are left, right",
        ),
        (
            "[[link]]\ninside = \"left\"\n[[link]]\ninside = \"right\"\n",
            "both on one side",
        ),
        (
            "[[link]]\ninside = \"left\"\n[[link]]\noutside = \"left\"\n",
            "both inside and outside",
        ),
        ("[[link]]\nmirror = \"left\"\n", "for `weir meter` alone"),
    ] {
        let files = Files::new("metering-refused", links);
        let config = files.config();
        let arguments = ["bridge", "left", "right", "--meter", &config, "--no-store"];
        let ended = Running::start(&net.middle, weir([]), &arguments).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
        assert_eq!(net.attached(), [false, false]);
    }
}
