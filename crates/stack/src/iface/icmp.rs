//! ICMP (RFC 792, RFC 1122 §3.2.2) and ICMPv6 (RFC 4443): echo replies, and errors sent and
//! received.

use super::{DropReason, HOP_LIMIT, Header, Incoming, Interface};
use crate::udp::IcmpCause;
use std::net::IpAddr;
use weir_wire::icmp::{Echo, Message, Repr};
use weir_wire::{AddrPair, Protocol, ipv4, ipv6};

/// The error in a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Problem {
    /// No socket has the transport port.
    Port,
    /// The protocol is not supported; in IPv6 the error contains the offset of the next-header
    /// field.
    Protocol,
    /// An unknown next header at this offset.
    NextHeader(u32),
    /// An invalid field at this offset.
    Header(u32),
    /// An unknown option at this offset.
    Option { at: u32, even_to_groups: bool },
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnreachableKind {
    /// Port unreachable: the destination has no such socket.
    Port,
    /// Host unreachable, reported by a router.
    Host,
    /// The destination, or its router, does not answer on the link.
    Neighbour,
    /// Network unreachable.
    Network,
    /// Another, possibly temporary, reason.
    Other,
}

/// What an ICMP error reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReportKind {
    /// Destination unreachable.
    Unreachable(UnreachableKind),
    /// The packet exceeds the MTU, in bytes, of a link of the path.
    TooBig(usize),
}

/// An ICMP error of a router or the destination about a packet that this host sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) what: ReportKind,
    /// Type and code.
    pub(crate) cause: IcmpCause,
    /// The MTU of a packet that was too big, the offset of a wrong field, or 0.
    pub(crate) info: u32,
    /// The error's sender.
    pub(crate) offender: IpAddr,
    /// The hop limit (TTL) and the traffic class of the error.
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    /// The packet that the error quotes.
    pub(crate) addresses: AddrPair,
    pub(crate) protocol: Protocol,
    pub(crate) transport: &'a [u8],
}

mod kind {
    pub(super) const V4_UNREACHABLE: u8 = 3;
    pub(super) const V4_TIME_EXCEEDED: u8 = 11;
    pub(super) const V4_PARAMETER: u8 = 12;
    pub(super) const V6_UNREACHABLE: u8 = 1;
    pub(super) const V6_TOO_BIG: u8 = 2;
    pub(super) const V6_TIME_EXCEEDED: u8 = 3;
    pub(super) const V6_PARAMETER: u8 = 4;
}

