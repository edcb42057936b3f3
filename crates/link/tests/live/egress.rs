//! Egress paths: frames that an unprivileged user can and cannot send.

use super::{Link, OURS, Pins, counter_of, counts, link};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_filter::interp;
use weir_lab::frames::{datagram, to_all as frame};
use weir_lab::net::unprivileged;
use weir_link::bpf::{Hook, MapMemory, PinFolder};
use weir_link::live::{
    Dispatcher, EgressError, EgressPath, EgressRules, EgressSocket, Privileged, RulesError,
    close_egress,
};
use weir_ring::{SendError, XskTx};

/// An EtherType that the rules refuse.
const OTHER: u16 = 0x88b6;

/// The destination of packets.
const PEER: [u8; 4] = [10, 0, 0, 2];

const MAC: [u8; 6] = [2, 0, 0, 0, 7, 7];

fn rules() -> EgressRules {
    EgressRules {
        source: MAC,
        addresses: vec![
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        ],
        ethertypes: vec![OURS],
        predicate: String::new(),
        any_source: false,
    }
}

fn arp(hardware: [u8; 6], source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 2];
    packet.extend(hardware);
    packet.extend(source);
    packet.extend([0; 6]);
    packet.extend(target);
    packet
}

/// An IPv6 packet with that protocol, whose payload starts with `kind` and has
/// `target` at offset 8.
fn ipv6(source: Ipv6Addr, protocol: u8, kind: u8, target: Ipv6Addr) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, protocol, 255];
    packet.extend(source.octets());
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend(target.octets());
    packet
}

#[test]
fn rules_tell_ones_own_from_everything_else() {
    let own: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let other: Ipv6Addr = "2001:db8::2".parse().unwrap();
    let (mine, theirs) = ([10, 0, 0, 1], [10, 0, 0, 9]);
    let thief = [2, 0, 0, 0, 7, 8];
    let may = [
        frame(MAC, OURS, &[]),
        frame(MAC, 0x0800, &datagram(mine, PEER)),
        frame(MAC, 0x0806, &arp(MAC, mine, PEER)),
        frame(MAC, 0x0806, &arp(MAC, [0; 4], mine)),
        frame(MAC, 0x86dd, &ipv6(own, 17, 0, other)),
        frame(MAC, 0x86dd, &ipv6(own, 58, 128, other)),
        frame(MAC, 0x86dd, &ipv6(own, 58, 136, own)),
    ];
    let may_not = [
        frame(thief, OURS, &[]),
        frame(MAC, OTHER, &[]),
        frame(MAC, 0x0800, &datagram(theirs, PEER)),
        frame(thief, 0x0800, &datagram(mine, PEER)),
        frame(MAC, 0x0806, &arp(MAC, theirs, PEER)),
        frame(MAC, 0x0806, &arp(MAC, [0; 4], PEER)),
        frame(MAC, 0x0806, &arp(thief, mine, PEER)),
        frame(MAC, 0x86dd, &ipv6(other, 17, 0, own)),
        frame(MAC, 0x86dd, &ipv6(own, 58, 136, other)),
        frame(MAC, 0x86dd, &ipv6(own, 58, 134, own)),
        frame(MAC, 0x86dd, &ipv6(own, 58, 137, own)),
        frame(MAC, 0x86dd, &ipv6(own, 0, 58, own)),
        frame(MAC, 0x86dd, &ipv6(own, 60, 58, own)),
        frame(MAC, 0x8100, &datagram(mine, PEER)),
        frame(MAC, 46, &datagram(mine, PEER)),
        frame(MAC, 0x0800, &[]),
        MAC.to_vec(),
        Vec::new(),
    ];
    let program = rules().program().unwrap();
    let passes = |frame: &[u8]| interp::run(&program, frame, frame.len() as u32) != 0;
    for frame in &may {
        assert!(passes(frame), "{frame:02x?}\n{}", rules().text().unwrap());
    }
    for frame in &may_not {
        assert!(!passes(frame), "{frame:02x?}\n{}", rules().text().unwrap());
    }
}

