//! IPv4 (RFC 791, RFC 2474, RFC 3168, RFC 6864).

use std::net::Ipv4Addr;

use crate::checksum::{self, Sum};
use crate::error::require_len;
use crate::field::{array, read_u16, write};
use crate::{Error, Protocol};

const HEADER: &str = "an IPv4 header";
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// Bytes of the header that `packet` begins with, by its IHL field (RFC 791
/// §3.1), which is not checked.
///
/// # Panics
/// If there is no byte.
#[inline]
pub fn header_len(packet: &[u8]) -> usize {
    usize::from(packet[0] & 0xf) * 4
}

/// A packet, in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Takes a packet, perhaps with padding behind it, perhaps cut short behind
    /// its header.
    ///
    /// # Errors
    /// If the header is cut short, is of another version, or its lengths
    /// contradict each other. The checksum is not looked at.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN)?;
        let wrong = |field, value: usize| Error::Field {
            header: HEADER,
            field,
            value: value as u32,
        };
        let packet = Packet(bytes);
        let (version, header_len) = (bytes[0] >> 4, packet.header_len());
        if version != 4 {
            return Err(wrong("version", version.into()));
        }
        if header_len < Repr::LEN {
            return Err(wrong("header length", (bytes[0] & 0xf).into()));
        }
        require_len(HEADER, bytes, header_len)?;
        if packet.total_len() < header_len {
            return Err(wrong("total length", packet.total_len()));
        }
        Ok(packet)
    }

    /// The header's length with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        header_len(self.0)
    }

    /// The packet's length by its header, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        read_u16(self.0, 2).into()
    }

    /// The source.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.0, 12))
    }

    /// The destination.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.0, 16))
    }

    /// What it carries.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.0[9])
    }

    /// Hops left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// Differentiated services and congestion bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.0[1]
    }

    /// Names the datagram among the fragments in flight.
    #[inline]
    pub fn identification(&self) -> u16 {
        read_u16(self.0, 4)
    }

    /// The fragment's offset in the datagram, in bytes; 0 of a whole one.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(read_u16(self.0, 6) & 0x1fff) * 8
    }

    /// Whether fragments follow this one.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        read_u16(self.0, 6) & MORE_FRAGMENTS != 0
    }

    /// The header's options.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.0[Repr::LEN..self.header_len()]
    }

    /// What follows the header, without padding; less than the header says if
    /// the packet was cut short.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.total_len().min(self.0.len());
        &self.0[self.header_len()..end]
    }

    /// Whether the header's checksum is right.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        let header = &self.0[..self.header_len()];
        // Without options its length is known beforehand.
        match header.as_chunks::<4>().0.as_array::<5>() {
            Some(words) => Sum::new().words(words).finish() == 0,
            None => checksum::internet_checksum(header) == 0,
        }
    }
}

/// A header without options and of a whole datagram, by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source.
    pub src: Ipv4Addr,
    /// The destination.
    pub dst: Ipv4Addr,
    /// What it carries.
    pub protocol: Protocol,
    /// Hops left.
    pub ttl: u8,
    /// Differentiated services and congestion bits.
    pub traffic_class: u8,
    /// Names the datagram among the fragments in flight.
    pub identification: u16,
    /// Routers must not fragment it.
    pub dont_fragment: bool,
    /// The payload's length, in bytes; at most 65,515.
    pub payload_len: usize,
}

impl Repr {
    /// The header's length, in bytes.
    pub const LEN: usize = 20;

    /// The header's values; options are passed over.
    ///
    /// # Errors
    /// If the packet is a fragment.
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Error> {
        if packet.more_fragments() || packet.fragment_offset() > 0 {
            let value = u32::from(read_u16(packet.0, 6));
            return Err(Error::Field {
                header: HEADER,
                field: "fragment field",
                value,
            });
        }
        Ok(Repr {
            src: packet.src(),
            dst: packet.dst(),
            protocol: packet.protocol(),
            ttl: packet.ttl(),
            traffic_class: packet.traffic_class(),
            identification: packet.identification(),
            dont_fragment: read_u16(packet.0, 6) & DONT_FRAGMENT != 0,
            payload_len: packet.total_len() - packet.header_len(),
        })
    }

    /// Writes the header, checksum included.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`], or the payload too long.
    pub fn emit(&self, out: &mut [u8]) {
        self.emit_fragment(out, 0, false);
    }

    /// Bytes of the header that [`Repr::emit_alert`] writes.
    pub const ALERT_LEN: usize = Repr::LEN + 4;

    /// Writes a header that asks routers to look at the packet (RFC 2113).
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::ALERT_LEN`], or the payload longer than
    /// 65,511 bytes.
    pub fn emit_alert(&self, out: &mut [u8]) {
        let with_option = Repr {
            payload_len: self.payload_len + 4,
            ..*self
        };
        with_option.emit(out);
        let out = &mut out[..Repr::ALERT_LEN];
        write(out, 0, &[0x46]);
        write(out, 10, &[0, 0]);
        write(out, Repr::LEN, &[0x94, 4, 0, 0]);
        let checksum = checksum::internet_checksum(out);
        write(out, 10, &checksum.to_be_bytes());
    }

    /// Writes the header of a fragment, whose payload starts at byte `offset`
    /// of the datagram's; whether `more` follow.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`], the payload is too long, or the
    /// offset is no multiple of 8 below 65,536.
    pub fn emit_fragment(&self, out: &mut [u8], offset: usize, more: bool) {
        assert!(
            offset.is_multiple_of(8) && offset < 65_536,
            "a fragment's offset counts eight bytes: {offset}"
        );
        let out = &mut out[..Repr::LEN];
        let total_len = u16::try_from(Repr::LEN + self.payload_len);
        let total_len = total_len.expect("an IPv4 payload has at most 65,515 bytes");
        let dont = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let more = if more { MORE_FRAGMENTS } else { 0 };
        let flags = dont | more | (offset / 8) as u16;
        write(out, 0, &[0x45, self.traffic_class]);
        write(out, 2, &total_len.to_be_bytes());
        write(out, 4, &self.identification.to_be_bytes());
        write(out, 6, &flags.to_be_bytes());
        write(out, 8, &[self.ttl, self.protocol.0, 0, 0]);
        write(out, 12, &self.src.octets());
        write(out, 16, &self.dst.octets());
        let checksum = checksum::internet_checksum(out);
        write(out, 10, &checksum.to_be_bytes());
    }
}
