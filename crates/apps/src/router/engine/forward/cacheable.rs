//! Routing decisions that a flow cache may store.
//!
//! A cached decision is keyed by the two IP addresses of frames to the router.
//! These determine the route, and for IPv4 the choice among several hops. A
//! cache that forwards by them has to check the rest of the packet itself: the
//! header, the TTL, options, the length.

use crate::router::engine::hash::mixed;
use crate::router::engine::table::neighbours::Resolution as Known;
use crate::router::engine::table::routes::{Hop, LinkId, Target};
use crate::router::engine::{FibResult, Router};
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// The next hop of the packets between two addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// The outgoing link.
    pub link: LinkId,
    /// The router's hardware address on the link, the source of the frames.
    pub src: Address,
    /// The hardware address of the next station, the destination of the frames.
    pub dst: Address,
    /// The MTU of the outgoing link, in bytes.
    pub mtu: usize,
}

impl Router {
    /// A bit mask of the last up to 64 frames of the last [`Router::process`]:
    /// a set bit means that all packets between the same addresses go the same
    /// way. Bit 0 is the first frame.
    pub fn cacheable(&self) -> u64 {
        self.cacheable
    }

    /// Marks the present frame as cacheable, unless it leaves by the link on
    /// which it arrived and its sender is to get a redirect.
    pub(in crate::router::engine) fn note_cacheable(&mut self, hop: Hop, arrived: LinkId) {
        self.is_cacheable = hop.link != arrived || !self.redirects;
    }

    /// Whether the destination address alone decides the hop of an IPv6 packet,
    /// without the flow label.
    pub(in crate::router::engine) fn is_single_path(&self, route: u32) -> bool {
        matches!(self.routes.target(route), Some(Target::Forward(hops)) if hops.len() == 1)
    }

    /// The next hop of packets between two addresses that arrive on a link and
    /// have been forwarded before. Marks the neighbour as used, which has the
    /// router probe its reachability. `None` if such packets have to come to
    /// the router.
    pub fn next_hop(
        &mut self,
        now_ns: u64,
        arrived: LinkId,
        src: IpAddr,
        dst: IpAddr,
    ) -> Option<NextHop> {
        if self.is_ours(arrived, src) {
            return None;
        }
        let way = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let flow = || mixed(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
                self.select_hop(self.routes.v4().lookup(dst.to_bits()), flow)
            }
            (IpAddr::V6(_), IpAddr::V6(dst)) => {
                let route = self.routes.v6().lookup(dst.to_bits());
                if !self.is_single_path(route) {
                    return None;
                }
                self.select_hop(route, || 0)
            }
            _ => return None,
        };
        let FibResult::Hop(hop) = way else {
            return None;
        };
        if hop.link == arrived && self.redirects {
            return None;
        }
        let place = (hop.link, hop.gateway.unwrap_or(dst));
        let Known::Resolved(hardware) = self.neighbours.resolve(now_ns, place) else {
            return None;
        };
        let link = &self.links[usize::from(hop.link)];
        Some(NextHop {
            link: hop.link,
            src: link.hardware,
            dst: hardware,
            mtu: link.mtu,
        })
    }

    /// Whether routes, links or neighbours have changed since the last call, so
    /// that packets may take another way than before.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed) | self.neighbours.take_changed()
    }
}