impl Interface {
    /// Handles an ICMP message; returns its report about a packet of this host, if any.
    pub(crate) fn icmp<'a>(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'a>,
    ) -> Result<Option<Report<'a>>, DropReason> {
        let message = Message::new(incoming.payload).map_err(|_| DropReason::Malformed)?;
        if !message.checksum_is_right(incoming.addresses) {
            return Err(DropReason::ChecksumWrong);
        }
        // Filters against forged neighbour and router messages do not inspect fragments, so
        // fragmented ones are ignored (RFC 6980 §5).
        if incoming.fragmented && matches!(message.kind(), 133..=137) {
            return Err(DropReason::NeighbourRefused);
        }
        if let Some(done) = self.neighbour_message(now_ns, incoming, &message) {
            return done.map(|()| None);
        }
        if let Some(done) = self.router_message(now_ns, incoming, &message) {
            return done.map(|()| None);
        }
        if let Some(done) = self.mld(now_ns, incoming, &message) {
            return done.map(|()| None);
        }
        if incoming.src().is_unspecified() {
            return Err(DropReason::SourceImpossible);
        }
        match Echo::parse(&message, incoming.addresses) {
            Some(echo) if !echo.reply => self.answer_echo(now_ns, incoming, echo).map(|()| None),
            Some(_) => Err(DropReason::IcmpUnrelated),
            None => report(&message, incoming).map(Some),
        }
    }

    fn answer_echo(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
        echo: Echo,
    ) -> Result<(), DropReason> {
        let addresses = match (incoming.addresses, incoming.to_group) {
            // Broadcast echo requests could be abused for amplification (RFC 1122 §3.2.2.6 permits
            // silence).
            (AddrPair::V4(..), true) => return Err(DropReason::NotOurAddress),
            (AddrPair::V4(src, dst), false) => AddrPair::V4(dst, src),
            (AddrPair::V6(src, dst), _) if !dst.is_multicast() => AddrPair::V6(dst, src),
            (AddrPair::V6(src, _), _) => {
                let ours = self.routes.source_for(src.into());
                let ours = ours.and_then(|ours| AddrPair::new(ours, src.into()));
                ours.ok_or(DropReason::NoRoute)?
            }
        };
        let mut reply = incoming.payload.to_vec();
        Echo {
            reply: true,
            ..echo
        }
        .emit(&mut reply, addresses);
        self.send(now_ns, &Header::new(addresses, incoming.protocol), &reply);
        Ok(())
    }

    /// Sends an ICMP error to a packet's sender, unless none is permitted (RFC 1122 §3.2.2, RFC
    /// 4443 §2.4 (e)) or the rate limit is reached.
    pub(crate) fn send_error(&mut self, now_ns: u64, incoming: &Incoming<'_>, problem: Problem) {
        let even_to_groups = matches!(
            problem,
            Problem::Option {
                even_to_groups: true,
                ..
            }
        );
        let to_group = incoming.to_group && !even_to_groups;
        if to_group || incoming.src().is_unspecified() || is_icmp_error(incoming) {
            return;
        }
        if !self.limit.allows(now_ns) {
            self.counters.drop(DropReason::IcmpRateLimited);
            return;
        }
        let Some(source) = self.error_source(incoming) else {
            return;
        };
        let (first, addresses, packet_max) = match source {
            AddrPair::V4(..) => (problem.v4(), source, 576 - ipv4::Repr::LEN),
            AddrPair::V6(..) => (problem.v6(), source, 1280 - ipv6::Repr::LEN),
        };
        let quoted = incoming.packet.len().min(packet_max - Repr::LEN);
        let mut message = vec![0; Repr::LEN];
        message.extend_from_slice(&incoming.packet[..quoted]);
        first.emit(&mut message, addresses);
        let protocol = match addresses {
            AddrPair::V4(..) => Protocol::ICMPV4,
            AddrPair::V6(..) => Protocol::ICMPV6,
        };
        self.send(now_ns, &Header::new(addresses, protocol), &message);
    }

    /// The source of an error: the address that the packet was sent to, if that is a unicast
    /// address of the host.
    fn error_source(&self, incoming: &Incoming<'_>) -> Option<AddrPair> {
        let (src, dst) = (incoming.src(), incoming.dst());
        let ours = if self.routes.is_ours(dst) {
            dst
        } else {
            self.routes.source_for(src)?
        };
        AddrPair::new(ours, src)
    }
}

impl Problem {
    fn v4(self) -> Repr {
        let code = if self == Problem::Port { 3 } else { 2 };
        Repr {
            kind: kind::V4_UNREACHABLE,
            code,
            rest: 0,
        }
    }

    fn v6(self) -> Repr {
        let (kind, code, rest) = match self {
            Problem::Port => (kind::V6_UNREACHABLE, 4, 0),
            Problem::Header(at) => (kind::V6_PARAMETER, 0, at),
            Problem::Protocol => (kind::V6_PARAMETER, 1, 6),
            Problem::NextHeader(at) => (kind::V6_PARAMETER, 1, at),
            Problem::Option { at, .. } => (kind::V6_PARAMETER, 2, at),
        };
        Repr { kind, code, rest }
    }
}

/// Whether the packet is an ICMP error, to which no error is sent.
fn is_icmp_error(incoming: &Incoming<'_>) -> bool {
    let kind = incoming.payload.first().copied();
    match incoming.protocol {
        Protocol::ICMPV4 => !matches!(kind, Some(0 | 8 | 13..=18)),
        Protocol::ICMPV6 => kind.is_none_or(|kind| kind < 128),
        // The content behind an unsupported header is unknown.
        _ => false,
    }
}

