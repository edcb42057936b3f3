//! Each rule of the translator between IPv6 and IPv4.

mod common;
#[path = "common/nat64.rs"]
mod world;

use common::{Spec, checksums_are_right, icmp, seal};
use weir_chain::nat::log::Inverted;
use weir_chain::nat::nat64::{Nat64, Nat64Config, TranslationPrefix};
use weir_chain::nat::{Filtering, Forward, NatConfig, NatError, Transport};
use weir_chain::{Direction, UNROUTED};
use weir_wire::field::{read_u16, read_u32, write};
use weir_wire::{Protocol, checksum};
use world::*;

fn udp(port: u16) -> Vec<u8> {
    Spec::udp((HOST, port), (SERVER6, 53)).frame()
}

fn udp_of(len: usize) -> Vec<u8> {
    let payload = (0..len).map(|at| at as u8).collect();
    Spec {
        payload,
        ..Spec::udp((HOST, 5000), (SERVER6, 53))
    }
    .frame()
}

#[test]
fn headers_are_translated_both_ways() {
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let mut world = World::new(config());
        let spec = Spec {
            protocol,
            class: 0xb9,
            ttl: 17,
            flags: 0x02,
            ..Spec::udp((HOST, 5001), (SERVER6, 53))
        };
        let out = world.out(&spec.frame()).unwrap();
        assert!(checksums_are_right(&out));
        assert_eq!(out[..12], UNROUTED, "the router finds the way");
        assert_eq!(
            (out[14], out[15], out[22], out[23]),
            (0x45, 0xb9, 17, protocol.0)
        );
        assert_eq!(
            (v4(&out, 26).to_string(), v4(&out, 30).to_string()),
            (POOL.into(), SERVER.into())
        );
        assert_eq!(out[20] & 0x60, 0, "a short packet may be fragmented");
        let port = read_u16(&out, 34);
        assert!(port >= 1024 && port % 2 == 1, "its parity is kept: {port}");
        let back = Spec {
            protocol,
            class: 0x2e,
            ttl: 33,
            flags: 0x12,
            ..Spec::udp((SERVER, 53), (POOL, port))
        };
        let inn = world.inn(&back.frame()).unwrap();
        assert!(checksums_are_right(&inn));
        assert_eq!(inn[..12], back.frame()[..12], "the router's station");
        assert_eq!(read_u16(&inn, 12), 0x86dd);
        assert_eq!(read_u32(&inn, 14), 6 << 28 | 0x2e << 20, "no flow label");
        assert_eq!((inn[20], inn[21]), (protocol.0, 33));
        assert_eq!(
            (v6(&inn, 22).to_string(), v6(&inn, 38).to_string()),
            ("64:ff9b::909:909".into(), HOST.into())
        );
        assert_eq!((read_u16(&inn, 54), read_u16(&inn, 56)), (53, 5001));
    }
}

#[test]
fn the_flag_df_follows_the_length() {
    let mut world = World::new(config());
    let mut ids = Vec::new();
    // 1260 bytes of IPv4 are 1280 of IPv6.
    for (payload, is_set) in [(1232, false), (1233, true), (1400, true), (0, false)] {
        let out = world.out(&udp_of(payload)).unwrap();
        assert_eq!(out[20] & 0x40 != 0, is_set, "{payload}");
        if is_set {
            assert_eq!(read_u16(&out, 18), 0);
        } else {
            ids.push(read_u16(&out, 18));
        }
    }
    assert_ne!(ids[0], ids[1], "each has its identification");
}

#[test]
fn a_mapping_is_of_the_source_and_filters() {
    use Filtering::{AddressAndPortDependent, AddressDependent, EndpointIndependent};
    for (filtering, other_port, other) in [
        (EndpointIndependent, true, true),
        (AddressDependent, true, false),
        (AddressAndPortDependent, false, false),
    ] {
        let mut config = config();
        config.nat.filtering = filtering;
        let mut world = World::new(config);
        let port = read_u16(&world.out(&udp(7)).unwrap(), 34);
        let to_other = Spec::udp((HOST, 7), ("64:ff9b::8.8.8.8", 99)).frame();
        assert_eq!(read_u16(&world.out(&to_other).unwrap(), 34), port);
        let mut comes = |src: (&str, u16)| world.inn(&Spec::udp(src, (POOL, port)).frame()).is_ok();
        assert!(comes((SERVER, 53)) && comes(("8.8.8.8", 99)));
        assert_eq!(comes((SERVER, 54)), other_port, "{filtering:?}");
        assert_eq!(comes(("7.7.7.7", 53)), other, "{filtering:?}");
    }
}

