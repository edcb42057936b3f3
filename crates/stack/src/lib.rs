//! TCP/IP without I/O. Time and seeds are passed in; frames and calls go in,
//! frames and answers come out.
//!
//! | module | what |
//! |---|---|
//! | [`Stack`] | a host on one link: frames in, frames out, UDP sockets |
//! | [`host`] | its link and IP layers: configuration, limits, counters |
//! | [`udp`] | UDP sockets |
//! | [`pcb`] | PCB tables: `bsd`, `mtf`, `sequent` and `weir` behind one trait; listeners |
//! | [`experiment`] | the papers' experiments with them |
//!
//! Not there yet: TCP.

pub mod experiment;
pub mod host;
pub mod pcb;
mod ports;
pub mod rng;
mod slab;
mod stack;
pub mod udp;

pub use host::{Config, Prefix};
pub use stack::{Outlet, Stack};
