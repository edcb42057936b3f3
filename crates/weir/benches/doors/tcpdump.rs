//! tcpdump by weir's libpcap, as user nobody, and by the system's, as root.

use super::{Bed, Program, median};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::load::{Generator, Rate, Search, Trial};
use weir_lab::net::{Signal, unprivileged};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::testenv;

/// Programs of the part `readers`.
pub(crate) const READERS: u16 = 100;

/// Readers of one user.
const PER_USER: usize = 50;
pub(super) const LIBRARY: &str = "libweir_pcap.so";
/// The peer's name in results.
const LIBPCAP: &str = "libpcap";
/// Bytes of each buffer, as tcpdump has by itself, and of weir's records of frames of 60 bytes, the
/// shortest of both.
const BUFFER_KIB: u64 = 2048;
const RECORD: u64 = 88;
const ROUNDS: usize = 3;
/// Length of a trial, as a multiple of the time for which all buffers hold frames; and its limit.
const BUFFERS_OF_ONE: u64 = 16;
const BUFFERS_OF_MANY: u64 = 4;
const TRIAL_MAX: Duration = Duration::from_secs(4);
/// A rate at which frames are lost is tried again: a pause of the machine spoils a trial, and nothing
/// makes one better.
const ATTEMPTS: u32 = 3;
/// How long libpcap may keep the last frames: tcpdump's time-out, and some more.
const SETTLED: Duration = Duration::from_millis(1500);

/// Whose library tcpdump is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Door {
    Weir,
    System,
}

const DOORS: [Door; 2] = [Door::Weir, Door::System];

/// What tcpdump does with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Write,
    Print,
}

impl Work {
    fn text(self) -> &'static str {
        match self {
            Work::Write => "writing",
            Work::Print => "printing",
        }
    }
}

/// Several tcpdump that run.
struct Captures(Vec<Program>);

/// weir's libpcap where cargo builds libraries, or beside the binary, where one of an earlier build may be.
pub(super) fn library() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    let folder = binary.parent().expect("a folder");
    let places = [folder.join("deps").join(LIBRARY), folder.join(LIBRARY)];
    let found = places.into_iter().find(|place| place.exists());
    found.expect("cargo has built the library")
}

impl Captures {
    fn start(door: Door, work: Work, bed: &Bed, filters: &[String]) -> Captures {
        let start = |(number, filter): (usize, &String)| {
            // A user may have 64 connections to the broker.
            let user = unprivileged::NOBODY - (number / PER_USER) as u32;
            let mut command = match door {
                Door::Weir => {
                    let mut command = unprivileged::command_as(env!("CARGO_BIN_EXE_weir"), user);
                    let (library, socket) = (bed.path(LIBRARY), bed.path("socket"));
                    command.args(["exec", "--pcap", "--pcap-library", &library]);
                    command.args(["--socket", &socket, "--", "tcpdump"]);
                    command
                }
                Door::System => {
                    let mut command = testenv::program("tcpdump").expect("it was found before");
                    command.args(["-Z", "root"]);
                    command
                }
            };
            command.args(["-nn", "-i", "eth0", "-B", &BUFFER_KIB.to_string()]);
            if work == Work::Write {
                command.args(["-w", "/dev/null"]);
            }
            command.arg(filter);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            bed.spawn_directed(command)
        };
        let mut all: Vec<Program> = filters.iter().enumerate().map(start).collect();
        for one in &mut all {
            one.until("listening on");
        }
        Captures(all)
    }

