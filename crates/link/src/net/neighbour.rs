//! Telling the kernel what its neighbours have said, where another than its
//! own protocols hears them.

use super::netlink::Netlink;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// What a neighbour has said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourUpdate {
    /// The number of the interface that it is on.
    pub ifindex: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub hardware: [u8; 6],
    /// It answers a question, and so is reachable.
    pub solicited: bool,
    /// It stands in place of another hardware address.
    pub replaces: bool,
    /// It is a router (IPv6).
    pub router: bool,
}

/// The kernel's neighbours of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Neighbours(Netlink);

impl Neighbours {
    /// In the calling thread's network namespace.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn open() -> io::Result<Neighbours> {
        Netlink::open().map(Neighbours)
    }

    /// Tells the kernel, as if it had heard it by itself: news of a neighbour
    /// that it does not know, or that was entered by hand, change nothing.
    /// Tells whether they were taken. Linux 5.0.
    ///
    /// # Errors
    /// What the kernel answers.
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

    /// What the kernel holds of it; `None` if it does not know it.
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

/// That there is no such neighbour is an answer.
fn unknown<T>(error: io::Error, answer: T) -> io::Result<T> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(answer),
        _ => Err(error),
    }
}
