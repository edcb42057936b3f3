//! Inputs of commands: capture files, live ports, and on/off options.

pub(super) mod capture_file;
pub(super) mod live_port;
pub(super) mod on_off;
pub(super) mod read_limited;