#[test]
fn echo_is_translated_and_answered() {
    let mut world = World::new(config());
    let out = world
        .out(&icmp6(HOST, SERVER6, 128, 0, 0x1234_0007, b"ping"))
        .unwrap();
    assert!(checksums_are_right(&out));
    assert_eq!((out[23], out[34], out[35]), (1, 8, 0));
    assert_eq!((read_u16(&out, 40), &out[42..]), (7, &b"ping"[..]));
    let id = read_u16(&out, 38);
    let back = icmp(SERVER, POOL, 0, 0, u32::from(id) << 16 | 7, b"ping");
    let inn = world.inn(&back).unwrap();
    assert!(checksums_are_right(&inn));
    assert_eq!(
        (inn[20], inn[54], read_u32(&inn, 58)),
        (58, 129, 0x1234_0007)
    );
    // From another host, or to an identifier without mapping: the base's own.
    assert_eq!(
        world.inn(&icmp("8.8.8.8", POOL, 0, 0, u32::from(id) << 16, b"")),
        Err("filtered")
    );
    let other = icmp(SERVER, POOL, 0, 0, u32::from(id ^ 1) << 16, b"");
    assert_eq!(world.inn(&other).unwrap(), other);
    let ping = icmp(SERVER, POOL, 8, 0, 1, b"");
    assert_eq!(world.inn(&ping).unwrap(), ping, "the box answers by itself");
    for kind in [129, 130, 133, 135, 200] {
        let refused = world.out(&icmp6(HOST, SERVER6, kind, 0, 0, b""));
        assert_eq!(refused, Err("icmp-type"), "{kind}");
    }
}

/// Two hosts of the inside by the pool's address.
#[test]
fn a_packet_to_a_mapping_comes_back_in() {
    let mut config = config();
    config.nat.filtering = Filtering::EndpointIndependent;
    let mut world = World::new(config);
    let server = Spec::udp(("2001:db8:2::7", 4000), (SERVER6, 53)).frame();
    let mapped = read_u16(&world.out(&server).unwrap(), 34);
    let pool6 = "64:ff9b::203.0.113.1";
    let to = Spec::udp((HOST, 9), (pool6, mapped)).frame();
    let (frames, sent) = world.pass(Direction::Outward, &to).unwrap();
    assert!(frames.is_empty());
    let (Direction::Inward, inn) = &sent[0] else {
        panic!("{sent:?}");
    };
    assert!(checksums_are_right(inn));
    assert_eq!(
        (v6(inn, 22).to_string(), v6(inn, 38).to_string()),
        ("64:ff9b::cb00:7101".into(), "2001:db8:2::7".into())
    );
    assert_eq!(read_u16(inn, 56), 4000);
    let back = Spec::udp(("2001:db8:2::7", 4000), (pool6, read_u16(inn, 54))).frame();
    let (_, sent) = world.pass(Direction::Outward, &back).unwrap();
    assert_eq!(
        (v6(&sent[0].1, 38).to_string(), read_u16(&sent[0].1, 56)),
        (HOST.into(), 9)
    );
    assert_eq!(
        (read_u16(&sent[0].1, 54), world.counter("hairpinned")),
        (mapped, 2)
    );
    let error = icmp6(HOST, pool6, 1, 4, 0, &sent[0].1[14..]);
    let (_, sent) = world.pass(Direction::Outward, &error).unwrap();
    assert!(checksums_are_right(&sent[0].1), "an error, too");
    assert_eq!(v6(&sent[0].1, 38).to_string(), "2001:db8:2::7");
    let none = Spec::udp((HOST, 9), (pool6, mapped ^ 1)).frame();
    assert_eq!(world.pass(Direction::Outward, &none), Err("unmapped"));
}

#[test]
fn fragments_go_as_the_first_one_does() {
    let orders: [&[usize]; 3] = [&[0, 1, 2], &[2, 1, 0], &[1, 0, 2]];
    for order in orders {
        let mut world = World::new(config());
        let frame = udp_of(1500);
        let parts = fragments6(&frame, 600, 0xabcd_1234);
        assert_eq!(parts.len(), 3);
        let mut out = Vec::new();
        for at in order {
            out.extend(world.pass(Direction::Outward, &parts[*at]).unwrap().0);
        }
        assert_eq!(out.len(), 3, "{order:?}");
        assert!(
            out.iter()
                .all(|frame| frame[18..20] == [0x12, 0x34] && frame[20] & 0x40 == 0)
        );
        let whole = whole4(&out);
        assert!(checksums_are_right(&whole), "{order:?}");
        assert_eq!(whole[42..], frame[62..]);
        // Back, in fragments of IPv4.
        let (_, back) = answer(&whole, &frame[62..]);
        let parts = fragments4(&back, 600);
        let mut inn = Vec::new();
        for at in order {
            inn.extend(world.pass(Direction::Inward, &parts[*at]).unwrap().0);
        }
        let whole = whole6(&inn);
        assert_eq!(read_u32(&inn[0], 58), 7, "the identification");
        assert!(checksums_are_right(&whole), "{order:?}");
        assert_eq!(whole[62..], frame[62..]);
    }
}

/// A whole packet with a fragment header is whole.
#[test]
fn an_atomic_fragment_is_a_packet() {
    let mut world = World::new(config());
    let parts = fragments6(&udp(5), 600, 0x77);
    let out = world.out(&parts[0]).unwrap();
    assert!(checksums_are_right(&out));
    assert_eq!(out[18..22], [0, 0x77, 0, 0]);
}

