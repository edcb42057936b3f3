//! Lets Google packetdrill's scripts judge weir's stack: a shared object for
//! its `--so_filename`.
//!
//! packetdrill calls sockets, hands over packets and asks for the time; here
//! one [`weir_stack::Stack`] answers, in virtual time, so that a script of ten
//! seconds takes a few milliseconds and a busy machine spoils nothing.
//!
//! | module | what |
//! |---|---|
//! | `abi` | the table of functions that packetdrill calls |
//! | `memory` | the caller's memory, reached as the kernel reaches it |
//! | `interpose` | `getsockopt` and `sendfile` of the process, for our descriptors |
//! | `world` | the clock, the stack and the link between them and packetdrill |
//! | `socket`, `calls`, `transfer` | sockets, and what is done with them |
//! | `options`, `info` | their options, `TCP_INFO` |
//! | `ready` | `poll`, `epoll` |
//! | `notices` | the queue of errors: zero-copy, timestamps |
//! | `settings` | what the scripts set for the kernel |
//!
//! How to run it: `docs/contributing/packetdrill.md`.

// The C ABI of a shared object: what comes are the caller's pointers.
#![allow(unsafe_code)]

mod abi;
mod errqueue;
mod interpose;
mod options;
mod poll;
mod sendmsg;
mod simulation;
mod socket;
mod syscalls;
mod sysctl;
mod tcp_info;
mod user_memory;

/// The number of an error as C knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Answer<T = i64> = Result<T, Errno>;

pub use abi::{Interface, packetdrill_interface_init};
pub use interpose::{getsockopt, sendfile};
