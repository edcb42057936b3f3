//! [`Ingress`]: from a frame of one link to TCP, UDP and ICMP.
//!
//! [`Ingress::frame`] tries three ways, the shortest first; each takes a frame as a whole or
//! leaves it to the next. What each is worth was measured with and without, in one run:
//!
//! | way | frames | worth |
//! |---|---|---|
//! | train (`tcp/input/train.rs`) | TCP segments that repeat the headers of the one before | 14 % of `goodput` |
//! | header filter (`tcp/input/fast_path.rs`, `udp/fast_path.rs`) | expected ones of a connection | 47 % of `goodput`, 29 % of requests and 8 % of connections in `rates` |
//! | standard (`iface/input.rs`, `tcp/connections.rs`) | all others | |
//!
//! Beside them, [`Ingress::frame_placed`] takes a frame whose payload the link has already
//! written to the reader's buffer.

use crate::iface::{
    DropReason, Incoming, Input, Interface, Mode, Problem, Report, ReportKind, RxMeta,
};
use crate::shard::MISDIRECTED_MAX;
use crate::slab::Handle;
use crate::tcp::{FastPathVerdict, Tcp, TcpId};
use crate::udp::Sockets;
use std::net::{IpAddr, SocketAddr};
use weir_wire::{AddrPair, Protocol};

/// The interface of one link, and the protocols above it.
pub(crate) struct Ingress<'a> {
    pub(crate) iface: &'a mut Interface,
    pub(crate) tcp: &'a mut Tcp,
    pub(crate) udp: &'a mut Sockets,
}