#[test]
fn a_long_packet_without_df_is_fragmented_to_the_mtu() {
    for (mtu, payload, count) in [
        (1280, 1400, 2),
        (1280, 1232, 1),
        (1280, 1233, 2),
        (1500, 1400, 1),
        (1280, 20_000, 17),
    ] {
        let mut world = World::new(Nat64Config { mtu, ..config() });
        let out = world.out(&udp(5)).unwrap();
        let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
        let (_, mut back) = answer(&out, &bytes);
        let whole = without_df(&mut back);
        let (frames, _) = world.pass(Direction::Inward, &whole).unwrap();
        assert_eq!(frames.len(), count, "{mtu} {payload}");
        assert!(frames.iter().all(|frame| frame.len() <= 14 + mtu));
        if count > 1 {
            let whole = whole6(&frames);
            assert!(checksums_are_right(&whole));
            assert_eq!(whole[62..], bytes);
        }
        // With DF it is the router's to refuse.
        let (_, back) = answer(&out, &bytes);
        assert_eq!(world.inn(&back).unwrap().len(), 14 + 48 + payload);
    }
}

fn without_df(frame: &mut [u8]) -> Vec<u8> {
    write(frame, 20, &[0, 0]);
    write(frame, 24, &[0, 0]);
    let sum = checksum::internet_checksum(&frame[14..34]);
    write(frame, 24, &sum.to_be_bytes());
    frame.to_vec()
}

#[test]
fn a_datagram_without_checksum_gets_one() {
    let mut world = World::new(config());
    let out = world.out(&udp(5)).unwrap();
    let (_, mut back) = answer(&out, &[7; 1001]);
    write(&mut back, 40, &[0, 0]);
    let inn = world.inn(&back).unwrap();
    assert_ne!(inn[60..62], [0, 0]);
    assert!(checksums_are_right(&inn));
    let mut none = udp(5);
    write(&mut none, 60, &[0, 0]);
    assert_eq!(
        world.out(&none),
        Err("udp-no-checksum"),
        "IPv6 has no such datagrams"
    );
}

/// An answer in three fragments, without checksum.
fn unsummed(world: &mut World, len: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let out = world.out(&udp(5)).unwrap();
    let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let (_, mut back) = answer(&out, &payload);
    write(&mut back, 40, &[0, 0]);
    (payload, fragments4(&back, 600))
}

/// All frames that these become; the others wait.
fn come(world: &mut World, parts: &[Vec<u8>], order: &[usize]) -> Vec<Vec<u8>> {
    let come = |at: &usize| world.pass(Direction::Inward, &parts[*at]).unwrap().0;
    order.iter().flat_map(come).collect()
}

#[test]
fn a_datagram_in_fragments_without_checksum_gets_one() {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in orders {
        // Twice the same identification.
        let mut world = World::new(config());
        for _ in 0..2 {
            let (payload, parts) = unsummed(&mut world, 1500);
            let inn = come(&mut world, &parts, &order);
            assert_eq!(inn.len(), 2, "{order:?}: in packets of 1280 bytes");
            assert!(inn.iter().all(|frame| frame.len() <= 14 + 1280));
            let whole = whole6(&inn);
            assert_ne!(whole[60..62], [0, 0]);
            assert!(checksums_are_right(&whole), "{order:?}");
            assert_eq!(whole[62..], payload);
        }
        assert_eq!(world.counter("reassembled"), 2);
        // A duplicate is no other fragment; a short datagram is a packet again.
        let (payload, parts) = unsummed(&mut world, 1000);
        let inn = come(&mut world, &parts, &[0, 0, 1]);
        assert_eq!((inn.len(), inn[0][20]), (1, 17));
        assert!(checksums_are_right(&inn[0]));
        assert_eq!(inn[0][62..], payload);
    }
}

#[test]
fn what_does_not_fit_a_datagram_without_checksum_ends_it() {
    let mut world = World::new(config());
    let (_, parts) = unsummed(&mut world, 1500);
    let with = |part: &[u8], place: u16, end: usize| {
        let mut part = part[..end].to_vec();
        write(&mut part, 16, &(end as u16 - 14).to_be_bytes());
        write(&mut part, 20, &place.to_be_bytes());
        write(&mut part, 24, &[0, 0]);
        let sum = checksum::internet_checksum(&part[14..34]);
        write(&mut part, 24, &sum.to_be_bytes());
        part
    };
    let (first, second, last) = (&parts[0], &parts[1], &parts[2]);
    let wrong = [
        ("overlaps the one before", with(second, 0x2000 | 74, 634)),
        ("overlaps the one behind", with(second, 0x2000 | 76, 634)),
        ("another first one", with(first, 0x2000, 626)),
        ("no whole units", with(second, 0x2000 | 75, 633)),
        ("empty", with(second, 0x2000 | 75, 34)),
        ("behind the end", with(second, 0x2000 | 300, 634)),
        ("another end", with(second, 300, 634)),
        ("an end before the end", with(second, 75, 634)),
    ];
    for (what, wrong) in wrong {
        for frame in [first, last] {
            assert_eq!(world.pass(Direction::Inward, frame).unwrap().0.len(), 0);
        }
        assert_eq!(world.inn(&wrong), Err("fragment-overlap"), "{what}");
        // A later fragment waits for a first one now.
        world.pass(Direction::Inward, second).unwrap();
        world.now += 2 * SECOND;
        world.chain.poll(world.now);
    }
    // Its own length is another one.
    let mut short = first.clone();
    write(&mut short, 38, &[0, 8]);
    for frame in [&short, second] {
        assert!(world.pass(Direction::Inward, frame).unwrap().0.is_empty());
    }
    assert_eq!(world.inn(last), Err("malformed"));
    // With a checksum, the first fragment is another packet's.
    assert!(come(&mut world, &parts, &[0, 1]).is_empty());
    let mut summed = first.clone();
    write(&mut summed, 40, &[1, 2]);
    assert_eq!(world.inn(&summed).unwrap()[20], 44);
    assert_eq!(world.inn(last).unwrap()[20], 44);
    assert_eq!(world.counter("reassembled"), 0);
}

