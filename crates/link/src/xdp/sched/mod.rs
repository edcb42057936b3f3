//! Scheduling of the calling thread: its priority, and how often it blocked.

pub(super) mod context_switches;
pub(super) mod priority;
