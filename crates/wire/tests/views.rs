//! Views over short, long and random bytes; Pup; checksums.

mod common;

use common::{V4, read_all};
use proptest::prelude::*;
use weir_wire::checksum::{self, Sum};
use weir_wire::pup::{self, Port, ThreeMegabit};
use weir_wire::*;

/// Reference implementation of the checksum, a word at a time.
fn slow_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

proptest! {
    #[test]
    fn wild_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100),
                              first in prop::sample::select(vec![0x45u8, 0x4f, 0x60, 0, 0xff])) {
        read_all(&bytes);
        let mut likely = bytes;
        if let Some(byte) = likely.first_mut() {
            *byte = first;
        }
        read_all(&likely);
    }

    #[test]
    fn sums_do_not_depend_on_where_they_are_split(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        splits in proptest::collection::vec(0usize..200, 0..4),
    ) {
        prop_assert_eq!(checksum::internet_checksum(&bytes), slow_sum(&bytes));
        let mut splits: Vec<usize> = splits.into_iter().map(|split| split.min(bytes.len())).collect();
        splits.sort_unstable();
        let mut sum = Sum::new();
        let mut start = 0;
        for end in splits.into_iter().chain([bytes.len()]) {
            sum = sum.bytes(&bytes[start..end]);
            start = end;
        }
        prop_assert_eq!(sum.finish(), slow_sum(&bytes));
    }

    #[test]
    fn an_update_is_a_computation(mut bytes in proptest::collection::vec(any::<u8>(), 4..40), at in 0usize..40, new: u16) {
        bytes.resize(bytes.len() / 2 * 2, 0);
        bytes[0] |= 1;
        let at = at % (bytes.len() / 2 - 1) * 2 + 2;
        let before = checksum::internet_checksum(&bytes);
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(checksum::update(before, old, new), checksum::internet_checksum(&bytes));
    }

    #[test]
    fn pups_come_back(control: u8, pup_type: u8, identifier: u32, dst: (u8, u8, u32), src: (u8, u8, u32),
                      payload in proptest::collection::vec(any::<u8>(), 0..100), flip in 0usize..100) {
        let port = |(net, host, socket)| Port { net, host, socket };
        let repr = pup::Repr { control, pup_type, identifier, dst: port(dst), src: port(src) };
        let mut bytes = vec![0xee; pup::Repr::packet_len(payload.len())];
        bytes[20..20 + payload.len()].copy_from_slice(&payload);
        repr.emit(&mut bytes, payload.len());
        let packet = pup::Packet::new(&bytes).unwrap();
        prop_assert_eq!(pup::Repr::parse(&packet), repr);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.checksum_is_right(), Some(true));
        let flip = 4 + flip % (bytes.len() - 4);
        bytes[flip] ^= 0x10;
        prop_assert_ne!(pup::Packet::new(&bytes).unwrap().checksum_is_right(), Some(true));
    }
}

/// The examples of RFC 1071 §3 and RFC 1624 §4.
#[test]
fn the_rfcs_examples() {
    assert_eq!(
        checksum::internet_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
        !0xddf2
    );
    assert_eq!(checksum::update(0xdd2f, 0x5555, 0x3285), 0x0000);
    assert_eq!(checksum::internet_checksum(&[]), 0xffff);
}

/// Fields are at the word offsets of the 1987 paper's figures 3-8 and 3-9, which
/// count from the frame's 4-byte header.
#[test]
fn pup_fields_stand_where_the_paper_has_them() {
    let header = ThreeMegabit {
        dst: 2,
        src: 1,
        frame_type: ThreeMegabit::PUP,
    };
    let port = |socket| Port {
        net: 0,
        host: 5,
        socket,
    };
    let repr = pup::Repr {
        control: 0,
        pup_type: 99,
        identifier: 0,
        dst: port(0x0012_0035),
        src: port(7),
    };
    let mut frame = vec![0; 4 + pup::Repr::packet_len(3)];
    header.emit(&mut frame);
    repr.emit(&mut frame[4..], 3);
    let word = |index: usize| u16::from_be_bytes([frame[2 * index], frame[2 * index + 1]]);
    assert_eq!(word(1), 2, "the frame's type");
    assert_eq!(word(2), 25, "the length, without padding");
    assert_eq!(word(3) & 0xff, 99, "the Pup's type");
    assert_eq!(word(7), 0x12, "the destination socket's high word");
    assert_eq!(word(8), 0x35, "and its low word");
    assert_eq!(ThreeMegabit::parse(&frame).unwrap(), (header, &frame[4..]));
}

#[test]
fn a_pup_may_have_no_checksum() {
    let port = Port {
        net: 0,
        host: 0,
        socket: 0,
    };
    let repr = pup::Repr {
        control: 0,
        pup_type: 1,
        identifier: 1,
        dst: port,
        src: port,
    };
    let mut bytes = vec![0; pup::Repr::packet_len(0)];
    repr.emit(&mut bytes, 0);
    bytes[20..].fill(0xff);
    assert_eq!(pup::Packet::new(&bytes).unwrap().checksum_is_right(), None);
    assert_eq!(
        pup::Packet::new(&bytes[..20]).unwrap().checksum_is_right(),
        None
    );
}

