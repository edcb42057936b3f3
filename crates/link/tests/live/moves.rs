//! A plan that moves from hook to hook while frames come: each frame is
//! delivered once.

use super::link;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_demux::kernel::record::Record;
use weir_demux::kernel::{Hook as PlanHook, KernelPlan, Options, Part};
use weir_demux::{Binding, Filter, Target};
use weir_filter::lang::expr::{Context, compile};
use weir_lab::load::{Generator, Rate, Udp};
use weir_lab::net::Offloads;
use weir_link::bpf::{Hook, Map, MapSpec};
use weir_link::live::{Dispatcher, UNDER_WAY_MAX};
use weir_link::plan::PlanMaps;
use weir_ring::Reader;
use weir_wire::LinkType;

const RING_BYTES: u32 = 1 << 24;

/// Where the generator writes a frame's number.
const NUMBER_AT: usize = 42;

#[test]
fn a_plan_that_moves_sees_each_frame_once() {
    let Some(link) = link() else { return };
    // Without XDP a veth takes redirected frames only with GRO.
    let now = link.eth_b.offloads().unwrap();
    let offloads = Offloads {
        generic_receive: true,
        ..now
    };
    link.eth_b.set_offloads(offloads).unwrap();
    let mut plan = KernelPlan::new(Options {
        seed: 0x1987,
        ..Options::default()
    });
    let mut maps = PlanMaps::new(&plan).unwrap();
    let ring = Map::create("port", &MapSpec::ring_buf(RING_BYTES)).unwrap();
    maps.map(Part::Rings).put(&[0; 4], &ring).unwrap();
    let filter = compile("udp port 5000", &Context::new(LinkType::EN10MB)).unwrap();
    let binding = Binding {
        filter: Filter::new(filter),
        priority: 5,
        copy: true,
        target: Target::Port(0),
        tag: 1,
    };
    let (_, change) = plan.bind(binding).unwrap();
    maps.apply(&plan, &change).unwrap();
    let attach = |hook: Hook| {
        let on = if hook.is_xdp() {
            PlanHook::Xdp
        } else {
            PlanHook::TcIngress
        };
        let index = link.eth_b.index();
        let program = maps.load(&plan, on).unwrap();
        let attach = || Dispatcher::attach_with(index, hook, None, Some(&program));
        link.b.run(attach).unwrap()
    };
    let mut tc = attach(Hook::TcIngress);
    let frames = Udp::new(
        link.eth_a.mac(),
        link.eth_b.mac(),
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
    );
    let mut generator = Generator::new(&link.eth_a, &frames).unwrap();
    let reader = Reader::open(OwnedFd::from(ring.try_clone().unwrap())).unwrap();
    let done = AtomicBool::new(false);
    let (sent, seen) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(reader, &done));
        let sending = generator.start(u64::MAX, Rate::PerSecond(5e4)).unwrap();
        let mut moves = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1_500) || moves < 6 {
            for hook in [Hook::XdpNative, Hook::XdpGeneric] {
                let xdp = attach(hook);
                // As long as frames may be under way, and sometimes back
                // before.
                if moves % 4 < 2 {
                    std::thread::sleep(UNDER_WAY_MAX);
                    tc.detach(None).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    tc = attach(Hook::TcIngress);
                }
                xdp.detach(None).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                moves += 2;
            }
        }
        let sent = sending.stop().unwrap();
        std::thread::sleep(2 * UNDER_WAY_MAX);
        done.store(true, Ordering::Relaxed);
        (sent, reading.join().unwrap())
    });
    let counters = maps.counters(0).unwrap();
    println!("{sent:?}, {counters:?}");
    let twice = seen.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "frames were delivered twice");
    assert_eq!(counters.delivered, seen.len() as u64);
    let delivered = counters.delivered + counters.lost + sent.dropped;
    assert_eq!(delivered, sent.frames);
    assert!(sent.frames > 2_000);
}

/// How often each frame came, by its number.
fn read(mut reader: Reader, done: &AtomicBool) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    while !done.load(Ordering::Relaxed) {
        reader.wait(Some(Duration::from_millis(10))).unwrap();
        for record in &reader.peek().unwrap() {
            let record = Record::parse(record).unwrap();
            let number = record.bytes[NUMBER_AT..].first_chunk().unwrap();
            *seen.entry(u64::from_be_bytes(*number)).or_default() += 1;
        }
    }
    seen
}
