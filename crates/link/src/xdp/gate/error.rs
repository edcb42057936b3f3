//! Why there is no gate.

use super::super::state::LINKS_MAX;
use crate::bpf::{AttachError, LoadError, MapError, PinError};
use crate::net::InterfaceError;
use std::io;

/// Why there is no gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Too many links, or twice the same.
    #[error("a tap has 1 to {LINKS_MAX} different links, not {what}")]
    Links {
        /// What was asked for.
        what: String,
    },
    /// Someone else's program is there.
    #[error(
        "another XDP program is attached to `{interface}`: end its owner, or `ip link set dev {interface} xdp off`; \
         if a bridge or a router of weir's has left it, `weir bridge … --clean` or `weir route … --clean` \
         with the interfaces that it had"
    )]
    Taken {
        /// The interface's name.
        interface: String,
    },
    /// What was left is of another version.
    #[error(
        "another version of weir has left programs at these links: `weir bridge … --clean` or \
         `weir route … --clean` first"
    )]
    OtherVersion,
    /// Another process has the tap.
    #[error("another process taps these links: end it first")]
    InUse,
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Its programs were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The filter of the host's frames does not fit into them.
    #[error("what the host is left of its frames is too much for a filter: {0}")]
    Host(#[from] weir_filter::backend::ebpf::EmitError),
    /// What is shared was not made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Its programs were not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// It was not pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Anything else.
    #[error("cannot {what} ({source})")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
