//! The key of a connection: both addresses and both transport ports.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses and transport ports of a connection, as the words that are
/// hashed and compared.
///
/// ```text
///            addresses                                   ports
/// IPv4  [local ‖ remote]                          local_port ‖ remote_port
/// IPv6  [local][local][remote][remote]            local_port ‖ remote_port
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple<const A: usize> {
    pub(super) addresses: [u64; A],
    pub(super) ports: u32,
}

/// The key of a connection over IPv4.
pub type Key4 = Tuple<1>;
/// The key of a connection over IPv6.
pub type Key6 = Tuple<4>;

fn ports(local_port: u16, remote_port: u16) -> u32 {
    u32::from(local_port) << 16 | u32::from(remote_port)
}

impl Key4 {
    /// The connection between these two.
    #[inline]
    pub fn new(local: (Ipv4Addr, u16), remote: (Ipv4Addr, u16)) -> Key4 {
        let addresses = u64::from(local.0.to_bits()) << 32 | u64::from(remote.0.to_bits());
        Tuple {
            addresses: [addresses],
            ports: ports(local.1, remote.1),
        }
    }

    /// The local address and transport port.
    pub fn local(&self) -> (Ipv4Addr, u16) {
        let [addresses] = self.addresses;
        let address = Ipv4Addr::from_bits((addresses >> 32) as u32);
        (address, (self.ports >> 16) as u16)
    }

    /// The remote address and transport port.
    pub fn remote(&self) -> (Ipv4Addr, u16) {
        let [addresses] = self.addresses;
        (Ipv4Addr::from_bits(addresses as u32), self.ports as u16)
    }
}

impl Key6 {
    /// The connection between these two.
    #[inline]
    pub fn new(local: (Ipv6Addr, u16), remote: (Ipv6Addr, u16)) -> Key6 {
        let (from, to) = (local.0.to_bits(), remote.0.to_bits());
        Tuple {
            addresses: [
                (from >> 64) as u64,
                from as u64,
                (to >> 64) as u64,
                to as u64,
            ],
            ports: ports(local.1, remote.1),
        }
    }

    /// The local address and transport port.
    pub fn local(&self) -> (Ipv6Addr, u16) {
        let [high, low, ..] = self.addresses;
        (address6(high, low), (self.ports >> 16) as u16)
    }

    /// The remote address and transport port.
    pub fn remote(&self) -> (Ipv6Addr, u16) {
        let [.., high, low] = self.addresses;
        (address6(high, low), self.ports as u16)
    }
}

fn address6(high: u64, low: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))
}

/// The key of a connection of either version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// Over IPv4.
    V4(Key4),
    /// Over IPv6.
    V6(Key6),
}

impl Key {
    /// The connection between these two; `None` unless both are of one IP version. Scope and flow
    /// label do not count.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Key> {
        let (local_port, remote_port) = (local.port(), remote.port());
        match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Some(Key::V4(Key4::new(
                (*local.ip(), local_port),
                (*remote.ip(), remote_port),
            ))),
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => Some(Key::V6(Key6::new(
                (*local.ip(), local_port),
                (*remote.ip(), remote_port),
            ))),
            _ => None,
        }
    }

    /// The local and the remote address and port, without scope and flow label.
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Key::V4(key) => (key.local().into(), key.remote().into()),
            Key::V6(key) => (key.local().into(), key.remote().into()),
        }
    }
}
