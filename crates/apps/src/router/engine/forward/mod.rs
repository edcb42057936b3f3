//! The forwarding path: header checks, options, fragmentation, ICMP errors and
//! redirects.

pub(super) mod cacheable;
pub(super) mod fragment;
pub(super) mod icmp_errors;
pub(super) mod ipv4;
pub(super) mod ipv6;
pub(super) mod options;
pub(super) mod redirect;
