//! The base of all socket types: calls, readiness, and sockets on several stacks.

pub(super) mod inner;
pub(super) mod readiness;
pub(super) mod ready_fd;
pub(super) mod ready_list;
pub(super) mod sharded;
