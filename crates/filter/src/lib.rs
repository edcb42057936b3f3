//! Filters: predicates on frames, from text to verdict.
//!
//! ```text
//!  pcap-filter text ─┐                                ┌─► interpreter (the oracle)
//!  classic BPF ──────┼─► ir::Program ─► opt ─► verify ┼─► native code
//!  1987 stack words ─┘                                ├─► eBPF
//!                                                     └─► classic BPF, stack words
//! ```
//!
//! A filter sees a frame as its captured bytes and its length on the wire,
//! and answers with a snap length: zero rejects the frame, anything else
//! accepts that many bytes of it. A load outside the captured bytes, or a
//! division by zero, rejects the frame at once.
//!
//! This crate names no file descriptor, clock, thread or random source;
//! names (hosts, services) come from the caller through a trait.

pub mod backend;
pub mod ir;
pub mod lang;
pub mod opt;

pub use backend::interp;
