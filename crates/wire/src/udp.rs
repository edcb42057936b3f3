//! UDP headers (RFC 768, RFC 8200 §8.1).
//!
//! ```text
//!  source port 2 │ destination port 2 │ length 2 │ checksum 2
//! ```

use crate::checksum::{AddrPair, Sum};
use crate::error::require_len;
use crate::field::{read_u16, write};
use crate::{Error, Protocol};

const HEADER: &str = "a UDP header";

/// View of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a>(&'a [u8]);

impl<'a> Datagram<'a> {
    /// Checks the header. The payload may be cut short.
    ///
    /// # Errors
    /// If the header is cut short, or its length field is below 8.
    pub fn new(bytes: &'a [u8]) -> Result<Datagram<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN)?;
        let length = read_u16(bytes, 4);
        if usize::from(length) < Repr::LEN {
            return Err(Error::Field {
                header: HEADER,
                field: "length",
                value: length.into(),
            });
        }
        Ok(Datagram(bytes))
    }

    /// The source port.
    pub fn src_port(&self) -> u16 {
        read_u16(self.0, 0)
    }

    /// The destination port.
    pub fn dst_port(&self) -> u16 {
        read_u16(self.0, 2)
    }

    /// Length of header and payload by the header, in bytes.
    pub fn length(&self) -> usize {
        read_u16(self.0, 4).into()
    }

    /// The payload; shorter than the header says if the datagram was cut short.
    pub fn payload(&self) -> &'a [u8] {
        let end = self.length().min(self.0.len());
        &self.0[Repr::LEN..end]
    }

    /// Whether the checksum is right; `None` if the datagram was cut short, or if an
    /// IPv4 datagram has no checksum. IPv6 requires a checksum.
    pub fn checksum_is_right(&self, addresses: AddrPair) -> Option<bool> {
        let absent = read_u16(self.0, 6) == 0 && matches!(addresses, AddrPair::V4(..));
        let whole = self.0.get(..self.length())?;
        let sum = Sum::new().pseudo_header(addresses, Protocol::UDP.0, self.length() as u32);
        (!absent).then(|| read_u16(self.0, 6) != 0 && sum.bytes(whole).finish() == 0)
    }
}

/// Value of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
}

impl Repr {
    /// Length of the header, in bytes.
    pub const LEN: usize = 8;

    /// Reads both ports.
    pub fn parse(datagram: &Datagram<'_>) -> Repr {
        Repr {
            src_port: datagram.src_port(),
            dst_port: datagram.dst_port(),
        }
    }

    /// Writes the header and checksum of `datagram`, whose payload is in place.
    ///
    /// # Panics
    /// If `datagram` has fewer than 8 or more than 65,535 bytes.
    pub fn emit(&self, datagram: &mut [u8], addresses: AddrPair) {
        let length =
            u16::try_from(datagram.len()).expect("a UDP datagram has at most 65,535 bytes");
        write(datagram, 0, &self.src_port.to_be_bytes());
        write(datagram, 2, &self.dst_port.to_be_bytes());
        write(datagram, 4, &length.to_be_bytes());
        write(datagram, 6, &[0, 0]);
        let sum = Sum::new().pseudo_header(addresses, Protocol::UDP.0, length.into());
        // A sum of zero is sent as all ones; zero means "no checksum" (RFC 768).
        let checksum = match sum.bytes(datagram).finish() {
            0 => 0xffff,
            other => other,
        };
        write(datagram, 6, &checksum.to_be_bytes());
    }
}
