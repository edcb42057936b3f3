//! A plan on a live link delivers what the same plan delivers in user space,
//! and accounts for every frame.

use super::bound::{binding, filter};
use super::one_port::{plan_hook, read_all};
use super::{Link, counter_of, counts, link};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_demux::kernel::{Change, Hook as PlanHook, KernelPlan, MapRole, Options, Recompile};
use weir_demux::{Binding, BindingId, Filter, Plan, Target, Verdict};
use weir_lab::load::{Generator, Rate, Udp};
use weir_lab::program::Tape;
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, mixed_forms};
use weir_link::bpf::{Attachment, Hook, Map, MapSpec};
use weir_link::live::{Dispatcher, Sender};
use weir_link::plan::PlanMaps;
use weir_ring::Reader;
use weir_wire::ethernet::Address;

const PORTS: u32 = 4;

/// Time limit of a step on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(20);

const HOOKS: [Hook; 3] = [Hook::XdpNative, Hook::XdpGeneric, Hook::TcIngress];

/// The EtherType of IPv4.
const IP: u16 = 0x0800;

/// Offset of the frame's number, which the generator writes.
const NUMBER_AT: usize = 42;

/// A plan at a hook, with its ports.
struct Live {
    on: PlanHook,
    plan: KernelPlan,
    maps: PlanMaps,
    rings: Vec<Map>,
    dispatcher: Dispatcher,
}

impl Live {
    fn new(link: &Link, hook: Hook, ring_bytes: u32) -> Live {
        let plan = KernelPlan::new(Options {
            keys_hint: 64,
            ..Options::default()
        });
        let maps = PlanMaps::new(&plan).unwrap();
        let ring = |slot: u32| {
            let ring = Map::create("port", &MapSpec::ring_buf(ring_bytes)).unwrap();
            let rings = maps.map(MapRole::Rings);
            rings.put(&slot.to_ne_bytes(), &ring).unwrap();
            ring
        };
        let rings = (0..PORTS).map(ring).collect();
        let attach = || Dispatcher::attach(link.eth_b.index(), hook, None).unwrap();
        Live {
            on: plan_hook(hook),
            plan,
            maps,
            rings,
            dispatcher: link.b.run(attach),
        }
    }

    fn bind(&mut self, binding: Binding) -> BindingId {
        let (id, change) = self.plan.bind(binding).unwrap();
        self.apply(&change);
        id
    }

    fn apply(&mut self, change: &Change) {
        self.maps.apply(&self.plan, change).unwrap();
        if change.programs == Recompile::Required {
            self.plan.prepare_recompile();
            let program = self.maps.load(&self.plan, self.on).unwrap();
            self.dispatcher.set(&program).unwrap();
        }
    }

    /// Waits until frames in flight have passed, as a change of a map of maps
    /// does.
    fn settle(&mut self) {
        let epoch = self.plan.epoch();
        let last = PORTS - 1;
        let rings = self.maps.map(MapRole::Rings);
        let ring = &self.rings[last as usize];
        rings.put(&last.to_ne_bytes(), ring).unwrap();
        let change = self.plan.reclaim(epoch);
        self.apply(&change);
    }

    /// Frames delivered and lost, over all ports.
    fn counted(&self) -> (u64, u64) {
        let counters = (0..PORTS).map(|slot| self.maps.counters(slot).unwrap());
        counters.fold((0, 0), |(delivered, lost), one| {
            (delivered + one.delivered, lost + one.lost)
        })
    }

    fn reader(&self, port: u32) -> Reader {
        let ring = self.rings[port as usize].try_clone().unwrap();
        weir_lab::rings::reader(OwnedFd::from(ring)).unwrap()
    }
}