#[test]
fn datagrams_without_checksum_take_bounded_memory_and_time() {
    let mut config = config();
    config.nat.filtering = Filtering::EndpointIndependent;
    let mut world = World::new(config);
    let (_, parts) = unsummed(&mut world, 1500);
    let begins = |world: &mut World, host: u8, id: u8| {
        let mut first = parts[0].clone();
        first[29] = host;
        first[19] = id;
        write(&mut first, 24, &[0, 0]);
        let sum = checksum::internet_checksum(&first[14..34]);
        write(&mut first, 24, &sum.to_be_bytes());
        world.pass(Direction::Inward, &first)
    };
    for id in 0..100 {
        let has_room = begins(&mut world, 1, id).is_ok();
        assert_eq!(has_room, id < 8, "{id} of one source");
    }
    for host in 2..100 {
        let has_room = begins(&mut world, host, 0).is_ok();
        assert_eq!(has_room, host < 2 + 56, "{host}: 64 in all");
    }
    assert_eq!(begins(&mut world, 99, 0), Err("fragments-full"));
    world.now += 2 * SECOND - 1;
    world.chain.poll(world.now);
    assert_eq!(world.counter("fragments_expired"), 0);
    world.now += 1;
    world.chain.poll(world.now);
    assert_eq!(world.counter("fragments_expired"), 64);
    assert!(begins(&mut world, 1, 0).is_ok());
}

/// RFC 7915 §4.2, §5.2, §1.2.
#[test]
fn errors_quote_a_first_fragment_as_it_was() {
    let mut world = World::new(config());
    let parts = fragments6(&udp_of(3000), 1232, 0xabcd_1234);
    let mut out = Vec::new();
    for part in &parts {
        out.extend(world.pass(Direction::Outward, part).unwrap().0);
    }
    // The receiver has not got all of them, or a router's rules refuse them.
    for (kind, code, made) in [(11, 1, (3, 1)), (3, 13, (1, 1))] {
        let error = icmp(SERVER, POOL, kind, code, 0, &out[0][14..]);
        let inn = world.inn(&error).unwrap();
        assert!(checksums_are_right(&inn));
        assert_eq!((inn[54], inn[55]), made);
        let inner = &inn[62..];
        let mut was = parts[0][14..14 + inner.len()].to_vec();
        // IPv4 has no flow label, and half of the identification.
        write(&mut was, 0, &[0x60, 0, 0, 0]);
        write(&mut was, 44, &[0, 0]);
        assert_eq!(inner, was);
    }
    let later = icmp(SERVER, POOL, 11, 1, 0, &out[1][14..]);
    assert_eq!(world.inn(&later), Err("icmp-fragment"));
    // Back: fragments of the sender, and those that a packet without DF became here.
    let whole = whole4(&out);
    let (_, mut back) = answer(&whole, &[5; 2400]);
    let parts4 = fragments4(&back, 1200);
    for (sent, is_fragment) in [(parts4[0].clone(), true), (without_df(&mut back), false)] {
        let came = world.pass(Direction::Inward, &sent).unwrap().0;
        assert_eq!(came[0][20], 44);
        for mtu in [1280, 1400, 2000] {
            let error = icmp6("2001:db8:1::1", SERVER6, 2, 0, mtu, &came[0][14..]);
            let frame = world.out(&error).unwrap();
            assert!(checksums_are_right(&frame));
            // The fragment header is the translator's.
            assert_eq!((frame[34], frame[35]), (3, 4));
            assert_eq!(read_u32(&frame, 38), mtu - 28);
            let inner = &frame[42..];
            assert_eq!(inner[4..6], sent[18..20], "the identification");
            assert_eq!(inner[6..8], [0x20, 0], "the first one, without DF");
            assert_eq!(inner[12..20], sent[26..34]);
            assert_eq!(inner[20..26], sent[34..40], "ports and length");
            assert_eq!(inner[28..], sent[42..14 + inner.len()]);
            if is_fragment {
                assert_eq!(*inner, sent[14..14 + inner.len()]);
            }
        }
        if let Some(later) = came.get(1) {
            let error = icmp6("2001:db8:1::1", SERVER6, 2, 0, 1400, &later[14..]);
            assert_eq!(world.out(&error), Err("icmp-fragment"));
        }
    }
}

