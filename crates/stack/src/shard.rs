//! One host made of several stacks, one a core, which share nothing: each TCP
//! connection is one stack's, by a keyed hash of its ends, and so is what one peer
//! and one transport port of ours send each other by UDP.
//!
//! ```text
//!            ┌─ TCP, ICMP errors about it ──► owner(local, remote)
//!            ├─ UDP, ICMP errors about it ──► datagram_owner(local, remote)
//!  frame ────┼─ who neighbours are ─────────► all
//!            └─ the rest ───────────────────► 0, the first: ARP and ND questions,
//!                                             addresses, groups, ping, DHCP,
//!                                             fragments until they are whole
//! ```
//!
//! The ends are ours and the peer's, in this order, so that a frame of either
//! direction and the packet that an error quotes say the same. The hash is that
//! of the PCB table with a key of its own: without the seed nobody can send
//! all connections to one shard. Of UDP our address does not count, which a socket
//! that sends need not know yet.

use crate::iface::{Interface, LinkAddressing, quoted_by, walk};
use crate::pcb::{Key, KeyHash};
use crate::rng::PrfRng;
use crate::stack::Stack;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_wire::icmp::Message;
use weir_wire::{AddrPair, EtherType, Protocol, arp, dhcp, ethernet, ipv4, ipv6};

/// Stacks of one host.
pub const SHARDS_MAX: usize = 64;
/// Packets that wait in one stack to be fetched for another.
pub const MISDIRECTED_MAX: usize = 64;

/// The type of ICMPv6's neighbour advertisements (RFC 4861 §4.4).
const ADVERTISEMENT: u8 = 136;

/// Deals frames and connections out among the stacks of one host.
#[derive(Clone)]
pub struct Shards {
    count: u64,
    seed: u128,
    v4: KeyHash<1>,
    v6: KeyHash<4>,
}

/// Whose a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// The stack's of this number.
    One(usize),
    /// Everybody's: it tells who a neighbour is.
    All,
}

/// Why there are no such shards.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("{0} shards are not 1 to {SHARDS_MAX}: give as many as there are cores for them")]
pub struct ShardsError(pub usize);

/// The addresses and routes of a host, as its stacks tell each other: see
/// [`Stack::addressing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressConfig(pub(crate) Vec<LinkAddressing>);

