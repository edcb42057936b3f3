//! What receives: ports of weir, and what the kernel has beside them.

use super::bed::{Bed, binding, filter};
use super::packet;
use super::xsk::Xsk;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_demux::kernel::Hook as PlanHook;
use weir_demux::kernel::record::Record;
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};
use weir_lab::affinity;
use weir_lab::net::Device;
use weir_link::bpf::{Attachment, Hook, Load, Map, MapSpec, Program, ProgramType};
use weir_link::live::Dispatcher;
use weir_ring::Mode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Names of ports.
pub(crate) const TAKING: &str = "weir, taking (XDP native)";
pub(crate) const COPYING_TC: &str = "weir, copying (tc)";
pub(crate) const COPYING_XDP: &str = "weir, copying (XDP native)";

/// Names of receivers that others are compared with.
pub(crate) const TPACKET: &str = "TPACKET_V3";
pub(crate) const XSK: &str = "AF_XDP copy, poll";

/// The CPU that reads.
const READING: usize = 1;

/// Whether the threads that send and read have priority over all others: not beside others'
/// work, which must go on.
static REALTIME: AtomicBool = AtomicBool::new(true);

pub(crate) fn is_realtime() -> bool {
    REALTIME.load(Ordering::Relaxed)
}

/// Has them be like any other from now on.
pub(crate) fn be_ordinary() {
    REALTIME.store(false, Ordering::Relaxed);
}

/// Something that receives, on a thread of its own.
pub(crate) struct Receiver {
    pub(crate) name: &'static str,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    /// Gives the time that it ran.
    thread: Option<JoinHandle<Duration>>,
    _keep: Vec<Box<dyn std::any::Any>>,
}

impl Receiver {
    pub(crate) fn start(
        name: &'static str,
        keep: Vec<Box<dyn std::any::Any>>,
        read: impl FnOnce(&AtomicBool, &AtomicU64) -> u64 + Send + 'static,
    ) -> Receiver {
        let (count, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&count), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            affinity::pin(None, READING).expect("there is a second CPU");
            affinity::set_realtime(None, is_realtime()).expect("root may");
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

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends it; gives the time of its thread for each frame, in nanoseconds.
    pub(crate) fn end(mut self) -> f64 {
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
pub(crate) fn port(
    device: &Device,
    buffer_bytes: u32,
    hook: Hook,
    copy: bool,
    name: &'static str,
) -> Result<Receiver> {
    let on = if hook.is_xdp() {
        PlanHook::Xdp
    } else {
        PlanHook::TcIngress
    };
    let mut bed = Bed::new(on, 1, buffer_bytes);
    bed.bind(binding(filter("udp port 5000"), copy, 0, 1));
    let attach = || Dispatcher::attach(device.index(), hook, None);
    let dispatcher = device.host().run(attach)?;
    dispatcher.set(&bed.load(on))?;
    let mut reader = bed.reader(0);
    reader.set_mode(Mode::Throughput);
    let keep: Vec<Box<dyn std::any::Any>> = vec![Box::new(dispatcher), Box::new(bed)];
    Ok(Receiver::start(name, keep, move |stop, count| {
        let mut sum = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let _ = reader.wait(Some(Duration::from_millis(20)));
            let batch = reader.peek().expect("a sound ring");
            for record in &batch {
                let frame = Record::parse(record).expect("a sound record").bytes;
                sum += u64::from(frame[12]);
            }
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        sum
    }))
}

pub(crate) fn tpacket(device: &Device, buffer_bytes: u32) -> Result<Receiver> {
    let index = device.index();
    let socket = device.host().run(|| packet::ring(index, buffer_bytes))?;
    Ok(Receiver::start(TPACKET, Vec::new(), move |stop, count| {
        packet::read(&socket, buffer_bytes, stop, count)
    }))
}

fn xsk(device: &Device, buffer_bytes: u32) -> Result<Receiver> {
    let index = device.index();
    let xsk = device
        .host()
        .run(|| Xsk::new(index, buffer_bytes as usize))?;
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
    Ok(Receiver::start(XSK, keep, move |stop, count| {
        xsk.read(stop, count)
    }))
}

/// A receiver at a device, with a buffer of this many bytes.
pub(crate) type Make = fn(&Device, u32) -> Result<Receiver>;

pub(crate) const MAKES: [Make; 5] = [
    |to, bytes| port(to, bytes, Hook::XdpNative, false, TAKING),
    |to, bytes| port(to, bytes, Hook::TcIngress, true, COPYING_TC),
    tpacket,
    xsk,
    |to, bytes| port(to, bytes, Hook::XdpNative, true, COPYING_XDP),
];
