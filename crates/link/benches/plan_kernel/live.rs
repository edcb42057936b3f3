//! On a veth pair between two network namespaces: what a frame costs, and how
//! many a second are delivered and none lost.

use super::receivers::{MAKES, Make, READING};
use super::table::{Table, ns};
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_lab::cpu;
use weir_lab::load::{Generator, GeneratorError, Rate, Search, Sink, Template, Trial, Udp};
use weir_lab::net::{Device, Lab, Offloads};
use weir_link::bpf::Hook;
use weir_wire::ethernet::Address;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Bytes of every receiver's buffer.
const BUFFER: u32 = 1 << 24;

/// The CPU that sends, and by itself also receives.
const SENDING: usize = 0;

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

    fn generator(&self, template: impl Into<Template>) -> Result<Generator> {
        let generator = Generator::new(&self.from, template)?;
        Ok(generator.on_cpu(SENDING).realtime())
    }
}

/// What was counted, once nothing more comes.
fn settled(count: impl Fn() -> u64, most: u64) -> u64 {
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
    /// Nanoseconds a frame, over all trials: of the reader, and of the kernel's
    /// thread if there is one.
    reader: f64,
    kernel: Option<f64>,
}

/// The highest rate at which no larger part is lost than is allowed.
fn highest(make: Make, frame_bytes: usize, way: &Way) -> Result<Found> {
    let bench = Bench::new()?;
    let receiver = make(&bench.to, way.buffer_bytes)?;
    let apart = way.is_apart.then(|| Apart::new(&bench.to)).transpose()?;
    let mut generator = bench.generator(&bench.frames(frame_bytes))?;
    let search = Search {
        rate_min: 1e5,
        rate_max: 1.2e7,
        resolution: 0.03,
        attempts_max: 4,
        trial: Duration::from_millis(150),
        confirmation: Duration::ZERO,
    };
    let outcome = search.run(|rate, time| -> std::result::Result<Trial, GeneratorError> {
        let count = (rate * time.as_secs_f64()) as u64;
        let before = receiver.count();
        let sent = generator.send(count, Rate::PerSecond(rate))?;
        let received = settled(|| receiver.count() - before, sent.frames);
        let lost = sent.frames.saturating_sub(received);
        let is_good = lost as f64 <= way.lost_most * sent.frames as f64;
        Ok(Trial {
            sent: sent.frames,
            received: if is_good { sent.frames } else { received },
            elapsed: sent.elapsed,
        })
    })?;
    let frames = receiver.count() as f64;
    Ok(Found {
        name: receiver.name,
        mpps: outcome.rate.unwrap_or(0.0) / 1e6,
        limited_by_sender: outcome.limited_by_sender,
        kernel: apart.map(|apart| apart.ran_ns() / frames),
        reader: receiver.end(),
    })
}

/// Nanoseconds for a frame where it is received, as fast as it goes, the
/// generator included.
pub(crate) fn flat(bench: &Bench, template: impl Into<Template>, time: Duration) -> Result<f64> {
    let mut generator = bench.generator(template)?;
    let sending = generator.start(u64::MAX, Rate::Flat)?;
    std::thread::sleep(time);
    let sent = sending.stop()?;
    let taken = sent.frames.saturating_sub(sent.dropped).max(1);
    Ok(sent.elapsed.as_nanos() as f64 / taken as f64)
}

