//! Configuration of a translator: pool, blocks, limits, timeouts, forwards.

use super::inside::Inside;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Addresses of a pool, at most.
pub const POOL_MAX: usize = 256;

/// Limits of prefixes, at most.
pub const LIMITS_MAX: usize = 256;

/// Static forwards, at most.
pub const FORWARDS_MAX: usize = 4096;

/// Sessions of a translator, at most.
pub const SESSIONS_MAX: u32 = 1 << 22;

/// Lowest port that is given to a subscriber (RFC 4787 §4.2.2: not the well-known ports).
pub const FIRST_PORT: u16 = 1024;

/// Number of ports of an address that are given to subscribers.
pub const PORTS: u32 = 65_536 - FIRST_PORT as u32;

/// Smallest and largest block of ports.
pub const BLOCK_MIN: u32 = 16;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A transport that is translated by ports, or by query identifiers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Queries of ICMP: echo and timestamp (RFC 5508 §3).
    Icmp,
}

impl Transport {
    pub(super) fn index(self) -> usize {
        match self {
            Transport::Tcp => 0,
            Transport::Udp => 1,
            Transport::Icmp => 2,
        }
    }

    /// Its name: `"tcp"`.
    pub fn name(self) -> &'static str {
        ["tcp", "udp", "icmp"][self.index()]
    }
}

/// Which packets from the outside a mapping lets in (RFC 4787 §5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Filtering {
    /// From any address.
    EndpointIndependent,
    /// From addresses that the subscriber has sent to by this mapping.
    AddressDependent,
    /// From addresses and ports that the subscriber has sent to by this mapping.
    #[default]
    AddressAndPortDependent,
}

/// A prefix of addresses of the inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix<A = Ipv4Addr> {
    /// An address in it.
    pub address: A,
    /// Its length in bits, 0 to 32 or 128.
    pub len: u8,
}

impl<A: Inside> Prefix<A> {
    /// Whether it contains an address.
    #[inline]
    pub fn contains(&self, address: A) -> bool {
        self.address.masked(self.len) == address.masked(self.len)
    }
}

/// A static forward: packets from the outside to a port of the pool go to a
/// port of the inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward<A = Ipv4Addr> {
    /// [`Transport::Tcp`] or [`Transport::Udp`].
    pub transport: Transport,
    /// An address of the pool, and a port other than 0.
    pub outside: (Ipv4Addr, u16),
    /// The address and port of the inside.
    pub inside: (A, u16),
}

/// How long a session lives without a packet, in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// UDP (RFC 4787 §4.3: at least 2 minutes, 5 recommended).
    pub udp: u64,
    /// An established TCP connection (RFC 5382 §5: at least 2 hours 4 minutes).
    pub tcp: u64,
    /// A TCP connection that begins or ends (RFC 5382 §5: at least 4 minutes).
    pub tcp_transitory: u64,
    /// ICMP queries (RFC 5508 §3.2: at least 60 seconds).
    pub icmp: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            udp: 300 * SECOND,
            tcp: 7440 * SECOND,
            tcp_transitory: 240 * SECOND,
            icmp: 60 * SECOND,
        }
    }
}

/// A limit of all hosts of a prefix together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixLimit<A = Ipv4Addr> {
    /// The hosts, of the inside.
    pub prefix: Prefix<A>,
    /// Their sessions, at most.
    pub sessions_max: u32,
}

/// The configuration of a translator, whose inside has addresses of type `A`: IPv4 for NAT44, IPv6
/// for NAT64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NatConfig<A = Ipv4Addr> {
    /// The public addresses, 1 to [`POOL_MAX`].
    pub pool: Vec<Ipv4Addr>,
    /// Sources that are translated, without the pool itself. Packets to these
    /// addresses from the outside are dropped.
    pub inside: Vec<Prefix<A>>,
    /// Number of ports of a block: [`BLOCK_MIN`] to [`PORTS`]. A subscriber gets
    /// ports in blocks, each with one line in the log (RFC 6888 REQ-14).
    pub block: u32,
    /// Blocks of a subscriber, at most (RFC 6888 REQ-4).
    pub blocks_max: u32,
    /// Sessions, at most: up to [`SESSIONS_MAX`].
    pub sessions_max: u32,
    /// Bits of an address of the inside that name its subscriber: all 32 of IPv4; 32 to 128 of IPv6,
    /// by default 64, since a host has as many addresses of its network as it likes.
    pub subscriber_len: u8,
    /// Sessions of a subscriber, at most; of those that begin outside, half as
    /// many.
    pub subscriber_sessions_max: u32,
    /// Limits of the hosts of a prefix together, at most [`LIMITS_MAX`]; each that has a host holds.
    pub limits: Vec<PrefixLimit<A>>,
    /// Which packets a mapping lets in.
    pub filtering: Filtering,
    /// Static forwards, at most [`FORWARDS_MAX`].
    pub forwards: Vec<Forward<A>>,
    /// Whether control connections of FTP are followed, and the addresses in them translated.
    pub ftp: bool,
    /// Lives of sessions.
    pub timeouts: Timeouts,
    /// How long a block that a subscriber gave back is not given to another, in
    /// ns (RFC 6888 REQ-8: 120 seconds).
    pub block_rest: u64,
    /// Unix time at `now` 0, in ns: for the log.
    pub epoch: u64,
}

impl Default for NatConfig {
    fn default() -> NatConfig {
        let private = [
            ([10, 0, 0, 0], 8),
            ([172, 16, 0, 0], 12),
            ([192, 168, 0, 0], 16),
        ];
        let shared = ([100, 64, 0, 0], 10);
        let inside = private.into_iter().chain([shared]);
        let inside = inside.map(|(address, len)| Prefix {
            address: address.into(),
            len,
        });
        NatConfig::of(inside.collect(), Ipv4Addr::BITS as u8)
    }
}

