//! ICMP errors: the conditions for sending one, and its contents (RFC 792, RFC
//! 1812 §4.3, RFC 4443 §2.4, §3).

use crate::router::engine::ETHERNET;
use crate::router::engine::table::routes::LinkId;
use crate::router::engine::{Reason, Router};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::field::{array, read_u16};
use weir_wire::{AddrPair, EtherType, Protocol, icmp, ipv4, ipv6};

/// Largest size in bytes of an ICMP error packet of IPv4 (RFC 1812 §4.3.2.3)
/// and of IPv6 (RFC 4443 §2.4 (c)).
const ERROR_V4_MAX: usize = 576;
const ERROR_V6_MAX: usize = 1280;

/// TTL or hop limit of packets that the router sends.
pub(in crate::router::engine) const TTL: u8 = 64;

/// Number of extension headers, at most, that are skipped to find a packet's
/// payload.
const EXTENSIONS_MAX: usize = 8;

/// The problem that an ICMP error reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::router::engine) enum Problem {
    NoRoute,
    HostUnreachable,
    Prohibited,
    BeyondScope,
    ProtocolUnreachable,
    PortUnreachable,
    TimeExceeded,
    /// The packet exceeds this MTU of the next link, in bytes.
    TooBig(usize),
    /// The byte offset of the invalid field in the header.
    Parameter(u8),
}

impl Problem {
    /// The problem to report for a dropped packet; `None` if the drop is
    /// silent.
    pub(in crate::router::engine) fn of(reason: Reason) -> Option<Problem> {
        match reason {
            Reason::NoRoute => Some(Problem::NoRoute),
            Reason::Unreachable | Reason::LinkDown => Some(Problem::HostUnreachable),
            Reason::Prohibited => Some(Problem::Prohibited),
            _ => None,
        }
    }

    /// The ICMPv4 type and code, and the four bytes after the checksum.
    fn v4(self) -> icmp::Repr {
        let (kind, code, rest) = match self {
            Problem::NoRoute => (3, 0, 0),
            Problem::HostUnreachable | Problem::BeyondScope => (3, 1, 0),
            Problem::ProtocolUnreachable => (3, 2, 0),
            Problem::PortUnreachable => (3, 3, 0),
            Problem::TooBig(mtu) => (3, 4, mtu.min(0xffff) as u32),
            Problem::Prohibited => (3, 13, 0),
            Problem::TimeExceeded => (11, 0, 0),
            Problem::Parameter(pointer) => (12, 0, u32::from(pointer) << 24),
        };
        icmp::Repr { kind, code, rest }
    }

    fn v6(self) -> icmp::Repr {
        let (kind, code, rest) = match self {
            Problem::NoRoute => (1, 0, 0),
            Problem::Prohibited => (1, 1, 0),
            Problem::BeyondScope => (1, 2, 0),
            Problem::HostUnreachable => (1, 3, 0),
            Problem::PortUnreachable => (1, 4, 0),
            Problem::TooBig(mtu) => (2, 0, mtu as u32),
            Problem::TimeExceeded => (3, 0, 0),
            // The router sends only one: about the next-header field of the
            // fixed header.
            Problem::ProtocolUnreachable => (4, 1, 6),
            Problem::Parameter(pointer) => (4, 0, pointer.into()),
        };
        icmp::Repr { kind, code, rest }
    }
}

impl Router {
    /// Sends an ICMP error to the sender of a frame's packet, which is
    /// unchanged since arrival, if errors are permitted for such packets and
    /// the rate limit allows.
    pub(in crate::router::engine) fn report(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        problem: Option<Problem>,
    ) {
        self.report_from(now_ns, frame, problem, false);
    }

