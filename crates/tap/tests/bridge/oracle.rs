//! The kernel's own bridge as an oracle: the same frames in, the same out.

use crate::net::{Net, Report};
use rustix::net::{RecvFlags, recv};
use std::time::{Duration, Instant};
use weir_lab::net::Device;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::live::Sender;
use weir_link::pcap::Reader;
use weir_tap::switch::{Decision, Settings, Switch};
use weir_tap::{Bridge, BridgeFlowKind, Context, Frame, Verdict};
use weir_wire::LinkType;

/// Frames without a tag: the kernel's bridge learns the same for all VLANs
/// unless it filters them.
fn has_tag(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8] | [0x91, 0x00])
}

fn captured() -> Vec<Vec<u8>> {
    const EACH: usize = 40;
    let mut frames = Vec::new();
    for file in testenv::capture_files() {
        let Ok(mut reader) = Reader::open(&file) else {
            continue;
        };
        let mut count = 0;
        while let Ok(Some(frame)) = reader.next_frame() {
            let whole = frame.wire_len as usize == frame.bytes.len();
            let fits = (14..=1514).contains(&frame.bytes.len());
            if frame.linktype() == LinkType::EN10MB && whole && fits && !has_tag(frame.bytes) {
                frames.push(frame.bytes.to_vec());
                count += 1;
            }
            if count == EACH {
                break;
            }
        }
    }
    frames
}

/// Few stations and many groups, so that stations are known, local and moved.
fn generated(seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut address = |is_source: bool| match rng.below(10) {
        0 if is_source => [0; 6],
        1 => [0x01, 0x80, 0xc2, 0, 0, rng.below(20) as u8],
        2 => [0xff; 6],
        3 => [0x33, 0x33, 0, 0, 0, rng.below(9) as u8],
        _ => [0x02, 0, 0, 0, 7, rng.below(8) as u8],
    };
    let mut frames = Vec::new();
    for number in 0..600_u32 {
        let mut frame = [address(false), address(true)].concat();
        frame.extend([0x88, 0xb5]);
        frame.extend(number.to_be_bytes());
        frame.resize(14 + 4 + number as usize % 1400, number as u8);
        frames.push(frame);
    }
    frames
}

/// The frames at `to` for frames that go in at `from`; the last one, to all
/// stations, says that all are through.
fn through(from: &Device, to: &Device, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let socket = to.host().capture().unwrap();
    let sender = from.host().run(|| Sender::open(from.index())).unwrap();
    let mut last = vec![0xff; 6];
    last.extend([0x02, 0, 0, 0, 9, from.index() as u8, 0x88, 0xb6]);
    last.resize(60, 0);
    for batch in frames.chunks(16) {
        batch.iter().for_each(|frame| sender.send(frame).unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
    sender.send(&last).unwrap();
    let (mut out, mut buffer) = (Vec::new(), vec![0; 1 << 12]);
    let end = Instant::now() + Duration::from_secs(20);
    while out.last() != Some(&last) {
        match recv(&socket, &mut buffer, RecvFlags::empty()) {
            Ok((len, _)) => out.push(buffer[..len].to_vec()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < end, "the last never came: {}", out.len());
    }
    out
}

/// Stations that stay where they are talk.
fn settled(from: u8, to: u8) -> Vec<Vec<u8>> {
    let frames = (0..400_u16).map(|number| {
        let station = |side, number: u16| [0x02, 0, 0, 0, side, (number % 6) as u8];
        let mut frame = [station(to, number / 6), station(from, number)].concat();
        frame.extend([0x88, 0xb5]);
        frame.extend(number.to_be_bytes());
        frame.resize(18 + usize::from(number) * 3, number as u8);
        frame
    });
    frames.collect()
}

/// One way after the other: what was learned on one counts on the next.
fn ways(net: &Net, frames: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
    let (there, back) = (settled(8, 9), settled(9, 8));
    let (a, b) = (&net.eth_a, &net.eth_b);
    let ways = [
        (a, b, frames),
        (b, a, frames),
        (b, a, &back),
        (a, b, &there),
        (b, a, &back),
    ];
    ways.map(|(from, to, frames)| through(from, to, frames))
        .to_vec()
}

#[test]
fn it_forwards_what_the_kernels_bridge_forwards() {
    if !testenv::root() {
        return;
    }
    const SEED: u64 = 0x0004_0802;
    println!("seed {SEED:#x}");
    let captured = captured();
    // Of those that are made up the kernel's bridge forwards 101 on the first way.
    let least = if captured.is_empty() { 80 } else { 200 };
    let frames = [captured, generated(SEED)].concat();
    let theirs = {
        let net = Net::new();
        let bridge = net.middle.bridge("br0").unwrap();
        net.left.attach_to(&bridge).unwrap();
        net.right.attach_to(&bridge).unwrap();
        // It is to bridge, and leave IP alone.
        for family in ["ip", "ip6", "arp"] {
            let _ = net
                .middle
                .set_sysctl(&format!("net.bridge.bridge-nf-call-{family}tables"), "0");
        }
        ways(&net, &frames)
    };
    for is_fast in [false, true] {
        let (ours, report) = ours(&frames, is_fast);
        assert_eq!(report.census.free, report.census.total());
        assert_eq!(report.fast.traffic.frames > 0, is_fast, "{report:?}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            println!("{} of {} forwarded", theirs.len(), frames.len());
            let (ours, theirs) = (by_stations(ours), by_stations(theirs));
            let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
            assert_eq!(
                first,
                None,
                "fast {is_fast}: {:02x?}",
                first.map(|at| (&ours[at], &theirs[at]))
            );
            assert_eq!(ours.len(), theirs.len(), "{report:?}");
            assert!(theirs.len() > least);
        }
    }
    assert!(theirs[1].len() < frames.len(), "some stay where they are");
}

/// Frames between the same stations, which stay in order; others may overtake
/// them.
fn by_stations(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut frames = frames.to_vec();
    frames.sort_by(|a, b| a[..12].cmp(&b[..12]));
    frames
}

/// What our bridge makes of it, each frame by its own code or the kernel
/// forwarding by itself what it may.
fn ours(frames: &[Vec<u8>], is_fast: bool) -> (Vec<Vec<Vec<u8>>>, Report) {
    let net = Net::redirecting();
    let set = move |bridge: Bridge| {
        // Captures have checksums that were left to a device.
        let bridge = bridge.configure(|config| config.complete_checksums = Some(false));
        if is_fast {
            bridge.cache_verdicts(
                &[weir_tap::BridgeFlowKind::MacPair],
                1024,
                Duration::from_secs(60),
            )
        } else {
            bridge
        }
    };
    let bridge = net.bridge(set, || {
        // As the kernel's: nothing of link-local protocols but STP passes.
        let mut settings = Settings::wire(2);
        settings.reserved = false;
        let mut switch = Switch::new(settings, 7);
        move |frame, context| learn(&mut switch, frame, context)
    });
    let ours = ways(&net, frames);
    (ours, bridge.end())
}

/// A learning bridge that has the kernel remember stations.
pub(crate) fn learn(switch: &mut Switch, frame: &Frame, context: &mut Context<'_>) -> Verdict {
    let decision = switch.decide(context.from(), frame.bytes(), 0);
    if let Some((vlan, station)) = switch.take_moved()
        && let Some(fast) = context.flow_cache()
    {
        fast.forget_station(vlan, station);
    }
    match decision {
        Decision::Port(_) => Verdict::ForwardAndCache(BridgeFlowKind::MacPair),
        Decision::Flood { .. } => Verdict::Forward,
        Decision::Drop(_) => Verdict::Drop,
    }
}
