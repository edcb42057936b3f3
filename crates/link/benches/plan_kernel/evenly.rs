//! What a frame costs where a live link's traffic spreads over many ports.

use super::bed::{Bed, binding, connection, filter};
use super::live::{Arrival, Bench, settled};
use super::receivers::Receiver;
use super::sockets::tuple;
use super::table::{Table, ns};
use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_demux::kernel::Hook as PlanHook;
use weir_lab::load::{Rate, Udp};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_link::bpf::Hook;
use weir_link::live::Dispatcher;
use weir_ring::Reader;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Ports with a connection each.
const PORTS: [u32; 4] = [1, 10, 100, 1_000];

/// Bytes of a port's ring: what one has by itself.
const RING_BYTES: u32 = 1 << 20;

/// Time between two rounds of the reader, as a port waits at such a rate: a reader without pauses
/// would take the ring's cache lines from the writers.
const NAP: Duration = Duration::from_micros(200);

const ROUNDS: usize = 7;
const FRAMES: u64 = 1_000_000;

/// What was found so far.
#[derive(Clone, Copy)]
struct Cost {
    /// Nanoseconds a frame, the least.
    kernel: f64,
    /// Frames, of all rounds.
    lost: u64,
}

/// The kernel's part is the time of the CPU that sends and receives: a frame's
/// whole way. One reader goes round all rings.
pub(crate) fn evenly(way: Arrival, results: &Recorder) -> Result<()> {
    let mut costs = [Cost {
        kernel: f64::INFINITY,
        lost: 0,
    }; PORTS.len()];
    for _ in 0..ROUNDS {
        for (ports, cost) in PORTS.into_iter().zip(&mut costs) {
            round(way, ports, cost)?;
        }
    }
    let title = format!(
        "N ports with a connection each, a frame to each in turn, {}: ns per frame, least of {ROUNDS} rounds",
        way.text()
    );
    let columns = ["N", "sent and received", "×", "lost"];
    let mut table = Table::new(&title, &columns);
    for (ports, cost) in PORTS.into_iter().zip(costs) {
        table.row(&[
            ports.to_string(),
            ns(cost.kernel),
            format!("{:.2}", cost.kernel / costs[0].kernel),
            cost.lost.to_string(),
        ]);
        if ports > 1 {
            let name = format!(
                "kernel plan: live, evenly over {ports} ports, {}",
                way.text()
            );
            let bar = if ports == 1_000 {
                Bar::AtMost(3.0)
            } else {
                Bar::None
            };
            let ratio = cost.kernel / costs[0].kernel;
            results.record(&name, ratio, Unit::CostOf("1 port"), bar);
        }
    }
    table.print();
    Ok(())
}

fn round(way: Arrival, ports: u32, cost: &mut Cost) -> Result<()> {
    let bench = Bench::new()?;
    let mut bed = Bed::new(PlanHook::Xdp, ports, RING_BYTES);
    for number in 0..ports {
        let filter = filter(&connection(&tuple(number)));
        bed.bind(binding(filter, false, number, number));
    }
    let attach = || Dispatcher::attach(bench.to.index(), Hook::XdpNative, None);
    let dispatcher = bench.to.host().run(attach)?;
    dispatcher.set(&bed.load(PlanHook::Xdp))?;
    let mut readers: Vec<_> = (0..ports as usize).map(|port| bed.reader(port)).collect();
    let receiver = Receiver::start("", Vec::new(), move |stop, count| {
        while !stop.load(Ordering::Relaxed) {
            for reader in &mut readers {
                count.fetch_add(read(reader), Ordering::Relaxed);
            }
            std::thread::sleep(NAP);
        }
        0
    });
    let frames = Udp {
        dst_ports: ports,
        ..bench.frames(60)
    };
    let mut generator = bench.generator(way, &frames)?;
    let sent = generator.send(FRAMES, Rate::Flat)?;
    let taken = sent.frames.saturating_sub(sent.dropped);
    let delivered = settled(|| receiver.count(), taken);
    cost.kernel = cost.kernel.min(sent.ran.as_nanos() as f64 / taken as f64);
    cost.lost += taken - delivered;
    receiver.end();
    Ok(())
}

/// Reads all that is there; gives how many it was.
fn read(reader: &mut Reader) -> u64 {
    let mut records = 0;
    loop {
        match reader.peek().expect("a sound ring").len() {
            0 => return records,
            more => records += more as u64,
        }
    }
}
