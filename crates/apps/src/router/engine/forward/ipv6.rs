//! IPv6 forwarding (RFC 8200, RFC 4291, RFC 4443).

use super::icmp_errors::Problem;
use crate::router::engine::ETHERNET;
use crate::router::engine::hash::mixed;
use crate::router::engine::table::routes::{Hop, LinkId};
use crate::router::engine::{FibResult, Reason, Router, Verdict};
use std::net::Ipv6Addr;
use weir_wire::field::{array, read_u16};
use weir_wire::{Protocol, ipv6};

/// Checks a packet's header and returns its destination.
pub(in crate::router::engine) fn check(packet: &[u8]) -> Result<u128, Reason> {
    let view = ipv6::Packet::new(packet).map_err(|_| Reason::Malformed)?;
    if ipv6::Repr::LEN + view.payload_len() > packet.len() {
        return Err(Reason::Malformed);
    }
    // A jumbogram (RFC 2675) exceeds the MTU of any link here.
    if view.payload_len() == 0 && view.next_header() == Protocol::IPV6_HOP_BY_HOP {
        return Err(Reason::Malformed);
    }
    Ok(view.dst().to_bits())
}

/// Whether a source address is invalid on every link (RFC 4291 §2.5.3, §2.7).
/// IPv4-mapped addresses may not appear on the wire.
fn is_martian_source(src: Ipv6Addr) -> bool {
    src.is_multicast() || src.is_loopback() || src.to_ipv4_mapped().is_some()
}

impl Router {
    /// Forwards a packet with a valid header by the route with this number.
    pub(in crate::router::engine) fn forward_v6(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
        route: u32,
    ) -> Result<Verdict, Reason> {
        let packet = &frame[ETHERNET..];
        let src = Ipv6Addr::from(array::<16>(packet, 8));
        let dst = Ipv6Addr::from(array::<16>(packet, 24));
        let group_frame = frame[0] & 1 == 1;
        if is_martian_source(src) || self.is_ours_v6(link, src) && !self.is_turned {
            return Err(Reason::SourceMartian);
        }
        if dst.is_multicast() {
            return self.group_v6(now_ns, link, frame, dst);
        }
        if dst.is_unspecified() || dst.is_loopback() {
            return Err(Reason::DestinationMartian);
        }
        if dst.is_unicast_link_local() {
            return if self.is_ours_v6(link, dst) {
                self.local_v6(now_ns, link, frame)
            } else {
                Err(Reason::BeyondScope)
            };
        }
        let flow = || {
            let label = u32::from_be_bytes(array(packet, 0)) & 0xf_ffff;
            let ends = src.to_bits() ^ dst.to_bits().rotate_left(64);
            mixed(ends as u64) ^ mixed((ends >> 64) as u64) ^ u64::from(label)
        };
        let hop = match self.select_hop(route, flow) {
            _ if group_frame => return Err(Reason::GroupFrame),
            FibResult::Local => return self.local_v6(now_ns, link, frame),
            FibResult::Hop(hop) => hop,
            FibResult::Broadcast => return Err(Reason::Unreachable),
            FibResult::Refused(reason) => {
                self.report(now_ns, frame, Problem::of(reason));
                return Err(reason);
            }
        };
        if self.is_single_path(route) {
            self.note_cacheable(hop, link);
        }
        self.send_on_v6(now_ns, link, frame, hop, (src, dst))
    }

    /// Whether an address is the router's: on that link for a link-local
    /// address (RFC 4007 §6), else on any link.
    pub(in crate::router::engine) fn is_ours_v6(&self, link: LinkId, address: Ipv6Addr) -> bool {
        if address.is_unicast_link_local() {
            self.links[usize::from(link)].has(address.into())
        } else {
            self.own_v6.binary_search(&address).is_ok()
        }
    }

    fn send_on_v6(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
        hop: Hop,
        (src, dst): (Ipv6Addr, Ipv6Addr),
    ) -> Result<Verdict, Reason> {
        if frame[ETHERNET + 7] <= 1 {
            self.report(now_ns, frame, Some(Problem::TimeExceeded));
            return Err(Reason::TtlExceeded);
        }
        if src.is_unspecified() {
            return Err(Reason::SourceMartian);
        }
        if src.is_unicast_link_local() && hop.link != link {
            self.report(now_ns, frame, Some(Problem::BeyondScope));
            return Err(Reason::BeyondScope);
        }
        let packet = &mut frame[ETHERNET..];
        let total_len = ipv6::Repr::LEN + usize::from(read_u16(packet, 4));
        let mtu = self.links[usize::from(hop.link)].mtu;
        if total_len > mtu {
            self.report(now_ns, frame, Some(Problem::TooBig(mtu)));
            return Err(Reason::TooBig);
        }
        if hop.link == link && self.redirects && !self.is_turned {
            self.redirect_v6(now_ns, frame, hop, (src, dst));
        }
        frame[ETHERNET + 7] -= 1;
        self.counters.forwarded_v6 += 1;
        self.dispatch(now_ns, hop, dst.into(), frame, ETHERNET + total_len)
    }
}
