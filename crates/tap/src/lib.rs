//! A tap: exclusive ownership of the frames of network links, without copies
//! (NetTap). A program receives, forwards and sends frames of several links as
//! descriptors of shared memory (AF_XDP).
//!
//! The six calls of the NetTap paper (§5), and their forms here:
//!
//! | paper | here | |
//! |---|---|---|
//! | `mbuf_map` | [`Tap::map`] | allocates memory for frames, some of it reserved for the application |
//! | `mbuf_unmap` | [`Tap::unmap`] | frees all memory; counts that no chunk is missing |
//! | `mbuf_pull` | [`Tap::pull`] | gets a number of chunks now, or waits for a frame on any link |
//! | `mbuf_push` | [`Tap::push`] | sends and frees now, on all links |
//! | `interface_tap` | [`Tap::tap`] | a link's frames go to the tap; counted |
//! | `interface_untap` | [`Tap::untap`] | the last untap returns the link to the host |
//!
//! Between these calls, frames pass through rings without system calls:
//! [`Tap::take`] (the paper's `tap_in`), [`Tap::give`] (`tap_out`),
//! [`Tap::alloc`] (`mbuf_alloc`) and the drop of a [`Frame`] (`mbuf_dealloc`).
//! Forwarding a frame moves a descriptor from one ring to another.
//!
//! Modules, in reading order: `tap` and `config` (memory and links), `io`
//! (frames between rings and application), `bridge` (two links, [`fdb`] and
//! [`switch`] of a learning bridge), `flow_cache` (verdicts cached in the
//! kernel), `shared` (several processes), `link_monitor` and `link_changes` (changes of
//! links), `error` and `stats`.
//!
//! [`Bridge`] combines these calls for a bump in the wire:
//!
//! ```no_run
//! use weir_tap::{Bridge, Bypass, Verdict};
//!
//! # fn main() -> Result<(), weir_tap::TapError> {
//! Bridge::between("eth1", "eth2")?.bypass(Bypass::Wire).run(|frame, _| {
//!     match frame.bytes() {
//!         [.., last] if *last == 0xff => Verdict::Drop,
//!         _ => Verdict::Forward,
//!     }
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Several processes
//!
//! [`Tap::share`] lets other processes [join](Tap::join) a tap in use. Any of
//! them may end in any way; the last one returns the links to the host. See
//! `docs/how-to/share-a-tap.md`, and `crates/ctap` for other languages.
//!
//! # Cached verdicts
//!
//! An application may cache its verdict on a frame for similar frames. The
//! program in the kernel then forwards those frames itself, and counts them,
//! until the application removes the entry, no such frame came for a while, or
//! the application dies or hangs. See [`FlowCache`], and
//! [`Verdict::ForwardAndCache`] for a bump in the wire.
//!
//! # When the application fails
//!
//! A program in the kernel watches a word that [`Tap::pull`] and [`Tap::push`]
//! write, and another word that the kernel writes when the thread dies. When
//! the application is dead or hung, its frames take the [`Bypass`]: the two
//! links are joined, or the host's protocols get the frames, or no frame
//! passes. See `docs/explanation/bypass-and-flow-cache.md`.

mod bridge;
mod clock;
mod config;
mod error;
mod flow_cache;
mod io;
mod link_changes;
mod link_monitor;
mod shared;
mod stats;
mod tap;
mod trust;
mod wake;

pub use bridge::{Bridge, BridgeFlowKind, Context, StopToken, Verdict, fdb, switch};
pub use config::{Config, HANG_MAX_DEFAULT, Mode};
pub use error::TapError;
pub use flow_cache::{
    ACTIVATE_WAIT, FlowCache, FlowCacheConfig, FlowCacheStats, FlowEntry, InsertOutcome, LEASE,
    Traffic,
};
pub use io::tx_burst::NoBurst;
pub use stats::{Counts, LinkCounts};
pub use tap::{LinkId, Pull, Tap};
pub use weir_link::xdp::{
    Bypass, BypassReason, CopyMode, FLOW_ENTRIES_MAX, FlowAction, FlowKey, FlowKind, HostFilter,
    HostFilterError, HostFilterUpdater, MeterStage, Rewrite, Translation,
};
pub use weir_ring::Frame;
pub use weir_ring::umem::ChunkCounts;
