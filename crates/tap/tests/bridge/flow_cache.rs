//! What the kernel forwards by itself: as much, as long and as exactly as it
//! its entries say.

use crate::net::{Net, Running};
use crate::oracle::learn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_lab::load::{Generator, Rate, Sink, Template, Udp};
use weir_lab::net::Offloads;
use weir_lab::testenv;
use weir_link::bpf::Hook;
use weir_link::live::Sender;
use weir_tap::switch::{Settings, Switch};
use weir_tap::{Bridge, BridgeFlowKind, Bypass, Context, FlowKey, Frame, Verdict};

const LONG: Duration = Duration::from_secs(60);

/// As a veth takes frames that a program redirects to it.
pub(crate) fn net() -> Net {
    let net = Net::new();
    for device in [&net.eth_a, &net.left, &net.right, &net.eth_b] {
        device
            .set_offloads(Offloads {
                generic_receive: true,
                ..Offloads::OFF
            })
            .unwrap();
    }
    net
}

/// Remembers what each frame is alike in, and counts what it sees.
fn remembering(
    net: &Net,
    alike: BridgeFlowKind,
    entries_max: u32,
    ageing: Duration,
    set: impl FnOnce(Bridge) -> Bridge + Send + 'static,
) -> (Running, Arc<AtomicU64>) {
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    let running = net.bridge(
        move |bridge| set(bridge.cache_verdicts(&[alike], entries_max, ageing)),
        move || {
            move |_: &mut Frame, _: &mut Context<'_>| {
                counted.fetch_add(1, Ordering::Relaxed);
                Verdict::ForwardAndCache(alike)
            }
        },
    );
    (running, seen)
}

/// Frames to many ports, in turn.
pub(crate) fn flows(net: &Net, count: u16) -> Generator {
    let (a, b) = (net.eth_a.mac(), net.eth_b.mac());
    let templates: Vec<_> = (0..count)
        .map(|flow| {
            let udp = Udp {
                dst_port: 1000 + flow,
                ..Udp::new(a, b, [10, 9, 0, 1].into(), [10, 9, 0, 2].into())
            };
            (&net.eth_a, Template::from(&udp))
        })
        .collect();
    Generator::in_turn(&templates).unwrap()
}

#[test]
fn what_is_remembered_goes_by_and_is_counted_to_the_frame() {
    if !testenv::root() {
        return;
    }
    const FRAMES: u64 = 20_000;
    for alike in [BridgeFlowKind::MacPair, BridgeFlowKind::FiveTuple] {
        let net = net();
        let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
        let (bridge, seen) = remembering(&net, alike, 64, LONG, |bridge| bridge);
        let sent = net
            .generator()
            .send(FRAMES, Rate::PerSecond(20_000.0))
            .unwrap();
        net.settle(|| sink.counted().unwrap().frames >= FRAMES);
        let report = bridge.end();
        let counted = sink.counted().unwrap();
        let lost = sent.dropped + report.lost() + report.fast.held_back_frames;
        assert_eq!(counted.frames + lost, FRAMES, "{report:?}");
        let fast = report.fast.traffic;
        let by_hand = report.counts[1].tx_frames;
        assert_eq!(fast.frames + by_hand, counted.frames, "{report:?}");
        assert_eq!(
            fast.bytes + report.counts[1].tx_bytes,
            counted.bytes,
            "{report:?}"
        );
        assert_eq!(by_hand, seen.load(Ordering::Relaxed));
        // Where the machine is busy, it is long until the first are through.
        assert!(fast.frames > FRAMES / 20, "{report:?}");
        // A pause of the machine may age it.
        assert_eq!(report.fast.inserted, 1 + report.fast.aged, "{report:?}");
    }
}

