//! Frame formats: link types, header views, parsed values and checksums.
//!
//! Pure: no file descriptors, clocks or threads. Everything here is read from
//! the network or from files and is treated as hostile.
//!
//! A header has two types. The *view* (`Frame`, `Packet`, `Segment`, …) lies
//! over bytes: its length is checked once, when it is made, and reading its
//! fields costs nothing more. The *value* (`Repr`) is parsed from a view and
//! written with `emit`, checksum included.
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

pub mod arp;
pub mod checksum;
pub mod dhcp;
mod error;
pub mod ethernet;
pub mod field;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
mod linktype;
pub mod membership;
pub mod nd;
mod protocol;
pub mod pup;
pub mod rng;
pub mod tcp;
pub mod udp;

pub use checksum::AddrPair;
pub use error::Error;
pub use ethernet::EtherType;
pub use linktype::{LinkType, UnknownLinkType};
pub use protocol::Protocol;
