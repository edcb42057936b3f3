//! The interfaces of this machine: what they are, and what happens to them.
//!
//! All of it is of the network namespace that the calling thread is in, or was
//! in when it opened a [`Netlink`] socket, [`Interfaces`] or a [`Watcher`]; and
//! needs no privilege.

pub(crate) mod change;
mod ethtool;
mod features;
mod interface;
mod namespace;
mod neighbour;
mod netlink;
mod option;
mod peer;
pub(crate) mod request;
mod routes;
mod run;
mod tap;
mod watch;

pub use ethtool::{Feature, driver};
pub use features::Features;
pub(crate) use interface::find_index;
pub use interface::{
    Address, Interface, InterfaceError, Interfaces, Xdp, XdpMode, drops, interfaces,
};
pub(crate) use namespace::Namespace;
pub use namespace::NamespaceError;
pub use neighbour::{NeighbourNews, Neighbours};
pub use netlink::Netlink;
pub(crate) use option::set_option;
pub use peer::{Credentials, peer_credentials, peer_groups, peer_pidfd, set_pass_rights};
pub use routes::{Route, RouteEvent, RouteHop, RouteKind, RouteWatcher};
pub use run::Run;
pub use tap::{Tap, TapGso, TapHeader};
pub use watch::{AddressWatcher, Event, Watcher};
