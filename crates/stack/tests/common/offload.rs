//! What a link with offload does: it completes checksums and cuts segments.

use weir_stack::TxSink;
use weir_stack::iface::TxMeta;
use weir_wire::{AddrPair, Protocol, ethernet, ipv4, ipv6, tcp};

/// Frames as the stack hands them over.
#[derive(Default)]
pub(crate) struct Frames(pub(crate) Vec<(Vec<u8>, Option<TxMeta>)>);

impl TxSink for Frames {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.push((vec![0; len], None));
        self.0.last_mut().map(|(frame, _)| frame.as_mut_slice())
    }

    fn submit(&mut self) {}

    fn submit_partial(&mut self, partial: TxMeta, payload: [&[u8]; 2]) {
        let (frame, left) = self.0.last_mut().unwrap();
        frame.extend_from_slice(&payload.concat());
        *left = Some(partial);
    }
}

/// The frames that go over the wire for one that the stack handed over.
pub(crate) fn finish(frame: Vec<u8>, partial: Option<TxMeta>) -> Vec<Vec<u8>> {
    let Some(partial) = partial else {
        return vec![frame];
    };
    let at = usize::from(partial.checksum_start);
    let ip = &frame[ethernet::Repr::LEN..at];
    let v6 = ip[0] >> 4 == 6;
    let segment = tcp::Segment::new(&frame[at..]).unwrap();
    let repr = tcp::Repr::parse(&segment);
    let header_len = segment.header_len();
    assert_eq!(partial.checksum_offset, 16);
    let size = partial.gso.map_or(usize::MAX, |gso| {
        assert_eq!((usize::from(gso.header_len), gso.v6), (at + header_len, v6));
        assert!(segment.payload().len() > usize::from(gso.size));
        gso.size.into()
    });
    let payload = segment.payload();
    let mut pieces: Vec<&[u8]> = payload.chunks(size).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let last = pieces.len() - 1;
    let cut = |(index, piece): (usize, &&[u8])| {
        let mut frame = frame[..at].to_vec();
        let mut repr = repr;
        repr.seq = repr.seq.wrapping_add((index * size.min(70_000)) as u32);
        if index < last {
            repr.flags.0 &= !(tcp::Flags::FIN.0 | tcp::Flags::PSH.0);
        }
        let mut segment = vec![0; header_len];
        segment.extend_from_slice(piece);
        let ip = &mut frame[ethernet::Repr::LEN..];
        let addresses = if v6 {
            ip[4..6].copy_from_slice(&(segment.len() as u16).to_be_bytes());
            let packet = ipv6::Packet::new(ip).unwrap();
            AddrPair::V6(packet.src(), packet.dst())
        } else {
            let total_len = (ip.len() + segment.len()) as u16;
            ip[2..4].copy_from_slice(&total_len.to_be_bytes());
            ip[10..12].copy_from_slice(&[0; 2]);
            let checksum = weir_wire::checksum::internet_checksum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            let packet = ipv4::Packet::new(ip).unwrap();
            assert_eq!(packet.protocol(), Protocol::TCP);
            AddrPair::V4(packet.src(), packet.dst())
        };
        repr.emit(&mut segment, addresses);
        frame.extend(segment);
        frame
    };
    pieces.iter().enumerate().map(cut).collect()
}