#[test]
fn an_entry_ages() {
    if !testenv::root() {
        return;
    }
    let net = net();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    // Longer than the machine pauses.
    let ageing = Duration::from_secs(2);
    let (bridge, seen) = remembering(&net, BridgeFlowKind::MacPair, 64, ageing, |bridge| bridge);
    let mut generator = net.generator();
    let (mut sent, mut before) = (0, 0);
    // Until some went by.
    while before == sent {
        assert!(sent < 20_000, "none of {sent} went by");
        generator.send(200, Rate::PerSecond(1_000.0)).unwrap();
        sent += 200;
        net.settle(|| sink.counted().unwrap().frames >= sent);
        before = seen.load(Ordering::Relaxed);
    }
    std::thread::sleep(2 * ageing);
    generator.send(1, Rate::PerSecond(1_000.0)).unwrap();
    net.settle(|| seen.load(Ordering::Relaxed) > before);
    assert_eq!(seen.load(Ordering::Relaxed), before + 1);
    let report = bridge.end();
    assert_eq!(
        (report.fast.aged, report.fast.inserted),
        (1, 2),
        "{report:?}"
    );
}

#[test]
fn a_table_that_is_full_is_bounded_and_counted() {
    if !testenv::root() {
        return;
    }
    const FRAMES: u64 = 4_000;
    let net = net();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let (bridge, _) = remembering(&net, BridgeFlowKind::FiveTuple, 4, LONG, |bridge| bridge);
    let sent = flows(&net, 16)
        .send(FRAMES, Rate::PerSecond(10_000.0))
        .unwrap();
    net.settle(|| sink.counted().unwrap().frames >= FRAMES);
    let report = bridge.end();
    let lost = sent.dropped + report.lost() + report.fast.held_back_frames;
    assert_eq!(sink.counted().unwrap().frames + lost, FRAMES, "{report:?}");
    assert_eq!(
        (report.fast.inserted, report.fast.entries),
        (4, 4),
        "{report:?}"
    );
    assert!(
        report.fast.full > 0 && report.fast.traffic.frames > 0,
        "{report:?}"
    );
}

#[test]
fn what_is_withdrawn_comes_to_the_application_at_once() {
    if !testenv::root() {
        return;
    }
    let net = net();
    let withdrawn = Arc::new(AtomicBool::new(false));
    let (asked, seen) = (Arc::clone(&withdrawn), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&seen);
    let key = FlowKey::MacPair {
        link: 0,
        vlan: 0,
        src: net.eth_a.mac(),
        dst: net.eth_b.mac(),
    };
    let bridge = net.bridge(
        |bridge| bridge.cache_verdicts(&[BridgeFlowKind::MacPair], 64, LONG),
        move || {
            let mut is_forgotten = false;
            move |_: &mut Frame, context: &mut Context<'_>| {
                counted.fetch_add(1, Ordering::Relaxed);
                // A frame of another VLAN gives the word.
                if asked.load(Ordering::Relaxed) && !is_forgotten {
                    is_forgotten = true;
                    let carried = context.flow_cache().unwrap().forget(&key).unwrap();
                    assert!(carried.frames > 0, "{carried:?}");
                }
                if is_forgotten || context.from() == 1 {
                    Verdict::Forward
                } else {
                    Verdict::ForwardAndCache(BridgeFlowKind::MacPair)
                }
            }
        },
    );
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    net.generator()
        .send(2_000, Rate::PerSecond(10_000.0))
        .unwrap();
    net.settle(|| sink.counted().unwrap().frames >= 2_000);
    let before = seen.load(Ordering::Relaxed);
    assert!(before < 2_000, "{before}");
    withdrawn.store(true, Ordering::Relaxed);
    // It is of another key, and comes to the application.
    let mut word = [net.eth_b.mac().0, net.eth_a.mac().0].concat();
    word.extend([0x81, 0, 0, 5, 0x08, 0x00]);
    word.resize(60, 0);
    let host = net.eth_a.host();
    let sender = host.run(|| Sender::open(net.eth_a.index())).unwrap();
    sender.send(&word).unwrap();
    net.settle(|| seen.load(Ordering::Relaxed) > before);
    net.generator()
        .send(500, Rate::PerSecond(10_000.0))
        .unwrap();
    net.settle(|| seen.load(Ordering::Relaxed) >= before + 501);
    let report = bridge.end();
    let after = seen.load(Ordering::Relaxed) - before;
    assert_eq!(after + report.lost(), 501, "{report:?}");
    assert_eq!(report.fast.entries, 0, "{report:?}");
}

