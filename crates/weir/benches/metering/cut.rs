//! Cuts of periods with 3,000,000 records, while a bridge that meters forwards.

use super::{folder, median};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::load::{Generator, Rate, Sink, Udp};
use weir_lab::net::{Device, Linear, Offloads, Process, Signal};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_ledger::{Spool, decode};
use weir_link::bpf::Hook;
use weir_meter::OwnerKind;

const SUBSCRIBERS: u32 = 1_000_000;
/// Services of each subscriber with traffic: a record each.
const PORTS: u32 = 3;
const RECORDS: u64 = SUBSCRIBERS as u64 * PORTS as u64;
/// Services that are configured.
const SERVICES: u32 = 8;
const ROUNDS: usize = 3;
/// The first subscriber; the others follow.
const FIRST: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 0);
/// Long enough to send a frame of each record.
const PERIOD: Duration = Duration::from_secs(30);
/// Frames a second: until each record has one, and from then until the cut's end.
const RATES: [f64; 2] = [400_000.0, 50_000.0];
const WAIT_MAX: Duration = Duration::from_secs(120);

/// `weir meter`, a bridge that counts, whose records stay in its spool.
struct Counter {
    folder: PathBuf,
    process: Process,
}

impl Counter {
    fn start(net: &Linear, folder: &Path) -> Counter {
        let at = |name: &str| folder.join(name);
        let list: String = (0..SUBSCRIBERS)
            .map(|number| {
                format!(
                    "s{number},{}\n",
                    Ipv4Addr::from_bits(FIRST.to_bits() + number)
                )
            })
            .collect();
        fs::write(at("subscribers.csv"), format!("subscriber,key\n{list}")).expect("a file");
        let services: String = (1..=SERVICES)
            .map(|port| format!("service-{port} = {{ udp = [{port}] }}\n"))
            .collect();
        let text = format!(
            "counter = \"bench\"\nperiod = \"{}s\"\nsubscribers = \"subscribers.csv\"\n[[link]]\n\
             inside = \"left\"\noutside = \"right\"\n[services]\n{services}",
            PERIOD.as_secs()
        );
        fs::write(at("counter.toml"), text).expect("a file");
        let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
        command
            .args(["meter", "--no-store", "--config"])
            .arg(at("counter.toml"));
        command.arg("--spool").arg(at("spool"));
        command.arg("--stats-json").arg(at("stats"));
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut process = net.middle.spawn(command).expect("weir starts");
        let errors = process.child_mut().stderr.take().expect("a pipe");
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "it is ready");
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        Counter {
            folder: folder.to_owned(),
            process,
        }
    }

    fn stats(&self) -> serde_json::Value {
        let text = fs::read(self.folder.join("stats")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// What it says after its next period, and its most memory until then, bytes.
    fn after_period(&self, periods: u64) -> (serde_json::Value, f64) {
        let (began, mut most) = (Instant::now(), 0.0_f64);
        loop {
            let stats = self.stats();
            most = most.max(self.memory());
            if stats["periods"].as_u64().is_some_and(|it| it > periods) {
                return (stats, most);
            }
            assert!(began.elapsed() < WAIT_MAX, "no period ends: {stats}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Its memory, bytes: not that of the kernel's counters, which it sees too.
    fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let mut words = line.expect("a line").split_whitespace();
        let kilobytes: f64 = words.nth(1).expect("a number").parse().expect("one");
        kilobytes * 1024.0
    }

    /// Ends it, and gives the packets that its records have.
    fn stop(mut self) -> u64 {
        self.process.signal(Signal::TERM).expect("a signal");
        let ended = self.process.wait(WAIT_MAX).expect("it can be waited for");
        assert!(ended.is_some(), "it ends");
        let spool = Spool::open(&self.folder.join("spool")).expect("a spool");
        let (mut after, mut packets) = (0, 0);
        while let Some(stored) = spool.next(after).expect("a chunk") {
            after = stored.sequence;
            let chunk = decode(&stored.encoded.bytes).expect("it is whole");
            for record in &chunk.records {
                if chunk.owners[record.owner as usize].kind == OwnerKind::Session {
                    packets += record.counts[0];
                }
            }
        }
        packets
    }
}

/// Frames lost so far, by place; the bridge says its own once a second.
fn drops(net: &Linear, stats: &serde_json::Value) -> [(&'static str, u64); 3] {
    let counters = |device: &Device| device.counters().expect("counters");
    [
        (
            "by the bridge: rings of its sockets, the gate",
            stats["lost_inside"].as_u64().unwrap_or(0),
        ),
        (
            "by right: the queue of eth_b was full",
            counters(&net.right).tx_dropped,
        ),
        ("by eth_b", counters(&net.eth_b).rx_dropped),
    ]
}

pub(crate) fn cuts(results: &Recorder) {
    let folder = folder("cut");
    let net = Linear::new(Offloads::OFF).expect("a network");
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).expect("a sink");
    net.middle.own_pins().expect("file systems");
    let counter = Counter::start(&net, &folder);
    let frames = Udp {
        dst_port: 1,
        dst_ports: PORTS,
        src_addresses: SUBSCRIBERS,
        ..Udp::new(
            net.eth_a.mac(),
            net.eth_b.mac(),
            FIRST,
            [10, 9, 0, 2].into(),
        )
    };
    let generator = Generator::arriving(&net.left, &frames).expect("a generator");
    let mut generator = generator.on_cpu(0);
    let (mut stats, _) = counter.after_period(0);
    let (mut times, mut lost, mut more) = (Vec::new(), 0, 0.0_f64);
    for round in 0..ROUNDS {
        let before = stats;
        let periods = before["periods"].as_u64().expect("a count");
        generator
            .send(RECORDS, Rate::PerSecond(RATES[0]))
            .expect("sent");
        sleep(Duration::from_millis(500));
        assert_eq!(counter.stats()["periods"], before["periods"], "one period");
        let received = sink.counted().expect("a count").frames;
        let dropped = drops(&net, &counter.stats());
        let sending = generator.start(u64::MAX, Rate::PerSecond(RATES[1]));
        let sending = sending.expect("it starts");
        let memory = counter.memory();
        let most;
        (stats, most) = counter.after_period(periods);
        more = more.max(most - memory);
        let sent = sending.stop().expect("sent").frames;
        sleep(Duration::from_millis(500));
        let records = stats["records"].as_u64().zip(before["records"].as_u64());
        let records = records.map_or(0, |(now, then)| now - then);
        // The hosts themselves send a few frames.
        assert!(
            (RECORDS..RECORDS + 100).contains(&records),
            "{records} records"
        );
        let durable_s = stats["durable_us"].as_f64().expect("a time") / 1e6;
        let cut_s = stats["cut_us"].as_f64().expect("a time") / 1e6;
        let received = sink.counted().expect("a count").frames - received;
        lost += sent.saturating_sub(received);
        println!(
            "round {round}: {records} records durable after {durable_s:.3} s, emptied after \
             {cut_s:.3} s; {sent} frames sent meanwhile, {received} received"
        );
        if sent > received {
            sleep(Duration::from_secs(2));
            for ((place, before), (_, now)) in dropped.iter().zip(drops(&net, &counter.stats())) {
                println!("round {round}: {} lost: {place}", now - before);
            }
        }
        times.push(durable_s);
    }
    let all = generator.sent();
    let counted = counter.stop();
    println!(
        "memory: {:.0} MB more; {counted} frames counted of {all}",
        more / 1e6
    );
    let name = |what: &str| format!("metering: cut of 3,000,000 records, {what}");
    let durable = median(times);
    results.record(&name("durable"), durable, Unit::Seconds, Bar::AtMost(3.0));
    let none = Bar::AtMost(0.0);
    results.record(&name("frames lost"), lost as f64, Unit::Losses, none);
    let uncounted = all.abs_diff(counted) as f64;
    results.record(&name("frames not counted"), uncounted, Unit::Losses, none);
    let more = more / 1e6;
    results.record(
        &name("memory for it"),
        more,
        Unit::Megabytes,
        Bar::AtMost(100.0),
    );
    let _ = fs::remove_dir_all(folder);
}
