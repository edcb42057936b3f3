//! The Linux kernel's own router as the oracle: the same frames in, the same
//! frames out, IPv4 and IPv6, made at random, damaged, and from captures.
//!
//! Where ours differs on purpose, [`explained`] says why. All else must be
//! equal, byte by byte, but for what each chooses for itself: the
//! identification of the packets of its own making, and what follows from it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use weir_apps::router::engine::{LinkSettings, Origin, Router, RouterConfig, Target, Verdict};
use weir_lab::net::{Host, Lab};
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::net::Tap;
use weir_link::pcap::Reader;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, checksum, ipv4, ipv6, udp};

const PEER: [Address; 2] = [Address([2, 0, 0, 0, 9, 1]), Address([2, 0, 0, 0, 9, 2])];
const NETS: [[&str; 2]; 2] = [
    ["192.0.2.1/24", "2001:db8:1::1/64"],
    ["198.51.100.1/24", "2001:db8:2::1/64"],
];
const PEERS: [[&str; 2]; 2] = [
    ["192.0.2.9", "2001:db8:1::9"],
    ["198.51.100.9", "2001:db8:2::9"],
];
/// How many unexplained differences are shown.
const SHOWN_MAX: u32 = 5;
const MTU: [usize; 2] = [1500, 1400];

/// Linux, routing between two TAPs whose other ends are ours.
struct Linux {
    _host: Host,
    taps: [Tap; 2],
    macs: [Address; 2],
}

/// Frames that left, and on which link.
type Out = Vec<(usize, Vec<u8>)>;