/// Polls `now` until it returns `wanted` or a time limit passes; returns the
/// last value.
fn until<T: PartialEq>(wanted: &T, mut now: impl FnMut() -> T) -> T {
    let start = Instant::now();
    loop {
        let found = now();
        if found == *wanted || start.elapsed() > WAIT_MAX {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The frames of each port: tag and bytes.
type Got = Vec<Vec<(u32, Vec<u8>)>>;

/// The deliveries of the plan in user space, and the number of frames that it
/// passes.
fn expected(plan: &mut Plan, frames: &[Vec<u8>]) -> (Got, u64) {
    let mut got = vec![Vec::new(); PORTS as usize];
    let (mut verdict, mut passed) = (Verdict::new(), 0);
    for frame in frames {
        plan.run(frame, frame.len() as u32, &mut verdict);
        for delivery in verdict.deliveries() {
            if let Target::Port(port) = delivery.target {
                let len = (delivery.snap_len as usize).min(frame.len());
                got[port as usize].push((delivery.tag, frame[..len].to_vec()));
            }
        }
        passed += u64::from(!verdict.is_taken());
    }
    (got, passed)
}

#[test]
fn a_live_plan_divides_as_the_plan_in_user_space() {
    for (seed, hook) in (0..).zip(HOOKS) {
        let Some(link) = link() else { return };
        let mut rng = Rng::new(seed);
        let mut tape = Tape::seeded(seed, 20_000);
        let mut live = Live::new(&link, hook, 1 << 22);
        let mut user = Plan::new(1);
        let mut frames: Vec<Vec<u8>> = (0..200)
            .map(|_| FiveTuple::draw(&mut rng).frame())
            .collect();
        let mut texts = mixed_forms(seed, 80);
        // Filters made from some frames, so that enough frames are delivered.
        for _ in 0..40 {
            let own = FiveTuple::draw(&mut rng);
            let src = std::net::Ipv4Addr::from(own.src);
            texts.push(format!("src host {src} and dst port {}", own.dst_port));
            frames.extend([own.frame(), FiveTuple::draw(&mut rng).frame()]);
        }
        for (tag, text) in (0..).zip(&texts) {
            let (priority, copy) = (tape.pick(&[1, 5, 9]), tape.chance(60));
            let binding = binding(filter(text), priority, copy, tag % PORTS, tag);
            user.bind(binding.clone()).unwrap();
            live.bind(binding);
        }
        let (wanted, passed_wanted) = expected(&mut user, &frames);
        // Behind the plan: counts the frames that it passes.
        let (map, memory) = counts();
        let behind = counter_of(Hook::TcIngress, &map, 0, IP);
        let attach = || Attachment::new(&behind, link.eth_b.index(), Hook::TcIngress).unwrap();
        let _behind = link.b.run(attach);
        let sender = link.a.run(|| Sender::open(link.eth_a.index()).unwrap());
        // From one CPU, so that frames arrive in order.
        std::thread::scope(|scope| {
            let send = || {
                let cpu = weir_lab::affinity::allowed().unwrap()[0];
                weir_lab::affinity::pin(None, cpu).unwrap();
                frames.iter().for_each(|frame| sender.send(frame).unwrap());
            };
            scope.spawn(send).join().unwrap();
        });
        let delivered: usize = wanted.iter().map(Vec::len).sum();
        let goal = (delivered as u64, 0, passed_wanted);
        let now = || {
            let (delivered, lost) = live.counted();
            let passed = memory.load_u64(0, 0).unwrap();
            (delivered, lost, passed)
        };
        assert_eq!(until(&goal, now), goal, "{hook:?}, seed {seed}");
        for (port, wanted) in (0..).zip(&wanted) {
            let mut reader = live.reader(port);
            let mut got = Vec::new();
            read_all(&mut reader, |record| {
                got.push((record.tag, record.bytes.to_vec()));
            });
            assert!(got == *wanted, "{hook:?}, port {port}, seed {seed}");
        }
        println!("{hook:?}: {} frames, {goal:?}", frames.len());
        assert!(delivered > 80 && passed_wanted > 20 && passed_wanted < frames.len() as u64);
    }
}

/// Sent = delivered + lost + passed, although no process reads and rings are
/// small.
#[test]
fn every_frame_is_accounted_for_when_rings_overflow() {
    for hook in HOOKS {
        let Some(link) = link() else { return };
        let mut live = Live::new(&link, hook, 1 << 16);
        live.bind(binding(filter("udp dst port 5000"), 5, false, 0, 1));
        live.bind(binding(filter("udp dst port 5001"), 5, true, 1, 2));
        let (map, memory) = counts();
        let behind = counter_of(Hook::TcIngress, &map, 0, IP);
        let attach = || Attachment::new(&behind, link.eth_b.index(), Hook::TcIngress).unwrap();
        let _behind = link.b.run(attach);
        let mut generator = generator(&link, 4);
        let sent = generator.send(40_000, Rate::Flat).unwrap();
        let came = sent.frames - sent.dropped;
        let now = || {
            let taken = live.maps.counters(0).unwrap();
            let passed = memory.load_u64(0, 0).unwrap();
            taken.delivered + taken.lost + passed
        };
        assert_eq!(until(&came, now), came, "{hook:?} {sent:?}");
        let [taken, copied] = [0, 1].map(|port| live.maps.counters(port).unwrap());
        println!("{hook:?}: {sent:?}, {taken:?}, {copied:?}");
        assert!(taken.lost > 1_000 && taken.delivered > 100, "{taken:?}");
        if sent.dropped == 0 {
            assert_eq!(taken.delivered + taken.lost, 10_000);
            assert_eq!(copied.delivered + copied.lost, 10_000);
        }
    }
}

/// A generator of numbered frames to `dst_ports` destination ports of the
/// second host, in turn.
pub(crate) fn generator(link: &Link, dst_ports: u32) -> Generator {
    let now = link.eth_b.offloads().unwrap();
    // Without XDP a veth accepts redirected frames only with GRO enabled.
    let offloads = weir_lab::net::Offloads {
        generic_receive: true,
        ..now
    };
    link.eth_b.set_offloads(offloads).unwrap();
    let [src, dst] = [[10, 0, 0, 1], [10, 0, 0, 2]];
    // To another station: the host's stack then drops the frames early, which
    // costs less time.
    let station = Address([2, 9, 9, 9, 9, 9]);
    let udp = Udp::new(link.eth_a.mac(), station, src.into(), dst.into());
    let template = Udp { dst_ports, ..udp };
    Generator::new(&link.eth_a, &template).unwrap()
}

/// Filters that all accept the generator's frames, with different subtables and
/// keys.
const VERSIONS: [&str; 5] = [
    "udp dst port 5000",
    "udp portrange 4990-5010",
    "ip and udp and src host 10.0.0.1 and dst port 5000",
    "dst net 10.0.0.0/8 and udp src port 1024",
    "ip[8] > 0 and udp",
];

/// Rate of the generator, at most, in frames per second.
const PACE: f64 = 1.1e6;

const CHANGES_MIN: usize = 30;

#[test]
fn changes_under_load_lose_nothing_and_keep_the_order() {
    for (seed, hook) in (0..).zip([Hook::XdpNative, Hook::TcIngress]) {
        let Some(link) = link() else { return };
        change_under_load(&link, hook, seed, |generator| generator);
    }
}

/// With real-time priority, so that other tests do not slow the sender:
///
/// ```sh
/// cargo test --release -p weir-link --test live -- --ignored million
/// ```
#[test]
#[ignore = "takes a CPU for itself"]
fn changes_at_a_million_frames_a_second_lose_nothing_and_keep_the_order() {
    /// Frames per second that must arrive: the kernel reserves a twentieth of
    /// the time for other threads.
    const FLOOR: f64 = 1e6;
    for (seed, hook) in (0..).zip([Hook::XdpNative, Hook::TcIngress]) {
        let Some(link) = link() else { return };
        let rate = change_under_load(&link, hook, seed, Generator::realtime);
        assert!(rate >= FLOOR, "{hook:?}: {rate:.0} frames a second");
    }
}

/// Changes a plan while frames arrive; returns the frames per second.
fn change_under_load(
    link: &Link,
    hook: Hook,
    seed: u64,
    sender: impl Fn(Generator) -> Generator,
) -> f64 {
    let mut live = Live::new(link, hook, 1 << 24);
    let steady = live.bind(binding(filter(VERSIONS[0]), 5, true, 0, 1));
    let reader = live.reader(0);
    let mut generator = sender(generator(link, 1));
    let done = AtomicBool::new(false);
    let (sent, changes, heard) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| listen(reader, &done));
        let sending = generator.start(u64::MAX, Rate::PerSecond(PACE)).unwrap();
        let changes = churn(&mut live, steady, seed);
        let sent = sending.stop().unwrap();
        let came = sent.frames - sent.dropped;
        let now = || {
            let counters = live.maps.counters(0).unwrap();
            counters.delivered + counters.lost
        };
        assert_eq!(until(&came, now), came, "{hook:?}, seed {seed}: {sent:?}");
        std::thread::sleep(Duration::from_millis(50));
        done.store(true, Ordering::Relaxed);
        (sent, changes, reading.join().unwrap())
    });
    let counters = live.maps.counters(0).unwrap();
    let rate = (sent.frames - sent.dropped) as f64 / sent.elapsed.as_secs_f64();
    println!("{hook:?}: {rate:.0} a second, {sent:?}, {changes} changes, {counters:?}");
    assert_eq!(heard.frames, counters.delivered, "{hook:?}");
    assert_eq!(heard.out_of_order, 0, "{hook:?}: or delivered twice");
    assert!(heard.lost_before <= counters.lost, "{hook:?}");
    assert!(changes >= CHANGES_MIN && sent.frames > 10_000, "{hook:?}");
    rate
}