#[test]
fn errors_of_the_outside_quote_the_packet_as_it_was() {
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let mut world = World::new(config());
        let sent = Spec {
            protocol,
            payload: vec![9; 1400],
            ..Spec::udp((HOST, 5000), (SERVER6, 53))
        }
        .frame();
        let out = world.out(&sent).unwrap();
        // Of the packet at least eight bytes are quoted.
        for quoted in [28, 100, 540] {
            let error = icmp("192.0.2.77", POOL, 3, 4, 1400, &out[14..14 + quoted]);
            let inn = world.inn(&error).unwrap();
            assert!(checksums_are_right(&inn));
            assert_eq!(
                (inn[20], inn[54], inn[55], read_u32(&inn, 58)),
                (58, 2, 0, 1420)
            );
            // The router's own address is not global: the pool's stands for it.
            assert_eq!(
                (v6(&inn, 22).to_string(), v6(&inn, 38).to_string()),
                ("64:ff9b::cb00:7101".into(), HOST.into())
            );
            // All but the flow label and the hop limit's field is the packet as the host sent it.
            let inner = &inn[62..];
            let mut was = sent[14..14 + 20 + quoted].to_vec();
            write(&mut was, 0, &[0x60, 0, 0, 0]);
            assert_eq!(inner, was, "{quoted}");
        }
        let hop = icmp("8.8.4.4", POOL, 11, 0, 0, &out[14..60]);
        let inn = world.inn(&hop).unwrap();
        assert_eq!(
            (inn[54], v6(&inn, 22).to_string()),
            (3, "64:ff9b::808:404".into()),
            "a hop of traceroute"
        );
        let mut damaged = hop.clone();
        damaged[37] ^= 1;
        assert_eq!(world.inn(&damaged), Err("icmp-malformed"));
        let quench = icmp(SERVER, POOL, 4, 0, 0, &out[14..60]);
        assert_eq!(world.inn(&quench), Err("icmp-type"));
        // About another packet: the base's own.
        let mut other = out.clone();
        other[35] ^= 1;
        let other = icmp(SERVER, POOL, 3, 1, 0, &other[14..60]);
        assert_eq!(world.inn(&other).unwrap(), other);
    }
}

#[test]
fn errors_of_the_inside_quote_the_packet_as_it_was() {
    let mut world = World::new(config());
    let out = world.out(&udp(5)).unwrap();
    let (_, back) = answer(&out, &[3; 1460]);
    let inn = world.inn(&back).unwrap();
    // The router says that the link to the host is narrower.
    let error = icmp6("2001:db8:1::1", SERVER6, 2, 0, 1400, &inn[14..]);
    let sent = world.out(&error).unwrap();
    assert!(checksums_are_right(&sent));
    assert_eq!(
        (sent[23], sent[34], sent[35], read_u32(&sent, 38)),
        (1, 3, 4, 1380)
    );
    assert_eq!(
        (v4(&sent, 26).to_string(), v4(&sent, 30).to_string()),
        (POOL.into(), SERVER.into())
    );
    assert_eq!(sent.len(), 14 + 576, "as long as an error of IPv4 may be");
    let (inner, was) = (&sent[42..], &back[14..]);
    assert_eq!(
        (inner[9], &inner[12..], inner[6] & 0x40),
        (was[9], &was[12..inner.len()], 0x40)
    );
    // A host without a server on the port.
    let (_, back) = answer(&out, b"x");
    let inn = world.inn(&back).unwrap();
    let sent = world
        .out(&icmp6(HOST, SERVER6, 1, 4, 0, &inn[14..]))
        .unwrap();
    assert_eq!((sent[34], sent[35], &sent[62..]), (3, 3, &back[34..]));
    let unknown = icmp6(HOST, SERVER6, 1, 4, 0, &udp(5)[14..]);
    assert_eq!(world.out(&unknown), Err("icmp-unmapped"));
    let cut = icmp6(HOST, SERVER6, 1, 4, 0, &inn[14..40]);
    assert_eq!(world.out(&cut), Err("icmp-malformed"));
}

/// An answer to ping that an error quotes.
#[test]
fn errors_about_echoes_are_translated() {
    let mut world = World::new(config());
    let ping = icmp6(HOST, SERVER6, 128, 0, 0x1234_0007, b"ping");
    let out = world.out(&ping).unwrap();
    let inn = world.inn(&icmp(SERVER, POOL, 3, 1, 0, &out[14..])).unwrap();
    assert!(checksums_are_right(&inn));
    assert_eq!((inn[54], inn[55], &inn[62 + 40..]), (1, 0, &ping[54..]));
    let back = icmp(SERVER, POOL, 0, 0, read_u32(&out, 38), b"pong");
    let inn = world.inn(&back).unwrap();
    let sent = world
        .out(&icmp6(HOST, SERVER6, 3, 0, 0, &inn[14..]))
        .unwrap();
    assert!(checksums_are_right(&sent));
    assert_eq!((sent[34], &sent[62..]), (11, &back[34..]));
}

