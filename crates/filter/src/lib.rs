//! Packet filters: predicates on frames, from source text to verdict.
//!
//! ```text
//!  pcap-filter text ─┐                                ┌─► interpreter (the oracle)
//!  classic BPF ──────┼─► ir::Program ─► opt ─► verify ┼─► native code
//!  1987 stack words ─┘                                ├─► eBPF
//!                                                     └─► classic BPF, stack words
//! ```
//!
//! A filter reads the captured bytes of a frame and its length on the wire. The
//! verdict is a snap length: zero rejects the frame, any other number accepts that
//! many bytes of it. A load outside the captured bytes, or a division by zero,
//! rejects the frame at once.
//!
//! ```
//! use weir_filter::backend::Runner;
//! use weir_filter::interp;
//! use weir_filter::ir::Program;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut arp: Program = "
//!     filter {
//!     b0:
//!       v0 = load.2 [12]
//!       br eq v0, 0x806, b1, b2
//!     b1:
//!       ret 262144
//!     b2:
//!       ret 0
//!     }"
//! .parse()?;
//! weir_filter::opt::optimise(&mut arp);
//! let frame = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
//! assert_eq!(interp::run(&arp, &frame, 42), 262_144);
//! assert_eq!(Runner::new(arp).run(&frame[..13], 42), 0); // the type is cut short
//! # Ok(())
//! # }
//! ```
//!
//! # Modules in reading order
//!
//! 1. [`ir`]: the program in SSA form, its builder, text form and verifier.
//! 2. [`interp`]: the interpreter, which defines the semantics.
//! 3. [`lang`]: front ends [`expr`](lang::expr), [`cbpf`](lang::cbpf) and
//!    [`cspf`](lang::cspf).
//! 4. [`opt`]: the optimiser, one file for each pass.
//! 5. [`backend`]: [`Runner`](backend::Runner), native code, eBPF, classic BPF, the
//!    1987 stack language, Graphviz.
//!
//! # Invariants
//!
//! - Edges lead forward, so every program ends. The verifier checks this.
//! - Every back end, and every optimised program, gives the interpreter's verdict on
//!   every frame, truncated ones included.
//! - Text and programs from outside never panic; they are refused with an error.
//! - The crate names no file descriptor, clock, thread or random source, except for the
//!   memory of native code ([`backend::native`]). Host and service names come from the
//!   caller through [`lang::expr::Names`].
//! - The crate emits eBPF but never loads it.
//!
//! # Limits
//!
//! [`ir::limits`] bounds each program; each front end and back end states its own
//! limits. A loop of a source language is unrolled to a stated bound.

pub mod backend;
pub mod ir;
pub mod lang;
pub mod opt;

pub use backend::interp;
