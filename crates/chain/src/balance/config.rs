//! Configuration of a balancer: service, servers, lives of sessions, checks.

use super::probe::HttpCheck;
use crate::nat::Prefix;
use std::net::Ipv4Addr;
use weir_wire::Protocol;

/// Servers of a service, at most.
pub const SERVERS_MAX: usize = 1000;

/// Sessions, at most.
pub const SESSIONS_MAX: u32 = 1 << 22;

/// Largest weight.
pub const WEIGHT_MAX: u32 = 100;

/// The transport port that probes come from.
pub(super) const PROBE_PORT: u16 = 1023;

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// A server of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its address and port.
    pub end: (Ipv4Addr, u16),
    /// Its share of new sessions relative to the others', 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// It gets no new sessions.
    pub is_draining: bool,
}

/// The configuration of a balancer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BalanceConfig {
    /// [`Protocol::TCP`] or [`Protocol::UDP`].
    pub protocol: Protocol,
    /// The address and port of the service.
    pub service: (Ipv4Addr, u16),
    /// The servers, 1 to [`SERVERS_MAX`].
    pub servers: Vec<Server>,
    /// Sessions, at most: up to [`SESSIONS_MAX`].
    pub sessions_max: u32,
    /// How long a session lives without a packet, in ns.
    pub idle: u64,
    /// How long a session of TCP lives after its end, in ns, and until its server has
    /// answered.
    pub closing: u64,
    /// Interval of probes of a server, in ns; 0 for none. Servers of UDP are not probed.
    pub probe: u64,
    /// Longest time of a probe, in ns: up to the interval.
    pub probe_timeout: u64,
    /// Number of probes in a row without a good answer after which a server is
    /// down.
    pub fall: u32,
    /// Number of probes in a row with a good answer after which a server is up
    /// again.
    pub rise: u32,
    /// The request of probes; `None` if a connection is enough.
    pub http: Option<HttpCheck>,
    /// Direct server return, with the box's own addresses, each with its network: every server
    /// is in one of these, and is probed from there. `None` if answers come back through the stage.
    pub direct_return: Option<Vec<Prefix>>,
}

impl BalanceConfig {
    /// A service with the usual limits.
    pub fn new(protocol: Protocol, service: (Ipv4Addr, u16), servers: Vec<Server>) -> Self {
        BalanceConfig {
            protocol,
            service,
            servers,
            sessions_max: 1 << 20,
            idle: 300 * SECOND,
            closing: 60 * SECOND,
            probe: if protocol == Protocol::TCP { SECOND } else { 0 },
            probe_timeout: SECOND,
            fall: 3,
            rise: 3,
            http: None,
            direct_return: None,
        }
    }

    /// The address that probes of a server come from: the service's, or with direct return, where
    /// the server has that itself, the box's own in the narrowest network of both. `None` if the
    /// box has no such address.
    pub(super) fn source(&self, server: Ipv4Addr) -> Option<Ipv4Addr> {
        let Some(networks) = &self.direct_return else {
            return Some(self.service.0);
        };
        let near = networks.iter().filter(|own| own.contains(server));
        let near = near.filter(|own| own.address != self.service.0);
        near.max_by_key(|own| own.len).map(|own| own.address)
    }

    /// The fault of a server that cannot answer clients directly.
    fn indirect(&self, (address, port): (Ipv4Addr, u16)) -> Option<&'static str> {
        let networks = self.direct_return.as_ref()?;
        if port != self.service.1 {
            Some("direct_return changes no ports: write the service's")
        } else if networks.iter().any(|own| own.address == address) {
            Some("an address of this host itself: write another host's")
        } else if self.source(address).is_none() {
            Some(
                "direct_return needs it in the network of a link on which this host has another \
                 address than the service's",
            )
        } else {
            None
        }
    }
}

/// The reason why a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BalanceError {
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
    /// Probes come from the service's address and port.
    #[error(
        "the service has port {PROBE_PORT}, which probes of servers come from: give it another one, or `probe = \"0s\"`"
    )]
    ProbePort,
    /// The request of probes is none.
    #[error("{what} {value} of the check by HTTP: {remedy}")]
    Http {
        /// Which part.
        what: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        remedy: &'static str,
    },
    /// A server is there twice, or is the service itself.
    #[error("server {address}:{port}: {why}")]
    Server {
        /// Its address.
        address: Ipv4Addr,
        /// Its port.
        port: u16,
        /// What is wrong.
        why: &'static str,
    },
}

/// Checks a configuration.
pub(super) fn check(config: &BalanceConfig) -> Result<(), BalanceError> {
    let range = |what, value: u64, min: u64, max: u64| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(BalanceError::Range {
            what,
            value,
            min,
            max,
        })
    };
    range(
        "servers",
        config.servers.len() as u64,
        1,
        SERVERS_MAX as u64,
    )?;
    range(
        "sessions_max",
        config.sessions_max.into(),
        1,
        SESSIONS_MAX.into(),
    )?;
    range("fall", config.fall.into(), 1, 100)?;
    range("rise", config.rise.into(), 1, 100)?;
    if config.probe > 0 {
        range(
            "probe_timeout in ms",
            config.probe_timeout / MS,
            1,
            config.probe / MS,
        )?;
    }
    if let Some((what, value, remedy)) = config.http.as_ref().and_then(HttpCheck::wrong) {
        return Err(BalanceError::Http {
            what,
            value,
            remedy,
        });
    }
    range(
        "the service's port",
        config.service.1.into(),
        1,
        u16::MAX.into(),
    )?;
    if config.protocol == Protocol::TCP && config.service.1 == PROBE_PORT && config.probe > 0 {
        return Err(BalanceError::ProbePort);
    }
    for (at, server) in config.servers.iter().enumerate() {
        range("weight", server.weight.into(), 1, WEIGHT_MAX.into())?;
        let (address, port) = server.end;
        let why = if port == 0 {
            "port 0 is no port"
        } else if server.end == config.service {
            "it is the service itself"
        } else if config.servers[..at]
            .iter()
            .any(|other| other.end == server.end)
        {
            "it is there twice"
        } else if let Some(why) = config.indirect(server.end) {
            why
        } else {
            continue;
        };
        return Err(BalanceError::Server { address, port, why });
    }
    Ok(())
}
