//! The interface to the system's names: hosts, networks, services, protocols.
//!
//! The compiler reads no file and sends no query. The caller passes an
//! implementation, for example one that reads `/etc/hosts`, `/etc/services`,
//! `/etc/protocols`, `/etc/networks` and `/etc/ethers`.

use std::net::IpAddr;

/// The kind of a name, for suggestions.
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

/// The transport protocol of a service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A resolver of names in expressions. The default methods know no names, so
/// `impl Names for X {}` is a complete implementation.
///
/// Lookups are by exact name. Keywords of the language, numbers and addresses are
/// never looked up.
pub trait Names {
    /// The addresses of a host, without duplicates, in the resolver's order; empty if
    /// unknown.
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        let _ = name;
        Vec::new()
    }

    /// The number of a network, as getnetbyname(3) returns it: the octets in the
    /// networks file, the last of them in the lowest byte. `loopback 127.0.0.0` is
    /// `0x7f00_0000`, `loopback 127` is `0x7f`. `None` if unknown.
    fn network(&self, name: &str) -> Option<u32> {
        let _ = name;
        None
    }

    /// The port number of a service for one transport; `None` if unknown.
    ///
    /// There is no entry for SCTP: pcap-filter(7) uses the TCP or UDP number of a
    /// service.
    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        let _ = (name, transport);
        None
    }

    /// The number of an IP protocol; `None` if unknown.
    fn protocol(&self, name: &str) -> Option<u8> {
        let _ = name;
        None
    }

    /// The link-layer address of a host; `None` if unknown.
    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        let _ = name;
        None
    }

    /// Existing names of a kind, from which a correction is suggested. Called only
    /// after a failed lookup; may be empty, for example for hosts.
    fn candidates(&self, kind: NameKind) -> Vec<String> {
        let _ = kind;
        Vec::new()
    }
}

/// A resolver that knows no names: only numbers and addresses compile.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoNames;

impl Names for NoNames {}
