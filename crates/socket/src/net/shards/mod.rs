//! Frames, reports and table memory that several stacks of one host exchange.

pub(super) mod mailbox;
pub(super) mod shard_io;
pub(super) mod table_memory;
