//! Network functions without I/O. A [`Stage`] changes frames; a [`Chain`] runs
//! stages in order between the inside and the outside, and in reverse for the
//! other direction; what the stages did to a packet by edits folds to one
//! [`Composed`] entry, which the kernel repeats for further frames of the flow.
//!
//! ```text
//!  inside ─ base ─ stage 1 ─ stage 2 ─ … ─ outside        inward: in reverse
//!                    └── edits recorded ──► fold ──► one entry, keyed by the frame as it came
//! ```
//!
//! The base is a router or a bridge. The stages are between it and the outside:
//! so the base's own ICMP errors quote the packet as its sender knows it, and a
//! packet from the outside is routed by the address that the stages gave it.
//!
//! # Modules, in reading order
//!
//! - `stage`: the trait [`Stage`].
//! - `batch`: [`Batch`], the packets that a stage gets; [`Output`], what it sends beside them.
//! - [`packet`]: [`Packet`]; which calls keep it cacheable.
//! - `edits`: edits as values, and checksums by difference (RFC 1624).
//! - `composed`: [`Composed`], the fold, and its interpreter.
//! - `chain`: [`Chain`]; the filters of all stages are one plan of `demux`.
//! - [`stages`]: marking, dropping, policing.
//! - [`nat`]: translation of addresses and ports; [`nat::nat64`]: between IPv6 and IPv4.
//! - [`balance`]: load sharing.
//! - `reload`: [`Reload`], what a running stage takes anew.
//! - [`ipsec`]: ESP by policies, of `weir-esp`.
//! - [`config`]: `[[stage]]` of a configuration file.
//!
//! # Invariants
//!
//! - The stages are the oracle: for every frame of its flow, an entry gives the
//!   bytes that stages and base would give, or sends the frame up to them.
//!   (`tests/fold.rs`: random stages, random frames, all captures.)
//! - The crate is pure: no clock, no randomness of its own, no file descriptor.
//! - All frames are hostile. No call panics because of what is in a frame.

pub mod balance;
mod batch;
mod chain;
mod composed;
pub mod config;
mod edits;
pub mod filter;
mod flow;
mod fragments;
pub mod ipsec;
mod key_only;
mod layers;
pub mod nat;
pub mod packet;
mod reload;
mod slots;
mod stage;
pub mod stages;

pub use batch::{Batch, Output, Sent, SentFrame};
pub use chain::{Chain, ChainError, STAGES_MAX, StageCounts};
pub use composed::{Composed, Outcome};
pub use edits::{Edits, Routed};
pub use flow::{Direction, Endpoints, Flow};
pub use layers::{Fragment, Layers, UNROUTED};
pub use packet::{Bytes, Fate, Packet, Ticket, Trace};
pub use reload::Reload;
pub use stage::{RestoreError, Restored, Stage};

/// The example of the README, run as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