#[test]
fn a_predicate_narrows_the_rules_and_opens_nothing() {
    let with = |predicate: &str| EgressRules {
        predicate: predicate.to_owned(),
        ..rules()
    };
    let program = with("udp dst port 9 or ether proto 0x88b6")
        .program()
        .unwrap();
    let passes = |frame: &[u8]| interp::run(&program, frame, frame.len() as u32) != 0;
    assert!(passes(&frame(MAC, 0x0800, &datagram([10, 0, 0, 1], PEER))));
    assert!(!passes(&frame(MAC, 0x0800, &datagram([10, 0, 0, 3], PEER))));
    assert!(!passes(&frame(MAC, OURS, &[])), "not in the predicate");
    assert!(!passes(&frame(MAC, OTHER, &[])), "in the predicate only");
    for predicate in ["ip) or (ether[0] != 1", "no such thing", ")", "ip) or (ip"] {
        let error = with(predicate).program().unwrap_err();
        assert!(
            matches!(error, RulesError::Predicate(_)),
            "{predicate}: {error}"
        );
    }
    let nothing = EgressRules {
        addresses: Vec::new(),
        ..with("udp")
    };
    let error = nothing.program().unwrap_err();
    assert!(matches!(error, RulesError::Nothing { .. }), "{error}");
    for ethertype in [0x0800, 0x0806, 0x86dd, 60] {
        let ethertypes = vec![ethertype];
        let error = EgressRules {
            ethertypes,
            ..rules()
        }
        .program()
        .unwrap_err();
        assert!(matches!(error, RulesError::EtherType { .. }), "{error}");
    }
    let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST); 65];
    let error = EgressRules {
        addresses,
        ..rules()
    }
    .program()
    .unwrap_err();
    assert!(matches!(error, RulesError::TooMany { .. }), "{error}");
}

#[test]
fn any_source_leaves_the_predicate_alone() {
    let with = |predicate: &str| EgressRules {
        any_source: true,
        predicate: predicate.to_owned(),
        ..rules()
    };
    let (all, some) = (with("").program().unwrap(), with("ip").program().unwrap());
    let thief = [2, 0, 0, 0, 7, 8];
    for (frame, is_ip) in [
        (frame(thief, 0x0800, &datagram([10, 0, 0, 9], PEER)), true),
        (frame(thief, 0x8100, &[0; 46]), false),
        (frame(MAC, OTHER, &[]), false),
    ] {
        let passes = |program| interp::run(program, &frame, frame.len() as u32) != 0;
        assert_eq!((passes(&all), passes(&some)), (true, is_ip), "{frame:02x?}");
    }
    assert!(with("ip) or (ip").program().is_err());
}

/// An egress path from host `a` to its end of the link, and a receiver at `b`.
struct Path {
    link: Link,
    pins: PinFolder,
    _mount: Pins,
    name: String,
    path: Option<EgressPath>,
    end: Option<EgressSocket>,
    ours: MapMemory,
    _counter: Dispatcher,
}

