//! Taps: whole queues of an interface by `AF_XDP`, and the programs in the
//! kernel that hand frames to them, or around them when nobody takes them.
//!
//! - [`Xsk`]: a socket for one queue, on a UMEM that all share.
//! - [`Gate`]: a program at each link. While it is open, frames go to the
//!   sockets; it shuts by itself when their process dies or hangs, and then
//!   frames take the [`Bypass`].
//! - [`Fast`]: cached verdicts, by which the programs forward by themselves.
//! - [`Bulk`]: sending many frames at once, without a socket buffer for each.
//! - [`HostFilter`]: what the host's own protocols have all the same;
//!   [`HostChange`] gives a link another.
//! - [`State`]: the page that both sides share: heartbeat, limit, epoch.

mod abi;
mod bulk;
mod death;
mod fast;
mod gate;
mod host;
mod host_change;
mod place;
mod priority;
mod program;
mod promiscuous;
mod socket;
mod state;
mod waits;

pub use bulk::{BULK_BYTES, BULK_FRAMES_MAX, Bulk, BulkError, POOLS_MAX};
pub use death::{DeathWord, Life};
pub use fast::{
    DriverEvent, DriverWatch, FAST_ENTRIES_MAX, Fast, FastAction, FastKey, FastKind, PATIENCE,
    takes_redirected,
};
pub use gate::{Attached, Gate, GateError, GateParts, LinkParts};
pub use host::{HOST_ADDRESSES_MAX, HostFilter, HostFilterError};
pub use host_change::HostChange;
pub use place::Holder;
pub use priority::first_in_line;
pub(crate) use socket::send_many_at_once;
pub use socket::{CopyMode, Xsk, XskCounts, XskError, XskSpec, wait_readable};
pub use state::{Bypass, LINKS_MAX, MEMBERS_MAX, QUEUES_MAX, State, Trips, Why};
pub use waits::waits;
