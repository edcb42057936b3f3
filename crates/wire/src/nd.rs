//! IPv6 neighbour discovery (RFC 4861 §4.3, §4.4): neighbour solicitation and
//! advertisement with the link-layer address option. [`router`] has the messages
//! of routers.
//!
//! ```text
//!  type 1 │ 0 1 │ checksum 2 │ R S O 3 bits, 0 29 │ target 16 │ [ option 1 │ 1 1 │ address 6 ]
//! ```

pub mod router;

use router::Options;
use std::net::Ipv6Addr;

use crate::Error;
use crate::checksum::AddrPair;
use crate::error::require_len;
use crate::ethernet::Address;
use crate::field::{array, write};
use crate::icmp::{self, Message};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Types of the source and target link-layer address options (RFC 4861 §4.6.1).
const SOURCE: u8 = 1;
const TARGET: u8 = 2;

/// Hop limit of every neighbour discovery message (RFC 4861 §11.2). Routers
/// decrement it, so a message with this value was sent on the link.
pub const HOP_LIMIT: u8 = 255;

/// Kind of a neighbour message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Neighbour solicitation: which hardware address has the target?
    Solicitation,
    /// Neighbour advertisement, sent by the owner of the target.
    Advertisement {
        /// R flag: the sender is a router.
        router: bool,
        /// S flag: the advertisement answers a solicitation.
        solicited: bool,
        /// O flag: the advertisement overrides a cached hardware address.
        replaces: bool,
    },
}

/// Value of a neighbour message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The kind of message.
    pub kind: Kind,
    /// The target: the address that is solicited or advertised.
    pub target: Ipv6Addr,
    /// The link-layer address option: the sender's hardware address in a
    /// solicitation, the target's in an advertisement.
    pub hardware: Option<Address>,
}

impl Repr {
    /// Length without options, in bytes.
    pub const LEN_MIN: usize = 24;
    const OPTION_LEN: usize = 8;

    /// Reads the message; `None` if it is not a neighbour message. The caller checks
    /// hop limit and checksum.
    ///
    /// # Errors
    /// If the message is cut short, the target is multicast, the code is not zero, or
    /// an option's length is zero.
    pub fn parse(message: &Message<'_>) -> Option<Result<Repr, Error>> {
        matches!(message.kind(), SOLICITATION | ADVERTISEMENT).then(|| {
            let payload = message.payload();
            require_len(
                "a neighbour message",
                payload,
                Repr::LEN_MIN - icmp::Repr::LEN,
            )?;
            let flags = icmp::Repr::parse(message).rest;
            let flag = |bit: u32| flags >> bit & 1 == 1;
            let (kind, wanted) = match message.kind() {
                SOLICITATION => (Kind::Solicitation, SOURCE),
                _ => (
                    Kind::Advertisement {
                        router: flag(31),
                        solicited: flag(30),
                        replaces: flag(29),
                    },
                    TARGET,
                ),
            };
            let target = Ipv6Addr::from(array::<16>(payload, 0));
            if message.code() != 0 {
                return Err(wrong("code", message.code()));
            }
            if target.is_multicast() {
                return Err(wrong("a multicast target that begins with", payload[0]));
            }
            Ok(Repr {
                kind,
                target,
                hardware: Options::new(&payload[16..])?.hardware(wanted),
            })
        })
    }

    /// Length of the message with its option, in bytes.
    pub fn len(&self) -> usize {
        Repr::LEN_MIN
            + if self.hardware.is_some() {
                Repr::OPTION_LEN
            } else {
                0
            }
    }

    /// Always false: a message has at least [`Repr::LEN_MIN`] bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message with its checksum.
    ///
    /// # Panics
    /// If `out` is not exactly [`Repr::len`] bytes long.
    pub fn emit(&self, out: &mut [u8], addresses: AddrPair) {
        assert_eq!(out.len(), self.len(), "a neighbour message's length");
        let (kind, rest, option) = match self.kind {
            Kind::Solicitation => (SOLICITATION, 0, SOURCE),
            Kind::Advertisement {
                router,
                solicited,
                replaces,
            } => {
                let flags =
                    u32::from(router) << 2 | u32::from(solicited) << 1 | u32::from(replaces);
                (ADVERTISEMENT, flags << 29, TARGET)
            }
        };
        write(out, 8, &self.target.octets());
        if let Some(hardware) = self.hardware {
            write(out, 24, &[option, 1]);
            write(out, 26, &hardware.0);
        }
        let first = icmp::Repr {
            kind,
            code: 0,
            rest,
        };
        first.emit(out, addresses);
    }
}

fn wrong(field: &'static str, value: u8) -> Error {
    Error::Field {
        header: "a neighbour message",
        field,
        value: value.into(),
    }
}
