//! What a stack is told when it is made.

use super::{BURST_MAX, Offload, Prefix, Route};
use crate::links::LINKS_MAX;
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Addresses of one link.
pub const ADDRESSES_MAX: usize = 64;
/// Routes of one link, besides those to its addresses' networks.
pub const ROUTES_MAX: usize = 256;
/// The least and most bytes of a packet on a link (RFC 8200 §5).
pub const MTU: std::ops::RangeInclusive<usize> = 1280..=65_535;

/// By which path packets come in (Biersack and Rütsche 1996, §3): both send the
/// same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mode {
    /// All take the standard path: every header is parsed, and the
    /// connection is looked up.
    Mux,
    /// Those that are as expected take a fast path.
    #[default]
    Opt,
}

/// Whether others are asked for an address of ours (RFC 4862 §5.4, RFC 5227),
/// and told that we have it. Only [`DadMode::Off`] defends none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DadMode {
    /// Not: addresses are ours at once, and nobody is told anything unasked.
    #[default]
    Off,
    /// While it is used already (RFC 4429): it is given up if another has it.
    Optimistic,
    /// Before it is used, which takes two seconds by IPv6 and up to nine by
    /// IPv4.
    Blocking,
}

/// A link, and the host's addresses and routes on it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our address on the link.
    pub hardware: Address,
    /// Bytes of the longest packet, without the Ethernet header.
    pub mtu: usize,
    /// What the link does for us.
    pub offload: Offload,
    /// By which path packets come in.
    pub mode: Mode,
    /// Our addresses and their networks, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<Prefix>,
    /// How to reach other networks, at most [`ROUTES_MAX`].
    pub routes: Vec<Route>,
    /// Whether others are asked for our addresses.
    pub dad_mode: DadMode,
    /// Routers are asked what they advertise, and IPv6 addresses made of it
    /// (RFC 4862).
    pub autoconf: bool,
    /// A server is asked for an address of IPv4 (RFC 2131).
    pub dhcp: bool,
    /// What automatic addresses of IPv6 are made of besides the network and the
    /// hardware address, so that they are the same each time and tell others
    /// nothing (RFC 7217); else they are others each time.
    pub secret: Option<u128>,
}

/// Why there is no stack with this configuration.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The hardware address names a group or nobody.
    #[error("{0} cannot be a station's address: give one that is neither a group nor zero")]
    Hardware(Address),
    /// The MTU is out of range.
    #[error("an MTU of {0} bytes is not in {min}..={max}", min = MTU.start(), max = MTU.end())]
    Mtu(usize),
    /// Segments cannot be cut without new checksums.
    #[error("a link that cuts segments completes their checksums: set `checksum` too")]
    Offload,
    /// A burst is too long.
    #[error("a burst of {0} frames is longer than {BURST_MAX}: set `burst` to that at most")]
    Burst(u8),
    /// Nobody can have this address.
    #[error("{0} cannot be a host's address: it is unspecified, a group, a broadcast or loopback")]
    Address(Prefix),
    /// Too many of them.
    #[error("{0} addresses or {1} routes are more than {ADDRESSES_MAX} and {ROUTES_MAX}")]
    TooMany(usize, usize),
    /// Too many links, or none.
    #[error("{0} links are not 1 to {LINKS_MAX}: make several stacks")]
    Links(usize),
    /// An address belongs to one link.
    #[error("{0} is given on two links: an address belongs to one")]
    Twice(IpAddr),
    /// A gateway must be in a network of our addresses.
    #[error("gateway {0} is in no network of this host's addresses: add one that contains it")]
    Gateway(IpAddr),
    /// A gateway is another host.
    #[error("gateway {0} is no other host's address: give the router's")]
    NotARouter(IpAddr),
}

impl Config {
    /// A host without addresses on Ethernet.
    pub fn new(hardware: Address) -> Config {
        Config {
            hardware,
            mtu: 1500,
            offload: Offload::default(),
            mode: Mode::default(),
            addresses: Vec::new(),
            routes: Vec::new(),
            dad_mode: DadMode::default(),
            autoconf: false,
            dhcp: false,
            secret: None,
        }
    }

    /// Adds an address.
    #[must_use]
    pub fn address(mut self, address: Prefix) -> Config {
        self.addresses.push(address);
        self
    }

    /// Adds a route to a network through a neighbour.
    #[must_use]
    pub fn route(mut self, to: Prefix, gateway: IpAddr) -> Config {
        self.routes.push(Route { to, gateway });
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.hardware.is_multicast() || self.hardware == Address::default() {
            return Err(ConfigError::Hardware(self.hardware));
        }
        if !MTU.contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let Offload {
            checksum,
            tso4,
            tso6,
            burst: run,
        } = self.offload;
        if (tso4 || tso6) && !checksum {
            return Err(ConfigError::Offload);
        }
        if usize::from(run) > BURST_MAX {
            return Err(ConfigError::Burst(run));
        }
        let (addresses, routes) = (self.addresses.len(), self.routes.len());
        if addresses > ADDRESSES_MAX || routes > ROUTES_MAX {
            return Err(ConfigError::TooMany(addresses, routes));
        }
        let wrong = self.addresses.iter().find(|prefix| !is_a_hosts(prefix));
        if let Some(prefix) = wrong {
            return Err(ConfigError::Address(*prefix));
        }
        let unreachable = self.routes.iter().find(|route| {
            let near = |prefix: &Prefix| prefix.contains(route.gateway);
            !self.addresses.iter().any(near) && !is_link_local(route.gateway)
        });
        if let Some(route) = unreachable {
            return Err(ConfigError::Gateway(route.gateway));
        }
        let mut gateways = self.routes.iter().map(|route| route.gateway);
        match gateways.find(|gateway| !self.may_be_a_router(*gateway)) {
            Some(gateway) => Err(ConfigError::NotARouter(gateway)),
            None => Ok(()),
        }
    }
}

impl Config {
    /// Neither ours, nor that of one of our networks, nor of all in it.
    fn may_be_a_router(&self, gateway: IpAddr) -> bool {
        self.addresses.iter().all(|ours| {
            let near = ours.contains(gateway);
            let its = Prefix::new(gateway, ours.len()).filter(|_| near);
            let is_hosts = its.is_none_or(|its| is_a_hosts(&its) && !its.is_network());
            is_hosts && ours.address() != gateway
        })
    }
}

pub(super) fn is_a_hosts(prefix: &Prefix) -> bool {
    let address = prefix.address();
    let broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast() || prefix.is_broadcast(address),
        IpAddr::V6(_) => false,
    };
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback() && !broadcast
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
