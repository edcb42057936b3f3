//! Inputs of commands: capture files, live ports, and options that several commands have.

pub(super) mod capture_file;
pub(super) mod live_port;
pub(super) mod on_off;
pub(super) mod read_limited;
pub(super) mod tap_args;
