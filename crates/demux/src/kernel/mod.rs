//! The plan in the kernel: one generated eBPF program, and its maps.
//!
//! ```text
//!  bind ─► writes to index and store ─────────────► mapped memory ─┐
//!     └──► a new shape or whole filter: a new program ─► loaded ───┤
//!                                                                  ▼
//!  frame ─► head copied ─► each shape: guards, key, home ─► entries ─► ranks ─► rings
//!                          whole filters ───────────────────────────┘
//! ```
//!
//! [`KernelPlan`] is pure: it says which maps there must be, what to write
//! into them, and which programs to load; `weir-link` does it. The verdict is
//! [`Plan::run`](crate::Plan::run)'s. What goes into a port's ring is in
//! [`record`]. `docs/kernel.md` explains the design.

mod code;
mod decision_tree;
mod expr;
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
pub use lowered_path::{ShapeName, shape_names};
pub use maps::{Clock, Counters, Half, Hook, Lowered, MapSpec, Part, PortSettings, Wake};
pub use plan::{Change, KernelBindError, KernelPlan, Need, Options};
pub use verifier_cost::verifier_steps;

/// Upper bounds of the kernel half.
pub mod limits {
    /// Shapes of one plan: the verifier follows at most 8,192 conditional
    /// jumps on a path.
    pub const SHAPES_MAX: usize = 512;
    /// Shapes from which on a filter that would bring a new one shares a coarser
    /// one.
    pub const RELAXED_MIN: usize = 64;
    /// Whole filters of one plan.
    pub const WHOLE_MAX: usize = 256;
    /// Bindings under one key of one shape.
    pub const KEY_BINDINGS_MAX: usize = 1024;
    /// Copies of one frame; further ones count as lost.
    pub const DELIVERIES_MAX: u32 = super::layout::scratch::MATCHES_MAX;
    /// Table entries of one plan.
    pub const KEYS_MAX: u32 = 1 << 22;
    /// Bytes of one frame that a port can get.
    pub const CAPTURED_MAX: u32 = 1 << 18;
}
