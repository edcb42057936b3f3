//! Taps: whole queues of an interface through `AF_XDP`, and the programs in the
//! kernel that pass frames to them, or around them while no process takes
//! frames.
//!
//! - [`Xsk`]: an `AF_XDP` socket for one queue, on a UMEM that all queues
//!   share.
//! - [`Gate`]: a program at each link. While it is open, frames go to the
//!   sockets; it shuts when their process dies or hangs, and then frames take
//!   the [`Bypass`].
//! - [`FlowMaps`]: the flow cache, verdicts that the programs repeat.
//! - [`TxBurst`]: sends many frames at once, without a socket buffer for each.
//! - [`HostFilter`]: the frames of a tapped link that the host keeps;
//!   [`HostFilterUpdater`] replaces the filter.
//! - [`Meter`]: counts per subscriber and service, made before all else.
//! - [`SharedPage`]: the page shared by process and programs: heartbeat, hang
//!   limit, epoch.

mod abi;
mod flow_cache;
mod gate;
mod host_filter;
mod meter;
mod sched;
mod tx_burst;
mod xsk;

pub use flow_cache::{
    ACTIVATE_WAIT, FLOW_ENTRIES_MAX, FlowAction, FlowKey, FlowKind, FlowMaps, Rewrite, Translation,
    XdpFeatureEvent, XdpFeatureMonitor, supports_ndo_xmit,
};
pub use gate::liveness::{LivenessLock, OwnerState};
pub use gate::pin_dir::{OwnerProcess, mount_for_all};
pub use gate::shared_page::{
    Bypass, BypassCounts, BypassReason, LINKS_MAX, MEMBERS_MAX, QUEUES_MAX, SharedPage,
};
pub use gate::{AttachmentCheck, Gate, GateError, GateFds, LinkFds};
pub use host_filter::update::HostFilterUpdater;
pub use host_filter::{HOST_ADDRESSES_MAX, HostFilter, HostFilterError};
pub use meter::{
    Banks, Cell, Cut, CutOwner, HandedFrames, MIRROR_PREFIXES_MAX, Meter, MeterError, MeterSpec,
    MeterStage, MeterTap, MirrorUp, OpenedMeter, PREFIX_LENGTHS_MAX, PreviousMeter, ProcessCounter,
    Row, SUBSCRIBERS_MAX,
};
pub use sched::context_switches::voluntary_switches;
pub use sched::priority::{raise_priority, shorten_slice};
pub use tx_burst::{BURST_FRAME_BYTES, BURST_FRAMES_MAX, PAGE_POOLS_MAX, TxBurst, TxBurstError};
pub(crate) use xsk::socket::raise_tx_budget;
pub use xsk::socket::{CopyMode, Xsk, XskCounts, XskError, XskSpec, wait_readable};
