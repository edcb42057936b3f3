//! IPv4 fragmentation of a packet that exceeds the MTU of the next link (RFC
//! 791 §3.2, RFC 1812 §5.2.6).

use crate::router::engine::ETHERNET;
use crate::router::engine::table::routes::Hop;
use crate::router::engine::{Reason, Router, Verdict};
use std::net::Ipv4Addr;
use weir_wire::field::{array, read_u16, write};
use weir_wire::{checksum, ipv4};

const MORE_FRAGMENTS: u16 = 0x2000;
/// The copied flag in an option's type: the option goes into every fragment.
const COPIED: u8 = 0x80;

impl Router {
    /// Sends a frame's packet as fragments: all of them or none.
    pub(in crate::router::engine) fn fragment(
        &mut self,
        now_ns: u64,
        hop: Hop,
        frame: &[u8],
        mtu: usize,
    ) -> Result<Verdict, Reason> {
        let packet = &frame[ETHERNET..];
        let header_len = ipv4::header_len(packet);
        let (header, payload) = packet.split_at(header_len);
        let dst = Ipv4Addr::from(array::<4>(packet, 16));
        // At least 8 bytes: an MTU is at least 68, and a header has at most 60
        // bytes.
        let piece_len = (mtu - header_len) & !7;
        let place = read_u16(packet, 6);
        let count = payload.len().div_ceil(piece_len);
        if !self.output.has_room_for_fragments(count) {
            return Err(Reason::QueueFull);
        }
        self.counters.fragmented += 1;
        for (index, piece) in payload.chunks(piece_len).enumerate() {
            let mut out = frame[..ETHERNET].to_vec();
            out.extend_from_slice(header);
            out.extend_from_slice(piece);
            let header = &mut out[ETHERNET..ETHERNET + header_len];
            if index > 0 {
                blank_options(header);
            }
            let more = if index + 1 < count {
                MORE_FRAGMENTS
            } else {
                place & MORE_FRAGMENTS
            };
            let offset = (place & 0x1fff) + (index * piece_len / 8) as u16;
            // The reserved bit is not copied.
            let flags = more | offset & 0x1fff;
            write(
                header,
                2,
                &((header_len + piece.len()) as u16).to_be_bytes(),
            );
            write(header, 6, &flags.to_be_bytes());
            write(header, 10, &[0, 0]);
            let sum = checksum::internet_checksum(header);
            write(header, 10, &sum.to_be_bytes());
            self.counters.fragments += 1;
            self.transmit(now_ns, hop, dst.into(), out, true);
        }
        Ok(Verdict::Done)
    }
}

/// Replaces the options that only the first fragment carries by no-operation
/// options, so that the header keeps its length.
fn blank_options(header: &mut [u8]) {
    let mut at = ipv4::Repr::LEN;
    while at < header.len() {
        let len = match header[at..] {
            [0, ..] => return,
            [1, ..] => 1,
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => return,
        };
        let end = (at + len).min(header.len());
        if header[at] & COPIED == 0 {
            header[at..end].fill(1);
        }
        at = end;
    }
}
