//! Packets to the router itself: ARP (RFC 826), neighbour discovery (RFC 4861
//! §7) and echo (RFC 792, RFC 4443 §4). Other packets are refused.

pub(super) mod neighbour_updates;

use super::ETHERNET;
use super::forward::icmp_errors::{Problem, TTL};
use super::table::neighbours::Solicit;
use super::table::routes::LinkId;
use super::{Reason, Router, Verdict};
use neighbour_updates::NeighbourUpdate;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::arp::{self, Operation};
use weir_wire::ethernet::{self, Address};
use weir_wire::field::{array, read_u16, write};
use weir_wire::icmp::{Echo, Message};
use weir_wire::nd::{self, Kind};
use weir_wire::{AddrPair, EtherType, Protocol, checksum, ipv4, ipv6};

/// The all-nodes multicast address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address of an address (RFC 4291 §2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = address.to_bits() & 0xff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The hardware address of an IPv6 multicast group (RFC 2464 §7).
fn group_hardware(group: Ipv6Addr) -> Address {
    let [.., a, b, c, d] = group.octets();
    Address([0x33, 0x33, a, b, c, d])
}

impl Router {
    /// Handles an ARP packet; answers a request for an address of the router in
    /// place.
    pub(super) fn arp(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
    ) -> Result<Verdict, Reason> {
        let packet = arp::Packet::new(&frame[ETHERNET..]).map_err(|_| Reason::Malformed)?;
        let arp = arp::Repr::parse(&packet);
        let own = &self.links[usize::from(link)];
        let sender: IpAddr = arp.sender_ip.into();
        if arp.sender.is_multicast() || arp.sender == own.hardware || own.has(sender) {
            return Err(Reason::NeighbourRefused);
        }
        let to_us = own.has(arp.target_ip.into());
        let (hardware, near) = (own.hardware, own.is_on_link(sender));
        let place = (link, sender);
        match arp.operation {
            Operation::REPLY => {
                let forwarded = self.forward_to_host(now_ns, || NeighbourUpdate {
                    link,
                    address: sender,
                    hardware: arp.sender,
                    solicited: frame[0] & 1 == 0,
                    replaces: true,
                    router: false,
                });
                let waited = self.neighbours.answered(now_ns, place, arp.sender);
                let waited = solicited_reply(waited, forwarded)?;
                self.release(link, arp.sender, waited);
                return Ok(Verdict::Done);
            }
            // A probe for a free address says nothing about its sender.
            Operation::REQUEST if arp.sender_ip.is_unspecified() => {}
            Operation::REQUEST if !near => return Err(Reason::NeighbourRefused),
            Operation::REQUEST if to_us || self.neighbours.knows(place) => {
                let waited = self.neighbours.received_from(place, arp.sender);
                self.release(link, arp.sender, waited);
            }
            Operation::REQUEST => {}
            _ => return Err(Reason::NeighbourRefused),
        }
        if !to_us {
            return Err(Reason::NotForUs);
        }
        let answer = arp::Repr {
            operation: Operation::REPLY,
            sender: hardware,
            sender_ip: arp.target_ip,
            target: arp.sender,
            target_ip: arp.sender_ip,
        };
        let header = ethernet::Repr {
            dst: arp.sender,
            src: hardware,
            ether_type: EtherType::ARP,
        };
        header.emit(frame);
        answer.emit(&mut frame[ETHERNET..]);
        self.counters.neighbours_answered += 1;
        let len = ETHERNET + arp::Repr::LEN;
        Ok(Verdict::Forward { link, len })
    }

    /// Sends an ARP request for a neighbour: unicast if the hardware address is
    /// known, else broadcast.
    pub(super) fn solicit_arp(&mut self, ((link, target), known): Solicit) {
        let own = &self.links[usize::from(link)];
        let (Some(IpAddr::V4(sender_ip)), IpAddr::V4(target_ip)) = (own.source(target), target)
        else {
            return;
        };
        let question = arp::Repr {
            operation: Operation::REQUEST,
            sender: own.hardware,
            sender_ip,
            target: Address::default(),
            target_ip,
        };
        let dst = known.unwrap_or(Address::BROADCAST);
        let mut frame = self.frame(link, dst, EtherType::ARP, arp::Repr::LEN);
        question.emit(&mut frame[ETHERNET..]);
        self.enqueue(link, frame, false);
    }

