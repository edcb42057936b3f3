//! TIME-WAIT: connections that only wait for 2 MSL to pass (RFC 9293 §3.3.2).

pub(super) mod limit;
pub(super) mod minisock;
