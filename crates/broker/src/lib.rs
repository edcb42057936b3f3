//! Ports on live links, for programs of any user.
//!
//! - [`Port`]: what a program uses; needs a broker, or privilege.
//! - [`policy`]: who may do what.
//! - [`protocol`]: what a program and the broker say to each other.
//! - [`daemon`]: serves every user of the machine.
//! - [`engine`]: the ports that are open.
//! - [`interface`]: what they are open on.
//! - [`compile`]: filters from texts that nobody vouches for.

mod bytes;
mod client;
pub mod compile;
pub mod daemon;
pub mod engine;
pub mod interface;
pub mod keep;
pub mod policy;
pub mod protocol;

pub use bytes::{Bytes, NotASize};
pub use client::{
    Builder, Connection, Frame, Frames, InProcess, Port, PortCounters, PortError, SOCKET_DEFAULT,
    Signal, Timeout, in_process,
};
