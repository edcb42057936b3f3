//! Frames between the rings and the application: `pull_push` and `frames` are
//! the tap's calls, `queue` is one link's sockets.

pub(super) mod adaptive_poll;
pub(super) mod checksum;
pub(super) mod frames;
pub(super) mod pull_push;
pub(super) mod queue;
pub(super) mod tx_burst;
