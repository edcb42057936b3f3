//! Pup, the PARC Universal Packet and its protocols (Boggs, Shoch, Taft and
//! Metcalfe 1980; PupSpec 1978), without I/O.
//!
//! §5.1 of the packet filter paper of 1987 runs "almost all of the Pup
//! protocols" on ports; its tables 6-6 and 6-7 measure the byte stream and
//! Telnet.
//!
//! # Modules in reading order
//!
//! 1. [`datagram`]: Pups, types, sockets, addresses as text.
//! 2. [`link`]: Pups on the 3 Mb/s and the 10 Mb/s Ethernet, and over UDP.
//! 3. [`bsp`]: connections (RTP) and byte streams (BSP).
//! 4. [`Host`]: sockets, connections, echo, error Pups, time, names.
//! 5. [`ftp`], [`telnet`]: applications on byte streams.
//! 6. [`eftp`]: files, one Pup at a time.
//! 7. [`gateway`]: routing information and forwarding.
//!
//! # Invariants and limits
//!
//! - The caller passes in time, as a [`Duration`](std::time::Duration) since any
//!   origin, the time of day, and seeds. The crate names no clock, descriptor or
//!   thread.
//! - All Pups are hostile: none panics, and memory has a bound, stated at
//!   constants such as [`host::CONNECTIONS_MAX`]. A connection holds at most
//!   256 KiB to send and 120 KB received.
//! - A byte stream delivers each byte and mark once, in order.

pub mod bsp;
pub mod datagram;
pub mod eftp;
pub mod ftp;
pub mod gateway;
pub mod host;
pub mod link;
pub mod services;
pub mod telnet;

pub use host::Host;