#[test]
fn extension_headers_and_options_are_left_out() {
    let mut world = World::new(config());
    let plain = udp(5);
    let whole = world.out(&plain).unwrap();
    let hop = [60, 0, 1, 4, 0, 0, 0, 0];
    let destination = [43, 0, 1, 4, 0, 0, 0, 0];
    let routed = [17, 2, 0, 0, 0, 0, 0, 0];
    let routing = [&routed[..], &[0; 16]].concat();
    let headers = [&hop[..], &destination, &routing].concat();
    let out = world.out(&with_extensions(&plain, 0, &headers)).unwrap();
    assert!(checksums_are_right(&out));
    assert_eq!(out[34..], whole[34..]);
    // A route that has not ended.
    let left = [&[17, 2, 0, 1, 0, 0, 0, 0][..], &[0; 16]].concat();
    let frame = with_extensions(&plain, 43, &left);
    let (frames, sent) = world.pass(Direction::Outward, &frame).unwrap();
    assert!(frames.is_empty());
    let (Direction::Inward, error) = &sent[0] else {
        panic!("{sent:?}");
    };
    assert!(checksums_are_right(error));
    assert_eq!(
        (error[54], error[55], read_u32(error, 58)),
        (4, 0, 43),
        "the segments left"
    );
    assert_eq!(error[62..], frame[14..]);
    assert_eq!(v6(error, 38).to_string(), HOST);
    for _ in 0..1000 {
        let _ = world.pass(Direction::Outward, &frame);
    }
    assert_eq!(world.counter("errors_sent"), 100, "a limit in each second");
    let many = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    assert_eq!(
        world.out(&with_extensions(&plain, 60, &many)),
        Err("extension")
    );
    let parts = fragments6(
        &with_extensions(&plain, 60, &[17, 0, 1, 4, 0, 0, 0, 0]),
        8,
        3,
    );
    assert_eq!(world.out(&parts[0]), Err("extension"));
    assert_eq!(
        world.out(&with_extensions(&plain, 50, &[0; 8])),
        Err("protocol")
    );
    // IPv4 with options.
    let (_, back) = answer(&whole, b"x");
    let timestamp = with_options(&back, &[68, 4, 5, 0]);
    let ended = with_options(&back, &[131, 7, 8, 1, 2, 3, 4, 0]);
    for frame in [&timestamp, &ended] {
        let inn = world.inn(frame).unwrap();
        assert!(checksums_are_right(&inn));
        assert_eq!((inn[20], &inn[62..]), (17, &b"x"[..]));
    }
    for kind in [131, 137] {
        world.now += SECOND;
        let frame = with_options(&back, &[kind, 7, 4, 1, 2, 3, 4, 0]);
        let (_, sent) = world.pass(Direction::Inward, &frame).unwrap();
        let (Direction::Outward, error) = &sent[0] else {
            panic!("{sent:?}");
        };
        assert!(checksums_are_right(error));
        assert_eq!((error[34], error[35], &error[42..]), (3, 5, &frame[14..]));
    }
}

/// Options behind the header of IPv4.
fn with_options(frame: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..34], bytes, &frame[34..]].concat();
    frame[14] += (bytes.len() / 4) as u8;
    let len = read_u16(&frame, 16) + bytes.len() as u16;
    write(&mut frame, 16, &len.to_be_bytes());
    write(&mut frame, 24, &[0, 0]);
    let sum = checksum::internet_checksum(&frame[14..34 + bytes.len()]);
    write(&mut frame, 24, &sum.to_be_bytes());
    frame
}

/// What is refused prolongs no session, and begins none.
#[test]
fn refused_packets_are_of_no_session() {
    let mut config = config();
    config.nat.filtering = Filtering::EndpointIndependent;
    let mut world = World::new(config);
    let (port, back) = answer(&world.out(&udp(5)).unwrap(), b"x");
    let mut other = Spec::udp(("8.8.8.8", 1), (POOL, port));
    other.payload = vec![0];
    world.now = 200 * SECOND;
    for frame in [&back, &other.frame()] {
        // A wrong length, and no checksum.
        let mut wrong = frame.clone();
        write(&mut wrong, 38, &[0, 8, 0, 0]);
        assert_eq!(world.inn(&wrong), Err("malformed"));
        let routed = with_options(frame, &[131, 7, 4, 1, 2, 3, 4, 0]);
        let (frames, sent) = world.pass(Direction::Inward, &routed).unwrap();
        assert_eq!((frames.len(), sent.len()), (0, 1));
        assert_eq!(world.counter("sessions_begun"), 1);
    }
    world.now = 301 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 0);
}

/// Packets between the box and itself: each answer would turn, and be answered without end.
#[test]
fn a_source_that_is_the_boxs_own_is_refused() {
    let mut config = config();
    config.own = vec!["9.9.9.1".parse().unwrap()];
    config.nat.forwards = vec![Forward {
        transport: Transport::Udp,
        outside: (POOL.parse().unwrap(), 7),
        inside: (HOST.parse().unwrap(), 7),
    }];
    let mut world = World::new(config);
    for src in [POOL, "9.9.9.1"] {
        let spoofed = Spec::udp((src, 7), (POOL, 7)).frame();
        assert_eq!(world.inn(&spoofed), Err("source"), "{src}");
    }
    assert_eq!(world.counter("sessions"), 0);
    let to_pool = |src: &str| Spec::udp((src, 7), ("64:ff9b::203.0.113.1", 7)).frame();
    assert_eq!(world.out(&to_pool(HOST)), Err("source"), "its own mapping");
    let turned = world.pass(Direction::Outward, &to_pool("2001:db8:2::7"));
    assert_eq!(turned.unwrap().1.len(), 1);
}

