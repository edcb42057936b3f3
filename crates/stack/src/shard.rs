//! [`Shards`]: one host made of several stacks, one for each core, that share nothing. A keyed
//! hash of local and remote address and port assigns each TCP connection to one stack. The
//! datagrams between a peer and a local UDP port likewise belong to one stack.
//!
//! ```text
//!            ┌─ TCP, ICMP errors about it ──► owner(local, remote)
//!            ├─ UDP, ICMP errors about it ──► datagram_owner(local, remote)
//!  frame ────┼─ neighbour advertisements ───► all
//!            └─ the rest ───────────────────► 0, the first: ARP and ND questions,
//!                                             addresses, groups, ping, DHCP,
//!                                             fragments until they are whole
//! ```
//!
//! The hash takes the local end first, then the remote end, so that frames of both directions,
//! and a packet quoted in an ICMP error, give the same owner. The hash is that of the PCB table
//! with its own key: without the seed no peer can direct all connections at one shard. For UDP
//! the local address does not count, since a sending socket may not know it yet.

use crate::iface::{Interface, LinkAddressing, quoted_by, walk};
use crate::pcb::{Key, KeyHash};
use crate::rng::PrfRng;
use crate::stack::Stack;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_wire::icmp::Message;
use weir_wire::{AddrPair, EtherType, Protocol, arp, dhcp, ethernet, ipv4, ipv6};

/// Limit on the stacks of one host.
pub const SHARDS_MAX: usize = 64;
/// Limit on packets that wait in one stack to be fetched for another.
pub const MISDIRECTED_MAX: usize = 64;

/// Type of ICMPv6 neighbour advertisements (RFC 4861 §4.4).
const ADVERTISEMENT: u8 = 136;

/// Assigns frames and connections to the stacks of one host.
#[derive(Clone)]
pub struct Shards {
    count: u64,
    seed: u128,
    v4: KeyHash<1>,
    v6: KeyHash<4>,
}

/// The owner of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// The stack of this number.
    One(usize),
    /// All stacks, since the frame announces a neighbour.
    All,
}

/// Why the number of stacks is invalid.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("{0} shards are not 1 to {SHARDS_MAX}: give as many as there are cores for them")]
pub struct ShardsError(pub usize);

/// The addresses and routes of a host, as one stack passes them to another: see
/// [`Stack::addressing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressConfig(pub(crate) Vec<LinkAddressing>);

impl Shards {
    /// Assigns to `count` stacks, by secrets derived from `seed`.
    ///
    /// # Errors
    /// If `count` is 0 or more than [`SHARDS_MAX`].
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

    /// Number of stacks.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The seed of the stack of this number, which reveals no other stack's seed.
    pub fn seed(&self, number: usize) -> u128 {
        let mut rng = PrfRng::new(self.seed, "a shard");
        for _ in 0..number {
            rng.wide();
        }
        rng.wide()
    }

    /// The number of the stack that owns the connection between these two.
    #[inline]
    pub fn owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        let hash = match Key::new(local, remote) {
            Some(Key::V4(key)) => self.v4.hash(&key),
            Some(Key::V6(key)) => self.v6.hash(&key),
            None => 0,
        };
        (((hash >> 32) * self.count) >> 32) as usize
    }

    /// The number of the stack that owns the datagrams between these two, in both directions.
    /// The first stack owns those of groups, of which it alone is a member, and those of the
    /// DHCP client.
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

    /// The owner of a received frame.
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
                // An ARP reply, or an announcement (RFC 5227 §3).
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

/// The addresses and ports of a segment or datagram: source, then destination.
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

/// The part of one stack.
pub(crate) struct Shard {
    pub(crate) shards: Shards,
    number: usize,
    /// Whole packets of other stacks, with the links by which they came.
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

    /// Whether this stack owns the connection between these two.
    pub(crate) fn is_own(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.shards.owner(local, remote) == self.number
    }

    /// The other stack that owns a reassembled packet; `None` if this one does.
    pub(crate) fn other(&self, packet: &[u8]) -> Option<usize> {
        match self.shards.find_packet(packet) {
            Some(Steering::One(owner)) => Some(owner).filter(|owner| *owner != self.number),
            _ => None,
        }
    }
}

impl Stack {
    /// Makes this stack one of several that form one host. The stack has the connections of
    /// [`Shards::owner`] and the datagrams of [`Shards::datagram_owner`]; the caller must not
    /// pass it frames of other stacks. The stack chooses transport ports so that replies belong
    /// to it. One stack may get all fragments: see [`Stack::next_misdirected`].
    ///
    /// # Panics
    /// If `number` is not below the number of stacks.
    pub fn tcp_shard(&mut self, shards: Shards, number: usize) {
        assert!(
            number < shards.count(),
            "shard {number} of {}",
            shards.count()
        );
        self.tcp.shard = Some(Box::new(Shard::new(shards, number)));
    }

    /// Takes a packet that arrived in fragments and belongs to another stack: that stack's
    /// number, the link, and the frame that the other stack must receive. At most
    /// [`MISDIRECTED_MAX`] packets wait. `None` if none waits.
    pub fn next_misdirected(&mut self) -> Option<(usize, u8, Vec<u8>)> {
        self.tcp.shard.as_mut()?.misdirected.pop_front()
    }

    /// The stack that owns a connection to be opened from a port of the caller's choice; `None`
    /// if no route leads to `remote`, or the stack is the only one.
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

    /// Adopts the addresses and routes of the host's first stack. That stack alone detects
    /// duplicates, asks routers and servers, and answers solicitations. The others are made without
    /// addresses and routes, and without all that in their configurations.
    pub fn apply_addressing(&mut self, addressing: &AddressConfig) {
        let mut lost = false;
        for (host, link) in self.interfaces.iter_mut().zip(&addressing.0) {
            host.follow(link);
            lost |= host.take_removed();
        }
        if lost {
            self.disarm();
        }
    }
}
