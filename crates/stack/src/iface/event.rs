//! [`Event`]: changes of a host's addresses and routers, for the application.

use super::{Origin, Prefix};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ethernet::Address;

/// Limit on unread events of a link; a further event displaces the oldest.
pub const EVENTS_MAX: usize = 64;

/// A change of a host's addresses or routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The host has an address from now on.
    Address(Prefix, Origin),
    /// The host no longer has the address.
    Lost(Prefix, RemovalReason),
    /// A router is a default router from now on.
    Router(IpAddr),
    /// A DHCP server granted or renewed a lease.
    Lease {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
        /// Lease time in seconds; [`u32::MAX`] is infinite.
        seconds: u32,
        /// Whether the lease was renewed.
        renewed: bool,
    },
    /// A DHCP server refused a lease (DHCPNAK).
    Refused {
        /// The server, if it names itself.
        server: Option<Ipv4Addr>,
        /// The server's reason.
        message: Option<String>,
    },
}

/// Why the host lost an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovalReason {
    /// Another station has the address; its hardware address, if known.
    Duplicate(Option<Address>),
    /// Another link of this host has the address.
    OtherLink,
    /// The address's lifetime has ended, or a server withdrew it.
    Expired,
}

/// The unread events of one link.
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
