//! Differential test against the crate etherparse: emitted headers parse to the
//! same values and serialise to the same bytes, and both crates accept or refuse
//! the same input.

use etherparse as other;
use proptest::prelude::*;
use weir_wire::*;

fn addresses_v4() -> impl Strategy<Value = AddrPair> {
    any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| AddrPair::V4(src.into(), dst.into()))
}

fn addresses() -> impl Strategy<Value = AddrPair> {
    let v6 = any::<([u8; 16], [u8; 16])>();
    prop_oneof![
        addresses_v4(),
        v6.prop_map(|(src, dst)| AddrPair::V6(src.into(), dst.into())),
    ]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..300)
}

/// `payload` behind `header_len` bytes of filler.
fn with_room(header_len: usize, payload: &[u8]) -> Vec<u8> {
    [&vec![0xa5; header_len], payload].concat()
}

/// An IPv6 header for etherparse, which reads only its addresses.
fn v6(src: std::net::Ipv6Addr, dst: std::net::Ipv6Addr) -> other::Ipv6Header {
    other::Ipv6Header {
        source: src.octets(),
        destination: dst.octets(),
        ..Default::default()
    }
}

proptest! {
    #[test]
    fn ethernet_and_tags(dst: [u8; 6], src: [u8; 6], kind: u16, priority in 0u8..8, drop_eligible: bool, vlan in 0u16..4096) {
        let repr = ethernet::Repr {
            dst: ethernet::Address(dst),
            src: ethernet::Address(src),
            ether_type: EtherType(kind),
        };
        let mut bytes = [0; 14];
        repr.emit(&mut bytes);
        let (theirs, _) = other::Ethernet2Header::from_slice(&bytes).unwrap();
        prop_assert_eq!((theirs.destination, theirs.source, theirs.ether_type.0), (dst, src, kind));
        prop_assert_eq!(theirs.to_bytes(), bytes);
        prop_assert_eq!(ethernet::Repr::parse(&ethernet::Frame::new(&bytes).unwrap()), repr);

        let repr = ethernet::TagRepr { priority, drop_eligible, vlan, ether_type: EtherType(kind) };
        let mut bytes = [0; 4];
        repr.emit(&mut bytes);
        let theirs = other::SingleVlanHeader::from_bytes(bytes);
        prop_assert_eq!(theirs.pcp.value(), priority);
        prop_assert_eq!(theirs.drop_eligible_indicator, drop_eligible);
        prop_assert_eq!(theirs.vlan_id.value(), vlan);
        prop_assert_eq!(theirs.to_bytes(), bytes);
        prop_assert_eq!(ethernet::TagRepr::parse(&ethernet::Tag::new(&bytes).unwrap()), repr);
    }

    #[test]
    fn arp(operation: u16, sender: [u8; 6], sender_ip: [u8; 4], target: [u8; 6], target_ip: [u8; 4]) {
        let repr = arp::Repr {
            operation: arp::Operation(operation),
            sender: ethernet::Address(sender),
            sender_ip: sender_ip.into(),
            target: ethernet::Address(target),
            target_ip: target_ip.into(),
        };
        let mut bytes = [0; 28];
        repr.emit(&mut bytes);
        let theirs = other::ArpPacket::from_slice(&bytes).unwrap();
        let theirs = theirs.try_eth_ipv4().unwrap();
        prop_assert_eq!(theirs.operation.0, operation);
        prop_assert_eq!((theirs.sender_mac, theirs.sender_ipv4), (sender, sender_ip));
        prop_assert_eq!((theirs.target_mac, theirs.target_ipv4), (target, target_ip));
        prop_assert_eq!(theirs.to_bytes(), bytes);
        prop_assert_eq!(arp::Repr::parse(&arp::Packet::new(&bytes).unwrap()), repr);
    }

    #[test]
    fn ipv4(src: [u8; 4], dst: [u8; 4], protocol: u8, ttl: u8, traffic_class: u8,
            identification: u16, dont_fragment: bool, payload_len in 0usize..65_516) {
        let repr = ipv4::Repr {
            src: src.into(), dst: dst.into(), protocol: Protocol(protocol), ttl, traffic_class,
            identification, dont_fragment, payload_len,
        };
        let mut bytes = [0x5a; 20];
        repr.emit(&mut bytes);
        let (theirs, _) = other::Ipv4Header::from_slice(&bytes).unwrap();
        prop_assert_eq!((theirs.source, theirs.destination), (src, dst));
        prop_assert_eq!((theirs.protocol.0, theirs.time_to_live), (protocol, ttl));
        prop_assert_eq!(theirs.dscp.value() << 2 | theirs.ecn.value(), traffic_class);
        prop_assert_eq!(theirs.dont_fragment, dont_fragment);
        prop_assert_eq!(usize::from(theirs.total_len), 20 + payload_len);
        prop_assert_eq!(theirs.calc_header_checksum(), theirs.header_checksum);
        prop_assert_eq!(&theirs.to_bytes()[..], &bytes[..]);
        let packet = ipv4::Packet::new(&bytes).unwrap();
        prop_assert!(packet.checksum_is_right());
        prop_assert_eq!(ipv4::Repr::parse(&packet), Ok(repr));
    }

    #[test]
    fn ipv6(src: [u8; 16], dst: [u8; 16], next: u8, hop_limit: u8, traffic_class: u8,
            flow_label in 0u32..0x10_0000, payload_len: u16) {
        let repr = ipv6::Repr {
            src: src.into(), dst: dst.into(), next_header: Protocol(next), hop_limit, traffic_class,
            flow_label, payload_len: payload_len.into(),
        };
        let mut bytes = [0x5a; 40];
        repr.emit(&mut bytes);
        let (theirs, _) = other::Ipv6Header::from_slice(&bytes).unwrap();
        prop_assert_eq!((theirs.source, theirs.destination), (src, dst));
        prop_assert_eq!((theirs.next_header.0, theirs.hop_limit), (next, hop_limit));
        prop_assert_eq!(theirs.traffic_class, traffic_class);
        prop_assert_eq!((theirs.flow_label.value(), theirs.payload_length), (flow_label, payload_len));
        prop_assert_eq!(theirs.to_bytes(), bytes);
        prop_assert_eq!(ipv6::Repr::parse(&ipv6::Packet::new(&bytes).unwrap()), repr);
    }

    #[test]
    fn udp(addresses in addresses(), src_port: u16, dst_port: u16, payload in payload()) {
        let repr = udp::Repr { src_port, dst_port };
        let mut bytes = with_room(8, &payload);
        repr.emit(&mut bytes, addresses);
        let theirs = match addresses {
            AddrPair::V4(src, dst) => other::UdpHeader::with_ipv4_checksum(
                src_port, dst_port,
                &other::Ipv4Header::new(0, 0, other::ip_number::UDP, src.octets(), dst.octets()).unwrap(),
                &payload).unwrap(),
            AddrPair::V6(src, dst) =>
                other::UdpHeader::with_ipv6_checksum(src_port, dst_port, &v6(src, dst), &payload).unwrap(),
        };
        prop_assert_eq!(&theirs.to_bytes()[..], &bytes[..8]);
        let datagram = udp::Datagram::new(&bytes).unwrap();
        prop_assert_eq!(udp::Repr::parse(&datagram), repr);
        prop_assert_eq!(datagram.payload(), &payload[..]);
        prop_assert_eq!(datagram.checksum_is_right(addresses), Some(true));
        let flipped = bytes.len() - 1;
        bytes[flipped] ^= 1;
        let datagram = udp::Datagram::new(&bytes).unwrap();
        prop_assert_ne!(datagram.checksum_is_right(addresses), Some(true));
    }

    #[test]
    fn tcp(addresses in addresses(), ports: (u16, u16), numbers: (u32, u32), flags: u8,
           window: u16, urgent: u16, payload in payload(),
           mss: Option<u16>, window_scale: Option<u8>, sack_permitted: bool, timestamps: Option<(u32, u32)>,
           blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=4)) {
        let mut options = tcp::Options { mss, window_scale, sack_permitted, timestamps, ..tcp::Options::default() };
        for (start, end) in blocks {
            // A block that does not fit beside the other options is left out.
            let before = options.sack;
            prop_assert!(options.sack.push(start, end));
            if options.len() > 40 {
                options.sack = before;
            }
        }
        let repr = tcp::Repr {
            src_port: ports.0, dst_port: ports.1, seq: numbers.0, ack: numbers.1,
            flags: tcp::Flags(flags), window, urgent, options,
        };
        let mut bytes = with_room(repr.header_len(), &payload);
        repr.emit(&mut bytes, addresses);
        let (theirs, rest) = other::TcpHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!(rest, &payload[..]);
        prop_assert_eq!((theirs.source_port, theirs.destination_port), ports);
        prop_assert_eq!((theirs.sequence_number, theirs.acknowledgment_number), numbers);
        prop_assert_eq!((theirs.window_size, theirs.urgent_pointer), (window, urgent));
        prop_assert_eq!(theirs.syn, tcp::Flags(flags).contains(tcp::Flags::SYN));
        prop_assert_eq!(theirs.rst, tcp::Flags(flags).contains(tcp::Flags::RST));
        prop_assert_eq!(&theirs.to_bytes()[..], &bytes[..repr.header_len()]);
        let checksum = match addresses {
            AddrPair::V4(src, dst) =>
                theirs.calc_checksum_ipv4_raw(src.octets(), dst.octets(), &payload).unwrap(),
            AddrPair::V6(src, dst) =>
                theirs.calc_checksum_ipv6_raw(src.octets(), dst.octets(), &payload).unwrap(),
        };
        prop_assert_eq!(checksum, theirs.checksum);
        let segment = tcp::Segment::new(&bytes).unwrap();
        prop_assert!(segment.checksum_is_right(addresses));
        prop_assert_eq!(tcp::Repr::parse(&segment), repr);
        // etherparse's own parser of the options.
        let mut read = tcp::Options::default();
        for option in theirs.options_iterator() {
            match option.unwrap() {
                other::TcpOptionElement::MaximumSegmentSize(value) => read.mss = Some(value),
                other::TcpOptionElement::WindowScale(shift) => read.window_scale = Some(shift),
                other::TcpOptionElement::SelectiveAcknowledgementPermitted => read.sack_permitted = true,
                other::TcpOptionElement::Timestamp(value, echo) => read.timestamps = Some((value, echo)),
                other::TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                    for (start, end) in std::iter::once(first).chain(rest.into_iter().flatten()) {
                        read.sack.push(start, end);
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(read, options);
    }

    #[test]
    fn icmp_echo(addresses in addresses(), reply: bool, identifier: u16, sequence: u16, payload in payload()) {
        let echo = icmp::Echo { reply, identifier, sequence };
        let mut bytes = with_room(8, &payload);
        echo.emit(&mut bytes, addresses);
        let header = other::IcmpEchoHeader { id: identifier, seq: sequence };
        let theirs = match addresses {
            AddrPair::V4(..) => {
                let kind = if reply {
other::Icmpv4Type::EchoReply(header)
} else {
other::Icmpv4Type::EchoRequest(header)
};
                other::Icmpv4Header::with_checksum(kind, &payload).to_bytes().to_vec()
            }
            AddrPair::V6(src, dst) => {
                let kind = if reply {
other::Icmpv6Type::EchoReply(header)
} else {
other::Icmpv6Type::EchoRequest(header)
};
                let header = other::Icmpv6Header::with_checksum(kind, src.octets(), dst.octets(), &payload);
                header.unwrap().to_bytes().to_vec()
            }
        };
        prop_assert_eq!(&theirs[..], &bytes[..8]);
        let message = icmp::Message::new(&bytes).unwrap();
        prop_assert!(message.checksum_is_right(addresses));
        prop_assert_eq!(icmp::Echo::parse(&message, addresses), Some(echo));
        prop_assert_eq!(message.payload(), &payload[..]);
    }

    /// Both crates accept or refuse any bytes alike, and read the same fields.
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), first in 0x40u8..0x70) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let ours = ipv4::Packet::new(&bytes);
        match (other::Ipv4Header::from_slice(&bytes), ours) {
            (Ok((theirs, _)), Ok(ours)) => {
                prop_assert_eq!(ours.header_len(), theirs.header_len());
                prop_assert_eq!(ours.total_len(), usize::from(theirs.total_len));
                prop_assert_eq!(ours.fragment_offset(), usize::from(theirs.fragment_offset.byte_offset()));
                prop_assert_eq!(ours.more_fragments(), theirs.more_fragments);
                prop_assert_eq!(ours.options(), theirs.options.as_slice());
                prop_assert_eq!(ours.checksum_is_right(), theirs.calc_header_checksum() == theirs.header_checksum);
            }
            // A total length below the header's: etherparse checks it later.
            (Ok((theirs, _)), Err(Error::Field { field: "total length", .. })) => {
                prop_assert!(usize::from(theirs.total_len) < theirs.header_len());
            }
            (theirs, ours) => prop_assert!(theirs.is_err() && ours.is_err(), "{theirs:?} {ours:?}"),
        }
        let ours = tcp::Segment::new(&bytes);
        match (other::TcpHeader::from_slice(&bytes), ours) {
            (Ok((theirs, rest)), Ok(ours)) => {
                prop_assert_eq!(ours.header_len(), theirs.header_len());
                prop_assert_eq!(ours.payload(), rest);
                prop_assert_eq!(ours.options(), theirs.options.as_slice());
            }
            (theirs, ours) => prop_assert!(theirs.is_err() && ours.is_err(), "{theirs:?} {ours:?}"),
        }
        let ours = ipv6::Packet::new(&bytes);
        match (other::Ipv6Header::from_slice(&bytes), ours) {
            (Ok((theirs, _)), Ok(ours)) => {
                prop_assert_eq!(ours.payload_len(), usize::from(theirs.payload_length));
            }
            (theirs, ours) => prop_assert!(theirs.is_err() && ours.is_err(), "{theirs:?} {ours:?}"),
        }
    }
}
