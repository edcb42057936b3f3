//! On a veth pair between two network namespaces: what a frame costs, and how
//! many a second are delivered and none lost, whether they are sent over the
//! pair or come in behind the receiving end's driver.

use super::receivers::{COPYING_TC, COPYING_XDP, MAKES, Make, TAKING, TPACKET, XSK, is_realtime};
use super::table::{Table, median, ns};
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use weir_demux::kernel::record::SHORT_HEADER_BYTES;
use weir_lab::load::{Generator, GeneratorError, Rate, Search, Sent, Sink, Template, Trial, Udp};
use weir_lab::net::{Device, Lab, Offloads};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_link::bpf::Hook;
use weir_wire::ethernet::Address;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Bytes of every receiver's buffer.
const BUFFER: u32 = 1 << 24;

/// The CPU that sends, and so also receives.
const SENDING: usize = 0;

/// How frames come to the interface whose receivers are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// Sent at the other end of the veth, and received by its driver.
    Veth,
    /// Given to what is behind the driver, the XDP program or the host, in
    /// batches as a driver's: so little is the sender's that the receivers
    /// show.
    Arriving,
}

impl Arrival {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Arrival::Veth => "over a veth",
            Arrival::Arriving => "given to the interface",
        }
    }
}

/// Two hosts, and a generator at the first.
pub(crate) struct Bench {
    _lab: Lab,
    from: Device,
    pub(crate) to: Device,
}

impl Bench {
    pub(crate) fn new() -> Result<Bench> {
        let lab = Lab::new();
        let (a, b) = (lab.host("a")?, lab.host("b")?);
        let (from, to) = lab.link(&a, &b).connect()?;
        // Without XDP a veth takes redirected frames only with GRO.
        to.set_offloads(Offloads {
            generic_receive: true,
            ..to.offloads()?
        })?;
        Ok(Bench {
            _lab: lab,
            from,
            to,
        })
    }

    /// To another station's address: the host's own stack drops them at once.
    pub(crate) fn frames(&self, frame_bytes: usize) -> Udp {
        Udp {
            frame_bytes,
            ..Udp::new(self.from.mac(), Address([2, 9, 9, 9, 9, 9]), SRC, DST)
        }
    }

    /// Make the receiver first: it is what frames that arrive go to.
    pub(crate) fn generator(
        &self,
        way: Arrival,
        template: impl Into<Template>,
    ) -> Result<Generator> {
        let generator = match way {
            Arrival::Veth => Generator::new(&self.from, template)?,
            Arrival::Arriving => Generator::arriving(&self.to, template)?,
        };
        let generator = generator.on_cpu(SENDING);
        Ok(if is_realtime() {
            generator.realtime()
        } else {
            generator
        })
    }
}

/// Frames sent at once to see what they cost: some tenths of a second.
const FLAT_FRAMES: u64 = 1_000_000;

