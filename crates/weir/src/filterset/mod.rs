//! The filters of a command, their plan, and its counts.

pub(super) mod compile;
pub(super) mod file_demux;
pub(super) mod per_linktype;
pub(super) mod port_counts;
pub(super) mod port_spec;
pub(super) mod share;
