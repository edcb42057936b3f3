//! Reports neighbours to the kernel that weir, not the kernel's own protocols,
//! received.

use super::netlink::Netlink;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// A neighbour's advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourUpdate {
    /// The interface's number.
    pub ifindex: u32,
    /// The neighbour's IP address.
    pub address: IpAddr,
    /// The neighbour's MAC address.
    pub hardware: [u8; 6],
    /// The advertisement answers a solicitation, so the neighbour is reachable.
    pub solicited: bool,
    /// The advertisement overrides another MAC address (override flag, RFC
    /// 4861).
    pub replaces: bool,
    /// The neighbour is a router (IPv6).
    pub router: bool,
}

/// The kernel's neighbour table of the network namespace in which this value
/// was opened.
#[derive(Debug)]
pub struct Neighbours(Netlink);

impl Neighbours {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn open() -> io::Result<Neighbours> {
        Netlink::open().map(Neighbours)
    }

    /// Updates the kernel's entry as if the kernel had received the
    /// advertisement: an unknown or permanent entry is not changed. Returns
    /// whether the update was made. Linux 5.0.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn confirm(&mut self, news: &NeighbourUpdate) -> io::Result<bool> {
        let by_hand = |state| matches!(state, NeighbourState::Permanent | NeighbourState::Noarp);
        match self.state(news)? {
            None => return Ok(false),
            Some(state) if by_hand(state) => return Ok(false),
            Some(_) => {}
        }
        let mut message = named(news);
        message.header.state = if news.solicited {
            NeighbourState::Reachable
        } else {
            NeighbourState::Stale
        };
        if news.router {
            message.header.flags = NeighbourFlags::Router;
        }
        let hardware = news.hardware.to_vec();
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(hardware));
        let flags = if news.replaces { NLM_F_REPLACE } else { 0 };
        let confirmed = self
            .0
            .request(RouteNetlinkMessage::NewNeighbour(message), flags);
        confirmed
            .map(|_| true)
            .or_else(|error| unknown(error, false))
    }

    /// The kernel's entry; `None` if it has none.
    fn state(&mut self, news: &NeighbourUpdate) -> io::Result<Option<NeighbourState>> {
        let message = RouteNetlinkMessage::GetNeighbour(named(news));
        let answers = match self.0.request(message, 0) {
            Ok(answers) => answers,
            Err(error) => return unknown(error, None),
        };
        let mut states = answers.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(found) => Some(found.header.state),
            _ => None,
        });
        Ok(states.next())
    }
}

fn named(news: &NeighbourUpdate) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match news.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = news.ifindex;
    message.attributes = vec![NeighbourAttribute::Destination(news.address.into())];
    message
}

/// Treats "no such neighbour" as the answer `answer`.
fn unknown<T>(error: io::Error, answer: T) -> io::Result<T> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(answer),
        _ => Err(error),
    }
}
