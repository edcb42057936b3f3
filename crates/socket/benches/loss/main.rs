//! One stream of TCP on a line that loses frames both ways: our sender beside
//! Linux's, to the same receiver, Linux's; and Linux's sender to both receivers.
//!
//! ```sh
//! sudo cargo bench -p weir-socket --bench loss                # everything, seven minutes
//! sudo cargo bench -p weir-socket --bench loss -- near        # or `far`: one round trip
//! sudo cargo bench -p weir-socket --bench loss -- near 1%     # one share of loss
//! sudo cargo bench -p weir-socket --bench loss -- bbr         # all senders by BBR
//! sudo cargo bench -p weir-socket --bench loss -- fair        # two senders share a bottleneck
//! ```
//!
//! All senders use CUBIC, whatever the system's default is, or all use BBR: ours is
//! BBRv3 (draft-ietf-ccwg-bbr), Linux' own is version 1, which does not respond to losses.
//! BBR does not fill a line until it loses frames, so with it lines carry 100 Mb/s, with a
//! queue of one bandwidth-delay product of the long line: not the processor is measured.
//!
//! `fair` puts two senders on one such long line without other losses: ours by BBR
//! beside Linux' by BBR and by CUBIC, and Linux' two beside each other. Printed are the
//! rates and Jain's index, medians of three runs.
//!
//! Every frame is one segment as on a wire: no end has offloads. The line is a
//! thread that carries frames between a TAP interface of the sender (for ours, a
//! socket) and the network namespace of the loss, which a veth pair leads out of
//! to the receiver, each 50 µs after it came (`near`), or 10 ms (`far`). A BPF program drops frames by their number, which a seed
//! chooses, data and acknowledgments alike, the same for all senders. It begins
//! when the connection is open.
//!
//! A kernel's sender works in the thread that brings an acknowledgment. Ours is woken for it, and
//! wakes the line with what it sends, on every round trip: on the short line that is as long as
//! the trip itself. `Linux by a thread` is Linux' sender with these two wake-ups: a thread carries
//! its frames to the line and back. Beside it is seen what our sender does with a loss.
//!
//! For each share of loss ten seeds are tried: in turn on the short line, at
//! the same time, each on a line of its own, on the long one. Printed are the median
//! of the rates and of the ratios of a seed's rates, and the least and the greatest
//! ratio.

mod fair;
mod world;

use fair::Sender;
use std::thread;
use std::time::Duration;
use weir_lab::delay::Bottleneck;
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
/// Where the line has a bottleneck: some cycles of BBR.
const SLOW: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
const FAR: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];
/// Of lines with BBR.
const BOTTLENECK: Bottleneck = Bottleneck {
    bits_per_s: 100_000_000,
    queue_bytes: 250_000,
};
/// Not counted, and counted, where streams share a line; and how often.
const SHARED: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];
const SHARED_RUNS: usize = 3;
const PAIRS: [[Sender; 2]; 3] = [
    [WEIR_BBR, linux("bbr")],
    [WEIR_BBR, linux("cubic")],
    [linux("bbr"), linux("cubic")],
];
const WEIR_BBR: Sender = Sender {
    is_weir: true,
    algorithm: "bbr",
};

const fn linux(algorithm: &'static str) -> Sender {
    Sender {
        is_weir: false,
        algorithm,
    }
}

/// Who sends on the short line, and on the long one, where a wake-up does not matter.
const NEAR_KINDS: &[Kind] = &[
    Kind::Linux,
    Kind::LinuxBehindThread,
    Kind::Weir,
    Kind::Receiver,
];
const FAR_KINDS: &[Kind] = &[Kind::Linux, Kind::Weir, Kind::Receiver];

fn main() {
    if !weir_lab::testenv::root() {
        return;
    }
    let results = recorder!();
    let args: Vec<String> = std::env::args().collect();
    let asked = |known: &[&str]| known.iter().any(|name| args.iter().any(|arg| arg == name));
    let wanted = |name: &str, known: &[&str]| !asked(known) || args.iter().any(|arg| arg == name);
    let algorithm = if asked(&["bbr"]) { "bbr" } else { "cubic" };
    if asked(&["fair"]) {
        return divide(&results);
    }
    let bottleneck = (algorithm == "bbr").then_some(BOTTLENECK);
    let setting = (bottleneck, algorithm);
    let lines = LINES.map(|line| line.0);
    let shares = SHARES.map(|share| share.0);
    println!(
        "{:<6}{:>6}  {:<18}{:>10}{:>8}{:>8}{:>8}{:>10}{:>10}",
        "line", "loss", "", "Mb/s", "ratio", "least", "most", "RTT µs", "again"
    );
    for (line, delay) in LINES {
        for (share, per_million) in SHARES {
            if wanted(line, &lines) && wanted(share, &shares) {
                let near = line == "near";
                let kinds = if near { NEAR_KINDS } else { FAR_KINDS };
                let runs = if near || bottleneck.is_some() {
                    in_turn(kinds, per_million, delay, setting)
                } else {
                    at_once(kinds, per_million, delay, setting)
                };
                report(line, share, kinds, &runs);
                let what = format!("{line}, {share} lost, {algorithm}");
                record(&results, &what, kinds, &runs);
            }
        }
    }
}