#[test]
fn payloads_end_where_the_header_says_or_the_bytes_do() {
    let repr = ipv4::Repr {
        src: [192, 0, 2, 1].into(),
        dst: [192, 0, 2, 2].into(),
        protocol: Protocol::UDP,
        ttl: 64,
        traffic_class: 0,
        identification: 1,
        dont_fragment: true,
        payload_len: 10,
    };
    let mut bytes = [7; 46];
    repr.emit(&mut bytes);
    assert_eq!(
        ipv4::Packet::new(&bytes).unwrap().payload().len(),
        10,
        "without padding"
    );
    assert_eq!(
        ipv4::Packet::new(&bytes[..25]).unwrap().payload().len(),
        5,
        "cut short"
    );
    udp::Repr {
        src_port: 1,
        dst_port: 2,
    }
    .emit(&mut bytes[20..30], V4);
    assert_eq!(udp::Datagram::new(&bytes[20..]).unwrap().payload().len(), 2);
    assert_eq!(
        udp::Datagram::new(&bytes[20..29]).unwrap().payload().len(),
        1
    );
    assert_eq!(
        udp::Datagram::new(&bytes[20..29])
            .unwrap()
            .checksum_is_right(V4),
        None
    );
    bytes[6] = 0x20;
    let fragment = ipv4::Repr::parse(&ipv4::Packet::new(&bytes).unwrap());
    assert_eq!(
        fragment.unwrap_err().to_string(),
        "an IPv4 header has fragment field 8192, which is invalid"
    );
}

#[test]
fn errors_say_what_and_how_much() {
    let error = tcp::Segment::new(&[0; 19]).unwrap_err().to_string();
    assert_eq!(error, "a TCP header is cut short: 19 of 20 bytes are there");
    let mut bytes = [0; 60];
    bytes[12] = 0x40;
    let error = tcp::Segment::new(&bytes).unwrap_err().to_string();
    assert_eq!(error, "a TCP header has data offset 4, which is invalid");
    bytes[12] = 0xf0;
    assert!(tcp::Segment::new(&bytes).is_ok());
    assert!(tcp::Segment::new(&bytes[..59]).is_err());
    bytes[0] = 0x50;
    let error = ipv4::Packet::new(&bytes).unwrap_err().to_string();
    assert_eq!(error, "an IPv4 header has version 5, which is invalid");
    bytes[0] = 0x43;
    let error = ipv4::Packet::new(&bytes).unwrap_err().to_string();
    assert_eq!(
        error,
        "an IPv4 header has header length 3, which is invalid"
    );
    assert!(arp::Packet::new(&bytes).is_err());
}

#[test]
fn ipv4_options_are_found_up_to_the_first_wrong_length() {
    use weir_wire::ipv4::{Options, option};
    fn all(bytes: &[u8]) -> Vec<Result<(usize, &[u8]), usize>> {
        Options::new(bytes).collect()
    }
    assert_eq!(all(&[]), []);
    let route = [option::RECORD_ROUTE, 3, 4];
    let bytes = [&[1, 1], &route[..], &[1], &[148, 4, 0, 0], &[0, 7, 3, 4]].concat();
    assert_eq!(all(&bytes), [Ok((2, &route[..])), Ok((6, &[148, 4, 0, 0]))]);
    for wrong in [&[7][..], &[7, 0], &[7, 1], &[7, 3]] {
        let bytes = [&[1][..], wrong].concat();
        assert_eq!(all(&bytes), [Err(1)], "{wrong:?}");
    }
}

/// A malformed option ends parsing; options before it are kept.
#[test]
fn malformed_tcp_options_end_the_reading() {
    use tcp::Options;
    let mss = Options {
        mss: Some(1460),
        ..Options::default()
    };
    for tail in [
        &[3, 0][..],
        &[3, 1, 7],
        &[3, 9, 7],
        &[3],
        &[0, 3, 3, 7],
        &[1, 0, 4, 2],
    ] {
        let bytes = [&[2, 4, 5, 180], tail].concat();
        assert_eq!(Options::parse(&bytes), mss, "{tail:?}");
    }
    let unknown = [30, 6, 1, 2, 3, 4, 2, 4, 5, 180];
    assert_eq!(Options::parse(&unknown), mss);
    // A known kind with a wrong length is skipped.
    assert_eq!(Options::parse(&[2, 3, 5, 2, 4, 5, 180]), mss);
}

#[test]
fn ethernet_addresses_are_read_as_they_are_shown() {
    use weir_wire::ethernet::Address;
    let address = Address([2, 0, 0xab, 0, 0xff, 7]);
    assert_eq!(address.to_string().parse(), Ok(address));
    assert_eq!("2:0:AB:0:ff:7".parse(), Ok(address));
    for wrong in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "02:00:00:00:00:1g",
        "02:00:00:00:00:+1",
        "002:0:0:0:0:1",
        "02-00-00-00-00-01",
        "02:00:00:00:00:",
    ] {
        assert!(wrong.parse::<Address>().is_err(), "{wrong}");
    }
}

/// [`tcp::Plain`] and [`tcp::Repr`] write the same header.
#[test]
fn a_plain_tcp_header_is_a_tcp_header() {
    use weir_wire::checksum::Sum;
    use weir_wire::tcp::{Flags, Plain};
    for timestamps in [None, Some((0xfedc_ba98, 0x0123_4567))] {
        for seq in [0, 1, 0x8000_ffff, u32::MAX] {
            let plain = Plain {
                src_port: 65_535,
                dst_port: 80,
                seq,
                ack: !seq,
                flags: Flags::ACK | Flags::PSH | Flags::ECE,
                window: 0x1234,
                timestamps,
            };
            let rest = Sum::new().word(0xabcd).bytes(b"odd");
            let mut theirs = vec![9; plain.repr().header_len()];
            plain.repr().emit_summed(&mut theirs, rest);
            let mut ours = vec![7; plain.header_len()];
            plain.emit(&mut ours, |sum| sum.and(rest).finish());
            assert_eq!(ours, theirs);
        }
    }
}