fn report<'a>(message: &Message<'a>, incoming: &Incoming<'_>) -> Result<Report<'a>, DropReason> {
    let first = Repr::parse(message);
    let v4 = matches!(incoming.addresses, AddrPair::V4(..));
    let (addresses, protocol, transport) = quoted(message.payload(), v4)?;
    use ReportKind::{TooBig, Unreachable};
    let (what, info) = match (v4, first.kind, first.code) {
        (true, kind::V4_UNREACHABLE, 4) => {
            let mtu = first.rest & 0xffff;
            (TooBig(mtu as usize), mtu)
        }
        (true, kind::V4_UNREACHABLE, code) => (
            Unreachable(match code {
                2 | 3 => UnreachableKind::Port,
                0 | 6 | 9 | 11 => UnreachableKind::Network,
                _ => UnreachableKind::Host,
            }),
            0,
        ),
        (false, kind::V6_UNREACHABLE, code) => (
            Unreachable(match code {
                4 => UnreachableKind::Port,
                0 => UnreachableKind::Network,
                _ => UnreachableKind::Host,
            }),
            0,
        ),
        (true, kind::V4_TIME_EXCEEDED, _) | (false, kind::V6_TIME_EXCEEDED, _) => {
            (Unreachable(UnreachableKind::Host), 0)
        }
        (true, kind::V4_PARAMETER, _) => (Unreachable(UnreachableKind::Other), first.rest >> 24),
        (false, kind::V6_TOO_BIG, _) => (TooBig(first.rest as usize), first.rest),
        (false, kind::V6_PARAMETER, 1) => (Unreachable(UnreachableKind::Port), first.rest),
        (false, kind::V6_PARAMETER, _) => (Unreachable(UnreachableKind::Other), first.rest),
        _ => return Err(DropReason::IcmpUnknown),
    };
    Ok(Report {
        what,
        cause: IcmpCause {
            v6: !v4,
            kind: first.kind,
            code: first.code,
        },
        info,
        offender: incoming.src(),
        hop_limit: incoming.hop_limit,
        traffic_class: incoming.traffic_class,
        addresses,
        protocol,
        transport,
    })
}

/// The packet quoted in an ICMP error; `None` for another message.
pub(crate) fn quoted_by<'a>(
    message: &Message<'a>,
    v4: bool,
) -> Option<(AddrPair, Protocol, &'a [u8])> {
    let is_error = if v4 {
        matches!(
            message.kind(),
            kind::V4_UNREACHABLE | kind::V4_TIME_EXCEEDED | kind::V4_PARAMETER
        )
    } else {
        message.kind() < 128
    };
    quoted(message.payload(), v4).ok().filter(|_| is_error)
}

/// The report about a packet for a neighbour that never answered; `None` if its sender gets none.
pub(crate) fn unreachable_report(packet: &[u8]) -> Option<Report<'_>> {
    let v4 = packet.first()? >> 4 == 4;
    let (addresses, protocol, transport) = quoted(packet, v4).ok()?;
    // Host unreachable, or address unreachable, as a router reports it.
    let (kind, code) = if v4 {
        (kind::V4_UNREACHABLE, 1)
    } else {
        (kind::V6_UNREACHABLE, 3)
    };
    let offender = match addresses {
        AddrPair::V4(own, _) => own.into(),
        AddrPair::V6(own, _) => own.into(),
    };
    Some(Report {
        what: ReportKind::Unreachable(UnreachableKind::Neighbour),
        cause: IcmpCause {
            v6: !v4,
            kind,
            code,
        },
        info: 0,
        offender,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        addresses,
        protocol,
        transport,
    })
}

/// The sent packet that a message quotes, with at least eight bytes of its transport header.
fn quoted(bytes: &[u8], v4: bool) -> Result<(AddrPair, Protocol, &[u8]), DropReason> {
    let (addresses, protocol, transport) = if v4 {
        let packet = ipv4::Packet::new(bytes).map_err(|_| DropReason::Malformed)?;
        if packet.fragment_offset() > 0 {
            return Err(DropReason::IcmpUnrelated);
        }
        let addresses = AddrPair::V4(packet.src(), packet.dst());
        (addresses, packet.protocol(), packet.payload())
    } else {
        let packet = ipv6::Packet::new(bytes).map_err(|_| DropReason::Malformed)?;
        let addresses = AddrPair::V6(packet.src(), packet.dst());
        match packet.next_header() {
            // The only extension header that this host sends.
            Protocol::IPV6_FRAGMENT => {
                let fragment = ipv6::FragmentRepr::parse(packet.payload());
                let fragment = fragment.map_err(|_| DropReason::Malformed)?;
                if fragment.offset > 0 {
                    return Err(DropReason::IcmpUnrelated);
                }
                let transport = &packet.payload()[ipv6::FragmentRepr::LEN..];
                (addresses, fragment.next_header, transport)
            }
            protocol => (addresses, protocol, packet.payload()),
        }
    };
    if transport.len() >= 8 {
        Ok((addresses, protocol, transport))
    } else {
        Err(DropReason::Malformed)
    }
}
