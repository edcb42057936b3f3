//! A TCP/IP stack without I/O, clock, threads or randomness: the caller passes in frames,
//! calls, the time and a seed, and gets frames and results back.
//!
//! The same input therefore gives the same output, so that tests and simulations run in
//! virtual time; the crate `weir-socket` adds links, threads and
//! blocking sockets. In reading order:
//!
//! | module or type | what |
//! |---|---|
//! | [`Stack`] | a host on one link or several: frames in, frames out, UDP and TCP sockets |
//! | [`iface`] | the link and IP layers of each link: configuration, limits, counters |
//! | [`udp`] | UDP sockets |
//! | [`tcp`] | TCP, split by role |
//! | [`pcb`] | the trait of PCB tables, and the stack's table; listeners |
//! | [`Shards`] | several stacks that are one host |
//!
//! Two hosts exchange a datagram; the first two frames are the ARP request and its reply
//! (RFC 826):
//!
//! ```
//! use weir_stack::{Config, Stack};
//! use weir_wire::ethernet::Address;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = |number, prefix: &str, seed| -> Result<Stack, Box<dyn std::error::Error>> {
//!     let mac = Address([2, 0, 0, 0, 0, number]);
//!     Ok(Stack::new(&Config::new(mac).address(prefix.parse()?), seed)?)
//! };
//! let mut client = host(1, "192.0.2.1/24", 1)?;
//! let mut server = host(2, "192.0.2.2/24", 2)?;
//! let from = client.udp_bind("0.0.0.0:0".parse()?)?;
//! server.udp_bind("0.0.0.0:7".parse()?)?;
//! client.udp_send(0, from, "192.0.2.2:7".parse()?, b"hello")?;
//! for now_ns in 0..2 {
//!     let mut frames: Vec<Vec<u8>> = Vec::new();
//!     client.poll(now_ns, &mut frames);
//!     frames.iter().for_each(|frame| server.receive(now_ns, frame));
//!     let mut frames: Vec<Vec<u8>> = Vec::new();
//!     server.poll(now_ns, &mut frames);
//!     frames.iter().for_each(|frame| client.receive(now_ns, frame));
//! }
//! assert_eq!(server.counters().frames_in, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! A stack has at most [`LINKS_MAX`] links, [`tcp::CONNECTIONS_MAX`] TCP connections and
//! [`tcp::MEMORY_DEFAULT`] bytes of TCP buffers (configurable), and
//! [`udp::UDP_SOCKETS_MAX`] UDP sockets. Each table that a peer can fill has a limit of
//! its own, stated at its constant.
//!
//! # Invariants
//!
//! - Time is in nanoseconds from an arbitrary start and never goes back.
//! - Peers must not know the seed: sequence numbers, transport ports and hash keys come
//!   from it.
//! - Input from the network never panics. A frame that the stack drops is counted with a
//!   [reason](iface::DropReason).
//! - A host forwards nothing.

mod deadline;
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
