//! nftables' masquerade is the oracle of translation: for the same frames of
//! the inside, the same leaves, but for the ports that each chooses.

use super::{INSIDE, Net, OUTSIDE, ip, run};
use rustix::net::{RecvFlags, recv};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_lab::net::Signal;
use weir_lab::rng::Rng;
use weir_lab::testenv;
use weir_link::live::Sender;
use weir_wire::checksum::{Sum, internet_checksum, update};
use weir_wire::field::{read_u16, write};
use weir_wire::{AddrPair, Protocol, ipv4};

/// The number of a frame, in its payload.
const MARK: u32 = 0x6e61_7400;

/// Frames of the inside: datagrams, segments that open connections, echo
/// requests; each with its number at the end.
fn frames(rng: &mut Rng, to: [u8; 6], from: [u8; 6]) -> Vec<Vec<u8>> {
    (0..200_u32)
        .map(|number| {
            let protocol = *rng.choose(&[Protocol::UDP, Protocol::TCP, Protocol::ICMPV4]);
            let header = if protocol == Protocol::TCP { 20 } else { 8 };
            let len = header + 4 + rng.below(400) + 4;
            let mut frame = [&to[..], &from, &[8, 0]].concat();
            frame.resize(14 + 20 + len, 0x5a);
            let (src, dst): (Ipv4Addr, Ipv4Addr) =
                (INSIDE.parse().unwrap(), OUTSIDE.parse().unwrap());
            ipv4::Repr {
                src,
                dst,
                protocol,
                ttl: *rng.choose(&[64, 2, 255]),
                traffic_class: rng.bits() as u8 & 0xfc,
                identification: number as u16,
                dont_fragment: rng.chance(50),
                payload_len: len,
            }
            .emit(&mut frame[14..]);
            let end = frame.len();
            write(&mut frame, end - 4, &(MARK | number).to_be_bytes());
            let port = 2000 + rng.below(50) as u16;
            let is_silent = protocol == Protocol::UDP && rng.chance(30);
            match protocol {
                Protocol::ICMPV4 => {
                    write(&mut frame, 34, &[8, 0, 0, 0]);
                    write(&mut frame, 38, &port.to_be_bytes());
                    write(&mut frame, 40, &(number as u16).to_be_bytes());
                    let sum = internet_checksum(&frame[34..]);
                    write(&mut frame, 36, &sum.to_be_bytes());
                    return frame;
                }
                Protocol::TCP => {
                    let sequence = rng.word().to_be_bytes();
                    write(&mut frame, 38, &sequence);
                    write(
                        &mut frame,
                        42,
                        &[0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0],
                    );
                }
                _ => {
                    write(&mut frame, 38, &(len as u16).to_be_bytes());
                    write(&mut frame, 40, &[0, 0]);
                }
            }
            write(&mut frame, 34, &port.to_be_bytes());
            // Nothing listens there: the peer answers with an error, or a reset.
            write(&mut frame, 36, &(9000 + rng.below(3) as u16).to_be_bytes());
            let sum = Sum::new()
                .pseudo_header(AddrPair::V4(src, dst), protocol.0, len as u32)
                .bytes(&frame[34..])
                .finish();
            let at = if protocol == Protocol::TCP { 50 } else { 40 };
            if !is_silent {
                write(&mut frame, at, &sum.to_be_bytes());
            }
            frame
        })
        .collect()
}

/// A packet that left, with 0 for the port or identifier that was chosen.
fn without_port(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let (port, sum) = match packet[9] {
        1 => (24, 22),
        6 => (20, 36),
        _ => (20, 26),
    };
    let old = read_u16(&packet, port);
    write(&mut packet, port, &[0, 0]);
    let before = read_u16(&packet, sum);
    if packet[9] != 17 || before != 0 {
        write(&mut packet, sum, &update(before, old, 0).to_be_bytes());
    }
    packet
}

