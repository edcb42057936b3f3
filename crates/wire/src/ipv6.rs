//! IPv6 (RFC 8200), the fixed header.

use std::net::Ipv6Addr;

use crate::error::require_len;
use crate::field::{array, read_u16, read_u32, write};
use crate::{Error, Protocol};

const HEADER: &str = "an IPv6 header";

/// A packet, in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Takes a packet, perhaps with padding behind it, perhaps cut short behind
    /// its header.
    ///
    /// # Errors
    /// If the header is cut short or of another version.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN)?;
        let version = bytes[0] >> 4;
        if version != 6 {
            return Err(Error::Field {
                header: HEADER,
                field: "version",
                value: version.into(),
            });
        }
        Ok(Packet(bytes))
    }

    /// The length of what follows the header by the header, in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        read_u16(self.0, 4).into()
    }

    /// The source.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, 8))
    }

    /// The destination.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, 24))
    }

    /// What follows the header: an extension header or what it carries.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.0[6])
    }

    /// What follows the header, without padding; less than the header says if
    /// the packet was cut short.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = (Repr::LEN + self.payload_len()).min(self.0.len());
        &self.0[Repr::LEN..end]
    }
}

/// A header by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source.
    pub src: Ipv6Addr,
    /// The destination.
    pub dst: Ipv6Addr,
    /// What follows the header.
    pub next_header: Protocol,
    /// Hops left.
    pub hop_limit: u8,
    /// Differentiated services and congestion bits.
    pub traffic_class: u8,
    /// The flow's label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// The payload's length, in bytes; at most 65,535.
    pub payload_len: usize,
}

impl Repr {
    /// The header's length, in bytes.
    pub const LEN: usize = 40;

    /// The header's values.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        let first = read_u32(packet.0, 0);
        Repr {
            src: packet.src(),
            dst: packet.dst(),
            next_header: packet.next_header(),
            hop_limit: packet.0[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: packet.payload_len(),
        }
    }

    /// Writes the header.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`], or a field is out of range.
    pub fn emit(&self, out: &mut [u8]) {
        assert!(self.flow_label <= 0xf_ffff, "a flow label has 20 bits");
        let payload_len = u16::try_from(self.payload_len);
        let payload_len = payload_len.expect("an IPv6 payload has at most 65,535 bytes");
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        write(out, 0, &first.to_be_bytes());
        write(out, 4, &payload_len.to_be_bytes());
        write(out, 6, &[self.next_header.0, self.hop_limit]);
        write(out, 8, &self.src.octets());
        write(out, 24, &self.dst.octets());
    }
}

/// A fragment header (RFC 8200 §4.5), by value.
///
/// ```text
///  next header 1 │ 0 1 │ offset 13 bits, 0 2, more 1 │ identification 4
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentRepr {
    /// What the datagram's fragmentable part starts with.
    pub next_header: Protocol,
    /// Where in that part this piece starts, in bytes; a multiple of 8.
    pub offset: usize,
    /// Whether pieces follow.
    pub more: bool,
    /// Names the datagram.
    pub identification: u32,
}

impl FragmentRepr {
    /// The header's length, in bytes.
    pub const LEN: usize = 8;

    /// The header's values, from its first byte on.
    ///
    /// # Errors
    /// If it is cut short.
    pub fn parse(bytes: &[u8]) -> Result<FragmentRepr, Error> {
        require_len("an IPv6 fragment header", bytes, FragmentRepr::LEN)?;
        let place = read_u16(bytes, 2);
        Ok(FragmentRepr {
            next_header: Protocol(bytes[0]),
            offset: usize::from(place & !7),
            more: place & 1 != 0,
            identification: read_u32(bytes, 4),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// If `out` is shorter than [`FragmentRepr::LEN`], or the offset is no
    /// multiple of 8 below 65,536.
    pub fn emit(&self, out: &mut [u8]) {
        let offset = u16::try_from(self.offset).expect("a fragment starts below 65,536");
        assert!(offset.is_multiple_of(8), "a fragment's offset: {offset}");
        write(out, 0, &[self.next_header.0, 0]);
        write(out, 2, &(offset | u16::from(self.more)).to_be_bytes());
        write(out, 4, &self.identification.to_be_bytes());
    }
}
