//! Ports on live links, for programs of any user.
//!
//! - [`policy`]: who may do what.
//! - [`protocol`]: what a program and the broker say to each other.
//! - [`compile`]: filters from texts that nobody vouches for.

mod bytes;
pub mod compile;
pub mod policy;
pub mod protocol;

pub use bytes::{Bytes, NotASize};