    /// Frames that tcpdump had and that the kernel dropped, of all so far.
    fn counts(&mut self) -> (u64, u64) {
        for one in &self.0 {
            one.process.signal(Signal::USR1).expect("a signal");
        }
        let counts = self.0.iter_mut().map(|one| {
            let line = one.until("captured");
            let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
            let mut next = || numbers.next().expect("a count");
            let (captured, _, dropped) = (next(), next(), next());
            (captured, dropped)
        });
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn trial(&mut self, generator: &mut Generator, frames: u64, rate: Rate) -> Trial {
        let before = self.counts();
        let sent = generator.send(frames, rate).expect("it sends");
        let (mut last, mut since) = ((0, 0), Instant::now());
        while since.elapsed() < SETTLED {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.counts();
            let now = (now.0 - before.0, now.1 - before.1);
            if now.0 + now.1 >= sent.frames {
                last = now;
                break;
            }
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Trial {
            sent: sent.frames,
            received: last.0,
            elapsed: sent.elapsed,
        }
    }
}

/// The highest rate at which nothing is lost, in frames a second, and whether it is the sender's.
fn highest(door: Door, work: Work, filters: &[String], buffers: u64) -> (f64, bool) {
    let mut bed = Bed::new("tcpdump");
    bed.start_broker();
    std::fs::copy(library(), bed.path(LIBRARY)).expect("a copy");
    let mut captures = Captures::start(door, work, &bed, filters);
    let mut frames = bed.frames();
    frames.dst_ports = filters.len() as u32;
    let mut generator = bed.generator(&frames);
    let held = filters.len() as u64 * (BUFFER_KIB << 10) / RECORD;
    let count = |rate: f64| {
        let most = rate * TRIAL_MAX.as_secs_f64();
        (held * buffers).min(most as u64)
    };
    // Also the programs' first frames, which find cold caches.
    let mut flat = captures.trial(&mut generator, 200_000, Rate::Flat).rate();
    let mut lossless = 0.0_f64;
    for _ in 0..ATTEMPTS {
        let tried = captures.trial(&mut generator, count(flat), Rate::Flat);
        flat = flat.max(tried.rate());
        if tried.lost() == 0 {
            lossless = lossless.max(tried.rate());
        }
    }
    if lossless > 0.0 {
        return (lossless, true);
    }
    let search = Search {
        rate_min: flat / 30.0,
        rate_max: flat,
        resolution: 0.05,
        attempts_max: ATTEMPTS,
        trial: Duration::ZERO,
        confirmation: Duration::ZERO,
    };
    let found = search.run(|rate, _| {
        let tried = captures.trial(&mut generator, count(rate), Rate::PerSecond(rate));
        Ok::<_, std::convert::Infallible>(tried)
    });
    (found.expect("a plan").rate.unwrap_or(0.0), false)
}

/// Both libraries in turn; records the ratio.
fn beside(name: &str, work: Work, filters: &[String], buffers: u64, bar: Bar, results: &Recorder) {
    let mut found: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (door, found) in DOORS.into_iter().zip(&mut found) {
            let (rate, by_sender) = highest(door, work, filters, buffers);
            let limit = if by_sender {
                ", the sender's limit"
            } else {
                ""
            };
            let mpps = rate / 1e6;
            println!("{name}, {door:?}: {mpps:.3} M frames/s without loss{limit}");
            found.push(rate);
        }
    }
    let [weir, system] = &found;
    // What ran in one round goes together.
    let ratios = weir.iter().zip(system).map(|(weir, system)| weir / system);
    let ratio = median(ratios.collect());
    println!("{name}: weir's libpcap : the system's {ratio:.2}");
    let rate = median(weir.clone());
    let unit = Unit::PerSecond("frames");
    results.record(&format!("{name}: without loss"), rate, unit, Bar::None);
    let name = format!("{name}: without loss : {LIBPCAP}");
    results.record(&name, ratio, Unit::RateOf(LIBPCAP), bar);
}

/// One tcpdump.
pub(crate) fn one(results: &Recorder) {
    for (work, bar) in [(Work::Write, Bar::AtLeast(1.5)), (Work::Print, Bar::None)] {
        let name = format!("doors: 1 tcpdump {}, 60 B", work.text());
        let filter = ["udp port 5000".to_owned()];
        beside(&name, work, &filter, BUFFERS_OF_ONE, bar, results);
    }
}

/// Many of them, whose filters accept one port each.
pub(crate) fn readers(results: &Recorder) {
    let filters = (0..READERS).map(|number| format!("udp dst port {}", 5000 + number));
    let filters: Vec<String> = filters.collect();
    let name = format!("doors: {READERS} tcpdump writing, 60 B");
    let bar = Bar::AtLeast(10.0);
    beside(&name, Work::Write, &filters, BUFFERS_OF_MANY, bar, results);
}
