//! Interfaces: what they are, and what happens to them, by routing netlink
//! (RFC 3549).

use crate::protocol::Event;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, State};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weir_wire::LinkType;

/// The longest datagram of the kernel: a dump comes in pieces of 32 KiB.
const REPLY_LEN_MAX: usize = 64 << 10;

/// `RTMGRP_LINK`: changes of interfaces.
const GROUP_LINK: u32 = 1;

/// An interface's facts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Its number.
    pub ifindex: u32,
    /// How its frames begin.
    pub linktype: LinkType,
    /// Whether what is sent there comes in there.
    pub is_loopback: bool,
    /// Its link-layer address; empty without one.
    pub address: Vec<u8>,
    /// The link-layer address of all stations; empty without one.
    pub broadcast: Vec<u8>,
    /// The largest packet, in bytes without the link-layer header.
    pub mtu: u32,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether the link has a partner, as far as the driver says.
    pub is_running: bool,
}

impl Facts {
    /// Bytes of the link-layer header.
    pub fn header_len(&self) -> u32 {
        match self.linktype {
            LinkType::EN10MB => 14,
            _ => 0,
        }
    }

    /// The mask of its first IPv4 network.
    pub fn netmask(&self) -> Option<Ipv4Addr> {
        let v4 = |(address, len): &(IpAddr, u8)| address.is_ipv4().then_some(*len);
        let len = u32::from(self.addresses.iter().find_map(v4)?);
        let bits = u32::MAX.checked_shl(32 - len.min(32)).unwrap_or(0);
        Some(Ipv4Addr::from_bits(bits))
    }

    /// What has happened since `before`.
    pub fn events_since(&self, before: &Facts) -> Vec<Event> {
        let mut events = Vec::new();
        if self.name != before.name {
            let name = self.name.clone();
            events.push(Event::Renamed { name });
        }
        if self.mtu != before.mtu {
            events.push(Event::Mtu { mtu: self.mtu });
        }
        let works = |facts: &Facts| facts.is_up && facts.is_running;
        match (works(before), works(self)) {
            (false, true) => events.push(Event::Up),
            (true, false) => events.push(Event::Down),
            _ => {}
        }
        events
    }
}

/// A netlink socket for questions. It stays in the network namespace that it
/// was opened in.
#[derive(Debug)]
pub struct Interfaces {
    socket: OwnedFd,
    sequence: u32,
}

impl Interfaces {
    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<Interfaces> {
        Ok(Interfaces {
            socket: netlink(SocketFlags::CLOEXEC)?,
            sequence: 0,
        })
    }

    /// The interface of that name.
    ///
    /// # Errors
    /// If there is none (`NotFound`).
    pub fn by_name(&mut self, name: &str) -> io::Result<Facts> {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.ask(message)
    }

    /// The interface of that number, whatever its name is now.
    ///
    /// # Errors
    /// If there is none (`NotFound`).
    pub fn by_index(&mut self, ifindex: u32) -> io::Result<Facts> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        self.ask(message)
    }

    fn ask(&mut self, message: LinkMessage) -> io::Result<Facts> {
        let replies = self.request(RouteNetlinkMessage::GetLink(message), NLM_F_ACK);
        let replies = replies.map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NODEV.raw_os_error() => {
                io::ErrorKind::NotFound.into()
            }
            _ => error,
        })?;
        let mut links = replies.into_iter().filter_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(link) => Some(facts(&link)),
            _ => None,
        });
        let mut facts = links.next().ok_or(io::ErrorKind::NotFound)?;
        facts.addresses = self.addresses(facts.ifindex)?;
        Ok(facts)
    }

    fn addresses(&mut self, ifindex: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let replies = self.request(all, NLM_F_DUMP)?;
        let mut found = Vec::new();
        for reply in replies {
            let RouteNetlinkMessage::NewAddress(message) = reply else {
                continue;
            };
            if message.header.index != ifindex {
                continue;
            }
            // IPv4 says its own address apart from a partner's.
            let local = message.attributes.iter().find_map(|one| match one {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|one| match one {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            if let Some(address) = local.or(any) {
                found.push((address, message.header.prefix_len));
            }
        }
        Ok(found)
    }

    /// Asks, and collects what the kernel answers up to its end.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;
        let mut replies = Vec::new();
        let mut buffer = vec![0; REPLY_LEN_MAX];
        loop {
            let (len, _) = recv(&self.socket, &mut buffer, RecvFlags::empty())?;
            let mut rest = &buffer[..len];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                // Messages are aligned to four bytes (RFC 3549 §2.3.2).
                let taken = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(taken..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

/// Becomes readable when some interface changes.
#[derive(Debug)]
pub struct Watch {
    socket: OwnedFd,
}

impl Watch {
    /// Over the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<Watch> {
        let socket = netlink(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
        Ok(Watch { socket })
    }

    /// Forgets what has come: look at the interfaces of interest afterwards.
    /// What changed is not read from the messages, so that it does not matter
    /// if some were lost.
    pub fn drain(&self) {
        let mut buffer = vec![0; REPLY_LEN_MAX];
        loop {
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                // Messages were lost: those that are there are still to go.
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn netlink(flags: SocketFlags) -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0.
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        None,
    )?)
}

fn facts(message: &LinkMessage) -> Facts {
    let mut facts = Facts {
        name: String::new(),
        ifindex: message.header.index,
        linktype: match message.header.link_layer_type {
            LinkLayerType::Ether | LinkLayerType::Loopback => LinkType::EN10MB,
            _ => LinkType::RAW,
        },
        is_loopback: message.header.flags.contains(LinkFlags::Loopback),
        address: Vec::new(),
        broadcast: Vec::new(),
        mtu: 0,
        addresses: Vec::new(),
        is_up: message.header.flags.contains(LinkFlags::Up),
        is_running: false,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => facts.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => facts.mtu = *mtu,
            LinkAttribute::Address(address) => facts.address.clone_from(address),
            LinkAttribute::Broadcast(address) => facts.broadcast.clone_from(address),
            // Loopback and tunnels do not know.
            LinkAttribute::OperState(state) => {
                facts.is_running = matches!(state, State::Up | State::Unknown);
            }
            _ => {}
        }
    }
    facts
}
