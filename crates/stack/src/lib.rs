//! TCP/IP without I/O. Time and seeds are passed in; frames and calls go in,
//! frames and answers come out.
//!
//! | module | what |
//! |---|---|
//! | [`Stack`] | a host on one link or several: frames in, frames out, UDP and TCP sockets |
//! | [`iface`] | the link and IP layers on each link: configuration, limits, counters |
//! | [`udp`] | UDP sockets |
//! | [`tcp`] | TCP, split by role |
//! | [`pcb`] | PCB tables: `bsd`, `mtf`, `sequent` and `weir` behind one trait; listeners |
//! | [`experiment`] | the papers' experiments with them |

mod deadline;
pub mod experiment;
mod header_filter;
pub mod iface;
mod ingress;
mod links;
pub mod pcb;
mod ports;
pub mod rng;
mod shard;
mod slab;
mod stack;
pub mod tcp;
pub mod udp;

pub use iface::{Config, Prefix};
pub use links::{LINKS_MAX, Link, TxSinks};
pub use shard::{AddressConfig, MISDIRECTED_MAX, SHARDS_MAX, Shards, ShardsError, Steering};
pub use stack::{Stack, TxSink};
