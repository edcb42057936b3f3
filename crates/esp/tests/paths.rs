//! Paths that cut ESP packets into fragments, and paths that refuse them as too big.

mod common;

use common::{Spec, bytes, opened, packet, sealed};
use weir_esp::{Gateway, Inward, Outward};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::checksum::{AddrPair, internet_checksum};
use weir_wire::field::read_u16;
use weir_wire::{Protocol, icmp, ipv4, ipv6};

const SECOND: u64 = 1_000_000_000;

const INSIDE: [&str; 2] = ["10.1.0.5", "10.2.3.4"];

fn refresh(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = internet_checksum(&header[..20]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a packet at multiples of eight bytes of its payload.
fn cut(packet: &[u8], rng: &mut Rng, id: u32) -> Vec<Vec<u8>> {
    let head = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let data = &packet[head..];
    let mut made = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let end = data.len().min(at + 8 * (1 + rng.below(40)));
        let more = end < data.len();
        let mut piece = packet[..head].to_vec();
        if head == 20 {
            piece[4..6].copy_from_slice(&(id as u16).to_be_bytes());
            let place = (at / 8) as u16 | u16::from(more) << 13;
            piece[6..8].copy_from_slice(&place.to_be_bytes());
        } else {
            piece.extend([piece[6], 0]);
            piece.extend((at as u16 | u16::from(more)).to_be_bytes());
            piece.extend(id.to_be_bytes());
            piece[6] = 44;
        }
        piece.extend_from_slice(&data[at..end]);
        let len = piece.len();
        if head == 20 {
            piece[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            refresh(&mut piece);
        } else {
            piece[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        }
        made.push(piece);
        at = end;
    }
    made
}

fn specs() -> [Spec; 4] {
    [
        (false, ""),
        (false, "udp = true"),
        (true, ""),
        (true, "udp = true"),
    ]
    .map(|(v6, tunnel)| Spec {
        v6,
        tunnel: tunnel.into(),
        ..Spec::default()
    })
}

#[test]
fn fragments_of_esp_are_put_together_in_any_order() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        for spec in specs() {
            let [mut a, mut b] = spec.gateways();
            for id in 0..10 {
                let len = 40 + rng.below(1200);
                let inner = packet(INSIDE[0], INSIDE[1], 0, true, &bytes(&mut rng, len));
                let mut pieces = cut(&sealed(&mut a, 0, &inner), &mut rng, id);
                if pieces.len() < 2 {
                    continue;
                }
                // Any order, and one comes twice.
                for at in (1..pieces.len()).rev() {
                    pieces.swap(at, rng.below(at + 1));
                }
                pieces.insert(1, pieces[0].clone());
                let last = pieces.pop().unwrap();
                for piece in &pieces {
                    assert_eq!(opened(&mut b, 0, piece), Inward::Consumed);
                }
                assert_eq!(opened(&mut b, 0, &last), Inward::Opened(inner));
            }
            assert!(b.counters().reassembled > 5);
            assert_eq!(b.counters().reassembled, b.counters().opened);
        }
    }
}

#[test]
fn fragments_that_overlap_or_stay_alone_come_to_nothing() {
    let mut rng = Rng::new(3);
    for spec in specs() {
        let [mut a, mut b] = spec.gateways();
        let inner = packet(INSIDE[0], INSIDE[1], 0, true, &[7; 1000]);
        let esp = sealed(&mut a, 0, &inner);
        let pieces = cut(&esp, &mut rng, 1);
        let longer = cut(&esp, &mut Rng::new(99), 1);
        let odd = longer.iter().find(|piece| !pieces.contains(piece)).unwrap();
        let mut reasons = Vec::new();
        for piece in pieces.iter().chain([odd]).chain(&longer) {
            reasons.push(opened(&mut b, 0, piece));
        }
        let opened_ones = reasons.iter().filter(|it| matches!(it, Inward::Opened(_)));
        assert!(opened_ones.count() <= 1);
        // Too late: the first half is forgotten.
        let esp = sealed(&mut a, 0, &inner);
        let pieces = cut(&esp, &mut rng, 2);
        let (late, early) = pieces.split_last().unwrap();
        for piece in early {
            assert_eq!(opened(&mut b, SECOND, piece), Inward::Consumed);
        }
        assert_eq!(opened(&mut b, 40 * SECOND, late), Inward::Consumed);
        // A flood of first fragments: bounded, and others still come through.
        for id in 100..2000 {
            let flood = cut(&esp, &mut rng, id);
            assert_eq!(opened(&mut b, 41 * SECOND, &flood[0]), Inward::Consumed);
        }
        let inner = packet(INSIDE[0], INSIDE[1], 0, true, &[8; 1000]);
        let pieces = cut(&sealed(&mut a, 0, &inner), &mut rng, 3000);
        let (last, before) = pieces.split_last().unwrap();
        before
            .iter()
            .for_each(|piece| _ = opened(&mut b, 42 * SECOND, piece));
        assert_eq!(opened(&mut b, 42 * SECOND, last), Inward::Opened(inner));
    }
}

#[test]
fn an_overlap_drops_the_packet() {
    let [mut a, mut b] = Spec::default().gateways();
    let inner = packet(INSIDE[0], INSIDE[1], 0, true, &[7; 1000]);
    let esp = sealed(&mut a, 0, &inner);
    let mut rng = Rng::new(5);
    let pieces = cut(&esp, &mut rng, 1);
    assert_eq!(opened(&mut b, 0, &pieces[0]), Inward::Consumed);
    let mut other = pieces[0].clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(opened(&mut b, 0, &other), Inward::Drop("fragment-overlap"));
}

/// A fragment that met congestion marks the whole, and that the packet inside.
#[test]
fn congestion_of_a_fragment_counts() {
    let [mut a, mut b] = Spec::default().gateways();
    let inner = packet(INSIDE[0], INSIDE[1], 2, true, &[7; 900]);
    let mut pieces = cut(&sealed(&mut a, 0, &inner), &mut Rng::new(6), 1);
    pieces[1][1] |= 3;
    refresh(&mut pieces[1]);
    let mut last = Inward::Consumed;
    for piece in &pieces {
        last = opened(&mut b, 0, piece);
    }
    let Inward::Opened(packet) = last else {
        panic!("{last:?}")
    };
    assert_eq!(packet[1] & 3, 3);
}

/// The ICMP error of a router about a packet.
fn error(about: &[u8], mtu: u32, from: &str) -> Vec<u8> {
    let is_v6 = about[0] >> 4 == 6;
    let quoted = &about[..about.len().min(if is_v6 { 200 } else { 40 })];
    let payload_len = 8 + quoted.len();
    if is_v6 {
        let src = from.parse().unwrap();
        let dst = std::net::Ipv6Addr::from(*about[8..].first_chunk::<16>().unwrap());
        let mut made = vec![0; 40 + payload_len];
        let header = ipv6::Repr {
            src,
            dst,
            next_header: Protocol::ICMPV6,
            hop_limit: 60,
            traffic_class: 0,
            flow_label: 0,
            payload_len,
        };
        header.emit(&mut made);
        emit_icmp(&mut made[40..], (2, 0), mtu, quoted, AddrPair::V6(src, dst));
        return made;
    }
    let src = from.parse().unwrap();
    let dst = std::net::Ipv4Addr::from(*about[12..].first_chunk::<4>().unwrap());
    let mut made = vec![0; 20 + payload_len];
    let header = ipv4::Repr {
        src,
        dst,
        protocol: Protocol::ICMPV4,
        ttl: 60,
        traffic_class: 0,
        identification: 1,
        dont_fragment: false,
        payload_len,
    };
    header.emit(&mut made);
    emit_icmp(&mut made[20..], (3, 4), mtu, quoted, AddrPair::V4(src, dst));
    made
}

fn emit_icmp(into: &mut [u8], (kind, code): (u8, u8), rest: u32, quoted: &[u8], ends: AddrPair) {
    into[8..].copy_from_slice(quoted);
    icmp::Repr { kind, code, rest }.emit(into, ends);
}

/// The MTU of the ICMP error that a packet gets; `None` if it passes.
fn refused(gateway: &mut Gateway, now: u64, len: usize) -> Option<u16> {
    let inner = packet(INSIDE[0], INSIDE[1], 0, true, &vec![1; len - 28]);
    match gateway.outward(now, &mut inner.clone()) {
        Outward::Protected(_) => None,
        Outward::Drop("too-big", Some(error)) => Some(read_u16(&error, 26)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_mtu_of_a_path_is_learnt_and_forgotten() {
    for spec in specs() {
        let router = if spec.v6 {
            "2001:db8:9::1"
        } else {
            "203.0.113.9"
        };
        let [mut a, _] = spec.gateways();
        let inner = packet(INSIDE[0], INSIDE[1], 0, true, &[1; 1300]);
        let esp = sealed(&mut a, 0, &inner);
        assert_eq!(refused(&mut a, 0, 1350), None);
        // Another SPI: no packet of this gateway's.
        let mut other = esp.clone();
        let spi = if spec.v6 { 40 } else { 20 } + if spec.tunnel.is_empty() { 0 } else { 8 };
        other[spi] ^= 1;
        let unknown = a.inward(0, &mut error(&other, 1300, router));
        assert_eq!(unknown, Inward::Drop("no-policy"));
        assert_eq!(refused(&mut a, 0, 1350), None);
        // One of its own.
        assert_eq!(
            a.inward(0, &mut error(&esp, 1300, router)),
            Inward::Consumed
        );
        let mtu = refused(&mut a, 1, 1350).unwrap();
        assert!((1200..1300).contains(&mtu), "{mtu}");
        assert_eq!(refused(&mut a, 1, mtu.into()), None);
        let fits = packet(
            INSIDE[0],
            INSIDE[1],
            0,
            true,
            &vec![1; usize::from(mtu) - 28],
        );
        assert!(sealed(&mut a, 1, &fits).len() <= 1300);
        // Not raised, not below the least, not without a hint.
        for (claimed, most) in [(1400, mtu), (0, mtu), (68, mtu)] {
            a.inward(1, &mut error(&esp, claimed, router));
            assert!(refused(&mut a, 1, 1350).unwrap() <= most);
        }
        let least = refused(&mut a, 1, 1350).unwrap();
        assert!(least > 500, "{least}");
        // It lasts over a reload, and for ten minutes.
        a.reload(&common::config(&spec.text(0, 1)), 2).unwrap();
        assert_eq!(refused(&mut a, 2, 1350), Some(least));
        assert_eq!(refused(&mut a, 601 * SECOND, 1350), None);
        assert_eq!(a.counters().path_mtu_lowered, 2);
    }
}

/// An IPv6 packet of 1280 bytes passes any path: it is not refused.
#[test]
fn the_least_mtu_of_ipv6_holds_inside() {
    let [mut a, mut b] = Spec::default().gateways();
    let esp = sealed(
        &mut a,
        0,
        &packet(INSIDE[0], INSIDE[1], 0, true, &[1; 1300]),
    );
    a.inward(0, &mut error(&esp, 600, "203.0.113.9"));
    let ends = ["2001:db8:a1::5", "2001:db8:a2::6"];
    let fits = packet(ends[0], ends[1], 0, true, &[1; 1280 - 48]);
    let esp = sealed(&mut a, 1, &fits);
    // Routers may cut it.
    assert_eq!(esp[6] & 0x40, 0);
    assert_eq!(opened(&mut b, 1, &esp), Inward::Opened(fits));
    let over = packet(ends[0], ends[1], 0, true, &[1; 1281 - 48]);
    let Outward::Drop("too-big", Some(error)) = a.outward(1, &mut over.clone()) else {
        panic!("it passes")
    };
    assert_eq!(error[44..48], 1280_u32.to_be_bytes());
}