    /// As [`Router::report`]; with `own`, the error's source is the packet's
    /// destination address.
    pub(in crate::router::engine) fn report_from(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        problem: Option<Problem>,
        own: bool,
    ) {
        let Some(problem) = problem else { return };
        let packet = &frame[ETHERNET..];
        let is_v4 = read_u16(frame, 12) == EtherType::IPV4.0;
        let about = if is_v4 {
            may_report_v4(packet)
        } else {
            may_report_v6(packet)
        };
        // A group may have many members: an error for each would be a storm.
        if !about || frame[0] & 1 == 1 {
            return;
        }
        if !self.limit.allows(now_ns) {
            return self.counters.drop(Reason::IcmpRateLimited, 1);
        }
        let sent = if is_v4 {
            let own = own.then(|| Ipv4Addr::from(array::<4>(packet, 16)));
            self.error_v4(now_ns, packet, problem.v4(), own)
        } else {
            let own = own.then(|| Ipv6Addr::from(array::<16>(packet, 24)));
            self.error_v6(now_ns, packet, problem.v6(), own)
        };
        self.counters.icmp_errors += u64::from(sent.is_some());
    }

    /// Sends an ICMP error to the sender of a frame that waited for a
    /// neighbour's answer in vain.
    pub(in crate::router::engine) fn report_silent(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &[u8],
    ) {
        // Its destination address was never put in, and is no group.
        let src = if read_u16(frame, 12) == EtherType::IPV4.0 {
            Ipv4Addr::from(array::<4>(frame, ETHERNET + 12)).into()
        } else {
            Ipv6Addr::from(array::<16>(frame, ETHERNET + 8)).into()
        };
        if !self.is_ours(link, src) {
            if matches!(src, IpAddr::V6(src) if src.is_unicast_link_local()) {
                // The source belongs to that link, or the frame would not wait
                // there.
                self.arrived = link;
            }
            self.report(now_ns, frame, Some(Problem::HostUnreachable));
        }
    }

    /// Sends an ICMPv4 error about a packet; with source `own` if given.
    pub(in crate::router::engine) fn error_v4(
        &mut self,
        now_ns: u64,
        packet: &[u8],
        message: icmp::Repr,
        own: Option<Ipv4Addr>,
    ) -> Option<()> {
        let to = Ipv4Addr::from(array::<4>(packet, 12));
        let hop = self.reverse_hop(to.into())?;
        let from = match own {
            Some(own) => own,
            None => self.source_v4(hop.link, to)?,
        };
        let total_len = usize::from(read_u16(packet, 2)).min(packet.len());
        let header = ipv4::Repr::LEN + icmp::Repr::LEN;
        let quoted = &packet[..total_len.min(ERROR_V4_MAX - header)];
        let mut frame = self.frame(
            hop.link,
            Address::default(),
            EtherType::IPV4,
            header + quoted.len(),
        );
        let body = &mut frame[ETHERNET + ipv4::Repr::LEN..];
        body[icmp::Repr::LEN..].copy_from_slice(quoted);
        message.emit(body, AddrPair::V4(from, to));
        let outer = ipv4::Repr {
            src: from,
            dst: to,
            protocol: Protocol::ICMPV4,
            ttl: TTL,
            // The packet's own type of service, with the precedence of network
            // control (RFC 1812 §4.3.2.5).
            traffic_class: packet[1] & 0x1e | 0xc0,
            identification: self.output.identification(),
            dont_fragment: false,
            payload_len: icmp::Repr::LEN + quoted.len(),
        };
        outer.emit(&mut frame[ETHERNET..]);
        self.transmit(now_ns, hop, to.into(), frame, false);
        Some(())
    }

    /// The router's address on the link by which an error leaves (RFC 1812
    /// §4.3.2.4), or on any other link.
    fn source_v4(&self, link: LinkId, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let near = self.links[usize::from(link)].source(to.into());
        let all = self.links.iter().find_map(|link| link.source(to.into()));
        match near.or(all)? {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        }
    }

    /// Sends an ICMPv6 error about a packet.
    fn error_v6(
        &mut self,
        now_ns: u64,
        packet: &[u8],
        message: icmp::Repr,
        own: Option<Ipv6Addr>,
    ) -> Option<()> {
        let to = Ipv6Addr::from(array::<16>(packet, 8));
        let hop = self.reverse_hop(to.into())?;
        let from = match own {
            Some(own) => own,
            None => self.source_v6(hop.link, to)?,
        };
        let total_len = (ipv6::Repr::LEN + usize::from(read_u16(packet, 4))).min(packet.len());
        let header = ipv6::Repr::LEN + icmp::Repr::LEN;
        let quoted = &packet[..total_len.min(ERROR_V6_MAX - header)];
        let addresses = AddrPair::V6(from, to);
        let mut body = vec![0; icmp::Repr::LEN + quoted.len()];
        body[icmp::Repr::LEN..].copy_from_slice(quoted);
        message.emit(&mut body, addresses);
        let frame = self.frame_v6(hop.link, (from, to), TTL, &body);
        self.transmit(now_ns, hop, to.into(), frame, false);
        Some(())
    }

