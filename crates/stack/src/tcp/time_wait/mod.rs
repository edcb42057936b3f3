//! Connections that only wait for their time to end (RFC 9293 §3.3.2, TIME-WAIT).

pub(super) mod limit;
pub(super) mod minisock;
