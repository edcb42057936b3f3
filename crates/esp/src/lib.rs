//! IPsec without I/O: ESP (RFC 4303) with the policies of RFC 4301.
//!
//! ```text
//!  outward: packet ─► policy ─┬─► protect: newest outbound SA ─► ESP packet
//!                             ├─► bypass: as it is
//!                             └─► discard, counted by its reason
//!  inward:  ESP packet ─► SA of its SPI ─► replay, ICV ─► packet ─► does the SA fit its policy?
//!           any other ─► policy: only bypass lets it in
//! ```
//!
//! # Modules, in reading order
//!
//! - [`algorithm`]: AES-GCM (RFC 4106) and ChaCha20-Poly1305 (RFC 7634).
//! - [`replay`]: the anti-replay window, and the high half of extended sequence
//!   numbers.
//! - [`sa`]: a security association in each direction.
//! - [`tunnel`]: two ends and their outer header (RFC 4301 §5.1.2, RFC 6040, RFC
//!   3948).
//! - [`policy`]: the security policy database (RFC 4301 §4.4.1).
//! - `reassembly`: ESP packets that the path has cut into fragments; `path_mtu`:
//!   ICMP errors about ESP packets.
//! - [`gateway`]: all of it together.
//! - [`config`]: the file `sa.toml`.
//! - [`negotiated`]: a configuration of SAs and policies that another program
//!   keeps; [`xfrm`]: the kernel's.
//!
//! # Invariants
//!
//! - No nonce is used twice with a key: an SA sends each sequence number once
//!   and stops at the last one; a configuration in which a key occurs twice is
//!   refused; a reload goes on with the sequence of a key that it knows.
//! - What a policy protects or discards never leaves or enters as it is.
//! - All packets are hostile: no call panics because of what is in one.
//! - Keys are erased when they are dropped, and no text shows one.
//! - The crate is pure: time, random numbers and files' contents are passed in.
//!
//! Not here: fragmentation of outer IPv6 headers at the source, resynchronisation
//! of extended sequence numbers (RFC 4303 appendix A3), AH, IKE.

pub mod algorithm;
pub mod config;
pub mod gateway;
mod icmp;
mod ip;
pub mod negotiated;
mod path_mtu;
pub mod policy;
mod reassembly;
pub mod replay;
pub mod sa;
pub mod strongswan;
pub mod tunnel;
pub mod vici;
pub mod xfrm;

pub use config::{Config, ConfigError};
pub use gateway::{Counters, Gateway, Inner, Inward, Outward};
