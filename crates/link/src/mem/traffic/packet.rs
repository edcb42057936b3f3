//! Builds frames around payloads.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_wire::ethernet::{self, Address, TagRepr};
use weir_wire::pup::{self, ThreeMegabit};
use weir_wire::{AddrPair, EtherType, Protocol, arp, icmp, ipv4, ipv6, tcp, udp};

/// Minimum length of an Ethernet frame, without its FCS.
const FRAME_LEN_MIN: usize = 60;

/// The two stations of a frame: sender and receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) src: Address,
    pub(super) dst: Address,
    pub(super) vlan: Option<u16>,
}

impl Wire {
    pub(super) fn reversed(self) -> Wire {
        Wire {
            src: self.dst,
            dst: self.src,
            ..self
        }
    }

    /// A frame with `len` bytes of room behind its headers, and the offset of
    /// that room.
    fn frame(&self, ether_type: EtherType, len: usize) -> (Vec<u8>, usize) {
        let tag_len = self.vlan.map_or(0, |_| TagRepr::LEN);
        let start = ethernet::Repr::LEN + tag_len;
        let mut frame = vec![0; (start + len).max(FRAME_LEN_MIN)];
        let outer = match self.vlan {
            Some(_) => EtherType::VLAN,
            None => ether_type,
        };
        let header = ethernet::Repr {
            dst: self.dst,
            src: self.src,
            ether_type: outer,
        };
        header.emit(&mut frame);
        if let Some(vlan) = self.vlan {
            let tag = TagRepr {
                priority: 0,
                drop_eligible: false,
                vlan,
                ether_type,
            };
            tag.emit(&mut frame[ethernet::Repr::LEN..]);
        }
        (frame, start)
    }

    pub(super) fn arp(&self, repr: &arp::Repr) -> Vec<u8> {
        let (mut frame, start) = self.frame(EtherType::ARP, arp::Repr::LEN);
        repr.emit(&mut frame[start..]);
        frame
    }

    pub(super) fn pup(&self, repr: &pup::Repr, payload: &[u8]) -> Vec<u8> {
        let len = pup::Repr::packet_len(payload.len());
        let (mut frame, start) = self.frame(EtherType::PUP, len);
        put_pup(&mut frame[start..start + len], repr, payload);
        frame
    }

    /// An IP packet with `len` bytes behind its header, which `fill` writes.
    fn ip(
        &self,
        ip: &Ip,
        protocol: Protocol,
        len: usize,
        fill: impl FnOnce(&mut [u8], AddrPair),
    ) -> Vec<u8> {
        let (mut frame, start) = match ip.addresses {
            AddrPair::V4(src, dst) => {
                let (mut frame, start) = self.frame(EtherType::IPV4, ipv4::Repr::LEN + len);
                ip.v4(src, dst, protocol, len).emit(&mut frame[start..]);
                (frame, start + ipv4::Repr::LEN)
            }
            AddrPair::V6(src, dst) => {
                let (mut frame, start) = self.frame(EtherType::IPV6, ipv6::Repr::LEN + len);
                ip.v6(src, dst, protocol, len).emit(&mut frame[start..]);
                (frame, start + ipv6::Repr::LEN)
            }
        };
        fill(&mut frame[start..start + len], ip.addresses);
        frame
    }

    pub(super) fn tcp(&self, ip: &Ip, repr: &tcp::Repr, payload: &[u8]) -> Vec<u8> {
        let header_len = repr.header_len();
        let len = header_len + payload.len();
        self.ip(ip, Protocol::TCP, len, |segment, addresses| {
            segment[header_len..].copy_from_slice(payload);
            repr.emit(segment, addresses);
        })
    }

    pub(super) fn udp(&self, ip: &Ip, repr: &udp::Repr, payload: &[u8]) -> Vec<u8> {
        let len = udp::Repr::LEN + payload.len();
        self.ip(ip, Protocol::UDP, len, |datagram, addresses| {
            datagram[udp::Repr::LEN..].copy_from_slice(payload);
            repr.emit(datagram, addresses);
        })
    }

    pub(super) fn echo(&self, ip: &Ip, echo: &icmp::Echo, payload: &[u8]) -> Vec<u8> {
        let protocol = match ip.addresses {
            AddrPair::V4(..) => Protocol::ICMPV4,
            AddrPair::V6(..) => Protocol::ICMPV6,
        };
        let len = icmp::Echo::LEN + payload.len();
        self.ip(ip, protocol, len, |message, addresses| {
            message[icmp::Echo::LEN..].copy_from_slice(payload);
            echo.emit(message, addresses);
        })
    }
}

/// The fields of an IP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ip {
    pub(super) addresses: AddrPair,
    pub(super) identification: u16,
}

impl Ip {
    pub(super) fn reversed(self) -> Ip {
        let addresses = match self.addresses {
            AddrPair::V4(src, dst) => AddrPair::V4(dst, src),
            AddrPair::V6(src, dst) => AddrPair::V6(dst, src),
        };
        Ip { addresses, ..self }
    }

    fn v4(&self, src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, len: usize) -> ipv4::Repr {
        ipv4::Repr {
            src,
            dst,
            protocol,
            ttl: 64,
            traffic_class: 0,
            identification: self.identification,
            dont_fragment: true,
            payload_len: len,
        }
    }

    fn v6(&self, src: Ipv6Addr, dst: Ipv6Addr, protocol: Protocol, len: usize) -> ipv6::Repr {
        ipv6::Repr {
            src,
            dst,
            next_header: protocol,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: u32::from(self.identification),
            payload_len: len,
        }
    }
}

/// A Pup as a frame of the 3 Mb/s Ethernet.
pub(super) fn three_megabit(repr: &pup::Repr, payload: &[u8]) -> Vec<u8> {
    let len = pup::Repr::packet_len(payload.len());
    let mut frame = vec![0; ThreeMegabit::LEN + len];
    let header = ThreeMegabit {
        dst: repr.dst.host,
        src: repr.src.host,
        frame_type: ThreeMegabit::PUP,
    };
    header.emit(&mut frame);
    put_pup(&mut frame[ThreeMegabit::LEN..], repr, payload);
    frame
}

fn put_pup(packet: &mut [u8], repr: &pup::Repr, payload: &[u8]) {
    packet[pup::Repr::LEN..pup::Repr::LEN + payload.len()].copy_from_slice(payload);
    repr.emit(packet, payload.len());
}
