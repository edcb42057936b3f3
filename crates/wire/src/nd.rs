//! IPv6 neighbour discovery (RFC 4861 §4.3, §4.4): solicitation and
//! advertisement, with the link-layer address option; routers' messages are in
//! [`router`].
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
/// Options: the sender's address, and the target's.
const SOURCE: u8 = 1;
const TARGET: u8 = 2;

/// The hop limit of every neighbour message: no router lets one through.
pub const HOP_LIMIT: u8 = 255;

/// What a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Who has the target?
    Solicitation,
    /// The sender has.
    Advertisement {
        /// It is a router.
        router: bool,
        /// It answers a solicitation.
        solicited: bool,
        /// It replaces what was known.
        replaces: bool,
    },
}

/// A message by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// What it does.
    pub kind: Kind,
    /// The address that is asked for, or advertised.
    pub target: Ipv6Addr,
    /// The hardware address: the sender's of a solicitation, the target's of
    /// an advertisement.
    pub hardware: Option<Address>,
}

impl Repr {
    /// The length without options, in bytes.
    pub const LEN_MIN: usize = 24;
    const OPTION_LEN: usize = 8;

    /// The message's values; `None` if it is another. Hop limit and checksum
    /// are the caller's to check.
    ///
    /// # Errors
    /// If it is cut short, the target is a group, or an option's length is
    /// zero.
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

    /// The message's length, in bytes.
    pub fn len(&self) -> usize {
        Repr::LEN_MIN
            + if self.hardware.is_some() {
                Repr::OPTION_LEN
            } else {
                0
            }
    }

    /// Never: it has a target.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message.
    ///
    /// # Panics
    /// If `out` is not as long as [`Repr::len`] says.
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
