//! Router discovery (RFC 4861 §4.1, §4.2, §4.5): solicitations,
//! advertisements with their options, redirects.
//!
//! ```text
//!  type 1 │ 0 1 │ checksum 2 │ hop limit 1 │ M O H prf 2 bits │ lifetime 2
//!         │ reachable 4 │ retransmit 4 │ options: type 1 │ length / 8 1 │ …
//! ```

use std::net::Ipv6Addr;

use super::{TARGET, wrong};
use crate::Error;
use crate::checksum::AddrPair;
use crate::error::require_len;
use crate::ethernet::Address;
use crate::field::{array, read_u16, read_u32, write};
use crate::icmp::{self, Message};

const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;

const SOURCE: u8 = 1;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const ROUTE: u8 = 24;
const RESOLVERS: u8 = 25;

/// A lifetime without end, in seconds (RFC 4861 §4.6.2).
pub const FOR_EVER_S: u32 = u32::MAX;

/// Asks routers to advertise themselves, for `hardware`, unless the sender has
/// no address yet.
///
/// # Panics
/// If `out` is not as long as [`solicitation_len`] says.
pub fn emit_solicitation(out: &mut [u8], hardware: Option<Address>, addresses: AddrPair) {
    assert_eq!(
        out.len(),
        solicitation_len(hardware),
        "a router solicitation's length"
    );
    if let Some(hardware) = hardware {
        write(out, 8, &[SOURCE, 1]);
        write(out, 10, &hardware.0);
    }
    let first = icmp::Repr {
        kind: SOLICITATION,
        code: 0,
        rest: 0,
    };
    first.emit(out, addresses);
}

/// The length of a router solicitation, in bytes.
pub fn solicitation_len(hardware: Option<Address>) -> usize {
    icmp::Repr::LEN + if hardware.is_some() { 8 } else { 0 }
}

/// Which of several routers is better (RFC 4191 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Preference {
    /// Only if there is no other.
    Low,
    /// As all were before there were preferences.
    Medium,
    /// Before the others.
    High,
}

impl Preference {
    /// `None` of the reserved value.
    fn of(flags: u8) -> Option<Preference> {
        match flags >> 3 & 3 {
            0 => Some(Preference::Medium),
            1 => Some(Preference::High),
            3 => Some(Preference::Low),
            _ => None,
        }
    }
}

/// A router's advertisement, whose options are whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement<'a> {
    /// Hops that packets should be given; 0 says nothing.
    pub hop_limit: u8,
    /// Addresses are given by DHCPv6.
    pub managed: bool,
    /// What else there is to know is told by DHCPv6.
    pub other: bool,
    /// How good a default router it is.
    pub preference: Preference,
    /// How long it is a default router, in seconds; 0 if it is none.
    pub lifetime_s: u16,
    options: Options<'a>,
}

impl<'a> Advertisement<'a> {
    /// The advertisement's values; `None` if the message is another. Hop limit,
    /// source and checksum are the caller's to check.
    ///
    /// # Errors
    /// If it is cut short, or an option's length is zero.
    pub fn parse(message: &Message<'a>) -> Option<Result<Advertisement<'a>, Error>> {
        (message.kind() == ADVERTISEMENT).then(|| {
            if message.code() != 0 {
                return Err(wrong("code", message.code()));
            }
            let payload = message.payload();
            require_len("a router advertisement", payload, 8)?;
            let [hop_limit, flags, lifetime @ ..] = icmp::Repr::parse(message).rest.to_be_bytes();
            let lifetime_s = u16::from_be_bytes(lifetime);
            Ok(Advertisement {
                hop_limit,
                managed: flags & 0x80 != 0,
                other: flags & 0x40 != 0,
                preference: Preference::of(flags).unwrap_or(Preference::Medium),
                lifetime_s,
                options: Options::new(&payload[8..])?,
            })
        })
    }

    /// Its options, those that are not understood left out.
    pub fn options(&self) -> impl Iterator<Item = RouterOption<'a>> + use<'a> {
        self.options.filter_map(RouterOption::of)
    }
}

/// What a router tells besides (RFC 4861 §4.6, RFC 4191 §2.3, RFC 8106 §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterOption<'a> {
    /// The router's own hardware address.
    Source(Address),
    /// Bytes of the longest packet on the link.
    Mtu(u32),
    /// A network of the link.
    Prefix(PrefixInformation),
    /// A network that is reached by this router.
    Route {
        /// Its first address.
        to: Ipv6Addr,
        /// How many bits name it, at most 128.
        len: u8,
        /// Which of several routers is better.
        preference: Preference,
        /// How long, in seconds; 0 withdraws it.
        lifetime_s: u32,
    },
    /// Who resolves names, each in 16 bytes.
    Resolvers {
        /// How long, in seconds; 0 withdraws them.
        lifetime_s: u32,
        /// Their addresses.
        addresses: &'a [[u8; 16]],
    },
}

