//! Applications on the frames of shared links.
//!
//! - [`route`]: an IPv4 and IPv6 router without I/O: frames in, verdicts out.

pub mod route;
