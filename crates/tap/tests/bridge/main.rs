//! A bridge between two hosts: a network of the lab's, real frames.

mod bounds;
mod flow_cache;
mod net;
mod oracle;
mod pull_push;
mod queues;
mod tx_burst;

use net::Net;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;
use weir_lab::load::{Rate, Sink};
use weir_lab::net::{Offloads, traffic};
use weir_lab::testenv;
use weir_lab::wait;
use weir_link::bpf::Hook;
use weir_tap::{Context, Frame, TapError, Verdict};

/// A wire.
fn forward() -> impl FnMut(&mut Frame, &mut Context<'_>) -> Verdict {
    |_, _| Verdict::Forward
}

#[test]
fn ping_goes_through_and_the_links_are_left_as_they_were() {
    if !testenv::root() {
        return;
    }
    let net = Net::new().with_addresses();
    let bridge = net.bridge(|bridge| bridge, forward);
    for address in ["10.9.0.2", "fd09::2"] {
        let (to, patience) = (address.parse().unwrap(), Duration::from_secs(2));
        for round in 0..3 {
            let echoed = traffic::echoes(&net.a, to, &[round; 1400], patience).unwrap();
            assert!(echoed, "{address}: {round}");
        }
    }
    let report = bridge.end();
    assert!(report.counts[0].rx_frames >= 6, "{report:?}");
    assert_eq!(report.counts[0].rx_frames, report.counts[1].tx_frames);
    assert_eq!(report.census.free, report.census.total(), "{report:?}");
    assert_eq!(net.attached(), [false, false]);
}

#[test]
fn every_frame_goes_through_once() {
    if !testenv::root() {
        return;
    }
    const FRAMES: u64 = 20_000;
    let net = Net::new();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let bridge = net.bridge(|bridge| bridge, forward);
    let mut generator = net.generator();
    let sent = generator.send(FRAMES, Rate::PerSecond(20_000.0)).unwrap();
    net.settle(|| sink.counted().unwrap().frames >= FRAMES);
    let report = bridge.end();
    let counted = sink.counted().unwrap().frames;
    // A busy machine may lose frames, and says where.
    let by_device = net.right.counters().unwrap().tx_dropped;
    let lost = sent.dropped + report.lost() + by_device;
    assert_eq!(counted + lost, FRAMES, "{sent:?} {by_device} {report:?}");
    assert!(counted > FRAMES / 20, "{sent:?} {by_device} {report:?}");
    assert_eq!(report.census.free, report.census.total(), "{report:?}");
}

#[test]
fn the_verdict_is_heeded() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let mut number = 0_u64;
    let bridge = net.bridge(
        |bridge| bridge,
        move || {
            move |_, _| {
                number += 1;
                match number % 4 {
                    0 => Verdict::Forward,
                    _ => Verdict::Drop,
                }
            }
        },
    );
    net.generator()
        .send(1_000, Rate::PerSecond(20_000.0))
        .unwrap();
    net.settle(|| sink.counted().unwrap().frames >= 250);
    let report = bridge.end();
    assert_eq!(sink.counted().unwrap().frames, 250, "{report:?}");
    assert_eq!(report.census.free, report.census.total());
}

#[test]
fn an_interface_that_vanishes_ends_it() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let bridge = net.bridge(|bridge| bridge, forward);
    net.eth_b.clone().delete().unwrap();
    match bridge.wait() {
        Err(TapError::Gone { interface }) => assert_eq!(interface, "right"),
        other => panic!("{other:?}"),
    }
    assert_eq!(net.middle.run(|| attached(net.left.index())), Some(false));
}

fn attached(ifindex: u32) -> Option<bool> {
    let interface = weir_link::net::Interface::numbered(ifindex).ok()?;
    Some(interface.xdp.is_some())
}

#[test]
fn what_is_no_bridge_is_refused() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let tried = net.middle.run(|| {
        let between = |a, b| {
            weir_tap::Bridge::between(a, b)
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        [between("left", "left"), between("left", "nowhere")]
    });
    assert!(tried[0].contains("`left` with itself"), "{tried:?}");
    assert!(tried[1].contains("there are lo, "), "{tried:?}");
    let running = net.bridge(|bridge| bridge, forward);
    let second = net.middle.run(|| {
        let bridge = weir_tap::Bridge::between("left", "right").unwrap();
        bridge.run(|_, _| Verdict::Forward).unwrap_err().to_string()
    });
    assert!(second.contains("another XDP program"), "{second}");
    net.settle(|| true);
    assert_eq!(net.attached(), [true, true], "the first goes on");
    let report = running.end();
    assert_eq!(report.tap.died, 0);
}

/// What veths hand on was never on a wire: checksums are left to a card that
/// is not there.
#[test]
fn tcp_goes_through_between_hosts_that_leave_checksums_to_the_device() {
    if !testenv::root() {
        return;
    }
    let net = Net::with(Offloads::VETH).with_addresses();
    let bridge = net.bridge(|bridge| bridge, forward);
    for address in ["10.9.0.2:7", "[fd09::2]:7"] {
        let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_be_bytes).collect();
        let listener = net.b.run(|| TcpListener::bind(address)).unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            wait::accept(&listener)
                .unwrap()
                .0
                .read_to_end(&mut received)
                .unwrap();
            received
        });
        let to = address.parse().unwrap();
        let mut stream = net.a.run(|| wait::connect(to)).unwrap();
        stream.write_all(&sent).unwrap();
        drop(stream);
        assert!(reader.join().unwrap() == sent);
    }
    let report = bridge.end();
    assert!(report.counts[0].checksums_completed > 0, "{report:?}");
    assert_eq!(report.census.free, report.census.total());
}

/// Longer than a chunk: a frame of several pieces, one descriptor each.
#[test]
fn jumbo_frames_go_through_whole() {
    if !testenv::root() {
        return;
    }
    let net = Net::new().with_addresses();
    for device in [&net.eth_a, &net.left, &net.right, &net.eth_b] {
        device.set_mtu(9000).unwrap();
    }
    let bridge = net.bridge(|bridge| bridge, forward);
    for size in [1472, 1780, 3000, 8972] {
        let (to, patience) = ([10, 9, 0, 2].into(), Duration::from_secs(2));
        for round in 0..3 {
            // None is cut into fragments, since the MTU is 9000 everywhere.
            let echoed = traffic::echoes(&net.a, to, &vec![round; size], patience).unwrap();
            assert!(echoed, "{size}: {round}");
        }
    }
    let report = bridge.end();
    assert_eq!(report.lost(), 0, "{report:?}");
    assert_eq!(report.census.free, report.census.total());
}
