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
mod flow_cache;
mod gate;
mod host_filter;
mod sched;
mod tx_burst;
mod xsk;

pub use flow_cache::{
    DriverEvent, DriverWatch, FAST_ENTRIES_MAX, Fast, FastAction, FastKey, FastKind, PATIENCE,
    takes_redirected,
};
pub use gate::liveness::{DeathWord, Life};
pub use gate::pin_dir::Holder;
pub use gate::shared_page::{Bypass, LINKS_MAX, MEMBERS_MAX, QUEUES_MAX, State, Trips, Why};
pub use gate::{Attached, Gate, GateError, GateParts, LinkParts};
pub use host_filter::update::HostChange;
pub use host_filter::{HOST_ADDRESSES_MAX, HostFilter, HostFilterError};
pub use sched::context_switches::waits;
pub use sched::priority::first_in_line;
pub use tx_burst::{BULK_BYTES, BULK_FRAMES_MAX, Bulk, BulkError, POOLS_MAX};
pub(crate) use xsk::socket::send_many_at_once;
pub use xsk::socket::{CopyMode, Xsk, XskCounts, XskError, XskSpec, wait_readable};
