//! The machine's network interfaces: properties, events, addresses, routes, TAP devices.
//!
//! Everything here concerns one network namespace: the calling thread's, or the one in which a
//! [`Netlink`] socket, [`Interfaces`] or an [`InterfaceMonitor`] was opened. Queries need no
//! privilege.

mod ethtool;
mod features;
pub(crate) mod ifreq;
mod interface;
mod monitor;
mod namespace;
mod neighbour;
mod netlink;
mod peer;
mod routes;
mod sockopt;
mod tap;
pub(crate) mod veth;
mod write_batch;
mod xfrm;

pub use ethtool::{Feature, driver};
pub use features::Features;
pub use interface::{
    Address, Interface, InterfaceCounters, InterfaceError, Interfaces, Xdp, XdpMode, drops,
    interfaces,
};
pub(crate) use interface::{find_index, find_index_by};
pub use monitor::{AddressMonitor, Event, InterfaceMonitor};
pub use namespace::NamespaceError;
pub(crate) use namespace::{FarNamespace, Namespace, search};
pub use neighbour::{NeighbourUpdate, Neighbours};
pub use netlink::Netlink;
pub use peer::{Credentials, peer_credentials, peer_groups, peer_pidfd, set_pass_rights};
pub use routes::{Route, RouteEvent, RouteHop, RouteKind, RouteMonitor};
pub(crate) use sockopt::set_option;
pub use tap::{Tap, TapGso, TapHeader};
pub use write_batch::{RING_ENTRIES, WriteBatch};
pub use xfrm::{XfrmMessage, XfrmMonitor, XfrmNews, xfrm_messages};
