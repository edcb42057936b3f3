//! IPv6: the fixed header (RFC 8200 §3) and the fragment header (§4.5).

use std::net::Ipv6Addr;

use crate::error::require_len;
use crate::field::{array, read_u16, read_u32, write};
use crate::{Error, Protocol};

const HEADER: &str = "an IPv6 header";

/// View of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Checks the header. The bytes may end with padding, and the payload may be cut
    /// short.
    ///
    /// # Errors
    /// If the header is cut short or has another version.
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

    /// Payload length by the header, in bytes; extension headers count.
    #[inline]
    pub fn payload_len(&self) -> usize {
        read_u16(self.0, 4).into()
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, 8))
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, 24))
    }

    /// Next Header: the first extension header, or the protocol of the payload.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.0[6])
    }

    /// The bytes behind the fixed header, without padding. They are fewer than the
    /// header says if the packet was cut short.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = (Repr::LEN + self.payload_len()).min(self.0.len());
        &self.0[Repr::LEN..end]
    }
}

/// Value of the fixed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source address.
    pub src: Ipv6Addr,
    /// The destination address.
    pub dst: Ipv6Addr,
    /// Next Header: the first extension header, or the protocol of the payload.
    pub next_header: Protocol,
    /// Hop limit: the hops that remain.
    pub hop_limit: u8,
    /// Traffic Class: DSCP (RFC 2474) and ECN (RFC 3168).
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Payload length, in bytes; at most 65,535.
    pub payload_len: usize,
}

impl Repr {
    /// Length of the fixed header, in bytes.
    pub const LEN: usize = 40;

    /// Reads all fields of the header.
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

    /// Writes the header into the first [`Repr::LEN`] bytes of `out`.
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

/// Value of a fragment header (RFC 8200 §4.5).
///
/// ```text
///  next header 1 │ 0 1 │ offset 13 bits, 0 2, more 1 │ identification 4
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentRepr {
    /// Next Header: the first header of the fragmentable part.
    pub next_header: Protocol,
    /// Offset of the fragment in the fragmentable part, in bytes; a multiple of 8.
    pub offset: usize,
    /// The M flag: whether more fragments follow.
    pub more: bool,
    /// Identification, which the fragments of one packet share.
    pub identification: u32,
}

impl FragmentRepr {
    /// The header's length, in bytes.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// If the header is cut short.
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

    /// Writes the header into the first [`FragmentRepr::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`FragmentRepr::LEN`], or the offset is not a
    /// multiple of 8 below 65,536.
    pub fn emit(&self, out: &mut [u8]) {
        let offset = u16::try_from(self.offset).expect("a fragment starts below 65,536");
        assert!(offset.is_multiple_of(8), "a fragment's offset: {offset}");
        write(out, 0, &[self.next_header.0, 0]);
        write(out, 2, &(offset | u16::from(self.more)).to_be_bytes());
        write(out, 4, &self.identification.to_be_bytes());
    }
}