impl Linux {
    fn new() -> Linux {
        let host = Lab::new().host("router").unwrap();
        for (name, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.icmp_ratelimit", "0"),
            ("net.ipv4.icmp_ratemask", "0"),
            ("net.ipv6.icmp.ratelimit", "0"),
            ("net.ipv4.icmp_msgs_per_sec", "100000000"),
            ("net.ipv4.icmp_msgs_burst", "100000000"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            ("net.ipv4.conf.all.send_redirects", "0"),
            ("net.ipv4.conf.default.send_redirects", "0"),
            ("net.ipv6.auto_flowlabels", "0"),
        ] {
            host.set_sysctl(name, value).unwrap();
        }
        let taps = host.run(|| ["t0", "t1"].map(|name| Tap::open(name).unwrap()));
        let mut macs = [Address::default(); 2];
        for (number, tap) in taps.iter().enumerate() {
            let device = host.device(tap.name()).unwrap();
            device.set_mtu(MTU[number] as u32).unwrap();
            device.up().unwrap();
            macs[number] = device.mac();
            for (network, peer) in NETS[number].iter().zip(PEERS[number]) {
                let (own, len) = network.split_once('/').unwrap();
                let peer: IpAddr = peer.parse().unwrap();
                device
                    .add_address(own.parse::<IpAddr>().unwrap(), len.parse().unwrap())
                    .unwrap();
                device.add_neighbour(peer, PEER[number]).unwrap();
            }
        }
        for arguments in [
            "route add default via 198.51.100.9",
            "-6 route add default via 2001:db8:2::9",
            "route add 203.0.113.0/28 via 192.0.2.9",
            "route add unreachable 203.0.113.16/28",
            "route add prohibit 203.0.113.32/28",
            "route add blackhole 203.0.113.48/28",
            "-6 route add 2001:db8:5::/48 via 2001:db8:1::9",
            "-6 route add prohibit 2001:db8:7::/48",
            "-6 route add blackhole 2001:db8:8::/48",
        ] {
            let mut command = testenv::program("ip").expect("the test has asked for it");
            command.args(arguments.split(' '));
            let done = host.output(command).unwrap();
            assert!(done.status.success(), "ip {arguments}: {done:?}");
        }
        let linux = Linux {
            _host: host,
            taps,
            macs,
        };
        // What it says by itself at the beginning.
        std::thread::sleep(Duration::from_millis(50));
        linux.drain();
        linux
    }

    fn drain(&self) -> Out {
        let mut out = Vec::new();
        for (number, tap) in self.taps.iter().enumerate() {
            let mut buffer = vec![0; 70_000];
            while let Some(len) = tap.receive(&mut buffer).unwrap() {
                out.push((number, buffer[..len].to_vec()));
            }
        }
        out
    }

    /// The output for a frame on a link: all that leaves until a mark, which
    /// is sent behind it, is through.
    fn route(&self, link: usize, frame: &[u8], mark: &[u8], mark_id: u16) -> Out {
        self.taps[link].send(frame).ok();
        assert!(self.taps[0].send(mark).unwrap());
        let mut out = Vec::new();
        let start = Instant::now();
        loop {
            for (number, frame) in self.drain() {
                let is_mark = number == 1
                    && frame.len() == mark.len()
                    && frame[18..20] == mark_id.to_be_bytes()
                    && frame[42..] == mark[42..];
                if is_mark {
                    return out;
                }
                out.push((number, frame));
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the mark is lost"
            );
        }
    }
}

/// A frame that both let through, from link 0 to link 1.
fn mark(to: Address, id: u16) -> Vec<u8> {
    let mut frame = udp_v4(
        PEERS[0][0].parse().unwrap(),
        PEERS[1][0].parse().unwrap(),
        64,
        b"a mark of our own",
    );
    frame[..6].copy_from_slice(&to.0);
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    fix_v4(&mut frame);
    frame
}

fn ours(macs: [Address; 2]) -> Router {
    let links = (0..2).map(|number| LinkSettings {
        name: format!("t{number}"),
        hardware: macs[number],
        mtu: MTU[number],
        addresses: NETS[number].map(|text| text.parse().unwrap()).to_vec(),
    });
    let settings = RouterConfig {
        links: links.collect(),
        neighbours: (0..2)
            .flat_map(|link| PEERS[link].map(|ip| (link as u16, ip.parse().unwrap(), PEER[link])))
            .collect(),
        icmp_per_second: u32::MAX,
        icmp_burst: u32::MAX,
        redirects: false,
        ..RouterConfig::default()
    };
    let mut router = Router::new(&settings, 1).unwrap();
    let via = |link: usize, family: usize| {
        Target::to(link as u16, Some(PEERS[link][family].parse().unwrap()))
    };
    for (prefix, target) in [
        ("0.0.0.0/0", via(1, 0)),
        ("::/0", via(1, 1)),
        ("203.0.113.0/28", via(0, 0)),
        ("203.0.113.16/28", Target::Unreachable),
        ("203.0.113.32/28", Target::Prohibit),
        ("203.0.113.48/28", Target::Blackhole),
        ("2001:db8:5::/48", via(0, 1)),
        ("2001:db8:7::/48", Target::Prohibit),
        ("2001:db8:8::/48", Target::Blackhole),
    ] {
        router
            .routes_mut()
            .insert(prefix.parse().unwrap(), Origin::Configured, target)
            .unwrap();
    }
    while router.routes_mut().rebuild_some() {}
    router
}

fn route(router: &mut Router, link: usize, frame: &[u8]) -> Out {
    let mut bytes = frame.to_vec();
    let mut verdicts = Vec::new();
    router.process(0, link as u16, &mut [&mut bytes[..]], &mut verdicts);
    let mut out = Vec::new();
    if let Verdict::Forward { link, len } = verdicts[0] {
        out.push((usize::from(link), bytes[..len].to_vec()));
    }
    out.extend(
        std::iter::from_fn(|| router.next_output()).map(|(link, frame)| (link.into(), frame)),
    );
    out
}

/// Leaves out values that each chooses for itself, and unrequested frames.
fn comparable(out: Out) -> Out {
    let mut out: Out = out
        .into_iter()
        .filter(|(_, frame)| !is_of_its_own_accord(frame))
        .map(|(link, mut frame)| {
            let is_v4 = frame[12..14] == [8, 0];
            let made_here = is_v4
                && frame[23] == 1
                && NETS.iter().any(|net| {
                    let own: Ipv4Addr = net[0].split('/').next().unwrap().parse().unwrap();
                    frame[26..30] == own.octets()
                });
            if made_here {
                frame[18..20].fill(0);
                frame[20] &= 0xbf; // don't fragment
                frame[24..26].fill(0);
            }
            (link, frame)
        })
        .collect();
    out.sort();
    out
}

/// Whether it reports a neighbour that never answered to an earlier frame.
fn is_about_another(out: &[u8], frame: &[u8]) -> bool {
    let (error, at) = match out[12..14] {
        [8, 0] => (out.len() > 42 && out[23] == 1 && out[34..36] == [3, 1], 42),
        _ => (out.len() > 62 && out[20] == 58 && out[54..56] == [1, 3], 62),
    };
    // Addresses and what follows; the hops left have changed.
    let from = if out[12..14] == [8, 0] { 12 } else { 8 };
    error && !frame[14 + from..].starts_with(&out[at + from..(at + 48).min(out.len())])
}

/// Group membership, router advertisement's questions, neighbours looked for.
fn is_of_its_own_accord(frame: &[u8]) -> bool {
    let is_v6 = frame[12..14] == [0x86, 0xdd];
    let asks = frame[12..14] == [8, 6]
        || is_v6
            && frame.len() > 54
            && frame[20] == 58
            && (130..=143).contains(&frame[54])
            && frame[54] != 137;
    let reports = is_v6 && frame[38] == 0xff;
    asks || reports || frame[12..14] == [8, 0] && frame[30..34] == [224, 0, 0, 22]
}

/// Why ours may differ, or `None`.
fn explained(link: usize, frame: &[u8], linux: &Out, ours: &Out) -> Option<&'static str> {
    let _ = link;
    let kind = EtherType(u16::from_be_bytes([frame[12], frame[13]]));
    if !matches!(kind, EtherType::IPV4 | EtherType::IPV6) {
        return Some("other protocols are the host's");
    }
    let packet = &frame[14..];
    if kind == EtherType::IPV6 {
        if packet.get(6) == Some(&0) {
            return Some("Linux reads hop-by-hop options; RFC 8200 §4.3 has routers pass them on");
        }
        let dst = Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(24..40)?).unwrap());
        let src = Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(8..24)?).unwrap());
        if dst.is_unicast_link_local() || src.is_unicast_link_local() {
            return Some("Linux has no link-local addresses here");
        }
        if src.to_ipv4_mapped().is_some() {
            return Some(
                "addresses that stand for those of IPv4 are not for the wire; Linux lets them pass",
            );
        }
        if dst.is_unspecified() || src.is_unspecified() {
            return Some("RFC 4291 §2.5.2: the unspecified address is never forwarded; Linux does");
        }
        if is_own_v6(dst) {
            return Some("what is for the router itself is its host's; only echo is ours");
        }
        if is_own_v6(src) {
            return Some("Linux takes its own IPv6 addresses as sources from outside; we do not");
        }
        return None;
    }
    let dst = Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(16..20)?).unwrap());
    let header_len = usize::from(packet[0] & 0xf) * 4;
    // Type 3: no route, no host, prohibited.
    if let ([], [(_, error)]) = (&linux[..], &ours[..])
        && (error[23], error[34]) == (1, 3)
        && matches!(error[35], 0 | 1 | 13)
    {
        return Some("Linux sends one sender few errors about routes, whatever its settings");
    }
    if dst.octets()[0] == 0 || packet[12] == 0 {
        return Some("RFC 1812 §5.3.7: 0.0.0.0/8 is not forwarded; Linux forwards all but 0.0.0.0");
    }
    if is_own_v4(dst) {
        return Some("what is for the router itself is its host's; only echo is ours");
    }
    if header_len > 20 && linux.len() == ours.len() {
        return Some("time stamps differ, and Linux names its first address");
    }
    if header_len > 20 {
        return Some("options: Linux answers some that RFC 7126 has dropped");
    }
    None
}

