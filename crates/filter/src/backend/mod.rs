//! What runs a program, or turns it into something that others run.

pub mod cbpf;
pub mod cspf;
pub mod dot;
pub mod ebpf;
pub mod interp;
pub mod native;
mod runner;

pub use runner::Runner;