impl Shards {
    /// So many, dealt to by a secret.
    ///
    /// # Errors
    /// If they are none or more than [`SHARDS_MAX`].
    pub fn new(count: usize, seed: u128) -> Result<Shards, ShardsError> {
        if !(1..=SHARDS_MAX).contains(&count) {
            return Err(ShardsError(count));
        }
        let mut rng = PrfRng::new(seed, "shards");
        Ok(Shards {
            count: count as u64,
            seed: rng.wide(),
            v4: KeyHash::new(rng.wide()),
            v6: KeyHash::new(rng.wide()),
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// A seed for the stack of this number, from which no other's can be had.
    pub fn seed(&self, number: usize) -> u128 {
        let mut rng = PrfRng::new(self.seed, "a shard");
        for _ in 0..number {
            rng.wide();
        }
        rng.wide()
    }

    /// Whose the connection between these two is: ours, and the peer's.
    #[inline]
    pub fn owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        let hash = match Key::new(local, remote) {
            Some(Key::V4(key)) => self.v4.hash(&key),
            Some(Key::V6(key)) => self.v6.hash(&key),
            None => 0,
        };
        (((hash >> 32) * self.count) >> 32) as usize
    }

    /// Whose the datagrams between these two are, both ways. The first has what
    /// goes to groups and comes to them, of which it alone is a member, and a DHCP
    /// client's.
    #[inline]
    pub fn datagram_owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        let to_group = local.ip().is_multicast() || remote.ip().is_multicast();
        if to_group || local.port() == dhcp::CLIENT_PORT {
            return 0;
        }
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.owner(SocketAddr::new(any, local.port()), remote)
    }

    /// Whose a frame that came is.
    #[inline]
    pub fn steer(&self, frame: &[u8]) -> Steering {
        self.find(frame).unwrap_or(Steering::One(0))
    }

    fn find(&self, frame: &[u8]) -> Option<Steering> {
        let frame = ethernet::Frame::new(frame).ok()?;
        match frame.ether_type() {
            EtherType::IPV4 | EtherType::IPV6 => self.find_packet(frame.payload()),
            EtherType::ARP => {
                let packet = arp::Packet::new(frame.payload()).ok()?;
                let arp = arp::Repr::parse(&packet);
                // An answer, or an announcement (RFC 5227 §3).
                let tells =
                    arp.operation == arp::Operation::REPLY || arp.sender_ip == arp.target_ip;
                tells.then_some(Steering::All)
            }
            _ => None,
        }
    }

    fn find_packet(&self, bytes: &[u8]) -> Option<Steering> {
        let (addresses, protocol, payload) = match bytes.first()? >> 4 {
            4 => {
                let packet = ipv4::Packet::new(bytes).ok()?;
                if packet.more_fragments() || packet.fragment_offset() > 0 {
                    return None;
                }
                let addresses = AddrPair::V4(packet.src(), packet.dst());
                (addresses, packet.protocol(), packet.payload())
            }
            6 => {
                let packet = ipv6::Packet::new(bytes).ok()?;
                let found = walk(packet.next_header(), packet.payload()).ok()?;
                if found.fragment.is_some() {
                    return None;
                }
                let addresses = AddrPair::V6(packet.src(), packet.dst());
                (addresses, found.protocol, found.payload)
            }
            _ => return None,
        };
        let v4 = matches!(addresses, AddrPair::V4(..));
        match protocol {
            Protocol::TCP => {
                let [src, dst] = ends(addresses, payload)?;
                Some(Steering::One(self.owner(dst, src)))
            }
            Protocol::UDP => {
                let [src, dst] = ends(addresses, payload)?;
                Some(Steering::One(self.datagram_owner(dst, src)))
            }
            Protocol::ICMPV6 if !v4 && payload.first() == Some(&ADVERTISEMENT) => {
                Some(Steering::All)
            }
            Protocol::ICMPV4 | Protocol::ICMPV6 => {
                let message = Message::new(payload).ok()?;
                let (addresses, protocol, transport) = quoted_by(&message, v4)?;
                let [src, dst] = ends(addresses, transport)?;
                match protocol {
                    Protocol::TCP => Some(Steering::One(self.owner(src, dst))),
                    Protocol::UDP => Some(Steering::One(self.datagram_owner(src, dst))),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Source and destination of a segment or datagram.
fn ends(addresses: AddrPair, segment: &[u8]) -> Option<[SocketAddr; 2]> {
    let &[a, b, c, d] = segment.first_chunk()?;
    let (src, dst): (IpAddr, IpAddr) = match addresses {
        AddrPair::V4(src, dst) => (src.into(), dst.into()),
        AddrPair::V6(src, dst) => (src.into(), dst.into()),
    };
    let port = |high, low| u16::from_be_bytes([high, low]);
    Some([
        SocketAddr::new(src, port(a, b)),
        SocketAddr::new(dst, port(c, d)),
    ])
}

/// One of them.
pub(crate) struct Shard {
    pub(crate) shards: Shards,
    number: usize,
    /// Whole packets of others, with the link that they came by.
    pub(crate) misdirected: VecDeque<(usize, u8, Vec<u8>)>,
}

impl Shard {
    pub(crate) fn new(shards: Shards, number: usize) -> Shard {
        Shard {
            shards,
            number,
            misdirected: VecDeque::new(),
        }
    }

    /// Whether a connection between these two is this one's.
    pub(crate) fn is_own(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.shards.owner(local, remote) == self.number
    }

    /// The other one that a whole packet is for.
    pub(crate) fn other(&self, packet: &[u8]) -> Option<usize> {
        match self.shards.find_packet(packet) {
            Some(Steering::One(owner)) => Some(owner).filter(|owner| *owner != self.number),
            _ => None,
        }
    }
}

impl Stack {
    /// Makes this stack one of several that are one host, each with its
    /// connections: those that [`Shards::owner`] says, and with the datagrams that
    /// [`Shards::datagram_owner`] says. What is another's must not come here; TCP's
    /// transport ports that nobody chose are chosen so that nothing does. Fragments
    /// can all be given to one of them: see [`Stack::next_misdirected`].
    ///
    /// # Panics
    /// If there are not so many shards.
    pub fn tcp_shard(&mut self, shards: Shards, number: usize) {
        assert!(
            number < shards.count(),
            "shard {number} of {}",
            shards.count()
        );
        self.tcp.shard = Some(Box::new(Shard::new(shards, number)));
    }

    /// A packet that came in fragments and is another shard's: whose it is, and
    /// the frame, by its link, that the other is to receive. At most
    /// [`MISDIRECTED_MAX`] wait.
    pub fn next_misdirected(&mut self) -> Option<(usize, u8, Vec<u8>)> {
        self.tcp.shard.as_mut()?.misdirected.pop_front()
    }

    /// Which shard a connection belongs to that is opened from a transport port
    /// of the caller's choice; `None` if no route leads there, or the stack is
    /// the only one.
    pub fn tcp_owner(&self, local: SocketAddr, remote: SocketAddr) -> Option<usize> {
        let shard = self.tcp.shard.as_ref()?;
        let ip = match local.ip() {
            ip if ip.is_unspecified() => {
                let link = self.interfaces.egress_interface(ip, remote, 0)?;
                self.interfaces.at(link).routes.source_for(remote.ip())?
            }
            ip => ip,
        };
        Some(
            shard
                .shards
                .owner(SocketAddr::new(ip, local.port()), remote),
        )
    }

    /// The addresses and routes that this stack looks after, for others of the
    /// same host.
    pub fn addressing(&self) -> AddressConfig {
        AddressConfig(self.interfaces.iter().map(Interface::addressing).collect())
    }

    /// A number that changes when [`Stack::addressing`] may have.
    pub fn addressing_epoch(&self) -> u64 {
        let epochs = self.interfaces.iter().map(Interface::addressing_epoch);
        epochs.map(u64::from).sum()
    }

    /// Takes up the addresses and routes that another stack of the same host
    /// looks after: it alone asks whether they are free, routers and servers for
    /// them, and answers who asks for them. The others are made without
    /// addresses and routes, and without all that in their configurations.
    pub fn apply_addressing(&mut self, addressing: &AddressConfig) {
        let mut lost = false;
        for (host, told) in self.interfaces.iter_mut().zip(&addressing.0) {
            host.follow(told);
            lost |= host.take_removed();
        }
        if lost {
            self.disarm();
        }
    }
}
