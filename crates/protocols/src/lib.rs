//! The protocols of the 1987 packet filter paper (§5) on ports: blocking
//! clients and servers in user space, on the public API of `weir_broker` alone.
//!
//! | module | what |
//! |---|---|
//! | [`station`] | an Ethernet station on a port: frames out in batches, frames in |
//! | [`vmtp`] | VMTP clients and servers |
//! | [`pup`] | Pup hosts, also over UDP; byte streams |
//!
//! The protocols themselves are without I/O, in crates of their own
//! (`weir_vmtp`, `weir_pup`). A station has one thread, the caller's.
//!
//! # Limits
//!
//! Processes of one host do not reach each other: frames that this host sends
//! are not received by its own ports.

pub mod pup;
pub mod station;
pub mod vmtp;
