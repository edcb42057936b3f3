//! Segmentation of super-frames that the kernel tests do not cover: IPv6, UDP,
//! VLAN tags, and frames that cannot be segmented. The test `live` covers those
//! that the kernel segments.

use std::borrow::Cow;
use weir_demux::kernel::record::{FLAG_GSO, Record};
use weir_link::gso::segments;
use weir_wire::checksum::{AddrPair, Sum};

const SIZE: u16 = 100;

fn record(bytes: &[u8]) -> Record<'_> {
    Record {
        wire_len: bytes.len() as u32,
        tag: 0,
        flags: FLAG_GSO,
        lost_before: 0,
        ifindex: 1,
        gso_size: SIZE,
        gso_segs: 3,
        queue: 0,
        timestamp_ns: 0,
        bytes,
    }
}

/// Ethernet with `tags` VLAN tags, then IPv6 or IPv4, TCP or UDP, and 250
/// bytes.
fn frame(tags: usize, is_v6: bool, protocol: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for _ in 0..tags {
        frame.extend([0x81, 0, 0, 7]);
    }
    let transport = if protocol == 6 { 20 } else { 8 };
    let len = (transport + 250) as u16;
    if is_v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0x20; 16]);
        frame.extend([0x30; 16]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((len + 20).to_be_bytes());
        frame.extend([
            0xff, 0xff, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
    }
    frame.extend([0x10, 0, 0x20, 0]);
    if protocol == 6 {
        // The sequence number is about to wrap; CWR, PSH, ACK and FIN are set.
        frame.extend([
            0xff, 0xff, 0xff, 0xc0, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0xab, 0xcd, 0, 0,
        ]);
    } else {
        frame.extend(len.to_be_bytes());
        frame.extend([0xab, 0xcd]);
    }
    frame.extend((0..250).map(|byte| byte as u8));
    frame
}

#[test]
fn each_segment_is_a_frame_of_its_own() {
    for (tags, is_v6, protocol) in [
        (0, false, 6),
        (0, true, 6),
        (1, false, 17),
        (2, true, 17),
        (2, false, 6),
    ] {
        let whole = frame(tags, is_v6, protocol);
        let pieces: Vec<Vec<u8>> = segments(&record(&whole)).map(Cow::into_owned).collect();
        assert_eq!(pieces.len(), 3);
        let ip = 14 + 4 * tags;
        let transport = ip + if is_v6 { 40 } else { 20 };
        let header = if protocol == 6 { 20 } else { 8 };
        let mut payload = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!(piece[..ip], whole[..ip]);
            let word = |at: usize| u16::from_be_bytes([piece[at], piece[at + 1]]);
            let len = (piece.len() - transport) as u16;
            let (src, dst): (std::net::IpAddr, std::net::IpAddr) = if is_v6 {
                assert_eq!(word(ip + 4), len);
                ([0x20; 16].into(), [0x30; 16].into())
            } else {
                assert_eq!(word(ip + 2), len + 20);
                assert_eq!(word(ip + 4), 0xffff_u16.wrapping_add(number as u16));
                assert_eq!(Sum::new().bytes(&piece[ip..transport]).finish(), 0);
                ([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            };
            let addresses = AddrPair::new(src, dst).unwrap();
            let sum = Sum::new().pseudo_header(addresses, protocol, len.into());
            assert_eq!(sum.bytes(&piece[transport..]).finish(), 0, "the checksum");
            if protocol == 6 {
                let sequence = 0xffff_ffc0_u32.wrapping_add(100 * number as u32);
                assert_eq!(piece[transport + 4..transport + 8], sequence.to_be_bytes());
                assert_eq!(piece[transport + 13], [0x90, 0x10, 0x19][number]);
            } else {
                assert_eq!(word(transport + 4), len);
            }
            payload.extend_from_slice(&piece[transport + header..]);
        }
        assert!(payload.iter().copied().eq((0..250).map(|byte| byte as u8)));
    }
}

#[test]
fn what_cannot_be_cut_comes_as_it_is() {
    let whole = frame(0, false, 6);
    let as_it_is = |record: &Record<'_>| {
        let mut pieces = segments(record);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces.next().as_deref(), Some(record.bytes));
        assert!(pieces.next().is_none() && pieces.len() == 0);
    };
    let marked = record(&whole);
    as_it_is(&Record { flags: 0, ..marked });
    as_it_is(&Record {
        gso_size: 0,
        ..marked
    });
    as_it_is(&Record {
        wire_len: 9_000,
        ..marked
    });
    // Every shorter frame, and other protocols.
    for len in 0..=54 {
        as_it_is(&record(&whole[..len]));
    }
    for (at, byte) in [
        (12, 9),
        (14, 0x44),
        (20, 0x20),
        (23, 47),
        (46, 0x40),
        (46, 0xf0),
    ] {
        let mut other = whole[..90].to_vec();
        other[at] = byte;
        let shown = record(&other);
        as_it_is(&shown);
    }
}
