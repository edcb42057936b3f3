//! A plan that moves between hooks while frames arrive: each frame is delivered
//! once.

use super::link;
use super::one_port::{OnePort, read_all};
use super::plan::generator;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_demux::kernel::record::Record;
use weir_lab::load::Rate;
use weir_link::bpf::Hook;
use weir_link::live::IN_FLIGHT_MAX;
use weir_ring::Reader;

const RING_BYTES: u32 = 1 << 24;

/// Offset of the frame's number, which the generator writes.
const NUMBER_AT: usize = 42;

#[test]
fn a_plan_that_moves_sees_each_frame_once() {
    let Some(link) = link() else { return };
    let port = OnePort::new("udp port 5000", RING_BYTES);
    let attach = |hook| port.attach(&link.eth_b, hook);
    let mut tc = attach(Hook::TcIngress);
    let mut generator = generator(&link, 1);
    let reader = port.reader();
    let done = AtomicBool::new(false);
    let (sent, seen) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(reader, &done));
        let sending = generator.start(u64::MAX, Rate::PerSecond(5e4)).unwrap();
        let mut moves = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1_500) || moves < 6 {
            for hook in [Hook::XdpNative, Hook::XdpGeneric] {
                let xdp = attach(hook);
                // Waits as long as frames may be in flight; sometimes moves
                // back earlier.
                if moves % 4 < 2 {
                    std::thread::sleep(IN_FLIGHT_MAX);
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
        std::thread::sleep(2 * IN_FLIGHT_MAX);
        done.store(true, Ordering::Relaxed);
        (sent, reading.join().unwrap())
    });
    let counters = port.maps.counters(0).unwrap();
    println!("{sent:?}, {counters:?}");
    let twice = seen.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "frames were delivered twice");
    assert_eq!(counters.delivered, seen.len() as u64);
    let delivered = counters.delivered + counters.lost + sent.dropped;
    assert_eq!(delivered, sent.frames);
    assert!(sent.frames > 2_000);
}

/// A frame that generic XDP copies for lack of headroom, such as one from the
/// other host's stack, arrives at tc without its link-layer header (Linux
/// 6.18).
#[test]
fn a_frame_that_has_lost_its_header_is_known_to_have_been_seen() {
    const FRAMES: u64 = 200;
    const TEXT: [u8; 12] = *b"once, whole ";
    let Some(link) = link() else { return };
    // Whatever its bytes are.
    let port = OnePort::new("", RING_BYTES);
    let _tc = port.attach(&link.eth_b, Hook::TcIngress);
    let _xdp = port.attach(&link.eth_b, Hook::XdpGeneric);
    let to = link.b.run(|| UdpSocket::bind("10.0.0.2:5000")).unwrap();
    let from = link.a.run(|| UdpSocket::bind("10.0.0.1:0")).unwrap();
    for number in 0..FRAMES {
        let bytes = [TEXT.as_slice(), &number.to_be_bytes()].concat();
        from.send_to(&bytes, "10.0.0.2:5000").unwrap();
        // A frame that arrives here has passed both hooks.
        to.recv(&mut [0; 64]).unwrap();
    }
    let (mut reader, mut seen) = (port.reader(), Vec::new());
    read_all(&mut reader, |Record { bytes, .. }| {
        let text = bytes.windows(TEXT.len()).position(|part| part == TEXT);
        let Some(at) = text else { return };
        assert_eq!(at, NUMBER_AT, "a frame without its header");
        let number = bytes[at + TEXT.len()..].first_chunk().unwrap();
        seen.push(u64::from_be_bytes(*number));
    });
    assert_eq!(seen, (0..FRAMES).collect::<Vec<_>>());
}

/// How often each frame arrived, by number.
fn read(mut reader: Reader, done: &AtomicBool) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    while !done.load(Ordering::Relaxed) {
        reader.wait(Some(Duration::from_millis(10))).unwrap();
        read_all(&mut reader, |record| {
            let number = record.bytes[NUMBER_AT..].first_chunk().unwrap();
            *seen.entry(u64::from_be_bytes(*number)).or_default() += 1;
        });
    }
    seen
}
