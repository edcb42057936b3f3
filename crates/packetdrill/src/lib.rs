//! Runs Google packetdrill's scripts against weir's stack: a shared object for packetdrill's
//! `--so_filename`.
//!
//! packetdrill calls socket functions, injects packets and reads the clock; here one
//! [`weir_stack::Stack`] serves these calls in virtual time. A script of ten seconds takes a few
//! milliseconds, and other load on the machine does not affect the result.
//!
//! | module | what |
//! |---|---|
//! | `abi` | the table of functions that packetdrill calls |
//! | `user_memory` | access to the caller's memory, as by the kernel |
//! | `interpose` | `getsockopt` and `sendfile` of the process, for the simulation's descriptors |
//! | `simulation` | clock, stack, and the link between them and packetdrill |
//! | `socket`, `syscalls`, `sendmsg` | sockets, and the system calls on them |
//! | `options`, `tcp_info` | socket options, `TCP_INFO` |
//! | `poll` | `poll`, `epoll` |
//! | `errqueue` | the error queue: zero-copy completions, timestamps |
//! | `sysctl` | the kernel settings that scripts make |
//!
//! Example: one of packetdrill's scripts against weir, as root, in a network
//! namespace with a device `tun0`:
//!
//! ```text
//! cargo build --release -p weir-packetdrill
//! SO=$PWD/target/release/libweir_packetdrill.so
//! env LD_PRELOAD=$SO packetdrill --so_filename=$SO \
//!     --local_ip=192.168.0.1 --remote_ip=192.0.2.1 SCRIPT.pkt
//! ```
//!
//! `docs/contributing/packetdrill.md` explains how to run all scripts, and the known differences.

// The C ABI of a shared object: arguments are the caller's pointers.
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

/// An error number of C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Answer<T = i64> = Result<T, Errno>;

pub use abi::{Interface, packetdrill_interface_init};
pub use interpose::{getsockopt, sendfile};
