//! Pups on links.
//!
//! ```text
//!  3 Mb/s Ethernet:  destination host 1 │ source host 1 │ type 2 = 0x0200 │ Pup
//!  10 Mb/s Ethernet: Ethernet header with type 0x0200 │ Pup
//!  UDP:              length 2, in words, without itself │ 3 Mb/s frame
//! ```
//!
//! The type is 1000 octal, as Altos have it; the figures of the 1987 paper have 2,
//! which is understood too.
//!
//! The form over UDP is that of today's Alto emulators and their file server,
//! which send each frame to all by an IP broadcast. On a 10 Mb/s Ethernet a
//! station learns the Ethernet address of a host from its Pups, and broadcasts
//! to hosts that it does not know.

use weir_wire::field::{read_u16, write};
use weir_wire::pup::ThreeMegabit;

/// Length of the header over UDP, in bytes.
pub const UDP_HEADER_LEN: usize = 2 + ThreeMegabit::LEN;
/// The type of a 3 Mb/s frame with a Pup, as Altos send it.
pub const FRAME_TYPE: u16 = 0o1000;
/// The UDP port that emulators use.
pub const UDP_PORT: u16 = 42_424;

/// Writes the header over UDP before a Pup, which follows it in `datagram`.
///
/// # Panics
/// If the datagram is shorter than [`UDP_HEADER_LEN`].
pub fn emit_udp(dst: u8, src: u8, datagram: &mut [u8]) {
    let words = (datagram.len() - 2) / 2;
    write(datagram, 0, &(words as u16).to_be_bytes());
    let frame = ThreeMegabit {
        dst,
        src,
        frame_type: FRAME_TYPE,
    };
    frame.emit(&mut datagram[2..]);
}

/// The Pup of a datagram over UDP, with the source and the destination host of
/// its frame; `None` if it is not a Pup.
pub fn parse_udp(datagram: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (_, frame) = datagram.split_at_checked(2)?;
    let words = usize::from(read_u16(datagram, 0));
    if words * 2 > frame.len() {
        return None;
    }
    let (header, pup) = ThreeMegabit::parse(frame).ok()?;
    let is_pup = matches!(header.frame_type, FRAME_TYPE | ThreeMegabit::PUP);
    is_pup.then_some((header.src, header.dst, pup))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_over_udp_reads_back() {
        let mut datagram = vec![0; UDP_HEADER_LEN];
        datagram.extend([1, 2, 3, 4]);
        emit_udp(5, 6, &mut datagram);
        assert_eq!(datagram, [0, 4, 5, 6, 2, 0, 1, 2, 3, 4]);
        assert_eq!(parse_udp(&datagram), Some((6, 5, &[1, 2, 3, 4][..])));
        for len in 0..datagram.len() {
            assert_eq!(parse_udp(&datagram[..len]), None);
        }
    }
}