    /// The router's address on the link on which the packet arrived, which is
    /// the most informative to its sender (RFC 4443 §2.2), or on the link by
    /// which the error leaves.
    fn source_v6(&self, link: LinkId, to: Ipv6Addr) -> Option<Ipv6Addr> {
        let came = self.links[usize::from(self.arrived)].source(to.into());
        let near = came.or_else(|| self.links[usize::from(link)].source(to.into()));
        let all = self.links.iter().find_map(|link| link.source(to.into()));
        match near.or(all)? {
            IpAddr::V6(own) => Some(own),
            IpAddr::V4(_) => None,
        }
    }

    /// A frame with an ICMPv6 message, whose destination hardware address is
    /// still unset.
    pub(in crate::router::engine) fn frame_v6(
        &self,
        link: LinkId,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        hop_limit: u8,
        message: &[u8],
    ) -> Vec<u8> {
        let len = ipv6::Repr::LEN + message.len();
        let mut frame = self.frame(link, Address::default(), EtherType::IPV6, len);
        let header = ipv6::Repr {
            src,
            dst,
            next_header: Protocol::ICMPV6,
            hop_limit,
            traffic_class: 0,
            flow_label: 0,
            payload_len: message.len(),
        };
        header.emit(&mut frame[ETHERNET..]);
        frame[ETHERNET + ipv6::Repr::LEN..].copy_from_slice(message);
        frame
    }
}

/// Whether an ICMP error may be sent about an IPv4 packet (RFC 1812 §4.3.2.7):
/// not about errors, fragments other than the first, or packets whose source is
/// not a single host.
fn may_report_v4(packet: &[u8]) -> bool {
    let Ok(view) = ipv4::Packet::new(packet) else {
        return false;
    };
    let src = view.src();
    let alone = !src.is_unspecified()
        && !src.is_multicast()
        && !src.is_broadcast()
        && !src.is_loopback()
        && !view.dst().is_multicast()
        && !view.dst().is_broadcast();
    let is_error = view.protocol() == Protocol::ICMPV4
        && view
            .payload()
            .first()
            .is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12 | 19..));
    alone && view.fragment_offset() == 0 && !is_error
}

/// Whether an ICMP error may be sent about an IPv6 packet (RFC 4443 §2.4 (e)).
fn may_report_v6(packet: &[u8]) -> bool {
    let Ok(view) = ipv6::Packet::new(packet) else {
        return false;
    };
    let src = view.src();
    let alone = !src.is_unspecified() && !src.is_multicast() && !view.dst().is_multicast();
    alone && !carries_error(view.next_header(), view.payload())
}

/// Whether an IPv6 packet carries an ICMP error or a redirect, or may carry
/// one: a fragment other than the first hides it.
fn carries_error(mut next: Protocol, mut rest: &[u8]) -> bool {
    for _ in 0..EXTENSIONS_MAX {
        let len = match next {
            Protocol::ICMPV6 => return rest.first().is_none_or(|kind| *kind < 128 || *kind == 137),
            Protocol::IPV6_FRAGMENT => match ipv6::FragmentRepr::parse(rest) {
                Ok(fragment) if fragment.offset > 0 => return false,
                _ => ipv6::FragmentRepr::LEN,
            },
            Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_ROUTING | Protocol::IPV6_DESTINATION => {
                match rest {
                    [_, len, ..] => 8 * (usize::from(*len) + 1),
                    _ => return false,
                }
            }
            _ => return false,
        };
        let Some((header, behind)) = rest.split_at_checked(len) else {
            return false;
        };
        next = Protocol(header[0]);
        rest = behind;
    }
    false
}
