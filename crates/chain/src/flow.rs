//! The key of a flow: what the kernel's flow cache can match of a frame.

use crate::layers::Layers;
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

/// The addresses and ports of an IP packet, IP options and first fragments included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoints {
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// The source address.
    pub src: IpAddr,
    /// The destination address.
    pub dst: IpAddr,
    /// The source and destination port of TCP or UDP, if the frame has them.
    pub ports: Option<(u16, u16)>,
}

impl Endpoints {
    /// The endpoints of a frame, with its Ethernet header; `None` if it is not IP.
    pub fn of(frame: &[u8]) -> Option<Endpoints> {
        let layers = Layers::of(frame)?;
        let (src, dst) = layers.addresses(frame);
        Some(Endpoints {
            protocol: layers.protocol,
            src,
            dst,
            ports: layers.ports(frame),
        })
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = SocketAddr::new(self.src, self.src_port);
        let dst = SocketAddr::new(self.dst, self.dst_port);
        write!(f, "{} {src} > {dst}", self.protocol)
    }
}