/// As fast as it goes: what a frame costs the CPU that sends and receives it,
/// and the one that reads it.
pub(crate) fn costs() -> Result<()> {
    let columns = ["receiver", "bytes", "kernel", "reader", "delivered"];
    let title = "As fast as it goes: ns per frame; the kernel's without sending";
    let mut table = Table::new(title, &columns);
    for frame_bytes in [60, 1_514] {
        let bench = Bench::new()?;
        let sink = Sink::new(&bench.to, Hook::XdpNative)?;
        let time = Duration::from_secs(1);
        let sending = flat(&bench, &bench.frames(frame_bytes), time)?;
        assert!(sink.counted()?.frames > 0);
        table.row(&[
            "(sending, into a sink)".into(),
            frame_bytes.to_string(),
            ns(sending),
        ]);
        for make in MAKES {
            let bench = Bench::new()?;
            let receiver = make(&bench.to, BUFFER)?;
            let cost = flat(&bench, &bench.frames(frame_bytes), time)?;
            let (name, count) = (receiver.name, receiver.count());
            table.row(&[
                name.into(),
                frame_bytes.to_string(),
                ns(cost - sending),
                ns(receiver.end()),
                format!(
                    "{:.0} %",
                    count as f64 * cost / time.as_nanos() as f64 * 100.0
                ),
            ]);
        }
    }
    table.print();
    Ok(())
}

/// How rates are searched.
struct Way {
    what: &'static str,
    /// Of every receiver.
    buffer_bytes: u32,
    /// The part of the frames that may be lost.
    lost_most: f64,
    /// The kernel receives where frames are read, as with a wire, and not where
    /// they are sent, as a veth does by itself.
    is_apart: bool,
}

/// The sender's CPU receives, another one reads.
pub(crate) fn rates() -> Result<()> {
    rates_of(&Way {
        what: "Delivered without loss",
        buffer_bytes: BUFFER,
        lost_most: 0.0,
        is_apart: false,
    })
}

/// One CPU receives and reads, another one sends. What a veth holds for a CPU
/// that is late, 256 frames, is less than a virtual machine wants, so a few may
/// be lost; and the buffers are small, so that they do not hide a slow reader.
pub(crate) fn apart() -> Result<()> {
    rates_of(&Way {
        what: "Received and read on one CPU, at most 0.5 % lost",
        buffer_bytes: BUFFER / 4,
        lost_most: 0.005,
        is_apart: true,
    })
}

fn rates_of(way: &Way) -> Result<()> {
    for frame_bytes in [60, 1_514] {
        let title = format!(
            "{}, frames of {frame_bytes} bytes, buffers of {} MiB",
            way.what,
            way.buffer_bytes >> 20
        );
        let columns = [
            "receiver",
            "Mpps",
            "",
            "× TPACKET_V3",
            "reader ns/frame",
            "kernel ns/frame",
        ];
        let mut table = Table::new(&title, &columns);
        let found = MAKES.map(|make| highest(make, frame_bytes, way));
        let found = found.into_iter().collect::<Result<Vec<Found>>>()?;
        let base = found.iter().find(|one| one.name == "TPACKET_V3");
        let base = base.map_or(1.0, |one| one.mpps);
        for one in found {
            let limit = match one.limited_by_sender {
                true => "(the sender's most)",
                false => "",
            };
            table.row(&[
                one.name.into(),
                format!("{:.2}", one.mpps),
                limit.into(),
                format!("{:.2}", one.mpps / base),
                ns(one.reader),
                one.kernel.map(ns).unwrap_or_default(),
            ]);
        }
        table.print();
    }
    Ok(())
}

/// The CPU that reads receives too, in a thread of the kernel's that comes
/// before the reader, and never idles: a virtual machine's CPU that does is
/// given to others, and comes back when a veth's ring is long full.
struct Apart {
    threads: Vec<u32>,
    stop: Arc<AtomicBool>,
}

impl Apart {
    fn new(to: &Device) -> Result<Apart> {
        let threads = to.receive_in_threads()?;
        for &thread in &threads {
            cpu::pin(Some(thread), READING)?;
            cpu::set_foremost(Some(thread))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            cpu::pin(None, READING).expect("there is such a CPU");
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Ok(Apart { threads, stop })
    }

    /// How long the kernel's threads have run, in nanoseconds.
    fn ran_ns(&self) -> f64 {
        let ran = |thread| {
            let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        self.threads.iter().filter_map(ran).sum()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
