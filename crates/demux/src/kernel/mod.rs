//! The plan in the kernel: one generated eBPF program, and its maps.
//!
//! ```text
//!  bind ─► writes to index and store ─────────────► mapped memory ─┐
//!     └──► a new subtable or opaque filter: a new program ─► loaded ───┤
//!                                                                  ▼
//!  frame ─► head copied ─► each subtable: guards, key, home ─► entries ─► ranks ─► rings
//!                          opaque filters ───────────────────────────┘
//! ```
//!
//! [`KernelPlan`] is pure: it says which maps there must be, what to write
//! into them, and which programs to load; `weir-link` does it. The verdict is
//! [`Plan::run`](crate::Plan::run)'s. What goes into a port's ring is in
//! [`record`]. `docs/explanation/kernel-plan.md` explains the design.

mod code;
mod decision_tree;
mod expr;
mod fanouts;
mod image;
mod layout;
mod lowered_path;
mod maps;
mod plan;
mod prefilter;
mod prune;
mod recompile;
pub mod record;
mod subtable;
mod table;
mod verifier_cost;

pub use code::LowerError;
pub use image::{Memory, Write};
pub use lowered_path::{SubtableSignature, subtable_signatures};
pub use maps::{Clock, Counters, Half, Hook, Lowered, MapRole, MapSpec, PortSettings, Wake};
pub use plan::{Change, KernelBindError, KernelPlan, Options, Recompile};
pub use verifier_cost::{all_computed_loads, computed_loads, verifier_cost};

/// Upper bounds of the kernel half.
pub mod limits {
    /// Subtables of one plan: the verifier follows at most 8,192 conditional
    /// jumps on a path.
    pub const SUBTABLES_MAX: usize = 512;
    /// Subtables from which on a filter that would bring a new one shares a coarser
    /// one.
    pub const RELAXED_MIN: usize = 64;
    /// Whole filters of one plan.
    pub const OPAQUE_MAX: usize = 256;
    /// Bindings under one key of one subtable.
    pub const KEY_BINDINGS_MAX: usize = 1024;
    /// Copies of one frame; further ones count as lost.
    pub const DELIVERIES_MAX: u32 = super::layout::scratch::MATCHES_MAX;
    /// Table entries of one plan.
    pub const KEYS_MAX: u32 = 1 << 22;
    /// Fan-outs of one plan.
    pub const FANOUTS_MAX: usize = 1024;
    /// Bytes of one frame that a port can get.
    pub const CAPTURED_MAX: u32 = 1 << 18;
}
