//! `libpcap.so` whose live captures are weir's ports: for tcpdump, dumpcap and all other programs
//! of libpcap, unmodified.
//!
//! `weir exec --pcap` has the dynamic linker load this library in place of the system's. What is
//! about files, link types, names and the compiling of expressions goes on to the system's library.
//! A live capture of an interface is a port: opened through the broker by any user whom its policy
//! grants it, with a queue of its own, and a filter in the kernel's one plan.
//!
//! ```text
//!  program ─► functions: whose pcap_t?
//!               ├─► the system's   real: libpcap.so.0.8, loaded by its path
//!               └─► weir's         table ─► ours ─► capture ─► live ─► weir_broker::Port
//! ```
//!
//! | module | what |
//! |---|---|
//! | `functions` | the list of all functions, and the library of each |
//! | `real` | the system's library |
//! | `table` | weir's captures as `pcap_t` |
//! | `open`, `device` | opening, closing and listing devices; their names |
//! | `ours` | the functions on captures of weir's |
//! | `capture`, `live`, `batch`, `pace` | settings; a port and its loops; frames that were read; how frames gather |
//! | `error`, `types` | messages; C's types |
//!
//! # Limits
//!
//! A process has at most 1,024 captures. A capture ends in the child of a fork. What differs from
//! libpcap: `docs/how-to/tcpdump.md`.
#![allow(unsafe_code)] // The C ABI.

mod batch;
mod capture;
mod device;
mod error;
pub mod functions;
mod live;
mod open;
mod ours;
mod pace;
pub mod packet;
mod real;
mod table;
pub mod types;

pub use capture::SOCKET_VARIABLE;
