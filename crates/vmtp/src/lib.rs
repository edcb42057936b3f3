//! VMTP, the Versatile Message Transaction Protocol (RFC 1045), without I/O.
//!
//! A client sends a request, a server one response: a *message transaction*.
//! Each message carries up to 16 KiB of segment data in a *packet group*, whose
//! packets name their 512-byte blocks by a *delivery mask*; the receiver asks
//! for the blocks that it lacks. A server executes each request once, however
//! often the network repeats it.
//!
//! VMTP stands here for the V kernel's Inter-Kernel Protocol (IKP), which §5.2
//! of the packet filter paper of 1987 runs on ports: VMTP is its published
//! successor, and the protocol of tables 6-2 to 6-5.
//!
//! ```
//! use std::time::Duration;
//! use weir_vmtp::{Client, Entity, Request, Server};
//!
//! # fn main() -> Result<(), weir_vmtp::Busy> {
//! let now = Duration::ZERO;
//! let (here, there) = (Entity::process(1, [10, 0, 0, 1].into()), Entity::process(2, [10, 0, 0, 2].into()));
//! // A link address is whatever the caller sends frames to; here a number.
//! let mut client = Client::<u8>::new(here, 1);
//! let mut server = Server::<u8>::new(there, 7);
//! client.call(now, Request::new(there, 5))?;
//! let mut packet = Vec::new();
//! while client.poll_transmit(&mut packet).is_some() {
//!     server.handle(now, 1, &packet);
//!     packet.clear();
//! }
//! // The server asks a client that it does not know for its transaction first.
//! assert!(server.poll_transmit(&mut packet).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Modules in reading order
//!
//! 1. [`packet`]: header and values; [`Entity`]: identifies a client or server.
//! 2. [`segment`]: blocks, masks, assembly.
//! 3. [`Client`]: one transaction at a time, to one server or a group.
//! 4. [`Server`]: requests of many clients, duplicates suppressed.
//! 5. [`mod@file`]: a service that reads files, on top.
//!
//! # Left out
//!
//! Streaming (runs of packet groups), security (encrypted groups, principals),
//! forwarding, checksums (see [`packet`]), and sparse segments (the MDM flag).
//! A packet that uses one of them is dropped and [counted](Drops).
//!
//! # Invariants and limits
//!
//! - The caller passes time in, as a [`Duration`](std::time::Duration) since
//!   any origin, and seeds. The crate names no clock, descriptor or thread.
//! - All packets are hostile: none panics, and memory has a bound, stated at
//!   [`server::Limits`] and at the constants of [`client`].
//! - A server never executes a transaction twice, unless its answer said that
//!   the request is idempotent. Two cases are given up: a client that changes
//!   its link address within a transaction, and, when the table is full, a
//!   client that is quiet for 3 s or shares the link address that has most
//!   clients ([`server::Limits`]). Otherwise the server answers BUSY rather than
//!   forget a client too early.
//! - A sender at another link address cannot take a client's responses, move its
//!   transaction, or displace it while the sender's address has more clients.

pub mod client;
mod drops;
mod entity;
pub mod file;
pub mod packet;
mod rtt;
pub mod segment;
pub mod server;

pub use client::{Busy, Client, Event, Failure, Request, Response};
pub use drops::Drops;
pub use entity::{Entity, ParseEntityError};
pub use server::{Incoming, Reply, Server};

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination<L> {
    /// The link address from which a packet of the peer came.
    Known(L),
    /// An IP host group (RFC 1112): the peer is a group, or its address is not
    /// known yet.
    Group(std::net::Ipv4Addr),
}