impl Path {
    fn open(counted: u16) -> Option<Path> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let link = link()?;
        let mount = Pins::new();
        let pins = PinFolder::open(&mount.0).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("wtx{}-{number}", std::process::id());
        let index = link.eth_a.index();
        let made = link
            .a
            .run(|| EgressPath::open(&name, index, &rules(), &pins, &Privileged::here()));
        let (path, end) = made.unwrap();
        let (map, ours) = counts();
        let hook = Hook::TcIngress;
        let attach = || Dispatcher::attach(link.eth_b.index(), hook, None).unwrap();
        let counter = link.b.run(attach);
        counter.set(&counter_of(hook, &map, 0, counted)).unwrap();
        Some(Path {
            link,
            pins,
            _mount: mount,
            name,
            path: Some(path),
            end: Some(end),
            ours,
            _counter: counter,
        })
    }

    fn transmitter(&mut self) -> XskTx {
        let end = self.end.take().unwrap();
        unprivileged::run(|| open(end))
    }

    /// Waits until `total` frames were passed or refused.
    fn settle(&self, total: u64) -> (u64, u64) {
        let path = self.path.as_ref().unwrap();
        for _ in 0..500 {
            let counts = path.counts();
            if counts.passed + counts.refused >= total {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        (path.counts().passed, path.counts().refused)
    }

    fn arrived(&self) -> u64 {
        self.ours.load_u64(0, 0).unwrap()
    }

    fn has_device(&self) -> bool {
        let named = |i: &weir_link::net::Interface| i.name == self.name;
        self.link
            .a
            .run(|| weir_link::net::interfaces().unwrap().iter().any(named))
    }
}

fn open(end: EgressSocket) -> XskTx {
    XskTx::open(end.socket, end.memory, end.memory_bytes, end.chunk_bytes).unwrap()
}

fn send_all(transmitter: &mut XskTx, frames: &[Vec<u8>]) {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut sent = 0;
    while sent < frames.len() {
        sent += transmitter.send_batch(&frames[sent..]).unwrap();
    }
}

#[test]
fn user_nobody_sends_what_the_rules_allow_and_nothing_else() {
    let Some(mut path) = Path::open(OURS) else {
        return;
    };
    let mut transmitter = path.transmitter();
    assert_eq!(transmitter.frame_bytes_max(), 2048);
    let thief = [2, 0, 0, 0, 7, 8];
    let tagged = [&[0, 5][..], &OURS.to_be_bytes(), &[0; 46]].concat();
    let refused = [
        frame(thief, OURS, &[]),
        frame(MAC, OTHER, &[]),
        frame(MAC, 0x0800, &datagram([10, 0, 0, 9], PEER)),
        frame(MAC, 0x8100, &tagged),
        frame(MAC, 0x88a8, &tagged),
    ];
    unprivileged::run(|| {
        for round in 0..200 {
            send_all(
                &mut transmitter,
                &vec![frame(MAC, OURS, &[]); 1 + round % 30],
            );
            send_all(&mut transmitter, &refused);
        }
    });
    let ours: u64 = (0..200).map(|round| 1 + round % 30).sum();
    assert_eq!(path.settle(ours + 1_000), (ours, 1_000));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(path.arrived(), ours);
    let long = vec![0; 2049];
    let error = transmitter.send_batch(&[&long]).unwrap_err();
    assert!(
        matches!(
            error,
            SendError::TooLong {
                len: 2049,
                max: 2048
            }
        ),
        "{error}"
    );
    assert_eq!(transmitter.send_batch(&[]).unwrap(), 0);
}

#[test]
fn a_frame_cannot_change_behind_the_check() {
    // Frames that must not arrive are counted.
    let Some(mut path) = Path::open(OTHER) else {
        return;
    };
    let end = path.end.take().unwrap();
    let memory = end.memory.try_clone().unwrap();
    let mut transmitter = unprivileged::run(|| open(end));
    let done = AtomicBool::new(false);
    let mut sent = 0;
    std::thread::scope(|scope| {
        // Another thread of the user keeps overwriting the frames' EtherType in
        // the UMEM, whose chunks are used in turn.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for chunk in 0..64 {
                    let at = chunk * 2048 + 12;
                    rustix::io::pwrite(&memory, &OTHER.to_be_bytes(), at).unwrap();
                }
            }
        });
        let start = Instant::now();
        let refused = || path.path.as_ref().unwrap().counts().refused;
        while sent < 20_000 || refused() < 100 && start.elapsed() < Duration::from_secs(30) {
            send_all(&mut transmitter, &vec![frame(MAC, OURS, &[]); 64]);
            sent += 64;
        }
        done.store(true, Ordering::Relaxed);
    });
    let (passed, refused) = path.settle(sent);
    assert_eq!(passed + refused, sent);
    assert!(
        passed >= 100 && refused >= 100,
        "both were met: {passed} {refused}"
    );
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(path.arrived(), 0, "of {passed} passed");
}