impl Default for NatConfig<Ipv6Addr> {
    fn default() -> NatConfig<Ipv6Addr> {
        let all = Prefix {
            address: Ipv6Addr::UNSPECIFIED,
            len: 0,
        };
        NatConfig::of(vec![all], 64)
    }
}

impl<A> NatConfig<A> {
    /// The defaults, for these sources.
    fn of(inside: Vec<Prefix<A>>, subscriber_len: u8) -> NatConfig<A> {
        NatConfig {
            pool: Vec::new(),
            inside,
            subscriber_len,
            block: 1024,
            blocks_max: PORTS / 1024,
            sessions_max: 1 << 20,
            subscriber_sessions_max: 1 << 16,
            limits: Vec::new(),
            filtering: Filtering::default(),
            forwards: Vec::new(),
            ftp: false,
            timeouts: Timeouts::default(),
            block_rest: 120 * SECOND,
            epoch: 0,
        }
    }
}

/// The reason why a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NatError {
    /// No pool.
    #[error("no address to translate to: name at least one in `pool`")]
    NoPool,
    /// Too many of something.
    #[error("{found} {what}: at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// An address of the pool is there twice, or is no host's.
    #[error("{address} in the pool: {why}")]
    Pool {
        /// The address.
        address: Ipv4Addr,
        /// The fault.
        why: &'static str,
    },
    /// A number is out of its range.
    #[error("{what} of {value}: write {min} to {max}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least that is accepted.
        min: u64,
        /// The most that is accepted.
        max: u64,
    },
    /// A forward of NAT64 leads to the prefix.
    #[error("forward to {address}: it is in `prefix`, and so no address of the inside")]
    InPrefix {
        /// The address.
        address: Ipv6Addr,
    },
    /// A forward does not fit.
    #[error("forward of {address}:{port}: {why}")]
    Forward {
        /// The address of the pool.
        address: Ipv4Addr,
        /// The port.
        port: u16,
        /// The fault.
        why: &'static str,
    },
}

impl<A: Inside> NatConfig<A> {
    /// Whether `inside` has an address.
    #[inline]
    pub(super) fn names_inside(&self, address: A) -> bool {
        self.inside.iter().any(|prefix| prefix.contains(address))
    }

    /// Whether an address is translated: one in `inside` that is not the pool's.
    pub(super) fn is_translated(&self, address: A) -> bool {
        let is_pool = |own: &Ipv4Addr| A::BITS == 32 && own.to_bits() == address.short();
        self.names_inside(address) && !self.pool.iter().any(is_pool)
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), NatError> {
        if self.pool.is_empty() {
            return Err(NatError::NoPool);
        }
        at_most("addresses in the pool", self.pool.len(), POOL_MAX)?;
        at_most("forwards", self.forwards.len(), FORWARDS_MAX)?;
        for (at, &address) in self.pool.iter().enumerate() {
            let why = if self.pool[..at].contains(&address) {
                "is there twice"
            } else if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
                "is no address of a host"
            } else {
                continue;
            };
            return Err(NatError::Pool { address, why });
        }
        let ranges = [
            (
                "block",
                u64::from(self.block),
                u64::from(BLOCK_MIN),
                u64::from(PORTS),
            ),
            (
                "blocks_max",
                self.blocks_max.into(),
                1,
                u64::from(PORTS / BLOCK_MIN),
            ),
            (
                "sessions_max",
                self.sessions_max.into(),
                1,
                SESSIONS_MAX.into(),
            ),
            (
                "subscriber",
                self.subscriber_len.into(),
                // The log names a shorter one for IPv6 alone.
                Ipv4Addr::BITS.into(),
                A::BITS.into(),
            ),
            (
                "subscriber_sessions_max",
                self.subscriber_sessions_max.into(),
                1,
                SESSIONS_MAX.into(),
            ),
        ];
        at_most("limits of prefixes", self.limits.len(), LIMITS_MAX)?;
        let of_limits = self.limits.iter().flat_map(|limit| {
            let (len, most) = (limit.prefix.len.into(), self.subscriber_len.into());
            [
                // A subscriber is in a prefix as a whole.
                ("length of a limit's `prefix`", len, 0, most),
                (
                    "sessions_max of a limit",
                    limit.sessions_max.into(),
                    1,
                    SESSIONS_MAX.into(),
                ),
            ]
        });
        for (what, value, min, max) in ranges.into_iter().chain(of_limits) {
            if !(min..=max).contains(&value) {
                return Err(NatError::Range {
                    what,
                    value,
                    min,
                    max,
                });
            }
        }
        self.check_forwards()
    }

    fn check_forwards(&self) -> Result<(), NatError> {
        for (at, forward) in self.forwards.iter().enumerate() {
            let (address, port) = forward.outside;
            let mut before = self.forwards[..at].iter();
            let why = if !self.pool.contains(&address) {
                "the address is not in the pool"
            } else if port == 0 || forward.inside.1 == 0 {
                "port 0 is no port"
            } else if forward.transport == Transport::Icmp {
                "only TCP and UDP have ports"
            } else if !self.is_translated(forward.inside.0) {
                "its target is not in `inside`"
            } else if before.any(|other| {
                other.transport == forward.transport
                    && (other.outside == forward.outside || other.inside == forward.inside)
            }) {
                "an earlier forward has the same port"
            } else {
                continue;
            };
            return Err(NatError::Forward { address, port, why });
        }
        Ok(())
    }
}

fn at_most(what: &'static str, found: usize, max: usize) -> Result<(), NatError> {
    if found > max {
        Err(NatError::TooMany { what, found, max })
    } else {
        Ok(())
    }
}