fn is_own_v4(ip: Ipv4Addr) -> bool {
    let all = NETS.iter().map(|net| {
        net[0]
            .split('/')
            .next()
            .unwrap()
            .parse::<Ipv4Addr>()
            .unwrap()
    });
    all.into_iter().any(|own| own == ip)
}

fn is_own_v6(ip: Ipv6Addr) -> bool {
    NETS.iter().any(|net| {
        let own: Ipv6Addr = net[1].split('/').next().unwrap().parse().unwrap();
        own == ip || Ipv6Addr::from_bits(own.to_bits() & !1) == ip
    })
}

fn udp_v4(src: Ipv4Addr, dst: Ipv4Addr, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 28];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame.extend_from_slice(payload);
    let header = ipv4::Repr {
        src,
        dst,
        protocol: Protocol::UDP,
        ttl,
        traffic_class: 0,
        identification: 1,
        dont_fragment: false,
        payload_len: 8 + payload.len(),
    };
    header.emit(&mut frame[14..]);
    let ports = udp::Repr {
        src_port: 4000,
        dst_port: 4001,
    };
    ports.emit(&mut frame[34..], AddrPair::V4(src, dst));
    frame
}

fn udp_v6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 48];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame.extend_from_slice(payload);
    let header = ipv6::Repr {
        src,
        dst,
        next_header: Protocol::UDP,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 8 + payload.len(),
    };
    header.emit(&mut frame[14..]);
    let ports = udp::Repr {
        src_port: 4000,
        dst_port: 4001,
    };
    ports.emit(&mut frame[54..], AddrPair::V6(src, dst));
    frame
}

