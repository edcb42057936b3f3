//! Applications on the frames of shared links.
//!
//! - [`route`]: an IPv4 and IPv6 router without I/O: frames in, verdicts out.
//! - [`router`]: it on live links.

mod addresses;
mod fast;
mod kernel;
pub mod route;
pub mod router;