    /// Sends a neighbour solicitation: unicast if the hardware address is
    /// known, else to the solicited-node group.
    pub(super) fn solicit_nd(&mut self, ((link, target), known): Solicit) {
        let IpAddr::V6(target) = target else { return };
        let own = &self.links[usize::from(link)];
        let src = match own.source(target.into()) {
            Some(IpAddr::V6(src)) => src,
            _ => own.link_local,
        };
        let question = nd::Repr {
            kind: Kind::Solicitation,
            target,
            hardware: Some(own.hardware),
        };
        let dst = match known {
            Some(_) => target,
            None => solicited_node(target),
        };
        let hardware = known.unwrap_or_else(|| group_hardware(dst));
        self.send_nd(link, hardware, (src, dst), &question);
    }

    fn send_nd(
        &mut self,
        link: LinkId,
        hardware: Address,
        addresses: (Ipv6Addr, Ipv6Addr),
        message: &nd::Repr,
    ) {
        let mut body = vec![0; message.len()];
        message.emit(&mut body, AddrPair::V6(addresses.0, addresses.1));
        let mut frame = self.frame_v6(link, addresses, nd::HOP_LIMIT, &body);
        write(&mut frame, 0, &hardware.0);
        self.enqueue(link, frame, false);
    }

    /// Queues an update for the host's own protocols, if they use the links,
    /// too; returns whether they do.
    fn forward_to_host(&mut self, now_ns: u64, word: impl FnOnce() -> NeighbourUpdate) -> bool {
        let queue = self.neighbour_updates.as_mut();
        queue.map(|queue| queue.push(now_ns, word())).is_some()
    }

    /// Handles an IPv4 packet to the router itself.
    pub(super) fn local_v4(&mut self, now_ns: u64, frame: &mut [u8]) -> Result<Verdict, Reason> {
        let packet = &frame[ETHERNET..];
        let total_len = usize::from(read_u16(packet, 2));
        let addresses = AddrPair::V4(
            Ipv4Addr::from(array::<4>(packet, 12)),
            Ipv4Addr::from(array::<4>(packet, 16)),
        );
        let whole = read_u16(packet, 6) & 0x3fff == 0 && packet[0] == 0x45;
        let protocol = Protocol(packet[9]);
        if protocol == Protocol::ICMPV4 && whole {
            let message = &packet[ipv4::Repr::LEN..total_len];
            if is_echo_request(message, addresses)? {
                return self.echo_v4(now_ns, frame, total_len);
            }
        }
        self.reject(now_ns, frame, protocol)
    }

    /// Refuses a packet that no service takes.
    fn reject(&mut self, now_ns: u64, frame: &[u8], protocol: Protocol) -> Result<Verdict, Reason> {
        let problem = match protocol {
            Protocol::ICMPV4 | Protocol::ICMPV6 => None,
            Protocol::UDP => Some(Problem::PortUnreachable),
            _ => Some(Problem::ProtocolUnreachable),
        };
        self.report_from(now_ns, frame, problem, true);
        Err(Reason::NoService)
    }

    /// Answers an echo request in place.
    fn echo_v4(
        &mut self,
        now_ns: u64,
        frame: &mut [u8],
        total_len: usize,
    ) -> Result<Verdict, Reason> {
        let packet = &mut frame[ETHERNET..];
        let src: [u8; 4] = array(packet, 12);
        let own: [u8; 4] = array(packet, 16);
        write(packet, 12, &own);
        write(packet, 16, &src);
        packet[8] = TTL;
        write(packet, 10, &[0, 0]);
        let sum = checksum::internet_checksum(&packet[..ipv4::Repr::LEN]);
        write(packet, 10, &sum.to_be_bytes());
        answer_echo(&mut packet[ipv4::Repr::LEN..], 8, 0);
        let to = Ipv4Addr::from(src);
        let hop = self.reverse_hop(to.into()).ok_or(Reason::NoRoute)?;
        self.counters.echoes += 1;
        self.dispatch(now_ns, hop, to.into(), frame, ETHERNET + total_len)
    }