/// What was counted, once nothing more comes.
pub(crate) fn settled(count: impl Fn() -> u64, most: u64) -> u64 {
    let (mut last, mut since) = (count(), Instant::now());
    while last < most && since.elapsed() < Duration::from_millis(60) {
        std::thread::sleep(Duration::from_millis(2));
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// A rate that was found.
struct Found {
    name: &'static str,
    mpps: f64,
    limited_by_sender: bool,
    /// Nanoseconds a frame of the CPU that sends and receives, as fast as it
    /// goes, whether or not frames were lost.
    kernel: f64,
    /// Nanoseconds a frame of the reader, over all trials.
    reader: f64,
}

/// How often a rate is tried, by whatever receiver, before it counts as one
/// that loses frames: one trial without a loss is enough, since a pause of the
/// machine spoils a trial and nothing makes one better.
const ATTEMPTS: u32 = 5;

/// Frames of a trial, for any receiver: this multiple of the
/// buffer holds of the shortest records there are. So it can make a rate that
/// is read too slowly look lossless by this part of it at most.
const BUFFERS: u64 = 16;

/// Least number of frames: some hundredths of a second.
const TRIAL_FRAMES_MIN: u64 = 200_000;

fn trial_frames(frame_bytes: usize, buffer_bytes: u32) -> u64 {
    let record = (frame_bytes + SHORT_HEADER_BYTES) as u64 + 8;
    (u64::from(buffer_bytes) / record * BUFFERS).max(TRIAL_FRAMES_MIN)
}

/// The highest rate at which nothing is lost: the sender's most, or one that
/// is searched for below it.
fn highest(make: Make, way: Arrival, frame_bytes: usize, buffer_bytes: u32) -> Result<Found> {
    let bench = Bench::new()?;
    let receiver = make(&bench.to, buffer_bytes)?;
    let mut generator = bench.generator(way, &bench.frames(frame_bytes))?;
    let frames = trial_frames(frame_bytes, buffer_bytes);
    let mut kernel = f64::INFINITY;
    let mut trial = |rate| -> std::result::Result<Trial, GeneratorError> {
        let before = receiver.count();
        let sent = generator.send(frames, rate)?;
        if rate == Rate::Flat {
            kernel = kernel.min(sent.ran.as_nanos() as f64 / sent.frames as f64);
        }
        Ok(Trial {
            sent: sent.frames,
            received: settled(|| receiver.count() - before, sent.frames),
            elapsed: sent.elapsed,
        })
    };
    let (mut flat, mut lossless) = (0.0_f64, 0.0_f64);
    for _ in 0..ATTEMPTS {
        let tried = trial(Rate::Flat)?;
        flat = flat.max(tried.rate());
        if tried.lost() == 0 {
            lossless = lossless.max(tried.rate());
        }
    }
    let limited_by_sender = lossless > 0.0;
    if !limited_by_sender {
        let search = Search {
            rate_min: flat / 20.0,
            rate_max: flat,
            resolution: 0.03,
            attempts_max: ATTEMPTS,
            trial: Duration::ZERO,
            confirmation: Duration::ZERO,
        };
        let outcome = search.run(|rate, _| trial(Rate::PerSecond(rate)))?;
        lossless = outcome.rate.unwrap_or(0.0);
    }
    Ok(Found {
        name: receiver.name,
        mpps: lossless / 1e6,
        limited_by_sender,
        kernel,
        reader: receiver.end(),
    })
}

/// Nanoseconds for a frame where it is received, as fast as it goes, the
/// generator included.
pub(crate) fn flat(bench: &Bench, template: impl Into<Template>, time: Duration) -> Result<f64> {
    let mut generator = bench.generator(Arrival::Veth, template)?;
    let sending = generator.start(u64::MAX, Rate::Flat)?;
    std::thread::sleep(time);
    Ok(of_each(sending.stop()?))
}

/// Nanoseconds of each frame that the other end took.
fn of_each(sent: Sent) -> f64 {
    let taken = sent.frames.saturating_sub(sent.dropped).max(1);
    sent.elapsed.as_nanos() as f64 / taken as f64
}

/// As fast as it goes, whether or not frames are lost: what a frame costs the
/// CPU that sends and receives it, and the one that reads it. The least of
/// all rounds.
pub(crate) fn costs(way: Arrival, sizes: &[usize], results: &Recorder) -> Result<()> {
    let columns = ["receiver", "bytes", "kernel", "reader", "delivered"];
    let title = format!(
        "As fast as it goes, {}: ns per frame, least of {ROUNDS} rounds; the kernel's without sending",
        way.text()
    );
    let mut table = Table::new(&title, &columns);
    for &frame_bytes in sizes {
        let (sending, alone, costs) = Cost::of(&MAKES, way, frame_bytes, ROUNDS)?;
        table.row(&[
            "(sending, into a sink)".into(),
            frame_bytes.to_string(),
            ns(sending),
        ]);
        table.row(&[
            "(nobody, up to the host)".into(),
            frame_bytes.to_string(),
            ns(alone - sending),
        ]);
        for cost in costs {
            table.row(&[
                cost.name.into(),
                frame_bytes.to_string(),
                ns(cost.kernel - sending),
                ns(cost.reader),
                format!("{:.0} %", cost.delivered * 100.0),
            ]);
            let name = |part: &str| {
                let (receiver, way) = (cost.name, way.text());
                format!("kernel plan: {receiver}, {frame_bytes} B {way}, {part} a frame")
            };
            let kernel = cost.kernel - sending;
            results.record(&name("kernel"), kernel, Unit::Nanoseconds, Bar::None);
            results.record(&name("reader"), cost.reader, Unit::Nanoseconds, Bar::None);
        }
    }
    table.print();
    Ok(())
}

/// What a frame costs a receiver: the least so far.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    /// The sender's part included.
    pub(crate) kernel: f64,
    pub(crate) reader: f64,
    /// Of what was taken; the most so far.
    pub(crate) delivered: f64,
}

impl Default for Cost {
    fn default() -> Cost {
        Cost {
            name: "",
            kernel: f64::INFINITY,
            reader: f64::INFINITY,
            delivered: 0.0,
        }
    }
}

impl Cost {
    /// The sender's cost into a sink, that of frames up to the host with no receiver, and the
    /// receivers', all in turn in each round.
    pub(crate) fn of<const N: usize>(
        makes: &[Make; N],
        way: Arrival,
        frame_bytes: usize,
        rounds: usize,
    ) -> Result<(f64, f64, [Cost; N])> {
        let [mut sending, mut alone] = [f64::INFINITY; 2];
        let mut costs = [Cost::default(); N];
        for _ in 0..rounds {
            sending = sending.min(1e3 / sender(way, frame_bytes)?);
            let bench = Bench::new()?;
            let mut generator = bench.generator(way, &bench.frames(frame_bytes))?;
            alone = alone.min(of_each(generator.send(FLAT_FRAMES, Rate::Flat)?));
            for (make, cost) in makes.iter().zip(&mut costs) {
                cost.round(*make, way, frame_bytes)?;
            }
        }
        Ok((sending, alone, costs))
    }

    fn round(&mut self, make: Make, way: Arrival, frame_bytes: usize) -> Result<()> {
        let bench = Bench::new()?;
        let receiver = make(&bench.to, BUFFER)?;
        let mut generator = bench.generator(way, &bench.frames(frame_bytes))?;
        let sent = generator.send(FLAT_FRAMES, Rate::Flat)?;
        let taken = sent.frames.saturating_sub(sent.dropped).max(1);
        let delivered = settled(|| receiver.count(), taken) as f64 / taken as f64;
        self.name = receiver.name;
        self.kernel = self.kernel.min(of_each(sent));
        self.delivered = self.delivered.max(delivered);
        self.reader = self.reader.min(receiver.end());
        Ok(())
    }
}

/// Rates are found in this many rounds, all receivers in turn in each: a
/// virtual machine has its moods.
const ROUNDS: usize = 7;

/// The sender's CPU receives, another one reads. Everyone's buffer has what a
/// port's has by itself, and much more.
pub(crate) fn rates(way: Arrival, sizes: &[usize], results: &Recorder) -> Result<()> {
    for &frame_bytes in sizes {
        for buffer_bytes in [1 << 20, BUFFER] {
            let mut alone = Vec::new();
            let mut found: Vec<Vec<Found>> = MAKES.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                alone.push(sender(way, frame_bytes)?);
                for (make, found) in MAKES.into_iter().zip(&mut found) {
                    found.push(highest(make, way, frame_bytes, buffer_bytes)?);
                }
            }
            let title = format!(
                "Delivered without loss, frames of {frame_bytes} bytes {}, buffers of {} MiB, median of {ROUNDS} rounds",
                way.text(),
                buffer_bytes >> 20
            );
            print_rates(&title, &found);
            let mib = buffer_bytes >> 20;
            let what = format!("{frame_bytes} B {}, {mib} MiB", way.text());
            record_rates(results, &what, frame_bytes, &found);
            println!(
                "  the sender alone, into a sink at XDP: {} Mpps",
                each(&alone)
            );
        }
    }
    Ok(())
}

