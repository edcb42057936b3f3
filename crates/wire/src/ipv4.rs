//! IPv4 headers (RFC 791, RFC 2474, RFC 3168, RFC 6864).

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

/// Types of options (RFC 791 §3.1).
pub mod option {
    /// End of the list.
    pub const END: u8 = 0;
    /// No operation: padding between options.
    pub const NO_OPERATION: u8 = 1;
    /// Record route.
    pub const RECORD_ROUTE: u8 = 7;
    /// Internet timestamp.
    pub const TIMESTAMP: u8 = 68;
    /// Loose source and record route.
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Strict source and record route.
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
}

/// The options of a header: the offset of each from the first, and its bytes, which begin with type and
/// length. Ends at the end of the list; no operations are left out. An option whose length is wrong is an
/// error with its offset, and the last item.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Options<'a> {
    /// The options in [`Packet::options`].
    pub fn new(bytes: &'a [u8]) -> Options<'a> {
        Options { bytes, at: 0 }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<(usize, &'a [u8]), usize>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            let rest = &self.bytes[at..];
            let len = match rest {
                [] | [option::END, ..] => return None,
                [option::NO_OPERATION, ..] => {
                    self.at += 1;
                    continue;
                }
                [_, len, ..] => usize::from(*len),
                [_] => 0,
            };
            if len < 2 || len > rest.len() {
                self.at = self.bytes.len();
                return Some(Err(at));
            }
            self.at += len;
            return Some(Ok((at, &rest[..len])));
        }
    }
}

/// View of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Checks the header. The bytes may end with padding, and the payload may be cut
    /// short.
    ///
    /// # Errors
    /// If the header is cut short, has another version, or its lengths contradict
    /// each other. The checksum is not checked.
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

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        header_len(self.0)
    }

    /// Total length of the packet by its header, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        read_u16(self.0, 2).into()
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.0, 12))
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.0, 16))
    }

    /// The protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.0[9])
    }

    /// Time to live: the hops that remain.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// The former TOS byte: DSCP (RFC 2474) and ECN (RFC 3168).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.0[1]
    }

    /// Identification, which the fragments of one datagram share (RFC 6864).
    #[inline]
    pub fn identification(&self) -> u16 {
        read_u16(self.0, 4)
    }

    /// Offset of the fragment in the datagram, in bytes; 0 for a whole datagram.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(read_u16(self.0, 6) & 0x1fff) * 8
    }

    /// The DF flag: whether routers must not fragment the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        read_u16(self.0, 6) & DONT_FRAGMENT != 0
    }

    /// The MF flag: whether more fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        read_u16(self.0, 6) & MORE_FRAGMENTS != 0
    }

    /// The header's options.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.0[Repr::LEN..self.header_len()]
    }

    /// The payload without padding. It is shorter than the header says if the packet
    /// was cut short.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.total_len().min(self.0.len());
        &self.0[self.header_len()..end]
    }

    /// Whether the header's checksum is right.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        let header = &self.0[..self.header_len()];
        // A header without options has a constant length, which is faster to sum.
        match header.as_chunks::<4>().0.as_array::<5>() {
            Some(words) => Sum::new().words(words).finish() == 0,
            None => checksum::internet_checksum(header) == 0,
        }
    }
}

/// Value of the header of a whole datagram, without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source address.
    pub src: Ipv4Addr,
    /// The destination address.
    pub dst: Ipv4Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Time to live: the hops that remain.
    pub ttl: u8,
    /// The former TOS byte: DSCP (RFC 2474) and ECN (RFC 3168).
    pub traffic_class: u8,
    /// Identification, which the fragments of one datagram share (RFC 6864).
    pub identification: u16,
    /// The DF flag: routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Length of the payload, in bytes; at most 65,515.
    pub payload_len: usize,
}

impl Repr {
    /// Length of the header without options, in bytes.
    pub const LEN: usize = 20;

    /// Reads all fields of the header; options are ignored.
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
            dont_fragment: packet.dont_fragment(),
            payload_len: packet.total_len() - packet.header_len(),
        })
    }

    /// Writes the header with its checksum.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`], or the payload is too long.
    pub fn emit(&self, out: &mut [u8]) {
        self.emit_fragment(out, 0, false);
    }

    /// Length of the header that [`Repr::emit_alert`] writes, in bytes.
    pub const ALERT_LEN: usize = Repr::LEN + 4;

    /// Writes a header with the Router Alert option (RFC 2113).
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

    /// Writes the header of a fragment that starts at byte `offset` of the datagram's
    /// payload; `more` is the MF flag.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`], the payload is too long, or the
    /// offset is not a multiple of 8 below 65,536.
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
