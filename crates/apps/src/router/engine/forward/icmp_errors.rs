//! ICMP errors: when one is sent, and what it says (RFC 792, RFC 1812 §4.3,
//! RFC 4443 §2.4, §3).

use crate::router::engine::ETHERNET;
use crate::router::engine::table::routes::LinkId;
use crate::router::engine::{Reason, Router};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::field::{array, read_u16};
use weir_wire::{AddrPair, EtherType, Protocol, icmp, ipv4, ipv6};

/// Bytes of the longest error of IPv4 (RFC 1812 §4.3.2.3) and of IPv6 (RFC
/// 4443 §2.4 (c)).
const ERROR_V4_MAX: usize = 576;
const ERROR_V6_MAX: usize = 1280;

/// Hops that what we send may go.
pub(in crate::router::engine) const TTL: u8 = 64;

/// Extension headers that are passed over to see what a packet carries.
const EXTENSIONS_MAX: usize = 8;

/// What a sender is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::router::engine) enum Problem {
    NoRoute,
    HostUnreachable,
    Prohibited,
    BeyondScope,
    ProtocolUnreachable,
    PortUnreachable,
    TimeExceeded,
    /// Longer than this many bytes, the next link's longest packet.
    TooBig(usize),
    /// The byte of the header that cannot be.
    Parameter(u8),
}

impl Problem {
    /// What is told where a packet goes no further for this reason.
    pub(in crate::router::engine) fn of(reason: Reason) -> Option<Problem> {
        match reason {
            Reason::NoRoute => Some(Problem::NoRoute),
            Reason::Unreachable | Reason::LinkDown => Some(Problem::HostUnreachable),
            Reason::Prohibited => Some(Problem::Prohibited),
            _ => None,
        }
    }

    /// Type, code and the four bytes after the checksum.
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
            // The only one we send: of the fixed header's next header.
            Problem::ProtocolUnreachable => (4, 1, 6),
            Problem::Parameter(pointer) => (4, 0, pointer.into()),
        };
        icmp::Repr { kind, code, rest }
    }
}

impl Router {
    /// Tells the sender of a frame's packet, as it came, of a problem; if
    /// errors are sent about such packets, and the rate allows.
    pub(in crate::router::engine) fn report(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        problem: Option<Problem>,
    ) {
        self.report_from(now_ns, frame, problem, false);
    }

    /// As [`Router::report`]; with `own`, from the address that the packet was
    /// sent to.
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
        // A group may have many members: no error is sent to a storm.
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

    /// Tells the sender of a frame that waited that its neighbour on that link
    /// is silent.
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
                // It is of that link, or the frame would not wait there.
                self.arrived = link;
            }
            self.report(now_ns, frame, Some(Problem::HostUnreachable));
        }
    }

    /// Sends an error of IPv4 about a packet; from `own` if that is said.
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
            // The packet's own service, of the precedence of network control
            // (RFC 1812 §4.3.2.5).
            traffic_class: packet[1] & 0x1e | 0xc0,
            identification: self.output.identification(),
            dont_fragment: false,
            payload_len: icmp::Repr::LEN + quoted.len(),
        };
        outer.emit(&mut frame[ETHERNET..]);
        self.transmit(now_ns, hop, to.into(), frame, false);
        Some(())
    }

    /// The address of the link that an error leaves by (RFC 1812 §4.3.2.4),
    /// or of any other.
    fn source_v4(&self, link: LinkId, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let near = self.links[usize::from(link)].source(to.into());
        let all = self.links.iter().find_map(|link| link.source(to.into()));
        match near.or(all)? {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        }
    }

    /// Sends an error of IPv6 about a packet.
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

    /// The address of the link that the packet came on, which tells its sender
    /// the most (RFC 4443 §2.2), or of the one that the error leaves by.
    fn source_v6(&self, link: LinkId, to: Ipv6Addr) -> Option<Ipv6Addr> {
        let came = self.links[usize::from(self.arrived)].source(to.into());
        let near = came.or_else(|| self.links[usize::from(link)].source(to.into()));
        let all = self.links.iter().find_map(|link| link.source(to.into()));
        match near.or(all)? {
            IpAddr::V6(own) => Some(own),
            IpAddr::V4(_) => None,
        }
    }

    /// A frame of an ICMPv6 message, whose hardware destination is not yet
    /// known.
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

/// Whether errors are sent about an IPv4 packet (RFC 1812 §4.3.2.7): not
/// about errors, nor pieces but the first, nor what no single host sent.
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

/// Whether errors are sent about an IPv6 packet (RFC 4443 §2.4 (e)).
fn may_report_v6(packet: &[u8]) -> bool {
    let Ok(view) = ipv6::Packet::new(packet) else {
        return false;
    };
    let src = view.src();
    let alone = !src.is_unspecified() && !src.is_multicast() && !view.dst().is_multicast();
    alone && !carries_error(view.next_header(), view.payload())
}

/// Whether an IPv6 packet carries an ICMP error or a redirect, or may: a piece
/// behind the first hides it.
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
