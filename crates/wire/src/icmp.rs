//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): any message, and echo by value.
//!
//! ```text
//!  type 1 │ code 1 │ checksum 2 │ echo: identifier 2 │ sequence 2 │ payload
//! ```

use crate::checksum::{AddrPair, Sum};
use crate::error::require_len;
use crate::field::{read_u16, read_u32, write};
use crate::{Error, Protocol};

/// View of a message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// Checks the length; `bytes` are the whole payload of an IP packet.
    /// If fewer than the eight bytes that every message has are present.
    ///
    /// # Errors
    /// If its first eight bytes, which every message has, are cut short.
    pub fn new(bytes: &'a [u8]) -> Result<Message<'a>, Error> {
        require_len("an ICMP header", bytes, Echo::LEN)?;
        Ok(Message(bytes))
    }

    /// The type.
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// The code; its meaning depends on the type.
    pub fn code(&self) -> u8 {
        self.0[1]
    }

    /// The bytes behind the first eight.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[Echo::LEN..]
    }

    /// Whether the checksum is right; only a whole message gives a meaningful answer.
    /// The checksum of ICMPv6 covers a pseudo-header with the addresses.
    pub fn checksum_is_right(&self, addresses: AddrPair) -> bool {
        start(addresses, self.0.len()).is_some_and(|start| start.bytes(self.0).finish() == 0)
    }
}

/// Value of an echo request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// True in a reply.
    pub reply: bool,
    /// Identifier of the sender, copied into the reply.
    pub identifier: u16,
    /// Sequence number of the request, copied into the reply.
    pub sequence: u16,
}

impl Echo {
    /// The header's length, in bytes.
    pub const LEN: usize = 8;

    /// Reads all fields; `None` if the message is not an echo of this IP version.
    pub fn parse(message: &Message<'_>, addresses: AddrPair) -> Option<Echo> {
        let [request, reply] = kinds(addresses);
        let kind = message.kind();
        let echo = (kind == request || kind == reply) && message.code() == 0;
        echo.then(|| Echo {
            reply: kind == reply,
            identifier: read_u16(message.0, 4),
            sequence: read_u16(message.0, 6),
        })
    }

    /// Writes the header and checksum of `message`, whose payload is in place.
    ///
    /// # Panics
    /// If `message` is shorter than [`Echo::LEN`], or of IPv6 and 4 GiB or longer.
    pub fn emit(&self, message: &mut [u8], addresses: AddrPair) {
        let kind = kinds(addresses)[usize::from(self.reply)];
        write(message, 0, &[kind, 0, 0, 0]);
        write(message, 4, &self.identifier.to_be_bytes());
        write(message, 6, &self.sequence.to_be_bytes());
        let checksum = checksum(addresses, message);
        write(message, 2, &checksum);
    }
}

/// Value of the first eight bytes of any message. An error message quotes the
/// packet that caused it behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The type.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// Bytes 4 to 7, whose meaning depends on the type; zero if unused.
    pub rest: u32,
}

impl Repr {
    /// Length of the fixed part, in bytes.
    pub const LEN: usize = 8;

    /// Reads the fixed part of the message.
    pub fn parse(message: &Message<'_>) -> Repr {
        Repr {
            kind: message.kind(),
            code: message.code(),
            rest: read_u32(message.0, 4),
        }
    }

    /// Writes the fixed part and checksum of `message`, whose payload is in place.
    ///
    /// # Panics
    /// If `message` is shorter than [`Repr::LEN`], or of IPv6 and 4 GiB or longer.
    pub fn emit(&self, message: &mut [u8], addresses: AddrPair) {
        write(message, 0, &[self.kind, self.code, 0, 0]);
        write(message, 4, &self.rest.to_be_bytes());
        let checksum = checksum(addresses, message);
        write(message, 2, &checksum);
    }
}

/// The types of echo request and echo reply.
fn kinds(addresses: AddrPair) -> [u8; 2] {
    match addresses {
        AddrPair::V4(..) => [8, 0],
        AddrPair::V6(..) => [128, 129],
    }
}

/// The sum of the pseudo-header, which is empty for IPv4; `None` if an ICMPv6
/// message is 4 GiB or longer.
fn start(addresses: AddrPair, len: usize) -> Option<Sum> {
    match addresses {
        AddrPair::V4(..) => Some(Sum::new()),
        AddrPair::V6(..) => {
            let len = u32::try_from(len).ok()?;
            Some(Sum::new().pseudo_header(addresses, Protocol::ICMPV6.0, len))
        }
    }
}

/// The checksum of `message`, whose checksum field is zero.
fn checksum(addresses: AddrPair, message: &[u8]) -> [u8; 2] {
    let start = start(addresses, message.len()).expect("the message is shorter than 4 GiB");
    start.bytes(message).finish().to_be_bytes()
}