/// Makes the checksum of an IPv4 header right.
fn fix_v4(frame: &mut [u8]) {
    let len = (usize::from(frame[14] & 0xf) * 4).min(frame.len() - 14);
    if len >= 20 {
        frame[24..26].fill(0);
        let sum = checksum::internet_checksum(&frame[14..14 + len]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

const V4: [&str; 14] = [
    "192.0.2.9",
    "198.51.100.9",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "203.0.113.17",
    "203.0.113.33",
    "203.0.113.49",
    "8.8.8.8",
    "127.0.0.1",
    "0.0.0.0",
    "224.0.0.251",
    "255.255.255.255",
    "240.0.0.1",
];
const V6: [&str; 11] = [
    "2001:db8:1::9",
    "2001:db8:2::9",
    "2001:db8:1::1",
    "2001:db8:5::7",
    "2001:db8:7::7",
    "2001:db8:8::7",
    "2620:fe::fe",
    "::1",
    "::",
    "ff0e::99",
    "::ffff:192.0.2.9",
];

/// A frame that may be good.
fn made(rng: &mut Rng) -> Vec<u8> {
    let len = *rng.choose(&[0usize, 1, 18, 500, 1300, 1372, 1373, 1440]);
    let payload: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
    let ttl = *rng.choose(&[0u8, 1, 2, 64, 64, 64, 255]);
    let mut frame = if rng.chance(60) {
        let [src, dst] = [(); 2].map(|()| rng.choose(&V4).parse().unwrap());
        let mut frame = udp_v4(src, dst, ttl, &payload);
        if rng.chance(30) {
            frame[20] |= 0x40; // don't fragment
        }
        if rng.chance(10) {
            frame[20] |= 0x20; // more fragments
            frame[21] = rng.bits() as u8;
        }
        if rng.chance(10) {
            frame[23] = *rng.choose(&[1u8, 2, 6, 47, 255]);
        }
        fix_v4(&mut frame);
        frame
    } else {
        let [src, dst] = [(); 2].map(|()| rng.choose(&V6).parse().unwrap());
        let mut frame = udp_v6(src, dst, ttl, &payload);
        if rng.chance(15) {
            frame[20] = *rng.choose(&[6u8, 43, 44, 58, 59, 60]);
        }
        frame
    };
    if rng.chance(10) {
        frame.resize(frame.len() + rng.below(30), 0);
    }
    frame
}

/// Damages a frame.
fn damaged(rng: &mut Rng, mut frame: Vec<u8>) -> Vec<u8> {
    match rng.below(4) {
        0 => frame.truncate(14 + rng.below(frame.len() - 14)),
        1 => {
            let at = 14 + rng.below((frame.len() - 14).min(40));
            frame[at] ^= 1 << rng.below(8);
        }
        2 => {
            let at = 14 + rng.below((frame.len() - 14).min(40));
            frame[at] = rng.bits() as u8;
            if frame[12..14] == [8, 0] && frame.len() >= 34 {
                fix_v4(&mut frame);
            }
        }
        _ => {}
    }
    frame
}

fn hex(frame: &[u8]) -> String {
    let bytes = frame.iter().take(130).map(|byte| format!("{byte:02x}"));
    format!("{} bytes {}", frame.len(), bytes.collect::<String>())
}

fn shown(out: &Out) -> String {
    let frames = out
        .iter()
        .map(|(link, frame)| format!("\n  on {link}: {}", hex(frame)));
    frames.collect()
}

/// Compares both for each frame; gives how many there were by outcome.
fn compare(frames: impl Iterator<Item = (usize, Vec<u8>)>) -> BTreeMap<&'static str, u64> {
    let linux = Linux::new();
    let mut router = ours(linux.macs);
    let mut outcomes = BTreeMap::new();
    let mut unexplained = 0;
    for (number, (link, mut frame)) in frames.enumerate() {
        let group = frame.first().is_some_and(|byte| byte & 1 == 1);
        if !group {
            frame[..6].copy_from_slice(&linux.macs[link].0);
        }
        frame[6..12].copy_from_slice(&PEER[link].0);
        let id = number as u16 | 1;
        let theirs = linux.route(link, &frame, &mark(linux.macs[0], id), id);
        let theirs = theirs
            .into_iter()
            .filter(|(_, out)| !is_about_another(out, &frame));
        let theirs = comparable(theirs.collect());
        let mine = comparable(route(&mut router, link, &frame));
        let explained = || explained(link, &frame, &theirs, &mine);
        let outcome = match (theirs == mine).then_some(()).ok_or_else(explained) {
            Ok(()) if mine.is_empty() => "both drop",
            Ok(()) => "both send the same",
            Err(Some(why)) => why,
            Err(None) => {
                unexplained += 1;
                if unexplained <= SHOWN_MAX {
                    let (linux, ours) = (shown(&theirs), shown(&mine));
                    let frame = hex(&frame);
                    println!(
                        "frame {number} on link {link}: {frame}\nLinux: {linux}\nours: {ours}"
                    );
                }
                "not explained"
            }
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    assert_eq!(
        unexplained, 0,
        "frames left otherwise than from Linux: {outcomes:?}"
    );
    outcomes
}

#[test]
fn frames_made_at_random_leave_as_from_linux() {
    if !testenv::root() || !testenv::tun() || !testenv::programs(&["ip"]) {
        return;
    }
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1812);
    println!("WEIR_SEED={seed}");
    let mut rng = Rng::new(seed);
    let count = std::env::var("WEIR_FRAMES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3000);
    let frames = (0..count).map(|_| {
        let frame = made(&mut rng);
        let frame = if rng.chance(30) {
            damaged(&mut rng, frame)
        } else {
            frame
        };
        (rng.below(2), frame)
    });
    let outcomes = compare(frames.collect::<Vec<_>>().into_iter());
    println!("{outcomes:#?}");
    assert!(outcomes["both send the same"] > count / 5, "{outcomes:?}");
}

#[test]
fn captured_frames_leave_as_from_linux() {
    if !testenv::root() || !testenv::tun() || !testenv::programs(&["ip"]) {
        return;
    }
    let mut frames = Vec::new();
    for path in testenv::capture_files() {
        let Ok(mut reader) = Reader::open(&path) else {
            continue;
        };
        let mut taken = 0;
        while let Ok(Some(frame)) = reader.next_frame() {
            let is_ethernet = frame.linktype() == weir_wire::LinkType::EN10MB;
            if is_ethernet && frame.bytes.len() > 34 && frame.bytes.len() <= 1514 {
                frames.push((taken % 2, frame.bytes.to_vec()));
                taken += 1;
            }
            if taken == 200 {
                break;
            }
        }
    }
    if frames.is_empty() {
        return;
    }
    let count = frames.len() as u64;
    let outcomes = compare(frames.into_iter());
    println!("{outcomes:#?}");
    assert!(outcomes["both send the same"] > count / 5, "{outcomes:?}");
}
