//! Taps: a program owns a link's frames, by pointer.
//!
//! The six calls of the NetTap paper (§5) as they are today:
//!
//! | paper | here | |
//! |---|---|---|
//! | `mbuf_map` | [`Tap::map`] | memory for frames, some of it kept ready to be had |
//! | `mbuf_unmap` | [`Tap::unmap`] | all of it back; counts that none is missing |
//! | `mbuf_pull` | [`Tap::pull`] | so many chunks now, or wait for a frame on any link |
//! | `mbuf_push` | [`Tap::push`] | send and free now, on all links |
//! | `interface_tap` | [`Tap::tap`] | a link's frames come to us; counted |
//! | `interface_untap` | [`Tap::untap`] | the last one gives the link back to the host |
//!
//! In between, frames go through rings without any call: [`Tap::take`] (the
//! paper's `tap_in`), [`Tap::give`] (`tap_out`), [`Tap::alloc`]
//! (`mbuf_alloc`) and the drop of a [`Frame`] (`mbuf_dealloc`). To forward a
//! frame moves a descriptor from one ring to another.
//!
//! [`Bridge`] is all of that for a bump in the wire:
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
//! [`Tap::share`] lets others [join](Tap::join) a tap that is in use; any of
//! them may end in any way, and the last gives the links back. See
//! `docs/how-to/share-a-tap.md`, and `crates/ctap` for other languages.
//!
//! # Answers that the kernel remembers
//!
//! A program may say of a frame "and the same for its like": then the program
//! in the kernel forwards them by itself, and counts them, until it is told
//! otherwise, none came for a while, or the program dies or hangs. See
//! [`FlowCache`], and [`Verdict::ForwardAndCache`] for a bump in the wire.
//!
//! # When the program fails
//!
//! A program in the kernel watches a word that [`Tap::pull`] and
//! [`Tap::push`] write, and another that the kernel writes when the thread
//! dies. Dead or hung, the program's frames take the [`Bypass`]: the two
//! links are joined, or the host's protocols get them, or none passes. See
//! `docs/explanation/bypass-and-flow-cache.md`.

mod bridge;
mod clock;
mod config;
mod error;
mod flow_cache;
mod io;
mod link_monitor;
mod news;
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
    HostFilterError, HostFilterUpdater,
};
pub use weir_ring::Frame;
pub use weir_ring::umem::ChunkCounts;
