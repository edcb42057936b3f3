//! What would become of a packet's like: for those who remember it.
//!
//! Remembered is by the two addresses, in frames to the router: they settle
//! the route, and with several hops of IPv4 the choice among them. What else a
//! packet may be, whoever forwards by memory must look at: the header, the
//! TTL, options, the length.

use crate::router::engine::hash::mixed;
use crate::router::engine::table::neighbours::Resolution as Known;
use crate::router::engine::table::routes::{Hop, LinkId, Target};
use crate::router::engine::{FibResult, Router};
use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Where the packets between two addresses go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// The link.
    pub link: LinkId,
    /// The router's station there.
    pub src: Address,
    /// The next station.
    pub dst: Address,
    /// Bytes of the longest packet.
    pub mtu: usize,
}

impl Router {
    /// Which frames of the last [`Router::process`] were forwarded as all
    /// packets between the same addresses are, by their places among its last
    /// 64 at most: bit 0 is the first.
    pub fn cacheable(&self) -> u64 {
        self.cacheable
    }

    /// Notes of the frame in hand that it is like others, unless it leaves by
    /// the link it came on and its sender is to be told.
    pub(in crate::router::engine) fn note_cacheable(&mut self, hop: Hop, arrived: LinkId) {
        self.is_cacheable = hop.link != arrived || !self.redirects;
    }

    /// Whether a packet of IPv6 goes where its addresses say, and not its flow
    /// label.
    pub(in crate::router::engine) fn is_single_path(&self, route: u32) -> bool {
        matches!(self.routes.target(route), Some(Target::Forward(hops)) if hops.len() == 1)
    }

    /// Where packets between two addresses go on that come in at a link, and
    /// have been forwarded. The neighbour counts as used: it is asked whether
    /// it is still there. `None` if they are to come to the router.
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

    /// Whether routes, links or neighbours have changed since the last call,
    /// so that packets may go elsewhere than before.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed) | self.neighbours.take_changed()
    }
}