/// A network of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixInformation {
    /// Its first address.
    pub prefix: Ipv6Addr,
    /// How many bits name it, at most 128.
    pub len: u8,
    /// Its addresses are neighbours.
    pub on_link: bool,
    /// Hosts make addresses in it themselves.
    pub autonomous: bool,
    /// How long it is so, in seconds.
    pub valid_s: u32,
    /// How long addresses in it are used for what is new, in seconds.
    pub preferred_s: u32,
}

impl<'a> RouterOption<'a> {
    fn of(option: &'a [u8]) -> Option<RouterOption<'a>> {
        let len = *option.get(2)?;
        match (option[0], option.len()) {
            (SOURCE, 8) => Some(RouterOption::Source(Address(array(option, 2)))),
            (MTU, 8) => Some(RouterOption::Mtu(read_u32(option, 4))),
            (PREFIX, 32) if len <= 128 => Some(RouterOption::Prefix(PrefixInformation {
                prefix: Ipv6Addr::from(array::<16>(option, 16)),
                len,
                on_link: option[3] & 0x80 != 0,
                autonomous: option[3] & 0x40 != 0,
                valid_s: read_u32(option, 4),
                preferred_s: read_u32(option, 8),
            })),
            (ROUTE, size @ (8 | 16 | 24)) if usize::from(len) <= (size - 8) * 8 => {
                let mut to = [0; 16];
                to[..size - 8].copy_from_slice(&option[8..]);
                Some(RouterOption::Route {
                    to: Ipv6Addr::from(to),
                    len,
                    preference: Preference::of(option[3])?,
                    lifetime_s: read_u32(option, 4),
                })
            }
            (RESOLVERS, size) if size >= 24 => Some(RouterOption::Resolvers {
                lifetime_s: read_u32(option, 4),
                addresses: option[8..].as_chunks().0,
            }),
            _ => None,
        }
    }
}

/// A router says that another neighbour is nearer to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The neighbour: a router, or the destination itself.
    pub target: Ipv6Addr,
    /// Where packets were going.
    pub destination: Ipv6Addr,
    /// The neighbour's hardware address.
    pub hardware: Option<Address>,
}

impl Redirect {
    /// The message's values; `None` if it is another. Hop limit, source and
    /// checksum are the caller's to check.
    ///
    /// # Errors
    /// If it is cut short, or an option's length is zero.
    pub fn parse(message: &Message<'_>) -> Option<Result<Redirect, Error>> {
        (message.kind() == REDIRECT).then(|| {
            if message.code() != 0 {
                return Err(wrong("code", message.code()));
            }
            let payload = message.payload();
            require_len("a redirect", payload, 32)?;
            Ok(Redirect {
                target: Ipv6Addr::from(array::<16>(payload, 0)),
                destination: Ipv6Addr::from(array::<16>(payload, 16)),
                hardware: Options::new(&payload[32..])?.hardware(TARGET),
            })
        })
    }
}

/// The options of any message of neighbour discovery, whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// # Errors
    /// If one is cut short, or its length is zero.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Options<'a>, Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            require_len("a neighbour option", rest, 2)?;
            let len = usize::from(rest[1]) * 8;
            if len == 0 {
                return Err(wrong("option length", 0));
            }
            require_len("a neighbour option", rest, len)?;
            rest = &rest[len..];
        }
        Ok(Options(bytes))
    }

    /// The address in the first option of this kind.
    pub(super) fn hardware(mut self, wanted: u8) -> Option<Address> {
        let found = self.find(|option| option[0] == wanted && option.len() == 8)?;
        Some(Address(array(found, 2)))
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(read_u16(self.0.get(..2)?, 0) & 0xff) * 8;
        let (option, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(option)
    }
}