/// Without its tag, a packet would be of another network.
#[test]
fn frames_with_a_vlan_tag_are_the_bases() {
    let mut world = World::new(config());
    let frame = udp(5);
    let (_, back) = answer(&world.out(&frame).unwrap(), b"x");
    for (direction, frame) in [(Direction::Outward, frame), (Direction::Inward, back)] {
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        assert_eq!(world.one(direction, &tagged), Ok(tagged));
    }
}

/// A host has as many addresses of its network as it likes.
#[test]
fn fragments_that_wait_are_of_a_subscriber() {
    let mut world = World::new(config());
    let mut waits = |host: &str| {
        let spec = Spec {
            payload: vec![0; 1400],
            ..Spec::udp((host, 5), (SERVER6, 53))
        };
        let later = &fragments6(&spec.frame(), 600, 9)[1];
        world.pass(Direction::Outward, later)
    };
    for last in 1..=32 {
        assert!(waits(&format!("2001:db8:1::{last}")).is_ok());
    }
    assert_eq!(waits("2001:db8:1::33"), Err("fragments-full"));
    assert!(waits("2001:db8:2::1").is_ok());
}

#[test]
fn addresses_on_the_wrong_side_are_refused() {
    let mut world = World::new(config());
    let frame = |src: &str, dst: &str| Spec::udp((src, 5), (dst, 53)).frame();
    assert_eq!(world.out(&frame(SERVER6, SERVER6)), Err("prefix"));
    assert_eq!(world.out(&frame(SERVER6, "2001:db8::1")), Err("prefix"));
    assert_eq!(world.inn(&frame(SERVER6, HOST)), Err("prefix"));
    assert_eq!(world.inn(&frame("2001:db8::1", SERVER6)), Err("prefix"));
    // Private addresses and others in the well-known prefix.
    for address in ["10.0.0.1", "192.168.1.1", "198.51.100.1", "100.64.0.1"] {
        let to = frame(HOST, &format!("64:ff9b::{address}"));
        assert_eq!(world.out(&to), Err("non-global"), "{address}");
    }
    for address in ["0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        let to = frame(HOST, &format!("64:ff9b::{address}"));
        assert_eq!(world.out(&to), Err("address"), "{address}");
    }
    // Neither of the prefix: they are the router's.
    let plain = frame(HOST, "2001:db8::1");
    assert_eq!(world.out(&plain).unwrap(), plain);
    let v4 = frame("10.0.0.1", "9.9.9.9");
    assert_eq!(world.out(&v4).unwrap(), v4);
    let own = frame("10.0.0.9", POOL);
    assert_eq!(
        world.inn(&own).unwrap(),
        own,
        "of the base, from a private address"
    );
    let mut config = config();
    config.prefix = "64:ff9b:1::/96".parse().unwrap();
    config.nat.inside = vec![weir_chain::nat::Prefix {
        address: "2001:db8:1::".parse().unwrap(),
        len: 48,
    }];
    let mut world = World::new(config);
    assert!(world.out(&frame(HOST, "64:ff9b:1::10.0.0.1")).is_ok());
    assert_eq!(
        world.out(&frame("2001:db8:9::1", "64:ff9b:1::10.0.0.1")),
        Err("not-inside")
    );
}

#[test]
fn every_length_of_prefix_translates() {
    for prefix in [
        "2001:db8::/32",
        "2001:db8:100::/40",
        "2001:db8:122::/48",
        "2001:db8:122:300::/56",
        "2001:db8:122:344::/64",
        "2001:db8:122:344::/96",
    ] {
        let prefix: TranslationPrefix = prefix.parse().unwrap();
        let mut world = World::new(Nat64Config { prefix, ..config() });
        let server6 = prefix.embed(SERVER.parse().unwrap()).to_string();
        let out = world
            .out(&Spec::tcp(("fd00::9", 5), (&server6, 80), 2).frame())
            .unwrap();
        assert!(checksums_are_right(&out));
        assert_eq!(v4(&out, 30).to_string(), SERVER);
        let (_, back) = answer(&out, b"");
        let inn = world.inn(&back).unwrap();
        assert!(checksums_are_right(&inn));
        assert_eq!(v6(&inn, 22).to_string(), server6);
    }
}

/// Hosts of one network share limits, blocks and lines of the log.
#[test]
fn a_subscriber_is_a_network() {
    let mut config = config();
    config.nat.block = 16;
    config.nat.blocks_max = 1;
    let mut world = World::new(config.clone());
    let host = |net: u8, last: u16, port: u16| {
        Spec::udp(
            (&format!("2001:db8:0:{net}::{last:x}"), port),
            (SERVER6, 53),
        )
        .frame()
    };
    for last in 1..=16 {
        world.out(&host(1, last, 7)).unwrap();
    }
    assert_eq!(world.out(&host(1, 17, 7)), Err("subscriber-blocks-full"));
    let other = world.out(&host(2, 1, 7)).unwrap();
    assert_eq!(world.counter("subscribers"), 2);
    let mut log = Inverted::default();
    while let Some((_, line)) = world.chain.next_line() {
        log.read(&line).unwrap();
    }
    let found = log.find(0, "udp", POOL.parse().unwrap(), read_u16(&other, 34));
    assert_eq!(found.unwrap().to_string(), "2001:db8:0:2::/64");
    config.nat.subscriber_len = 128;
    let mut world = World::new(config);
    for last in 1..=20 {
        world.out(&host(1, last, 7)).unwrap();
    }
    assert_eq!(world.counter("subscribers"), 20);
}

