//! ICMP redirects (RFC 792, RFC 1812 §5.2.7.2, RFC 4861 §8.2): sent if a packet
//! leaves by the link on which it arrived and its sender is on that link.

use crate::router::engine::ETHERNET;
use crate::router::engine::table::routes::Hop;
use crate::router::engine::{Reason, Router};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::field::{array, read_u16};
use weir_wire::{AddrPair, Protocol, icmp, ipv4, ipv6, nd};

const REDIRECT_V4: u8 = 5;
/// Code: redirect for the host.
const HOST: u8 = 1;
const REDIRECT_V6: u8 = 137;
/// Without the target link-layer address option: the host resolves the address
/// itself.
const BODY_V6: usize = icmp::Repr::LEN + 32;
/// The redirected header option, whose length is in units of eight bytes.
const QUOTE: u8 = 4;
const QUOTED_MAX: usize = 1280 - ipv6::Repr::LEN - BODY_V6 - 8;

impl Router {
    /// Redirects the sender of a packet, which is unchanged since arrival, to
    /// the next hop.
    pub(in crate::router::engine) fn redirect_v4(&mut self, now_ns: u64, frame: &[u8], hop: Hop) {
        let packet = &frame[ETHERNET..];
        let src = Ipv4Addr::from(array::<4>(packet, 12));
        let dst = Ipv4Addr::from(array::<4>(packet, 16));
        let link = &self.links[usize::from(hop.link)];
        let better = match hop.gateway {
            Some(IpAddr::V4(gateway)) => gateway,
            Some(IpAddr::V6(_)) => return,
            None => dst,
        };
        // Sender, router and next hop are in one network of the link, and the
        // packet is not itself a redirect.
        let network = link.addresses.iter().find(|prefix| {
            prefix.address().is_ipv4()
                && prefix.contains(src.into())
                && prefix.contains(better.into())
        });
        let own = match network.map(|prefix| prefix.address()) {
            Some(IpAddr::V4(own)) => own,
            _ => return,
        };
        let header_len = ipv4::header_len(packet);
        let kind = packet.get(header_len);
        let is_icmp = packet[9] == Protocol::ICMPV4.0;
        if src.is_unspecified()
            || is_icmp && kind == Some(&REDIRECT_V4)
            || read_u16(packet, 6) & 0x1fff != 0
        {
            return;
        }
        if !self.limit.allows(now_ns) {
            return self.counters.drop(Reason::IcmpRateLimited, 1);
        }
        let message = icmp::Repr {
            kind: REDIRECT_V4,
            code: HOST,
            rest: better.to_bits(),
        };
        if self.error_v4(now_ns, packet, message, Some(own)).is_some() {
            self.counters.redirects += 1;
        }
    }

    /// The IPv6 redirect: the better hop is the destination itself, or a router
    /// whose link-local address is known.
    pub(in crate::router::engine) fn redirect_v6(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        hop: Hop,
        (src, dst): (Ipv6Addr, Ipv6Addr),
    ) {
        let link = &self.links[usize::from(hop.link)];
        let better = match hop.gateway {
            Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() => gateway,
            Some(_) => return,
            None => dst,
        };
        if !link.is_on_link(src.into()) || src.is_unspecified() {
            return;
        }
        let own = link.link_local;
        if !self.limit.allows(now_ns) {
            return self.counters.drop(Reason::IcmpRateLimited, 1);
        }
        let packet = &frame[ETHERNET..];
        let total_len = ipv6::Repr::LEN + usize::from(read_u16(packet, 4));
        let quoted = &packet[..total_len.min(QUOTED_MAX) & !7];
        let mut body = vec![0; BODY_V6 + 8];
        body[8..24].copy_from_slice(&better.octets());
        body[24..40].copy_from_slice(&dst.octets());
        body[40..42].copy_from_slice(&[QUOTE, (1 + quoted.len() / 8) as u8]);
        body.extend_from_slice(quoted);
        let message = icmp::Repr {
            kind: REDIRECT_V6,
            code: 0,
            rest: 0,
        };
        message.emit(&mut body, AddrPair::V6(own, src));
        let mut out = self.frame_v6(hop.link, (own, src), nd::HOP_LIMIT, &body);
        out[..6].copy_from_slice(&Address::default().0);
        let back = Hop {
            link: hop.link,
            gateway: None,
        };
        self.counters.redirects += 1;
        self.transmit(now_ns, back, src.into(), out, false);
    }
}

const _: () = assert!(ipv4::Repr::LEN == 20 && QUOTED_MAX > 1000);
