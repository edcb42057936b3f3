//! What the language asks the system: hosts, networks, services, protocols.
//!
//! The compiler itself reads no file and sends no query; the caller passes an
//! implementation (for example one on `/etc/hosts`, `/etc/services`,
//! `/etc/protocols`, `/etc/networks` and `/etc/ethers`).

use std::net::IpAddr;

/// A kind of name, for suggestions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NameKind {
    /// A host with IP addresses.
    Host,
    /// A network.
    Network,
    /// A TCP, UDP or SCTP service.
    Service,
    /// An IP protocol.
    Protocol,
    /// A host with a link-layer address.
    EtherHost,
}

/// The transport a service is looked up for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Answers to names in expressions. Every method has a default that knows
/// nothing, so that `impl Names for X {}` is a complete implementation.
///
/// Lookups are by exact name, after the language's own words; numbers and
/// addresses never get here.
pub trait Names {
    /// The addresses of a host, in the order a resolver gives them, without
    /// duplicates; empty if unknown.
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        let _ = name;
        Vec::new()
    }

    /// A network's number, as getnetbyname(3) gives it: the octets that the
    /// networks file has, the last written one lowest. `loopback 127.0.0.0`
    /// is `0x7f00_0000`, `loopback 127` is `0x7f`.
    fn network(&self, name: &str) -> Option<u32> {
        let _ = name;
        None
    }

    /// A service's number for one transport.
    ///
    /// SCTP has no entry of its own: pcap-filter(7) takes a service's SCTP
    /// number to be its TCP or UDP number.
    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        let _ = (name, transport);
        None
    }

    /// An IP protocol's number.
    fn protocol(&self, name: &str) -> Option<u8> {
        let _ = name;
        None
    }

    /// The link-layer address of a host.
    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        let _ = name;
        None
    }

    /// Names of a kind that exist, to suggest one for a word that does not.
    /// Called only when a lookup failed; may be empty, as for hosts.
    fn candidates(&self, kind: NameKind) -> Vec<String> {
        let _ = kind;
        Vec::new()
    }
}

/// Knows no name: only numbers and addresses compile.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoNames;

impl Names for NoNames {}