    /// Handles an IPv6 packet to a multicast group.
    pub(super) fn group_v6(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
        dst: Ipv6Addr,
    ) -> Result<Verdict, Reason> {
        // Interface-local or reserved scope (RFC 4291 §2.7).
        if dst.octets()[1] & 0xf <= 1 {
            return Err(Reason::DestinationMartian);
        }
        let is_icmp = frame[ETHERNET + 6] == Protocol::ICMPV6.0;
        if is_icmp && let Some(done) = self.neighbour_message(now_ns, link, frame) {
            return done;
        }
        Err(Reason::Multicast)
    }

    /// Handles an IPv6 packet to the router itself.
    pub(super) fn local_v6(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
    ) -> Result<Verdict, Reason> {
        let protocol = Protocol(frame[ETHERNET + 6]);
        if protocol != Protocol::ICMPV6 {
            return self.reject(now_ns, frame, protocol);
        }
        if let Some(done) = self.neighbour_message(now_ns, link, frame) {
            return done;
        }
        let packet = &frame[ETHERNET..];
        let total_len = ipv6::Repr::LEN + usize::from(read_u16(packet, 4));
        let (src, own): ([u8; 16], [u8; 16]) = (array(packet, 8), array(packet, 24));
        let addresses = AddrPair::V6(src.into(), own.into());
        if !is_echo_request(&packet[ipv6::Repr::LEN..total_len], addresses)? {
            return self.reject(now_ns, frame, protocol);
        }
        let packet = &mut frame[ETHERNET..];
        write(packet, 8, &own);
        write(packet, 24, &src);
        packet[7] = TTL;
        answer_echo(&mut packet[ipv6::Repr::LEN..], 128, 129);
        self.counters.echoes += 1;
        let to = Ipv6Addr::from(src);
        let hop = self.reverse_hop(to.into()).ok_or(Reason::NoRoute)?;
        self.dispatch(now_ns, hop, to.into(), frame, ETHERNET + total_len)
    }

    /// Handles a neighbour discovery message; `None` for another message.
    fn neighbour_message(
        &mut self,
        now_ns: u64,
        link: LinkId,
        frame: &mut [u8],
    ) -> Option<Result<Verdict, Reason>> {
        let packet = ipv6::Packet::new(&frame[ETHERNET..]).ok()?;
        let message = Message::new(packet.payload()).ok()?;
        let parsed = nd::Repr::parse(&message)?;
        let addresses = AddrPair::V6(packet.src(), packet.dst());
        let hop_limit = frame[ETHERNET + 7];
        let neighbour = match parsed {
            _ if !message.checksum_is_right(addresses) => return Some(Err(Reason::ChecksumWrong)),
            Err(_) => return Some(Err(Reason::Malformed)),
            Ok(neighbour) => neighbour,
        };
        let group = neighbour.hardware.is_some_and(Address::is_multicast);
        if hop_limit != nd::HOP_LIMIT || group {
            return Some(Err(Reason::NeighbourRefused));
        }
        let ends = (packet.src(), packet.dst());
        Some(match neighbour.kind {
            Kind::Solicitation => self.solicited(now_ns, link, ends, &neighbour),
            Kind::Advertisement {
                router,
                solicited,
                replaces,
            } => {
                // A solicited advertisement may not be multicast (RFC 4861
                // §7.1.2).
                let refused = (solicited && ends.1.is_multicast()) || ends.0.is_unspecified();
                let own = self.links[usize::from(link)].has(neighbour.target.into());
                if refused || own {
                    Err(Reason::NeighbourRefused)
                } else {
                    let flags = (router, solicited, replaces);
                    self.advertised(now_ns, link, &neighbour, flags)
                }
            }
        })
    }

