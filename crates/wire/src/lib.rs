//! Wire formats: views and values of protocol headers, link types and checksums.
//!
//! A header has two types. The *view* (`Frame`, `Packet`, `Datagram`, `Segment`,
//! `Message`) borrows bytes: its constructor checks the length once, and accessors
//! read fields without further checks. The *value* (`Repr`) is parsed from a view,
//! and `emit` writes it, checksum included.
//!
//! ```
//! use weir_wire::{EtherType, ethernet, ipv4};
//!
//! # fn main() -> Result<(), weir_wire::Error> {
//! # let bytes = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 20], &[0; 16]].concat();
//! let frame = ethernet::Frame::new(&bytes)?;
//! if frame.ether_type() == EtherType::IPV4 {
//!     let packet = ipv4::Packet::new(frame.payload())?;
//!     println!("{} > {}", packet.src(), packet.dst());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modules in reading order
//!
//! 1. [`ethernet`] and [`LinkType`]: frames, VLAN tags, link-layer header types.
//! 2. [`arp`], [`ipv4`], [`ipv6`], [`Protocol`]: addresses and packets.
//! 3. [`checksum`]: the Internet checksum and its pseudo-headers.
//! 4. [`icmp`], [`nd`], [`membership`]: control messages of IPv4 and IPv6.
//! 5. [`udp`], [`tcp`]: transport headers and TCP options; [`TransportHeader`]: their place.
//! 6. [`dhcp`]: the client's messages.
//! 7. [`pup`]: the packets of the 1987 packet filter paper.
//! 8. [`ipfix`]: messages of flow records, written only.
//!
//! # Invariants and limits
//!
//! - All input is hostile: parsing returns an [`Error`] and never panics. `emit`
//!   panics if the caller's buffer or value does not fit.
//! - A view may be cut short behind its header; its payload is then shorter than
//!   the header says.
//! - Variable-length input has limits, stated at constants such as
//!   [`dhcp::ROUTES_MAX`].
//! - The crate has no unsafe code and names no file descriptor, clock or thread.

pub mod arp;
pub mod checksum;
pub mod dhcp;
mod error;
pub mod ethernet;
pub mod field;
pub mod icmp;
pub mod ipfix;
pub mod ipv4;
pub mod ipv6;
mod linktype;
pub mod membership;
pub mod nd;
mod protocol;
pub mod pup;
pub mod rng;
pub mod tcp;
mod transport;
pub mod udp;

pub use checksum::AddrPair;
pub use error::Error;
pub use ethernet::EtherType;
pub use linktype::{LinkType, UnknownLinkType};
pub use protocol::Protocol;
pub use transport::TransportHeader;
