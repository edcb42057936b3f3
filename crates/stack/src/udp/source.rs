//! The source address of datagrams (RFC 1122 §4.1.3.5).

use super::{ANY4, Socket};
use crate::iface::Routes;
use std::net::{IpAddr, SocketAddr};

impl Socket {
    /// The address that the socket is bound to, in the IP version of `to`.
    pub(super) fn from(&self, to: SocketAddr) -> IpAddr {
        match self.local.ip() {
            ip if self.both && to.is_ipv4() && ip.is_unspecified() => ANY4,
            ip => ip,
        }
    }

    /// As [`Socket::from`], of a datagram. A socket for both versions that has a peer of IPv6 sends to other
    /// addresses of IPv4 as before it had the peer, as in Linux (`udpv6_sendmsg`).
    pub(super) fn sender(&self, to: SocketAddr) -> IpAddr {
        let (_, was_for_both) = self.bound;
        if was_for_both && to.is_ipv4() && self.local.is_ipv6() {
            ANY4
        } else {
            self.from(to)
        }
    }
}

/// The source address of datagrams to `to` from a socket bound to `local`.
pub(super) fn source(routes: &Routes, local: IpAddr, to: SocketAddr) -> Option<IpAddr> {
    let reachable = to.ip().is_multicast()
        || routes.next_hop(to.ip()).is_some()
        || routes.is_broadcast(to.ip());
    if local.is_ipv4() != to.is_ipv4() {
        None
    } else if !local.is_unspecified() {
        Some(local).filter(|local| reachable && routes.is_ours(*local))
    } else if routes.is_broadcast(to.ip()) {
        routes.broadcast_source(to.ip())
    } else {
        routes.source_for(to.ip())
    }
}