    fn solicited(
        &mut self,
        now_ns: u64,
        link: LinkId,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        neighbour: &nd::Repr,
    ) -> Result<Verdict, Reason> {
        let target = neighbour.target;
        let own = &self.links[usize::from(link)];
        // A station without an address checks whether the router's is a
        // duplicate (RFC 4862 §5.4).
        let probe = src.is_unspecified();
        if probe && (neighbour.hardware.is_some() || dst != solicited_node(target)) {
            return Err(Reason::NeighbourRefused);
        }
        if !own.has(target.into()) {
            return Err(Reason::NotForUs);
        }
        if !probe && !own.is_on_link(src.into()) {
            return Err(Reason::NeighbourRefused);
        }
        let answer = nd::Repr {
            kind: Kind::Advertisement {
                router: true,
                solicited: !probe,
                replaces: true,
            },
            target,
            hardware: Some(own.hardware),
        };
        if let Some(hardware) = neighbour.hardware {
            let waited = self.neighbours.received_from((link, src.into()), hardware);
            self.release(link, hardware, waited);
        }
        self.counters.neighbours_answered += 1;
        let to = if probe { ALL_NODES } else { src };
        let mut body = vec![0; answer.len()];
        answer.emit(&mut body, AddrPair::V6(target, to));
        let mut frame = self.frame_v6(link, (target, to), nd::HOP_LIMIT, &body);
        if probe {
            write(&mut frame, 0, &group_hardware(to).0);
            self.enqueue(link, frame, false);
        } else {
            let hop = super::Hop {
                link,
                gateway: None,
            };
            self.transmit(now_ns, hop, to.into(), frame, false);
        }
        Ok(Verdict::Done)
    }

    fn advertised(
        &mut self,
        now_ns: u64,
        link: LinkId,
        neighbour: &nd::Repr,
        (router, solicited, replaces): (bool, bool, bool),
    ) -> Result<Verdict, Reason> {
        let address = neighbour.target.into();
        let forwarded = neighbour.hardware.is_some_and(|hardware| {
            self.forward_to_host(now_ns, || NeighbourUpdate {
                link,
                address,
                hardware,
                solicited,
                replaces,
                router,
            })
        });
        let waited = self.neighbours.advertised(
            now_ns,
            (link, address),
            neighbour.hardware,
            (solicited, replaces),
        );
        let waited = solicited_reply(waited, forwarded)?;
        if let Some(hardware) = neighbour.hardware {
            self.release(link, hardware, waited);
        }
        Ok(Verdict::Done)
    }
}

/// The frames that waited for an answer. An unsolicited answer may be for the
/// host.
fn solicited_reply(
    waited: Option<VecDeque<Vec<u8>>>,
    forwarded: bool,
) -> Result<VecDeque<Vec<u8>>, Reason> {
    match waited {
        None if forwarded => Ok(VecDeque::new()),
        waited => waited.ok_or(Reason::NeighbourRefused),
    }
}

/// Whether a message is an echo request; an error if it is malformed.
fn is_echo_request(message: &[u8], addresses: AddrPair) -> Result<bool, Reason> {
    let message = Message::new(message).map_err(|_| Reason::Malformed)?;
    if !message.checksum_is_right(addresses) {
        return Err(Reason::ChecksumWrong);
    }
    Ok(Echo::parse(&message, addresses).is_some_and(|echo| !echo.reply))
}

/// Converts an echo request into the reply: the type, and the checksum with it.
/// The addresses are swapped, which does not change the checksum.
fn answer_echo(message: &mut [u8], request: u8, reply: u8) {
    let [old, new] = [request, reply].map(|kind| u16::from_be_bytes([kind, 0]));
    let sum = checksum::update(read_u16(message, 2), old, new);
    message[0] = reply;
    write(message, 2, &sum.to_be_bytes());
}
