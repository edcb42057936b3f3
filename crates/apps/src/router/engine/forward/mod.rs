//! What happens to each packet on its way through the router.

pub(super) mod cacheable;
pub(super) mod fragment;
pub(super) mod icmp_errors;
pub(super) mod ipv4;
pub(super) mod ipv6;
pub(super) mod options;
pub(super) mod redirect;