#[test]
fn a_station_that_moves_is_followed() {
    if !testenv::root() {
        return;
    }
    let net = net();
    let bridge = net.bridge(
        |bridge| bridge.cache_verdicts(&[BridgeFlowKind::MacPair], 64, LONG),
        || {
            let mut switch = Switch::new(Settings::wire(2), 7);
            move |frame, context| learn(&mut switch, frame, context)
        },
    );
    let (ours, theirs) = (net.eth_a.mac(), net.eth_b.mac());
    let udp = |src, dst| Udp::new(src, dst, [10, 9, 0, 1].into(), [10, 9, 0, 2].into());
    let send = |device, udp: &Udp| {
        let mut generator = Generator::new(device, udp).unwrap();
        generator.send(50, Rate::PerSecond(1_000.0)).unwrap();
    };
    // Both are known, and frames go by.
    send(&net.eth_b, &udp(theirs, ours));
    send(&net.eth_a, &udp(ours, theirs));
    // The second moves to the first one's side: nothing goes out for it.
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    send(&net.eth_a, &udp(theirs, ours));
    net.settle(|| true);
    let told = sink.counted().unwrap().frames;
    send(&net.eth_a, &udp(ours, theirs));
    net.settle(|| true);
    assert_eq!(
        sink.counted().unwrap().frames,
        told,
        "it is not there any more"
    );
    // And back.
    send(&net.eth_b, &udp(theirs, ours));
    send(&net.eth_a, &udp(ours, theirs));
    net.settle(|| sink.counted().unwrap().frames >= told + 50);
    assert_eq!(sink.counted().unwrap().frames, told + 50);
    let report = bridge.end();
    assert!(report.fast.traffic.frames > 0, "{report:?}");
    assert!(report.fast.forgotten > 0, "{report:?}");
}

/// The application hangs: what it had remembered is not served.
#[test]
fn a_hang_ends_what_was_remembered() {
    if !testenv::root() {
        return;
    }
    let net = net();
    let hang = Arc::new(AtomicBool::new(false));
    let hangs = Arc::new(AtomicBool::new(false));
    let (asked, done) = (Arc::clone(&hang), Arc::clone(&hangs));
    let bridge = net.bridge(
        |bridge| {
            let limit = Duration::from_millis(50);
            bridge
                .cache_verdicts(&[BridgeFlowKind::MacPair], 64, LONG)
                .bypass(Bypass::Drop)
                .hang_max(limit)
                .restore()
        },
        move || {
            move |_: &mut Frame, context: &mut Context<'_>| {
                while context.from() == 1 && asked.load(Ordering::Relaxed) {
                    done.store(true, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
                Verdict::ForwardAndCache(BridgeFlowKind::MacPair)
            }
        },
    );
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let mut generator = net.generator();
    let went_by = |generator: &mut Generator, frames| {
        let before = sink.counted().unwrap().frames;
        generator.send(frames, Rate::PerSecond(2_000.0)).unwrap();
        net.settle(|| true);
        sink.counted().unwrap().frames - before
    };
    assert!(went_by(&mut generator, 200) > 0);
    hang.store(true, Ordering::Relaxed);
    let back = Udp::new(
        net.eth_b.mac(),
        net.eth_a.mac(),
        [10, 9, 0, 2].into(),
        [10, 9, 0, 1].into(),
    );
    let mut other = Generator::new(&net.eth_b, &back).unwrap();
    other.send(1, Rate::PerSecond(1_000.0)).unwrap();
    let begun = Instant::now();
    while !hangs.load(Ordering::Relaxed) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(went_by(&mut generator, 100), 0, "the gate is shut");
    hang.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    while went_by(&mut generator, 200) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it comes back");
    }
    let report = bridge.end();
    assert!(
        report.tap.hung >= 1 && report.fast.flushed >= 1,
        "{report:?}"
    );
}