#[test]
fn a_forward_lets_strangers_in() {
    let mut config = config();
    config.nat.forwards = vec![Forward {
        transport: Transport::Tcp,
        outside: (POOL.parse().unwrap(), 80),
        inside: (HOST.parse().unwrap(), 8080),
    }];
    let mut world = World::new(config);
    let syn = Spec::tcp(("8.8.8.8", 1234), (POOL, 80), 2).frame();
    let inn = world.inn(&syn).unwrap();
    assert!(checksums_are_right(&inn));
    assert_eq!(
        (v6(&inn, 38).to_string(), read_u16(&inn, 56)),
        (HOST.into(), 8080)
    );
    let private = Spec::tcp(("10.8.8.8", 1234), (POOL, 80), 2).frame();
    assert_eq!(world.inn(&private), Err("non-global"));
}

#[test]
fn sessions_end_and_go_on_after_a_restart() {
    let mut world = World::new(config());
    let out = world.out(&udp(5)).unwrap();
    let (port, back) = answer(&out, b"x");
    world.now = 299 * SECOND;
    let saved = world.chain.save();
    let mut next = World::new(config());
    let restored = next.chain.restore(world.now, &saved);
    assert_eq!(restored[0].1.unwrap().sessions, 1);
    next.now = world.now;
    for world in [&mut world, &mut next] {
        assert_eq!(world.counter("sessions"), 1);
        assert!(world.inn(&back).is_ok());
        assert_eq!(read_u16(&world.out(&udp(5)).unwrap(), 34), port);
        world.now += 301 * SECOND;
        world.chain.poll(world.now);
        assert_eq!(
            (world.counter("sessions"), world.counter("subscribers")),
            (0, 0)
        );
        assert_eq!(world.inn(&back).unwrap(), back, "the base's own");
    }
    assert!(
        World::new(config())
            .chain
            .restore(0, &saved[..saved.len() - 1])
            .is_empty()
    );
}

#[test]
fn what_is_damaged_is_dropped() {
    let mut world = World::new(config());
    let frame = udp(5);
    let out = world.out(&frame).unwrap();
    let (_, back) = answer(&out, b"payload");
    for len in 54..frame.len() {
        assert_eq!(world.out(&frame[..len]), Err("malformed"), "{len}");
    }
    for len in 34..back.len() {
        assert_eq!(world.inn(&back[..len]), Err("malformed"), "{len}");
    }
    let mut sum = back.clone();
    sum[24] ^= 1;
    assert_eq!(world.inn(&sum), Err("malformed"));
    // A payload with a wrong checksum stays wrong.
    let mut wrong = frame.clone();
    wrong[65] ^= 1;
    assert!(!checksums_are_right(&world.out(&wrong).unwrap()));
    // Fragments that end behind the longest packet.
    let mut parts = fragments6(&udp_of(1400), 600, 1);
    world.pass(Direction::Outward, &parts[0]).unwrap();
    write(&mut parts[1], 56, &[0xff, 0xf9]);
    assert_eq!(world.out(&parts[1]), Err("too-long"));
    let fragmented_ping = fragments6(&icmp6(HOST, SERVER6, 128, 0, 1, &[0; 1400]), 600, 2);
    assert_eq!(world.out(&fragmented_ping[0]), Err("icmp-fragment"));
    // An IPv6 packet that is too long for IPv4.
    assert_eq!(world.out(&udp_of(65_520)), Err("too-long"));
    let mut short = Spec::tcp((HOST, 5), (SERVER6, 80), 2).frame();
    short.truncate(54 + 12);
    write(&mut short, 18, &12_u16.to_be_bytes());
    assert_eq!(world.out(&short), Err("malformed"));
    let mut seal_me = back;
    seal(&mut seal_me);
    assert!(world.inn(&seal_me).is_ok());
}

#[test]
fn other_configurations_are_refused_with_the_reason() {
    let wrong = |change: fn(&mut Nat64Config)| {
        let mut config = config();
        change(&mut config);
        Nat64::new(config, 1).unwrap_err()
    };
    assert_eq!(wrong(|config| config.nat.pool.clear()), NatError::NoPool);
    assert!(
        wrong(|config| config.mtu = 1279)
            .to_string()
            .contains("mtu of 1279: write 1280")
    );
    assert!(
        wrong(|config| config.nat.subscriber_len = 20)
            .to_string()
            .contains("32 to 128")
    );
    let error = wrong(|config| {
        config.nat.forwards = vec![Forward {
            transport: Transport::Udp,
            outside: (POOL.parse().unwrap(), 1),
            inside: (SERVER6.parse().unwrap(), 1),
        }];
    });
    assert!(matches!(error, NatError::InPrefix { .. }), "{error}");
    let default: NatConfig<std::net::Ipv6Addr> = NatConfig::default();
    assert_eq!(default.subscriber_len, 64);
    let of_ipv4: NatConfig = NatConfig {
        pool: vec![POOL.parse().unwrap()],
        subscriber_len: 31,
        ..NatConfig::default()
    };
    let error = of_ipv4.check().unwrap_err();
    assert!(error.to_string().contains("32 to 32"), "{error}");
}
