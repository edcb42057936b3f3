//! Applications on the frames of shared links.
//!
//! - [`router::engine`]: an IPv4 and IPv6 router without I/O: frames in, verdicts out.
//! - [`router`]: the engine on live links.

pub mod router;
