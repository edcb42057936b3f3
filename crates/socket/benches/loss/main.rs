//! One stream of TCP on a line that loses frames both ways: our sender beside
//! Linux's, to the same receiver, Linux's; and Linux's sender to both receivers.
//!
//! ```sh
//! sudo cargo bench -p weir-socket --bench loss                # everything, seven minutes
//! sudo cargo bench -p weir-socket --bench loss -- near        # or `far`: one round trip
//! sudo cargo bench -p weir-socket --bench loss -- near 1%     # one share of loss
//! sudo cargo bench -p weir-socket --bench loss -- bbr         # with Linux's senders by BBR
//! ```
//!
//! All senders use CUBIC, whatever the system's default is: BBR, which some systems have,
//! does not take a loss for congestion, and is told of apart.
//!
//! Every frame is one segment as on a wire: no end has offloads. The line is a
//! thread that carries frames between a TAP interface of the sender (for ours, a
//! socket) and the network namespace of the loss, which a veth pair leads out of
//! to the receiver, each 50 µs after it came (`near`), or 10 ms (`far`). A BPF program drops frames by their number, which a seed
//! chooses, data and acknowledgments alike, the same for all senders. It begins
//! when the connection is open.
//!
//! For each share of loss ten seeds are tried: in turn on the short line, at
//! the same time, each on a line of its own, on the long one. Told are the median
//! of the rates and of the ratios of a seed's rates, and the least and the greatest
//! ratio.

mod world;

use std::thread;
use std::time::Duration;
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use world::{Kind, Run, World};

const SEEDS: u64 = 10;
/// Frames of a million that are dropped.
const SHARES: [(&str, u32); 3] = [("0.1%", 1_000), ("1%", 10_000), ("5%", 50_000)];
const LINES: [(&str, Duration); 2] = [
    ("near", Duration::from_micros(50)),
    ("far", Duration::from_millis(10)),
];
/// Not counted, and counted: by a round trip's length.
const NEAR: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
const FAR: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];
const KINDS: [Kind; 3] = [Kind::Linux, Kind::Weir, Kind::Receiver];

fn main() {
    if !weir_lab::testenv::root() {
        return;
    }
    let results = recorder!();
    let args: Vec<String> = std::env::args().collect();
    let asked = |known: &[&str]| known.iter().any(|name| args.iter().any(|arg| arg == name));
    let wanted = |name: &str, known: &[&str]| !asked(known) || args.iter().any(|arg| arg == name);
    let algorithm = if asked(&["bbr"]) { "bbr" } else { "cubic" };
    let lines = LINES.map(|line| line.0);
    let shares = SHARES.map(|share| share.0);
    println!(
        "{:<6}{:>6}  {:<16}{:>10}{:>8}{:>8}{:>8}{:>10}{:>10}",
        "line", "loss", "", "Mb/s", "ratio", "least", "most", "RTT µs", "again"
    );
    for (line, delay) in LINES {
        for (share, per_million) in SHARES {
            if wanted(line, &lines) && wanted(share, &shares) {
                let runs = if line == "near" {
                    in_turn(per_million, delay, algorithm)
                } else {
                    at_once(per_million, delay, algorithm)
                };
                report(line, share, &runs);
                record(
                    &results,
                    &format!("{line}, {share} lost, {algorithm}"),
                    &runs,
                );
            }
        }
    }
}

/// All kinds for each seed.
fn in_turn(per_million: u32, delay: Duration, algorithm: &'static str) -> Vec<[Run; KINDS.len()]> {
    let run =
        |seed| KINDS.map(|kind| World::new(kind, delay, algorithm).run(seed, per_million, NEAR));
    (0..SEEDS).map(run).collect()
}

fn at_once(per_million: u32, delay: Duration, algorithm: &'static str) -> Vec<[Run; KINDS.len()]> {
    let run = move |seed| {
        let runs = KINDS.map(|kind| {
            let world = World::new(kind, delay, algorithm);
            thread::spawn(move || world.run(seed, per_million, FAR))
        });
        runs.map(|run| run.join().expect("a run"))
    };
    let seeds: Vec<_> = (0..SEEDS)
        .map(|seed| thread::spawn(move || run(seed)))
        .collect();
    seeds
        .into_iter()
        .map(|seed| seed.join().expect("runs"))
        .collect()
}

fn report(line: &str, share: &str, runs: &[[Run; KINDS.len()]]) {
    for (at, kind) in KINDS.into_iter().enumerate() {
        let all = |pick: &dyn Fn(&[Run; KINDS.len()]) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(pick).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let rates = all(&|seed| seed[at].mbps);
        let ratios = all(&|seed| seed[at].mbps / seed[0].mbps);
        let rtt = all(&|seed| seed[at].rtt_us);
        let again = all(&|seed| seed[at].again);
        println!(
            "{line:<6}{share:>6}  {:<16}{:>10.1}{:>8.2}{:>8.2}{:>8.2}{:>10.0}{:>9.2}%",
            kind.name(),
            median(&rates),
            median(&ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            median(&rtt),
            100.0 * median(&again),
        );
    }
}

/// The medians of a line and a share: what Linux's sender has, and the others'
/// ratios to it.
fn record(results: &Recorder, what: &str, runs: &[[Run; KINDS.len()]]) {
    let of = |pick: &dyn Fn(&[Run; KINDS.len()]) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(pick).collect();
        all.sort_by(f64::total_cmp);
        median(&all)
    };
    for (at, kind) in KINDS.into_iter().enumerate() {
        let name = format!("loss: {}, {what}", kind.name());
        let (rate, megabits) = (of(&|seed| seed[at].mbps), Unit::MegabitsPerSecond);
        results.record(&name, rate, megabits, Bar::None);
        let bar = match kind {
            Kind::Linux => continue,
            // BBR is another algorithm than ours.
            Kind::Weir if what.ends_with("cubic") => Bar::AtLeast(0.9),
            Kind::Weir | Kind::Receiver => Bar::None,
        };
        let linux = KINDS[0].name();
        let ratio = of(&|seed| seed[at].mbps / seed[0].mbps);
        results.record(
            &format!("{name} : {linux}"),
            ratio,
            Unit::RateOf(linux),
            bar,
        );
    }
}

/// Of numbers in order.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}
