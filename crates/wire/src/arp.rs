//! ARP and Reverse ARP for IPv4 over Ethernet (RFC 826, RFC 903, RFC 5227).
//!
//! ```text
//!  1 2 │ 0x0800 2 │ 6 1 │ 4 1 │ operation 2 │ sender 6+4 │ target 6+4
//! ```

use std::net::Ipv4Addr;

use crate::Error;
use crate::error::require_len;
use crate::ethernet::Address;
use crate::field::{array, read_u16, read_u32, write};

const HEADER: &str = "an ARP packet";

/// An ARP operation code (`ar$op`, RFC 826); numbers without a constant are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation(pub u16);

impl Operation {
    /// Request: which hardware address has the target IP address?
    pub const REQUEST: Operation = Operation(1);
    /// Reply to [`Operation::REQUEST`], sent by the owner of the address.
    pub const REPLY: Operation = Operation(2);
    /// Reverse ARP request (RFC 903): which IP address has the target hardware address?
    pub const REVERSE_REQUEST: Operation = Operation(3);
    /// Reverse ARP reply: `target_ip` is the IP address of the target.
    pub const REVERSE_REPLY: Operation = Operation(4);
}

/// View of an ARP packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8]);

impl<'a> Packet<'a> {
    /// Checks the length and the address types; padding behind the packet is ignored.
    ///
    /// # Errors
    /// [`Error::CutShort`] below 28 bytes; [`Error::Field`] if the packet is not
    /// about IPv4 over Ethernet.
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        require_len(HEADER, bytes, Repr::LEN)?;
        let (kinds, lengths) = (read_u32(bytes, 0), read_u16(bytes, 4));
        let wrong = |field, value| {
            Err(Error::Field {
                header: HEADER,
                field,
                value,
            })
        };
        match (kinds, lengths) {
            (0x0001_0800, 0x0604) => Ok(Packet(bytes)),
            (0x0001_0800, _) => wrong("address lengths", u32::from(lengths)),
            _ => wrong("address types", kinds),
        }
    }
}

/// Value of an ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The operation code.
    pub operation: Operation,
    /// The sender's hardware address.
    pub sender: Address,
    /// The sender's IP address.
    pub sender_ip: Ipv4Addr,
    /// The target's hardware address; zero in a request.
    pub target: Address,
    /// The target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Length of the packet, in bytes (RFC 826, with addresses of 6 and 4 bytes).
    pub const LEN: usize = 28;

    /// Reads all fields of the packet.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        let bytes = packet.0;
        Repr {
            operation: Operation(read_u16(bytes, 6)),
            sender: Address(array(bytes, 8)),
            sender_ip: Ipv4Addr::from(array::<4>(bytes, 14)),
            target: Address(array(bytes, 18)),
            target_ip: Ipv4Addr::from(array::<4>(bytes, 24)),
        }
    }

    /// Writes the packet into the first [`Repr::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Repr::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        write(out, 0, &[0, 1, 8, 0, 6, 4]);
        write(out, 6, &self.operation.0.to_be_bytes());
        write(out, 8, &self.sender.0);
        write(out, 14, &self.sender_ip.octets());
        write(out, 18, &self.target.0);
        write(out, 24, &self.target_ip.octets());
    }
}
