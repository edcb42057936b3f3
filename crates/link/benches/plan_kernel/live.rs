//! On a veth pair between two network namespaces: what a frame costs, and how
//! many a second are delivered and none lost.

use super::receivers::{BUFFER, MAKES, READING, Receiver};
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

    /// Has the kernel receive where frames are read, and before they are.
    fn receive_apart(&self) -> Result<()> {
        for thread in self.to.receive_in_threads()? {
            cpu::pin(Some(thread), READING)?;
            cpu::set_foremost(Some(thread))?;
        }
        Ok(())
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

/// The highest rate without loss, in millions a second.
fn lossless(bench: &Bench, receiver: &Receiver, frame_bytes: usize) -> Result<(f64, bool)> {
    let mut generator = bench.generator(&bench.frames(frame_bytes))?;
    let search = Search {
        rate_min: 1e5,
        rate_max: 1.2e7,
        resolution: 0.03,
        attempts_max: 8,
        trial: Duration::from_millis(150),
        confirmation: Duration::ZERO,
    };
    let outcome = search.run(|rate, time| -> std::result::Result<Trial, GeneratorError> {
        let count = (rate * time.as_secs_f64()) as u64;
        let before = receiver.count();
        let sent = generator.send(count, Rate::PerSecond(rate))?;
        let received = settled(|| receiver.count() - before, sent.frames);
        Ok(Trial {
            sent: sent.frames,
            received: received.min(sent.frames),
            elapsed: sent.elapsed,
        })
    })?;
    Ok((outcome.rate.unwrap_or(0.0) / 1e6, outcome.limited_by_sender))
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
            let receiver = make(&bench.to)?;
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

/// Who receives a frame in the kernel.
#[derive(Clone, Copy, PartialEq)]
enum Receives {
    /// The CPU that sends it, as a veth does by itself.
    WhereSent,
    /// The CPU that reads it, as with a wire between the two.
    WhereRead,
}

/// The sender's CPU receives, another one reads.
pub(crate) fn rates() -> Result<()> {
    rates_of("", Receives::WhereSent)
}

/// One CPU receives and reads, another one sends.
pub(crate) fn apart() -> Result<()> {
    rates_of(", received and read on one CPU", Receives::WhereRead)
}

/// Keeps a CPU from idling as long as it lives: what nobody else wants of it
/// is spun away. A virtual machine's CPU that idles is given to others, and
/// comes back after more time than a veth's 256 frames last.
struct Awake(Arc<AtomicBool>);

impl Awake {
    fn new(cpu: usize) -> Awake {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            cpu::pin(None, cpu).expect("there is such a CPU");
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Awake(stop)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn rates_of(how: &str, receives: Receives) -> Result<()> {
    for frame_bytes in [60, 1_514] {
        let title = format!(
            "Delivered without loss{how}, frames of {frame_bytes} bytes, buffers of {} MiB",
            BUFFER >> 20
        );
        let columns = ["receiver", "Mpps", "", "× TPACKET_V3", "reader ns/frame"];
        let mut table = Table::new(&title, &columns);
        let mut rows = Vec::new();
        for make in MAKES {
            let bench = Bench::new()?;
            let receiver = make(&bench.to)?;
            let _awake = match receives {
                Receives::WhereSent => None,
                Receives::WhereRead => {
                    bench.receive_apart()?;
                    Some(Awake::new(READING))
                }
            };
            let (rate, by_sender) = lossless(&bench, &receiver, frame_bytes)?;
            rows.push((receiver.name, rate, by_sender, receiver.end()));
        }
        let base = rows.iter().find(|row| row.0 == "TPACKET_V3");
        let base = base.map_or(1.0, |row| row.1);
        for (name, rate, by_sender, reader) in rows {
            let limit = if by_sender { "(the sender's most)" } else { "" };
            table.row(&[
                name.into(),
                format!("{rate:.2}"),
                limit.into(),
                format!("{:.2}", rate / base),
                ns(reader),
            ]);
        }
        table.print();
    }
    Ok(())
}
