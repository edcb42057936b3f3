//! What a host tells of itself, for its owner to learn.

use super::{Origin, Prefix};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ethernet::Address;

/// Events that wait to be read; one more displaces the oldest.
pub const EVENTS_MAX: usize = 64;

/// Something that happened to a host's addresses or routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An address is ours from now on.
    Address(Prefix, Origin),
    /// It is no longer.
    Lost(Prefix, RemovalReason),
    /// A router is a default router from now on.
    Router(IpAddr),
    /// A DHCP server gave an address for so many seconds, or lets us keep it.
    Lease {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
        /// How long; [`u32::MAX`] for ever.
        seconds: u32,
        /// We had it before.
        renewed: bool,
    },
    /// A DHCP server gives none, and says why.
    Refused {
        /// The server, if it names itself.
        server: Option<Ipv4Addr>,
        /// What it says.
        message: Option<String>,
    },
}

/// Why an address is no longer ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovalReason {
    /// Another station has it; which, if it said so.
    Duplicate(Option<Address>),
    /// Another link of ours has it.
    OtherLink,
    /// Its time is over, or a server took it back.
    Expired,
}

/// See the module.
#[derive(Default)]
pub(super) struct Events(VecDeque<Event>);

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        if self.0.len() == EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        self.0.pop_front()
    }
}
