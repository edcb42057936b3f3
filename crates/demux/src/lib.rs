//! A packet classifier: finds the bindings (filters tied to targets) that
//! accept a frame, at a cost that does not grow with the number of bindings.
//!
//! ```text
//!  Program ──► Filter: accept paths        bind ┌── subtable: ethertype, protocol, addresses, ports
//!              key (field = value) ────────────►│     hash table: key ─► entries by rank
//!              residual tests                   ├── subtable: ethertype, protocol, port
//!                                               │     hash table …
//!              or: too complex ────────────────►└── whole programs, as native code
//!
//!  frame ──► which subtables are possible? ──► look up in each ──► least rank that takes ──► Verdict
//! ```
//!
//! [`Filter::new`] analyses a program once, [`Plan::bind`] adds it to a plan,
//! and [`Plan::run`] fills a [`Verdict`] for a frame. The verdict is the one of
//! figure 4-1 of "The Packet Filter" (Mogul, Rashid and Accetta, 1987), read by
//! the text of its section 3.2: filters run by decreasing priority; a filter
//! with the copy flag passes the frame on; the first other filter that accepts
//! the frame takes it. Section 7 of the paper wished for "a decision table" of
//! all filters at once; the plan is such a table.
//!
//! ```
//! use weir_demux::{Binding, Filter, Plan, Target, Verdict};
//! use weir_filter::ir::Program;
//!
//! let mut plan = Plan::new(0x5eed);
//! plan.bind(Binding {
//!     filter: Filter::new(Program::constant(96)),
//!     priority: 10,
//!     copy: false,
//!     target: Target::Port(1),
//!     tag: 7,
//! })?;
//! let mut verdict = Verdict::new();
//! plan.run(&[0; 60], 60, &mut verdict);
//! assert!(verdict.is_taken());
//! assert_eq!(verdict.deliveries()[0].tag, 7);
//! # Ok::<(), weir_demux::BindError>(())
//! ```
//!
//! # Modules, in reading order
//!
//! - `binding`: [`Binding`], [`Target`], and [`Rank`], the order of bindings.
//! - `expr`: expressions over a frame, the operands of keys and tests.
//! - `filter`: the accept paths of one program, as keys and residual tests.
//! - `plan`: subtables, the decision tree over them, and the linear list.
//! - `verdict`: the deliveries of one frame.
//! - [`fanout`]: frames spread over several ports by flow.
//! - [`kernel`]: a plan lowered to eBPF.
//! - [`limits`]: upper bounds of a plan and of one filter.
//!
//! # Invariants
//!
//! - The verdict does not depend on the seed, on the tables or on the order in
//!   which entries are tried; it is the verdict of running every filter by
//!   rank.
//! - The crate is pure: it has no clock, no threads and no randomness of its
//!   own (the caller passes the plan's seed).
//!
//! `docs/explanation/classifier.md` explains the design with an example.

mod binding;
mod expr;
pub mod fanout;
mod filter;
pub mod kernel;
pub mod limits;
mod plan;
mod verdict;

pub use binding::{Binding, BindingId, Rank, Target};
pub use expr::Exprs;
pub use filter::{Analysis, Field, Filter, Path, Snap, Test};
pub use plan::{BindError, EntryView, Explain, Plan, SubtableView};
pub use verdict::{Delivery, Verdict};
