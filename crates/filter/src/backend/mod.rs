//! Back ends: the interpreter, the code generators, and the choice between them.
//!
//! [`interp`] is the oracle; [`native`] compiles to machine code; [`Runner`] picks
//! one of both. [`ebpf`], [`cbpf`] and [`cspf`] emit programs for other machines,
//! and [`dot`] draws the graph.

pub mod cbpf;
pub mod cspf;
pub mod dot;
pub mod ebpf;
pub mod interp;
pub mod native;
mod runner;

pub use runner::Runner;
