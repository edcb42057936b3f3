//! AF_XDP sockets.

pub(super) mod promiscuous;
pub(super) mod socket;