struct Heard {
    frames: u64,
    /// Frames whose number is not above the previous one.
    out_of_order: u64,
    lost_before: u64,
}

fn listen(mut reader: Reader, done: &AtomicBool) -> Heard {
    let (mut heard, mut last) = (
        Heard {
            frames: 0,
            out_of_order: 0,
            lost_before: 0,
        },
        None,
    );
    loop {
        // Records present at the end are read too.
        let is_done = done.load(Ordering::Relaxed);
        let _ = reader.wait(Some(Duration::from_millis(10))).unwrap();
        read_all(&mut reader, |record| {
            let number = record.bytes[NUMBER_AT..].first_chunk().unwrap();
            let number = u64::from_be_bytes(*number);
            heard.frames += 1;
            heard.out_of_order += u64::from(last.is_some_and(|last| number <= last));
            heard.lost_before += u64::from(record.lost_before);
            last = Some(number);
        });
        if is_done {
            return heard;
        }
    }
}

/// Changes the steady binding's filter, and binds and unbinds others, of known
/// and new subtables, until tables grow.
fn churn(live: &mut Live, steady: BindingId, seed: u64) -> usize {
    let mut tape = Tape::seeded(seed, 1 << 20);
    let others: Vec<Filter> = mixed_forms(seed, 120)
        .iter()
        .map(|text| filter(text))
        .collect();
    let versions = VERSIONS.map(filter);
    let mut bound = Vec::new();
    let (mut changes, start) = (0, Instant::now());
    while start.elapsed() < Duration::from_millis(700)
        || (changes < CHANGES_MIN && start.elapsed() < WAIT_MAX)
    {
        match tape.below(8) {
            0..3 => {
                let to = versions[tape.below(versions.len())].clone();
                let change = live.plan.change_filter(steady, to).unwrap();
                live.apply(&change);
                live.settle();
            }
            3..7 => {
                let other = others[tape.below(others.len())].clone();
                let port = 1 + tape.below(3) as u32;
                bound.push(live.bind(binding(other, tape.pick(&[1, 9]), true, port, 2)));
            }
            _ if bound.is_empty() => {}
            _ => {
                let gone = bound.swap_remove(tape.below(bound.len()));
                let change = live.plan.unbind(gone).unwrap();
                live.apply(&change);
            }
        }
        changes += 1;
    }
    changes
}
