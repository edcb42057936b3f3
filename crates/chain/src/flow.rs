//! The key of a flow: what the kernel's flow cache can match of a frame.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use weir_wire::Protocol;

/// The way of a frame through the chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// From the inside to the outside: stages run in order.
    Outward,
    /// From the outside to the inside: stages run in reverse order.
    Inward,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Outward => "outward",
            Direction::Inward => "inward",
        })
    }
}

/// The five-tuple of whole TCP and UDP packets without VLAN tag, IP options or
/// extension headers; both addresses are of one family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flow {
    /// [`Protocol::TCP`] or [`Protocol::UDP`].
    pub protocol: Protocol,
    /// The source address.
    pub src: IpAddr,
    /// The source transport port.
    pub src_port: u16,
    /// The destination address.
    pub dst: IpAddr,
    /// The destination transport port.
    pub dst_port: u16,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = SocketAddr::new(self.src, self.src_port);
        let dst = SocketAddr::new(self.dst, self.dst_port);
        write!(f, "{} {src} > {dst}", self.protocol)
    }
}