impl Ingress<'_> {
    /// Takes a frame by the first way that fits: see the module. Returns why the frame went no
    /// further.
    #[inline]
    pub(crate) fn frame(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        received: RxMeta,
    ) -> Result<(), DropReason> {
        if self.tcp.expects_train()
            && let Some(is_right) = self.tcp.receive_train(now_ns, frame, &received)
        {
            self.iface.counters.frames_in += 1;
            self.iface.counters.segments_fast += u64::from(is_right);
            return is_right.then_some(()).ok_or(DropReason::ChecksumWrong);
        }
        let Some(packet) = self.iface.plain(frame) else {
            return match self.iface.frame(now_ns, frame)? {
                Some((packet, to_group)) => self.packet(now_ns, packet, to_group, (received, None)),
                None => Ok(()),
            };
        };
        self.iface.counters.frames_in += 1;
        match self.direct(now_ns, packet, received) {
            FastPathVerdict::Standard(connection) => {
                self.packet(now_ns, packet, false, (received, connection))
            }
            FastPathVerdict::Taken => Ok(()),
            FastPathVerdict::Dropped(reason) => Err(reason),
        }
    }

    /// Takes a frame whose `count` bytes of payload, behind its `head`, are in the buffer of the
    /// connection's reader; `None` if the frame is not the expected one, and nothing has changed.
    pub(crate) fn frame_placed(
        &mut self,
        now_ns: u64,
        head: &[u8],
        received: RxMeta,
        (id, count): (TcpId, usize),
    ) -> Option<()> {
        if self.iface.mode != Mode::Opt {
            return None;
        }
        let packet = self.iface.plain(head)?;
        self.tcp
            .receive_placed(now_ns, packet, received, id, count)?;
        self.iface.counters.frames_in += 1;
        self.iface.counters.segments_fast += 1;
        Some(())
    }

    /// The fast paths of TCP and UDP: tries the header filters.
    #[inline]
    fn direct(&mut self, now_ns: u64, packet: &[u8], received: RxMeta) -> FastPathVerdict {
        if self.iface.mode != Mode::Opt {
            return FastPathVerdict::Standard(None);
        }
        let protocol = if packet[0] >> 4 == 4 {
            packet[9]
        } else {
            packet[6]
        };
        match Protocol(protocol) {
            Protocol::TCP => {
                let direct = self.tcp.fast_path(now_ns, self.iface, packet, received);
                self.iface.counters.segments_fast += u64::from(direct == FastPathVerdict::Taken);
                direct
            }
            Protocol::UDP => match self.udp.direct(now_ns, packet, received) {
                Some(Ok(())) => {
                    self.iface.counters.datagrams_fast += 1;
                    FastPathVerdict::Taken
                }
                Some(Err(reason)) => FastPathVerdict::Dropped(reason),
                None => FastPathVerdict::Standard(None),
            },
            _ => FastPathVerdict::Standard(None),
        }
    }

    fn packet(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        to_group: bool,
        (received, connection): (RxMeta, Option<Handle>),
    ) -> Result<(), DropReason> {
        // The result is matched in place, since it is too large to be moved for nothing.
        match &mut self.iface.packet(now_ns, bytes, to_group) {
            Ok(Input::Datagram(incoming)) => {
                (incoming.checksum_ok, incoming.connection) = (received.checksum_ok, connection);
                self.datagram(now_ns, incoming)
            }
            Ok(Input::Partial) => Ok(()),
            Ok(Input::Whole(whole)) if self.keep_if_misdirected(whole)? => Ok(()),
            Ok(Input::Whole(whole)) => self.whole(now_ns, whole, to_group),
            Err(reason) => Err(*reason),
        }
    }

    /// Takes a packet that was reassembled from fragments.
    #[cold]
    fn whole(&mut self, now_ns: u64, bytes: &[u8], to_group: bool) -> Result<(), DropReason> {
        match self.iface.packet(now_ns, bytes, to_group)? {
            Input::Datagram(mut incoming) => {
                incoming.fragmented = true;
                self.datagram(now_ns, &incoming)
            }
            // No correct host sends fragments of fragments.
            Input::Partial | Input::Whole(_) => Err(DropReason::FragmentMalformed),
        }
    }

    /// Keeps a reassembled packet that belongs to another stack of this host; returns whether
    /// it does.
    fn keep_if_misdirected(&mut self, packet: &[u8]) -> Result<bool, DropReason> {
        let Some(shard) = &mut self.tcp.shard else {
            return Ok(false);
        };
        let Some(other) = shard.other(packet) else {
            return Ok(false);
        };
        if shard.misdirected.len() >= MISDIRECTED_MAX {
            return Err(DropReason::ReassemblyFull);
        }
        let frame = self.iface.framed(packet);
        shard.misdirected.push_back((other, self.iface.link, frame));
        Ok(true)
    }

    fn datagram(&mut self, now_ns: u64, incoming: &Incoming<'_>) -> Result<(), DropReason> {
        if incoming.protocol == Protocol::TCP {
            return self.tcp.receive(now_ns, self.iface, incoming);
        }
        let done = match (incoming.protocol, incoming.addresses) {
            (Protocol::ICMPV4, AddrPair::V4(..)) | (Protocol::ICMPV6, AddrPair::V6(..)) => {
                let report = self.iface.icmp(now_ns, incoming)?;
                report.map_or(Ok(()), |report| self.report(now_ns, report))
            }
            (Protocol::IGMP, AddrPair::V4(..)) => self.iface.igmp(now_ns, incoming),
            (Protocol::UDP, AddrPair::V4(..)) if self.iface.is_dhcp(incoming) => {
                self.iface.dhcp_answer(now_ns, incoming)
            }
            (Protocol::UDP, _) => {
                self.iface.counters.datagrams_standard += 1;
                self.udp.receive(now_ns, incoming)
            }
            _ => Err(DropReason::ProtocolUnknown),
        };
        match done {
            Err(DropReason::PortUnknown) => self.iface.send_error(now_ns, incoming, Problem::Port),
            Err(DropReason::ProtocolUnknown) => {
                self.iface.send_error(now_ns, incoming, Problem::Protocol);
            }
            _ => {}
        }
        done
    }

    /// Processes an ICMP error, which counts only if it quotes a packet that this host can have
    /// sent (RFC 5927).
    pub(crate) fn report(&mut self, now_ns: u64, report: Report<'_>) -> Result<(), DropReason> {
        let Report {
            addresses,
            protocol,
            transport,
            ..
        } = report;
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let (src, dst): (IpAddr, IpAddr) = match addresses {
            AddrPair::V4(src, dst) => (src.into(), dst.into()),
            AddrPair::V6(src, dst) => (src.into(), dst.into()),
        };
        if !self.iface.routes.is_ours(src) {
            return Err(DropReason::IcmpUnrelated);
        }
        let (local, remote) = (SocketAddr::new(src, port(0)), SocketAddr::new(dst, port(2)));
        let seq = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        let link = self.iface.link;
        let related = match (protocol, report.what) {
            (Protocol::UDP, _) => self.udp.icmp_error(now_ns, link, (local, remote), &report),
            (Protocol::TCP, ReportKind::Unreachable(why)) => {
                self.tcp
                    .unreachable(now_ns, link, (local, remote), seq, why)
            }
            (Protocol::TCP, ReportKind::TooBig(_)) => self.tcp.has_sent(link, (local, remote), seq),
            _ => false,
        };
        if !related {
            return Err(DropReason::IcmpUnrelated);
        }
        if let ReportKind::TooBig(mtu) = report.what
            && self.iface.update_pmtu(now_ns, dst, mtu).is_some()
            && protocol == Protocol::TCP
        {
            self.tcp.too_big(now_ns, link, (local, remote), seq);
        }
        Ok(())
    }
}
