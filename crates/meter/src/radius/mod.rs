//! RADIUS accounting (RFC 2866): packets, their proof, and the session events they stand for.
//!
//! [`packet`] reads and writes packets; [`accounting`] turns Accounting-Requests into session
//! events by stated rules. Both are without I/O.

pub mod accounting;
pub mod packet;
