//! Ports on live links, for programs of any user.
//!
//! - [`policy`]: who may do what.
//! - [`protocol`]: what a program and the broker say to each other.
//! - [`daemon`]: serves every user of the machine.
//! - [`engine`]: the ports that are open.
//! - [`interface`]: what they are open on.
//! - [`compile`]: filters from texts that nobody vouches for.

mod bytes;
pub mod compile;
pub mod daemon;
pub mod engine;
pub mod interface;
pub mod policy;
pub mod protocol;

pub use bytes::{Bytes, NotASize};
