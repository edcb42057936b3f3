//! RADIUS accounting (RFC 2866): packets, their proof, and the session events they stand for.
//!
//! [`packet`] reads and writes packets; [`accounting`] turns Accounting-Requests into session
//! events by stated rules; [`requests`] asks access servers to end or change sessions (RFC 5176). All
//! are without I/O.

pub mod accounting;
pub mod packet;
pub mod requests;
