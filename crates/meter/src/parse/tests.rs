use super::*;

/// An Ethernet frame of these bytes behind the addresses.
fn ethernet(rest: &[&[u8]]) -> Vec<u8> {
    let addresses: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    [&[addresses], rest].concat().concat()
}

fn ipv4(protocol: u8, flags: u16, total_len: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&total_len.to_be_bytes());
    packet[6..8].copy_from_slice(&flags.to_be_bytes());
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[192, 0, 2, 7]);
    packet.extend_from_slice(payload);
    packet
}

fn ipv6(next: u8, payload_len: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&payload_len.to_be_bytes());
    packet[6] = next;
    packet[8] = 0xfd;
    packet[24] = 0x20;
    packet.extend_from_slice(payload);
    packet
}

const PORTS: [u8; 8] = [0, 53, 4, 0, 0, 8, 0, 0];
const UDP: Transport = Transport::Ports(Protocol::UDP, 53, 1024);

fn of(frame: &[u8]) -> Headers {
    Headers::parse(frame, frame.len() as u32, LinkType::EN10MB)
}

#[test]
fn a_datagram_has_its_addresses_ports_and_lengths_without_padding() {
    let packet = ipv4(17, 0x4000, 28, &PORTS);
    let padding = [0; 18];
    let headers = of(&ethernet(&[&[8, 0], &packet, &padding]));
    assert_eq!(headers.src_mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(headers.dst_mac, Some([2, 0, 0, 0, 0, 1]));
    let addresses = Addresses::V4([10, 0, 0, 1].into(), [192, 0, 2, 7].into());
    assert_eq!(headers.addresses, Some(addresses));
    assert_eq!(headers.transport, UDP);
    assert_eq!((headers.ip_bytes, headers.wire_bytes), (28, 60));
    assert_eq!((headers.vlan, headers.pppoe), (None, None));
}

#[test]
fn the_first_two_tags_that_name_a_vlan_are_the_vlan() {
    let packet = ipv4(17, 0, 28, &PORTS);
    for (tags, vlan) in [
        (&[5u16][..], Some((5, None))),
        (&[0], None),
        (&[0xe005], Some((5, None))),
        (&[5, 6], Some((5, Some(6)))),
        (&[0, 6], Some((6, None))),
        (&[5, 0, 7], Some((5, Some(7)))),
        (&[5, 6, 7, 8], Some((5, Some(6)))),
    ] {
        let mut stack = Vec::new();
        for tag in tags {
            stack.extend([0x88, 0xa8]);
            stack.extend(tag.to_be_bytes());
        }
        let headers = of(&ethernet(&[&stack, &[8, 0], &packet]));
        assert_eq!(headers.vlan, vlan, "{tags:?}");
        assert_eq!(headers.transport, UDP, "{tags:?}");
    }
    let five = [0x81, 0, 0, 1].repeat(TAGS_MAX + 1);
    let headers = of(&ethernet(&[&five, &[8, 0], &packet]));
    assert_eq!(headers.transport, Transport::NotIp);
}

#[test]
fn a_pppoe_session_is_known_whatever_it_carries() {
    let packet = ipv6(17, 8, &PORTS);
    let session = |protocol: [u8; 2], head: [u8; 2]| {
        ethernet(&[
            &[0x81, 0, 0, 9, 0x88, 0x64],
            &head,
            &[0x12, 0x34, 0, 50],
            &protocol,
            &packet,
        ])
    };
    let headers = of(&session([0, 0x57], [0x11, 0]));
    assert_eq!(
        (headers.pppoe, headers.vlan),
        (Some(0x1234), Some((9, None)))
    );
    assert_eq!((headers.transport, headers.ip_bytes), (UDP, 48));
    let headers = of(&session([0xc0, 0x21], [0x11, 0]));
    assert_eq!(
        (headers.pppoe, headers.transport),
        (Some(0x1234), Transport::NotIp)
    );
    let headers = of(&session([0, 0x57], [0x11, 9]));
    assert_eq!((headers.pppoe, headers.transport), (None, Transport::NotIp));
}

#[test]
fn all_fragments_are_alike_and_atomic_ones_are_none() {
    for flags in [0x2000, 1, 0x2001] {
        let headers = of(&ethernet(&[&[8, 0], &ipv4(17, flags, 28, &PORTS)]));
        assert_eq!(headers.transport, Transport::Fragment(Protocol::UDP));
    }
    let with_fragment = |offset: u16| {
        let mut payload = vec![17, 0];
        payload.extend(offset.to_be_bytes());
        payload.extend([0; 4]);
        payload.extend(PORTS);
        of(&ethernet(&[&[0x86, 0xdd], &ipv6(44, 16, &payload)])).transport
    };
    assert_eq!(with_fragment(1), Transport::Fragment(Protocol::UDP));
    assert_eq!(with_fragment(8), Transport::Fragment(Protocol::UDP));
    assert_eq!(with_fragment(6), UDP);
}

#[test]
fn extension_headers_are_skipped_up_to_a_number() {
    let chain = |count: usize| {
        let mut payload = Vec::new();
        for number in 0..count {
            payload.push(if number + 1 == count { 17 } else { 60 });
            payload.extend([0; 7]);
        }
        payload.extend(PORTS);
        let len = payload.len() as u16;
        of(&ethernet(&[&[0x86, 0xdd], &ipv6(60, len, &payload)])).transport
    };
    assert_eq!(chain(1), UDP);
    assert_eq!(chain(EXTENSIONS_MAX), UDP);
    let beyond = Transport::Portless(Protocol::IPV6_DESTINATION);
    assert_eq!(chain(EXTENSIONS_MAX + 1), beyond);
    // Authentication is a protocol without ports.
    let headers = of(&ethernet(&[&[0x86, 0xdd], &ipv6(51, 8, &PORTS)]));
    assert_eq!(headers.transport, Transport::Portless(Protocol(51)));
}

#[test]
fn stated_lengths_are_bounded_by_the_frame() {
    let v4 = |total_len| {
        of(&ethernet(&[
            &[8, 0],
            &ipv4(17, 0, total_len, &PORTS),
            &[0; 4],
        ]))
    };
    assert_eq!(v4(65_535).ip_bytes, 32);
    assert_eq!(v4(0).ip_bytes, 32);
    assert_eq!(v4(19).ip_bytes, 32);
    // Ports behind the packet's end are padding.
    assert_eq!(v4(20).ip_bytes, 20);
    assert_eq!(v4(20).transport, Transport::Portless(Protocol::UDP));
    assert_eq!(v4(24).transport, UDP);
    let v6 = |next, len| of(&ethernet(&[&[0x86, 0xdd], &ipv6(next, len, &[0; 16])])).ip_bytes;
    assert_eq!(
        [v6(0, 0), v6(59, 0), v6(17, 8), v6(17, 999)],
        [56, 40, 48, 56]
    );
}

#[test]
fn a_cut_frame_has_what_is_captured_and_its_length_on_the_wire() {
    let frame = ethernet(&[&[0x81, 0, 0, 7, 8, 0], &ipv4(6, 0, 1500, &PORTS)]);
    for len in 0..=frame.len() {
        let headers = Headers::parse(&frame[..len], 1518, LinkType::EN10MB);
        assert_eq!(headers.wire_bytes, 1518);
        assert_eq!(headers.src_mac.is_some(), len >= 14, "{len}");
        assert_eq!(headers.vlan.is_some(), len >= 18, "{len}");
        let ip = len >= 38;
        assert_eq!(headers.addresses.is_some(), ip, "{len}");
        assert_eq!(headers.ip_bytes, if ip { 1500 } else { 0 }, "{len}");
        let transport = match len {
            0..38 => Transport::NotIp,
            38..42 => Transport::Portless(Protocol::TCP),
            _ => Transport::Ports(Protocol::TCP, 53, 1024),
        };
        assert_eq!(headers.transport, transport, "{len}");
    }
}

#[test]
fn other_link_types_lead_to_the_same_packet() {
    let packet = ipv4(17, 0, 28, &PORTS);
    let mut cooked = vec![0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0, 8, 0];
    cooked.extend(&packet);
    let mut cooked2 = vec![8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0];
    cooked2.extend(&packet);
    let behind = |head: &[u8]| [head, &packet].concat();
    for (linktype, frame, mac) in [
        (LinkType::RAW, behind(&[]), false),
        (LinkType::IPV4, behind(&[]), false),
        (LinkType::NULL, behind(&[2, 0, 0, 0]), false),
        (LinkType::LOOP, behind(&[0, 0, 0, 2]), false),
        (LinkType::PPP, behind(&[0xff, 3, 0, 0x21]), false),
        (LinkType::PPP, behind(&[0, 0x21]), false),
        (LinkType::LINUX_SLL, cooked, true),
        (LinkType::LINUX_SLL2, cooked2, true),
    ] {
        let headers = Headers::parse(&frame, frame.len() as u32, linktype);
        assert_eq!(
            (headers.transport, headers.ip_bytes),
            (UDP, 28),
            "{linktype}"
        );
        assert_eq!(
            headers.src_mac,
            mac.then_some([2, 0, 0, 0, 0, 9]),
            "{linktype}"
        );
    }
}

#[test]
fn hostile_frames_never_panic() {
    let mut seed = 1u64;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let linktypes = LinkType::NAMED.map(|(linktype, _)| linktype);
    let starts: [&[u8]; 6] = [
        &[8, 0, 0x45],
        &[0x86, 0xdd, 0x60],
        &[0x81, 0, 0, 1, 0x86, 0xdd, 0x60],
        &[0x88, 0x64, 0x11, 0, 0, 1, 0, 9, 0, 0x57, 0x60],
        &[0x88, 0x64],
        &[],
    ];
    for _ in 0..100_000 {
        let len = (next() % 120) as usize;
        let mut frame = vec![0; 12];
        frame.extend_from_slice(starts[(next() % 6) as usize]);
        frame.extend((0..len).map(|_| match next() % 3 {
            0 => 0,
            1 => [0, 43, 44, 60, 6, 17][(next() % 6) as usize],
            _ => next() as u8,
        }));
        frame.truncate(len);
        let linktype = linktypes[(next() % 10) as usize];
        let wire_len = match next() % 3 {
            0 => len as u32,
            1 => next() as u32,
            _ => 0,
        };
        let headers = Headers::parse(&frame, wire_len, linktype);
        assert!(headers.ip_bytes <= wire_len);
    }
}
