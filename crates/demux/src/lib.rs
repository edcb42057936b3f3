//! The plan: which bindings get a frame, at a cost that does not grow with
//! their number.
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
//! [`Filter`] analyses a program once; [`Plan::bind`] enters it; [`Plan::run`]
//! fills a [`Verdict`] for a frame. The verdict is what figure 4-1 of "The
//! Packet Filter" (Mogul, Rashid and Accetta, 1987) computes, read by the text
//! of its section 3.2: filters by decreasing priority, a copy goes on, the
//! first that takes the frame ends it. Section 7 of the paper wished for "a
//! decision table" of all filters at once: this is one.
//!
//! The crate is pure: no clock, no threads, no randomness of its own (the
//! plan's seed is passed in). `docs/explanation/classifier.md` explains the design with an
//! example.

mod binding;
mod expr;
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