/// Packets of the frames that arrive: this many, or those until none came for a long while.
fn arriving(capture: &OwnedFd, count: usize, wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let (mut out, mut buffer) = (Vec::new(), vec![0; 4096]);
    let mut last = Instant::now();
    while out.len() < count && last.elapsed() < Duration::from_secs(5) {
        match recv(capture, &mut buffer, RecvFlags::empty()) {
            Ok((len, _)) if len > 34 && buffer[12..14] == [8, 0] && wanted(&buffer[14..len]) => {
                last = Instant::now();
                let total = usize::from(read_u16(&buffer, 16));
                out.push(buffer[14..14 + total].to_vec());
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    out
}

fn has_number(packet: &[u8]) -> bool {
    packet.len() > 4 && packet[packet.len() - 4..packet.len() - 1] == MARK.to_be_bytes()[..3]
}

/// What left of the seed's frames, and the errors that came back, without the IP
/// header, which the peer's kernel numbers.
fn through(net: &Net, seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut rng = Rng::new(seed);
    let (mac_of, own) = (hardware(&net.r, "eth0"), hardware(&net.a, "eth0"));
    let frames = frames(&mut rng, mac_of, own);
    let (at_a, at_b) = (net.a.capture().unwrap(), net.b.capture().unwrap());
    let index = net
        .a
        .run(|| weir_link::net::Interface::named("eth0").unwrap().index);
    let sender = net.a.run(|| Sender::open(index)).unwrap();
    for batch in frames.chunks(8) {
        batch.iter().for_each(|frame| sender.send(frame).unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    let from_box = |packet: &[u8]| packet[12..16] == [198, 51, 100, 1] && has_number(packet);
    let mut out: Vec<Vec<u8>> = arriving(&at_b, frames.len(), from_box)
        .iter()
        .map(|p| without_port(p))
        .collect();
    out.sort_by_key(|packet| packet[packet.len() - 4..].to_vec());
    let is_error = |packet: &[u8]| packet[9] == 1 && packet[20] == 3;
    // Each datagram is answered by an error.
    let datagrams = frames.iter().filter(|frame| frame[23] == 17).count();
    let mut errors: Vec<Vec<u8>> = arriving(&at_a, datagrams, is_error)
        .into_iter()
        .map(|packet| packet[20..].to_vec())
        .collect();
    errors.sort();
    (out, errors)
}

fn hardware(host: &weir_lab::net::Host, name: &str) -> [u8; 6] {
    let interface = host.run(|| weir_link::net::Interface::named(name).unwrap());
    interface.address.as_slice().try_into().unwrap()
}

#[test]
fn the_same_leaves_as_by_nftables() {
    if !testenv::programs(&["nft", "sysctl"]) {
        return;
    }
    const SEED: u64 = 0x6e66_7401;
    println!("seed {SEED:#x}");
    let Some(net) = Net::new("nat-nft") else {
        return;
    };
    // The peer answers each datagram with an error.
    let limit = [
        "-w",
        "net.ipv4.icmp_ratelimit=0",
        "net.ipv4.icmp_msgs_per_sec=100000",
    ];
    run(&net.b, "sysctl", &limit);
    let base = ["nat", "eth0", "eth1", "--hang-ms", "2000"];
    let weir = super::Running::start(&net.r, super::weir([]), &base).until("ready");
    let by_weir = through(&net, SEED);
    weir.signal(Signal::INT);
    weir.end();
    let cleaned =
        super::Running::start(&net.r, super::weir([]), &["nat", "eth0", "eth1", "--clean"]);
    cleaned.end();
    run(&net.r, "sysctl", &["-w", "net.ipv4.ip_forward=1"]);
    let rule = "add table ip t; add chain ip t post { type nat hook postrouting priority 100; }; \
                add rule ip t post oifname eth1 masquerade";
    let mut nft = testenv::program("nft").expect("asked for above");
    nft.arg(rule);
    let done = net.r.output(nft).unwrap();
    assert!(done.status.success(), "{done:?}");
    ip(&net.r, &["neigh", "flush", "all"]);
    let by_nft = through(&net, SEED);
    assert!(by_weir.0.len() > 190, "{} packets left", by_weir.0.len());
    assert_eq!(by_weir.0.len(), by_nft.0.len());
    for (ours, theirs) in by_weir.0.iter().zip(&by_nft.0) {
        assert_eq!(ours, theirs);
    }
    assert!(by_weir.1.len() > 40, "{} errors came back", by_weir.1.len());
    assert_eq!(by_weir.1, by_nft.1, "errors quote the same");
}
