//! On a veth pair between two network namespaces: how many frames a second
//! are delivered and none lost, and what many sockets cost against one plan.

use super::bed::{Bed, binding, connection, filter};
use super::packet;
use super::runs::drain;
use super::table::{Table, ns};
use super::xsk::Xsk;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_demux::kernel::Hook as PlanHook;
use weir_filter::backend::cbpf;
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::load::{Generator, GeneratorError, Rate, Search, Sink, Template, Trial, Udp};
use weir_lab::net::{Device, Lab, Offloads};
use weir_lab::rules::{FiveTuple, UDP};
use weir_link::bpf::{Attachment, Hook, Load, Map, MapSpec, Program, ProgramType};
use weir_link::live::Dispatcher;
use weir_ring::Mode;
use weir_wire::LinkType;
use weir_wire::ethernet::Address;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of every receiver's buffer.
const BUFFER: u32 = 1 << 24;

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Something that receives, on a thread of its own.
struct Receiver {
    name: &'static str,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    /// Gives the time that it ran.
    thread: Option<JoinHandle<Duration>>,
    _keep: Vec<Box<dyn std::any::Any>>,
}

impl Receiver {
    fn start(
        name: &'static str,
        keep: Vec<Box<dyn std::any::Any>>,
        read: impl FnOnce(&AtomicBool, &AtomicU64) -> u64 + Send + 'static,
    ) -> Receiver {
        let (count, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&count), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            packet::urgent(1).expect("root may");
            std::hint::black_box(read(&stopped, &counted));
            thread_time()
        });
        Receiver {
            name,
            count,
            stop,
            thread: Some(thread),
            _keep: keep,
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends it; gives the time of its thread for each frame, in nanoseconds.
    fn end(mut self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let frames = self.count().max(1);
        let time = self.thread.take().expect("it ends once").join();
        time.expect("it does not panic").as_nanos() as f64 / frames as f64
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The plan with one port of all UDP, on one hook.
fn port(device: &Device, hook: Hook, copy: bool, name: &'static str) -> Result<Receiver> {
    let on = if hook.is_xdp() {
        PlanHook::Xdp
    } else {
        PlanHook::TcIngress
    };
    let mut bed = Bed::new(on, 1, BUFFER);
    bed.bind(binding(filter("udp port 5000"), copy, 0, 1));
    let attach = || Dispatcher::attach(device.index(), hook, None);
    let dispatcher = device.host().run(attach)?;
    dispatcher.set(&bed.maps.load(&bed.plan, on)?)?;
    let mut reader = bed.reader(0);
    reader.set_mode(Mode::Throughput);
    let keep: Vec<Box<dyn std::any::Any>> = vec![Box::new(dispatcher), Box::new(bed)];
    Ok(Receiver::start(name, keep, move |stop, count| {
        let mut sum = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let _ = reader.wait(Some(Duration::from_millis(20)));
            let batch = reader.peek().expect("a sound ring");
            for record in &batch {
                sum += u64::from(record[52]);
            }
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        sum
    }))
}

fn tpacket(device: &Device) -> Result<Receiver> {
    let index = device.index();
    let socket = device.host().run(|| packet::ring(index, BUFFER))?;
    Ok(Receiver::start(
        "TPACKET_V3",
        Vec::new(),
        move |stop, count| packet::read(&socket, BUFFER, stop, count),
    ))
}

fn xsk(device: &Device) -> Result<Receiver> {
    let index = device.index();
    let xsk = device.host().run(|| Xsk::new(index, BUFFER as usize))?;
    let map = Map::create("sockets", &MapSpec::xsk_map(1))?;
    map.put(&[0; 4], &xsk.socket)?;
    let [first, second] = Insn::load_map(Reg::R1, 0);
    let insns = [
        Insn::load(op::W, Reg::R2, Reg::R1, 16),
        first,
        second,
        Insn::mov32(Reg::R3, 2),
        Insn::call(helper::REDIRECT_MAP),
        Insn::exit(),
    ];
    let load = Load {
        maps: &[map.as_fd()],
        ..Load::new(ProgramType::Xdp)
    };
    let program = Program::load(&insns, &load)?;
    let attach = || Attachment::new(&program, index, Hook::XdpNative);
    let attachment = device.host().run(attach)?;
    let keep: Vec<Box<dyn std::any::Any>> = vec![Box::new(attachment), Box::new(map)];
    Ok(Receiver::start(
        "AF_XDP copy, poll",
        keep,
        move |stop, count| xsk.read(stop, count),
    ))
}

/// Two hosts, and a generator at the first.
struct Bench {
    _lab: Lab,
    from: Device,
    to: Device,
}

impl Bench {
    fn new() -> Result<Bench> {
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
    fn frames(&self, frame_bytes: usize) -> Udp {
        Udp {
            frame_bytes,
            ..Udp::new(self.from.mac(), Address([2, 9, 9, 9, 9, 9]), SRC, DST)
        }
    }

    fn generator(&self, template: impl Into<Template>) -> Result<Generator> {
        packet::pin(0)?;
        Ok(Generator::new(&self.from, template)?.realtime())
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
        attempts_max: 4,
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
fn flat(bench: &Bench, template: impl Into<Template>, time: Duration) -> Result<f64> {
    let mut generator = bench.generator(template)?;
    let sending = generator.start(u64::MAX, Rate::Flat)?;
    std::thread::sleep(time);
    let sent = sending.stop()?;
    let taken = sent.frames.saturating_sub(sent.dropped).max(1);
    Ok(sent.elapsed.as_nanos() as f64 / taken as f64)
}

type Make = fn(&Device) -> Result<Receiver>;

const MAKES: [Make; 5] = [
    |to| port(to, Hook::XdpNative, false, "weir, taking (XDP native)"),
    |to| port(to, Hook::TcIngress, true, "weir, copying (tc)"),
    tpacket,
    xsk,
    |to| port(to, Hook::XdpNative, true, "weir, copying (XDP native)"),
];

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

pub(crate) fn rates() -> Result<()> {
    for frame_bytes in [60, 1_514] {
        let title = format!(
            "Delivered without loss, frames of {frame_bytes} bytes, buffers of {} MiB",
            BUFFER >> 20
        );
        let columns = ["receiver", "Mpps", "", "× TPACKET_V3", "reader ns/frame"];
        let mut table = Table::new(&title, &columns);
        let mut rows = Vec::new();
        for make in MAKES {
            let bench = Bench::new()?;
            let receiver = make(&bench.to)?;
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

/// A connection of the generator's frames, and others beside it.
fn tuple(number: u32) -> FiveTuple {
    FiveTuple {
        src: SRC.to_bits(),
        dst: DST.to_bits(),
        src_port: 1024,
        dst_port: 5000 + number as u16,
        protocol: UDP,
    }
}

pub(crate) fn sockets() -> Result<()> {
    let mut table = Table::new(
        "N programs with a connection each: ns per frame, sending and receiving",
        &[
            "N",
            "weir: nobody's",
            "one's",
            "sockets: nobody's",
            "one's",
            "× without sending",
        ],
    );
    let sending = {
        let bench = Bench::new()?;
        let sink = Sink::new(&bench.to, Hook::XdpNative)?;
        let cost = flat(&bench, &bench.frames(60), Duration::from_millis(300))?;
        assert!(sink.counted()?.frames > 0);
        cost
    };
    println!("\n(sending alone, into a sink: {sending:.0} ns)");
    for count in [1, 10, 100, 1_000_u32] {
        let time = Duration::from_millis(if count < 100 { 300 } else { 1_000 });
        let at = |bench: &Bench, number: u32| Udp {
            dst_port: 5000 + number as u16,
            ..bench.frames(60)
        };
        let [none, one] = {
            let bench = Bench::new()?;
            let mut bed = Bed::new(PlanHook::Xdp, count, 1 << 16);
            for number in 0..count {
                bed.bind(binding(
                    filter(&connection(&tuple(number))),
                    false,
                    number,
                    number,
                ));
            }
            let attach = || Dispatcher::attach(bench.to.index(), Hook::XdpNative, None);
            let dispatcher = bench.to.host().run(attach)?;
            dispatcher.set(&bed.maps.load(&bed.plan, PlanHook::Xdp)?)?;
            let mut reader = bed.reader(count as usize / 2);
            let _receiver = Receiver::start("", Vec::new(), move |stop, _| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = reader.wait(Some(Duration::from_millis(20)));
                    drain(&mut reader);
                }
                0
            });
            let costs = [count + 50, count / 2].map(|n| flat(&bench, &at(&bench, n), time));
            _receiver.end();
            let [none, one] = costs;
            [none?, one?]
        };
        let [socket_none, socket_one] = {
            let bench = Bench::new()?;
            let index = bench.to.index();
            let mut sockets = Vec::new();
            for number in 0..count {
                let mut program =
                    compile(&connection(&tuple(number)), &Context::new(LinkType::EN10MB))?;
                optimise(&mut program);
                let filter = cbpf::emit(&program)?;
                sockets.push(bench.to.host().run(|| packet::filtered(index, &filter))?);
            }
            let read = sockets[count as usize / 2].try_clone()?;
            let receiver = Receiver::start("", Vec::new(), move |stop, _| {
                let mut bytes = [0; 2048];
                rustix::net::sockopt::set_socket_timeout(
                    &read,
                    rustix::net::sockopt::Timeout::Recv,
                    Some(Duration::from_millis(20)),
                )
                .expect("a socket has time-outs");
                while !stop.load(Ordering::Relaxed) {
                    let _ = rustix::io::read(&read, &mut bytes);
                }
                0
            });
            let costs = [count + 50, count / 2].map(|n| flat(&bench, &at(&bench, n), time));
            receiver.end();
            let [none, one] = costs;
            [none?, one?]
        };
        let times = |weir: f64, socket: f64| (socket - sending) / (weir - sending).max(1.0);
        table.row(&[
            count.to_string(),
            ns(none),
            ns(one),
            ns(socket_none),
            ns(socket_one),
            format!(
                "{:.1} and {:.1}",
                times(none, socket_none),
                times(one, socket_one)
            ),
        ]);
    }
    table.print();
    Ok(())
}