#[test]
fn the_holder_of_a_path_cannot_turn_it_elsewhere() {
    let Some(mut path) = Path::open(OURS) else {
        return;
    };
    let end = path.end.take().unwrap();
    let index = path.link.eth_a.index();
    let host = path.link.a.clone();
    let socket_of = |end: &EgressSocket| -> OwnedFd { end.socket.try_clone().unwrap() };
    let held = socket_of(&end);
    host.run(|| {
        unprivileged::run(|| {
            for index in [index, 1, 2] {
                for flags in [
                    SocketAddrXdpFlags::XDP_COPY,
                    SocketAddrXdpFlags::empty(),
                    SocketAddrXdpFlags::XDP_ZEROCOPY,
                ] {
                    let elsewhere = SocketAddrXdp::new(flags, index, 0);
                    assert!(bind(&held, &elsewhere).is_err(), "{index} {flags:?}");
                }
            }
            assert!(sockopt::set_xdp_rx_ring_size(&held, 64).is_err());
            assert!(sockopt::set_xdp_tx_ring_size(&held, 64).is_err());
            assert!(socket(AddressFamily::XDP, SocketType::RAW, None).is_err());
            assert!(socket(AddressFamily::PACKET, SocketType::RAW, None).is_err());
        });
    });
    // The path still passes permitted frames.
    let mut transmitter = open(end);
    send_all(&mut transmitter, &[frame(MAC, OURS, &[])]);
    assert_eq!(path.settle(1), (1, 0));
}

#[test]
fn with_its_last_holder_a_path_is_gone() {
    let Some(mut path) = Path::open(OURS) else {
        return;
    };
    let transmitter = path.transmitter();
    assert!(path.has_device());
    assert!(path.path.as_ref().unwrap().is_open().unwrap());
    drop(transmitter);
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !path.has_device()
    });
    assert!(gone, "within a second");
    assert!(!path.path.as_ref().unwrap().is_open().unwrap());
    let (link, pins) = (&path.link, &path.pins);
    let made = path.path.take().unwrap();
    link.a.run(|| made.close(pins)).unwrap();
    assert_eq!(pins.list().unwrap().0.len(), 0);
}

#[test]
fn without_its_maker_a_path_still_checks() {
    let Some(mut path) = Path::open(OURS) else {
        return;
    };
    let mut transmitter = path.transmitter();
    // As after a kill: only the pin is left.
    drop(path.path.take());
    let frames = [frame(MAC, OTHER, &[]), frame(MAC, OURS, &[])];
    unprivileged::run(|| send_all(&mut transmitter, &frames));
    let arrived = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        path.arrived() == 1
    });
    assert!(arrived);
    // The next process reads the earlier counts.
    let adopted = EgressPath::adopt(&path.name, &path.pins).unwrap().unwrap();
    let counts = adopted.counts();
    assert_eq!((counts.passed, counts.refused), (1, 1));
    // A retired path passes nothing, and exists as long as its socket.
    path.link.a.run(|| adopted.retire()).unwrap();
    let frame_ours = frame(MAC, OURS, &[]);
    let _ = transmitter.send_batch(&[&frame_ours]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(path.has_device() && adopted.is_open().unwrap());
    assert_eq!(path.arrived(), 1);
    assert!(EgressPath::adopt("none", &path.pins).unwrap().is_none());
    // In another namespace the check cannot be removed while the path is in
    // use.
    let elsewhere = path.link.b.run(|| close_egress(&path.name, &path.pins));
    assert!(matches!(elsewhere, Err(EgressError::Elsewhere { .. })));
    // The next process removes the path although its socket is still open.
    path.link
        .a
        .run(|| close_egress(&path.name, &path.pins))
        .unwrap();
    assert!(!path.has_device());
    let refused = (0..100).any(|_| {
        let frame = frame(MAC, OURS, &[]);
        let sent = transmitter.send_batch(&[&frame]);
        matches!(sent, Err(SendError::Down { .. }))
    });
    assert!(refused, "the holder is told");
    path.link
        .a
        .run(|| close_egress(&path.name, &path.pins))
        .unwrap();
    assert_eq!(path.pins.list().unwrap().0.len(), 0);
}
