//! Router discovery and redirects (RFC 4861 §4.1, §4.2, §4.5): router
//! solicitations, router advertisements with their options, redirects.
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

/// The lifetime "infinity", in seconds (RFC 4861 §4.6.2).
pub const FOR_EVER_S: u32 = u32::MAX;

/// Writes a router solicitation with its checksum. `hardware` is the source
/// link-layer address option, absent while the sender has no address.
///
/// # Panics
/// If `out` is not exactly [`solicitation_len`] bytes long.
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

/// Length of a router solicitation, in bytes.
pub fn solicitation_len(hardware: Option<Address>) -> usize {
    icmp::Repr::LEN + if hardware.is_some() { 8 } else { 0 }
}

/// Preference among default routers and routes (RFC 4191 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Preference {
    /// Less than the default.
    Low,
    /// The default, also for routers older than RFC 4191.
    Medium,
    /// More than the default.
    High,
}

impl Preference {
    /// Reads bits 3 and 4 of `flags`; `None` for the reserved value.
    fn of(flags: u8) -> Option<Preference> {
        match flags >> 3 & 3 {
            0 => Some(Preference::Medium),
            1 => Some(Preference::High),
            3 => Some(Preference::Low),
            _ => None,
        }
    }
}

/// A router advertisement (RFC 4861 §4.2); the lengths of its options are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement<'a> {
    /// Cur Hop Limit for packets that hosts send; 0 means unspecified.
    pub hop_limit: u8,
    /// M flag: DHCPv6 assigns addresses.
    pub managed: bool,
    /// O flag: DHCPv6 has other configuration.
    pub other: bool,
    /// Preference of the sender as default router (RFC 4191 §2.2).
    pub preference: Preference,
    /// Router lifetime, in seconds; 0 means that the sender is not a default router.
    pub lifetime_s: u16,
    options: Options<'a>,
}

impl<'a> Advertisement<'a> {
    /// Reads the advertisement; `None` if the message has another type. The caller
    /// checks hop limit, source and checksum.
    ///
    /// # Errors
    /// If the message is cut short, its code is not zero, or an option is cut short
    /// or has length zero.
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

    /// The options; unknown and malformed ones are skipped.
    pub fn options(&self) -> impl Iterator<Item = RouterOption<'a>> + use<'a> {
        self.options.filter_map(RouterOption::of)
    }
}

/// An option of a router advertisement (RFC 4861 §4.6, RFC 4191 §2.3, RFC 8106 §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterOption<'a> {
    /// Source link-layer address: the router's hardware address.
    Source(Address),
    /// MTU of the link, in bytes.
    Mtu(u32),
    /// Prefix information: a prefix of the link.
    Prefix(PrefixInformation),
    /// Route information: a prefix that this router reaches.
    Route {
        /// The prefix.
        to: Ipv6Addr,
        /// Prefix length in bits, at most 128.
        len: u8,
        /// Preference of the route.
        preference: Preference,
        /// Route lifetime, in seconds; 0 withdraws the route.
        lifetime_s: u32,
    },
    /// Recursive DNS servers.
    Resolvers {
        /// Lifetime, in seconds; 0 withdraws the servers.
        lifetime_s: u32,
        /// The servers' addresses, 16 bytes each.
        addresses: &'a [[u8; 16]],
    },
}

/// A prefix information option (RFC 4861 §4.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixInformation {
    /// The prefix.
    pub prefix: Ipv6Addr,
    /// Prefix length in bits, at most 128.
    pub len: u8,
    /// L flag: addresses of the prefix are on the link.
    pub on_link: bool,
    /// A flag: hosts form addresses in the prefix (SLAAC, RFC 4862).
    pub autonomous: bool,
    /// Valid lifetime, in seconds.
    pub valid_s: u32,
    /// Preferred lifetime of addresses in the prefix, in seconds.
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

/// A redirect (RFC 4861 §4.5): a better first hop for a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The better first hop: a router, or the destination itself.
    pub target: Ipv6Addr,
    /// The destination that is redirected.
    pub destination: Ipv6Addr,
    /// Target link-layer address option: the hardware address of `target`.
    pub hardware: Option<Address>,
}

impl Redirect {
    /// Reads the redirect; `None` if the message has another type. The caller checks
    /// hop limit, source and checksum.
    ///
    /// # Errors
    /// If the message is cut short, its code is not zero, or an option is cut short
    /// or has length zero.
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

/// Iterator over the options of a neighbour discovery message; lengths are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Checks the lengths of all options.
    ///
    /// # Errors
    /// If an option is cut short, or its length is zero.
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

    /// The address in the first 8-byte option of type `wanted`; `None` without one.
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