/// Millions of frames a second that the sender sends without a receiver.
fn sender(way: Arrival, frame_bytes: usize) -> Result<f64> {
    let bench = Bench::new()?;
    let sink = Sink::new(&bench.to, Hook::XdpNative)?;
    let mut generator = bench.generator(way, &bench.frames(frame_bytes))?;
    let sent = generator.send(FLAT_FRAMES, Rate::Flat)?;
    assert_eq!(sink.counted()?.frames + sent.dropped, sent.frames);
    Ok(1e3 / of_each(sent))
}

fn each(figures: &[f64]) -> String {
    let texts: Vec<String> = figures.iter().map(|one| format!("{one:.2}")).collect();
    texts.join(" ")
}

/// A receiver's rates divided by those of another. A round's receivers ran one
/// after the other: their ratios go together.
fn ratios(rounds: &[Found], found: &[Vec<Found>], name: &str) -> Vec<f64> {
    let base = found.iter().find(|rounds| rounds[0].name == name);
    let base = base.expect("it was measured").iter();
    let pairs = rounds.iter().zip(base);
    pairs.map(|(one, base)| one.mpps / base.mpps).collect()
}

/// The rates without loss of all receivers, and the ratios of ours.
fn record_rates(results: &Recorder, what: &str, frame_bytes: usize, found: &[Vec<Found>]) {
    for rounds in found {
        let name = format!("kernel plan: without loss, {}, {what}", rounds[0].name);
        let rate = median(rounds.iter().map(|one| one.mpps)) * 1e6;
        results.record(&name, rate, Unit::PerSecond("frames"), Bar::None);
        let is_short = frame_bytes == 60;
        let bars = match (rounds[0].name, is_short) {
            (TAKING, true) => [Bar::AtLeast(2.5), Bar::AtLeast(1.5)],
            (TAKING, false) => [Bar::AtLeast(1.5), Bar::None],
            (COPYING_TC, true) => [Bar::AtLeast(1.5), Bar::None],
            (COPYING_TC, false) | (COPYING_XDP, _) => [Bar::AtLeast(1.0), Bar::None],
            _ => continue,
        };
        for (peer, bar) in [TPACKET, XSK].into_iter().zip(bars) {
            let ratio = median(ratios(rounds, found, peer).into_iter());
            results.record(&format!("{name} : {peer}"), ratio, Unit::RateOf(peer), bar);
        }
    }
}

fn print_rates(title: &str, found: &[Vec<Found>]) {
    let columns = [
        "receiver",
        "Mpps",
        "× TPACKET_V3",
        "× AF_XDP",
        "kernel ns/frame",
        "reader",
        "each round",
        "the sender's most",
    ];
    let mut table = Table::new(title, &columns);
    let ratio = |rounds: &[Found], name: &str| {
        let ratios = ratios(rounds, found, name);
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        format!("{:.2}, least {least:.2}", median(ratios.iter().copied()))
    };
    for rounds in found {
        let rates: Vec<f64> = rounds.iter().map(|one| one.mpps).collect();
        let at_most = rounds.iter().filter(|one| one.limited_by_sender).count();
        table.row(&[
            rounds[0].name.into(),
            format!("{:.2}", median(rates.iter().copied())),
            ratio(rounds, TPACKET),
            ratio(rounds, XSK),
            ns(median(rounds.iter().map(|one| one.kernel))),
            ns(median(rounds.iter().map(|one| one.reader))),
            each(&rates),
            format!("{at_most} of {ROUNDS}"),
        ]);
    }
    table.print();
}
