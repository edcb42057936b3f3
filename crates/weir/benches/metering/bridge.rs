//! A bridge that meters, beside one that does not.

use super::{folder, median};
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_lab::load::Search;
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rfc2544::{
    CheckLevel, Cpus, Dut, Error, Layout, Program, Ready, Running, Setup, SinkKind, Testbed,
    Tester, latency, throughput,
};

pub(crate) const SEED: u64 = 18;
const ROUNDS: usize = 3;
/// Including the frame check sequence.
const FRAME_BYTES: usize = 64;
/// Frames of a trial at most: 20 million a second would be more than any bridge here takes.
const FRAMES_MAX: u64 = 1 << 23;
const SEARCH: Search = Search {
    attempts_max: 3,
    trial: Duration::from_millis(200),
    confirmation: Duration::from_millis(400),
    ..Search::QUICK
};
const LATENCY_RATE: f64 = 300_000.0;
const LATENCY_TIME: Duration = Duration::from_millis(500);
/// A million subscribers are read and put into the kernel's table.
const READY: Ready = Ready::Said("ready", Duration::from_secs(60));

/// The first destination of [`weir_lab::rfc2544`]; others follow 256 addresses apart.
const FIRST: Ipv4Addr = Ipv4Addr::new(16, 0, 0, 2);

/// `weir bridge` with further arguments, metered if there is a list of subscribers.
struct Bridge<'a> {
    folder: &'a Path,
    subscribers: Option<&'a Path>,
    more: &'a [&'a str],
}

impl Bridge<'_> {
    /// A configuration that names the test bed's interface behind which the destinations are.
    fn configuration(&self, bench: &Testbed, subscribers: &Path) -> PathBuf {
        let [_, inside] = bench.ports().expect("a bridge has two ports");
        let path = self.folder.join("counter.toml");
        let text = format!(
            "subscribers = \"{}\"\nperiod = \"1h\"\n[[link]]\ninside = \"{}\"\n",
            subscribers.display(),
            inside.name()
        );
        fs::write(&path, text).expect("a file");
        path
    }
}

impl Dut for Bridge<'_> {
    fn name(&self) -> &str {
        match self.subscribers {
            Some(_) => "weir bridge --meter",
            None => "weir bridge",
        }
    }

    fn layout(&self) -> Layout {
        Layout::Bridge
    }

    fn start(&self, bench: &Testbed) -> Result<Box<dyn Running>, Error> {
        let mut words: Vec<String> = [env!("CARGO_BIN_EXE_weir"), "bridge", "{a}", "{b}"]
            .map(String::from)
            .into();
        words.extend(self.more.iter().map(|&word| word.to_owned()));
        if let Some(subscribers) = self.subscribers {
            let store = self.folder.join("usage.db");
            let _ = fs::remove_file(&store);
            words.push(String::from("--meter"));
            words.push(self.configuration(bench, subscribers).display().to_string());
            words.push(String::from("--store"));
            words.push(store.display().to_string());
        }
        let program = Program {
            name: self.name().to_owned(),
            words,
            layout: Layout::Bridge,
            ready: READY,
            open_input: false,
        };
        program.start(bench)
    }
}

fn list(folder: &Path, subscribers: u32) -> PathBuf {
    let mut text = String::from("subscriber,key\n");
    for number in 0..subscribers {
        let address = Ipv4Addr::from_bits(FIRST.to_bits() + number * 256);
        let _ = writeln!(text, "subscriber-{number},{address}");
    }
    let path = folder.join("subscribers.csv");
    fs::write(&path, text).expect("a file");
    path
}

/// Runs a measurement through a bridge that was just started.
fn through<T>(
    bridge: &Bridge<'_>,
    destinations: u32,
    level: CheckLevel,
    measured: impl Fn(&mut Tester<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let setup = Setup {
        sink: SinkKind::Tc,
        cpus: Cpus::first_two().expect("two CPUs"),
        both_ways: false,
        settle: Duration::from_millis(100),
        seed: SEED,
        destinations,
    };
    let bench = Testbed::new(bridge.layout(), &setup)?;
    let running = bridge.start(&bench)?;
    let most = if level == CheckLevel::Timed {
        1 << 20
    } else {
        FRAMES_MAX
    };
    let mut tester = Tester::new(&bench, FRAME_BYTES, level, most)?;
    let found = measured(&mut tester)?;
    drop(tester);
    running.stop()?;
    Ok(found)
}

/// Medians of the plain bridge and of the one that meters, in turn.
fn compared(
    folder: &Path,
    subscribers: u32,
    more: &[&str],
    level: CheckLevel,
    measured: impl Fn(&mut Tester<'_>) -> Result<f64, Error>,
) -> [f64; 2] {
    let subscribers_list = list(folder, subscribers);
    let mut found = [const { Vec::new() }; 2];
    for round in 0..2 * ROUNDS {
        let is_metered = round % 2;
        let bridge = Bridge {
            folder,
            subscribers: (is_metered == 1).then_some(&*subscribers_list),
            more,
        };
        match through(&bridge, subscribers, level, &measured) {
            Ok(value) => found[is_metered].push(value),
            Err(error) => println!("{}: {error}", bridge.name()),
        }
    }
    found.map(median)
}

pub(crate) fn rates(results: &Recorder) {
    let folder = folder("bridge");
    for (subscribers, bars) in [(256, [0.95, 0.80]), (1_000_000, [0.85, 0.55])] {
        for (more, path, bar) in [
            (&[][..], "user path", bars[0]),
            (&["--flow-cache", "on"], "cached", bars[1]),
        ] {
            let [plain, metered] =
                compared(&folder, subscribers, more, CheckLevel::Quick, |tester| {
                    let found = throughput(&SEARCH, &mut |ask| tester.trial(ask))?;
                    Ok(found.rate.unwrap_or_default())
                });
            println!(
                "{path}, {subscribers} subscribers: {:.3} M frames/s metered, {:.3} plain: {:.3}",
                metered / 1e6,
                plain / 1e6,
                metered / plain
            );
            results.record(
                &format!("metering: bridge, {path}, {subscribers} subscribers"),
                metered / plain,
                Unit::RateOf("weir bridge"),
                Bar::AtLeast(bar),
            );
        }
    }
    let _ = fs::remove_dir_all(folder);
}

pub(crate) fn latencies(results: &Recorder) {
    let folder = folder("latency");
    for (more, path) in [
        (&["--spin-us", "1000", "--hang-ms", "1000"][..], "user path"),
        (&["--flow-cache", "on"], "cached"),
    ] {
        let [plain, metered] = compared(&folder, 256, more, CheckLevel::Timed, |tester| {
            let found = latency(LATENCY_RATE, LATENCY_TIME, &mut |ask| tester.trial(ask))?;
            Ok(found.map_or(0.0, |found| found.p50.as_nanos() as f64 / 1e3))
        });
        println!(
            "latency, {path}: {metered:.3} µs metered, {plain:.3} plain: {:+.3}",
            metered - plain
        );
        results.record(
            &format!("metering: bridge, {path}, median latency added"),
            metered - plain,
            Unit::Microseconds,
            Bar::AtMost(0.3),
        );
    }
    let _ = fs::remove_dir_all(folder);
}
