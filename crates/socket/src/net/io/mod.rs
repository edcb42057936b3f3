//! Frames between the stack and its devices.

pub(super) mod direct_read;
pub(super) mod links;
pub(super) mod remote_link;