/// A line's bottleneck, and the senders' algorithm.
type Setting = (Option<Bottleneck>, &'static str);

/// Pairs of senders on one line.
fn divide(results: &Recorder) {
    println!("{:<28}{:>10}{:>10}{:>8}", "senders", "Mb/s", "Mb/s", "Jain");
    for pair in PAIRS {
        let name = format!("{}, {}", pair[0].name(), pair[1].name());
        let runs = [(); SHARED_RUNS].map(|()| fair::share(pair, LINES[1].1, BOTTLENECK, SHARED));
        let of = |pick: &dyn Fn([f64; 2]) -> f64| {
            let mut all = runs.map(pick);
            all.sort_by(f64::total_cmp);
            median(&all)
        };
        let (rates, index) = ([of(&|run| run[0]), of(&|run| run[1])], of(&fair::jain));
        println!("{name:<28}{:>10.1}{:>10.1}{index:>8.2}", rates[0], rates[1]);
        for (sender, rate) in pair.iter().zip(rates) {
            let name = format!("fair: {name}: {}", sender.name());
            results.record(&name, rate, Unit::MegabitsPerSecond, Bar::None);
        }
        let what = format!("fair: {name}: Jain's index");
        results.record(&what, index, Unit::Index, Bar::None);
    }
}

/// What each kind gave with one seed.
type Runs = Vec<Run>;

/// All kinds for each seed.
fn in_turn(kinds: &[Kind], per_million: u32, delay: Duration, setting: Setting) -> Vec<Runs> {
    if setting.0.is_some() {
        return (0..SEEDS)
            .map(|seed| kinds_at_once(kinds, seed, per_million, delay, setting))
            .collect();
    }
    let run = |seed| {
        let of = |kind: &Kind| {
            World::new(*kind, delay, setting.0, setting.1).run(seed, per_million, NEAR)
        };
        kinds.iter().map(of).collect()
    };
    (0..SEEDS).map(run).collect()
}

/// Of one seed, each on a line of its own.
fn kinds_at_once(
    kinds: &[Kind],
    seed: u64,
    per_million: u32,
    delay: Duration,
    (bottleneck, algorithm): Setting,
) -> Runs {
    let start = |kind: &Kind| {
        let world = World::new(*kind, delay, bottleneck, algorithm);
        let times = if bottleneck.is_some() { SLOW } else { FAR };
        thread::spawn(move || world.run(seed, per_million, times))
    };
    let runs: Vec<_> = kinds.iter().map(start).collect();
    let end = |run: thread::JoinHandle<Run>| run.join().expect("a run");
    runs.into_iter().map(end).collect()
}

fn at_once(
    kinds: &'static [Kind],
    per_million: u32,
    delay: Duration,
    setting: Setting,
) -> Vec<Runs> {
    let run = move |seed| kinds_at_once(kinds, seed, per_million, delay, setting);
    let seeds: Vec<_> = (0..SEEDS)
        .map(|seed| thread::spawn(move || run(seed)))
        .collect();
    seeds
        .into_iter()
        .map(|seed| seed.join().expect("runs"))
        .collect()
}

/// What `pick` takes of each seed's runs, in order.
fn sorted(runs: &[Runs], pick: impl Fn(&[Run]) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = runs.iter().map(|seed| pick(seed)).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn report(line: &str, share: &str, kinds: &[Kind], runs: &[Runs]) {
    for (at, kind) in kinds.iter().enumerate() {
        let rates = sorted(runs, |seed| seed[at].mbps);
        let ratios = sorted(runs, |seed| seed[at].mbps / seed[0].mbps);
        let rtt = sorted(runs, |seed| seed[at].rtt_us);
        let again = sorted(runs, |seed| seed[at].again);
        println!(
            "{line:<6}{share:>6}  {:<18}{:>10.1}{:>8.2}{:>8.2}{:>8.2}{:>10.0}{:>9.2}%",
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
fn record(results: &Recorder, what: &str, kinds: &[Kind], runs: &[Runs]) {
    for (at, kind) in kinds.iter().enumerate() {
        let name = format!("loss: {}, {what}", kind.name());
        let rate = median(&sorted(runs, |seed| seed[at].mbps));
        results.record(&name, rate, Unit::MegabitsPerSecond, Bar::None);
        let bar = match kind {
            // Linux' BBR, of version 1, takes no loss for congestion, however many there are.
            Kind::Weir if what.ends_with("cubic") => Bar::AtLeast(0.9),
            Kind::Weir if what == "far, 1% lost, bbr" => Bar::AtLeast(0.9),
            _ => Bar::None,
        };
        for (base, peer) in kinds[..at].iter().enumerate() {
            // What our sender is worth without the wake-ups of its thread, too.
            if base == 0 || *kind == Kind::Weir {
                let ratio = median(&sorted(runs, |seed| seed[at].mbps / seed[base].mbps));
                let name = format!("{name} : {}", peer.name());
                results.record(&name, ratio, Unit::RateOf(peer.name()), bar);
            }
        }
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
