//! What every type of socket is built on.

pub(super) mod inner;
pub(super) mod readiness;
pub(super) mod ready_fd;
pub(super) mod sharded;
