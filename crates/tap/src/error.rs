//! The errors of a tap.

use std::io;
use std::path::PathBuf;
use weir_link::net::InterfaceError;
use weir_link::xdp::{GateError, MEMBERS_MAX, XskError};
use weir_ring::queue::Corrupt;
use weir_ring::umem::UmemError;

/// The reason why an operation on a tap failed.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The memory for frames cannot be made.
    #[error(transparent)]
    Memory(#[from] UmemError),
    /// The interface does not exist.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface is not Ethernet.
    #[error("`{interface}` carries no Ethernet frames: it cannot be tapped")]
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// The interface is the host's loopback.
    #[error("`{interface}` is the host's loopback, which the host needs: name another interface")]
    Loopback {
        /// Its name.
        interface: String,
    },
    /// The same interface is given twice.
    #[error("a bridge joins two different interfaces, not `{interface}` with itself")]
    Same {
        /// Its name.
        interface: String,
    },
    /// A setting is invalid.
    #[error("{what} of {value} is not possible: {range}")]
    Setting {
        /// The name of the setting.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The valid range.
        range: &'static str,
    },
    /// The programs in the kernel could not be attached or used.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A socket could not be made.
    #[error(transparent)]
    Socket(#[from] XskError),
    /// A ring is corrupt.
    #[error("`{interface}`: {source}")]
    Ring {
        /// The interface's name.
        interface: String,
        /// The corruption.
        source: Corrupt,
    },
    /// An interface is gone, or its program was detached.
    #[error("`{interface}` is gone, or its program was detached: nothing is tapped any more")]
    Gone {
        /// Its name.
        interface: String,
    },
    /// The link is not tapped.
    #[error("link {link} is not tapped")]
    NotTapped {
        /// The link's number.
        link: usize,
    },
    /// The links of a shared tap cannot change.
    #[error("the links of a shared tap cannot change: end all its processes first")]
    IsShared,
    /// A tap with a flow cache cannot be shared.
    #[error("a tap with a flow cache cannot be shared: share it without `Config::flow_cache`")]
    Remembers,
    /// The tap cannot be shared at a path.
    #[error(
        "cannot share a tap at `{path}` ({source}); take another path, or end the tap that is shared there"
    )]
    CannotShare {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No tap is shared at the path.
    #[error("no tap is shared at `{path}` ({source}): start the process that shares it first")]
    NotShared {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The tap is shared by another version of weir.
    #[error(
        "the tap is shared by another version of weir: all its processes must have the same version"
    )]
    OtherVersion,
    /// The largest number of processes share the tap already.
    #[error("{MEMBERS_MAX} processes share the tap, which is the limit: end one first")]
    Full,
    /// A shared link is not in the calling thread's network namespace.
    #[error("the tap has `{interface}`, which is not here: join from its network namespace")]
    Elsewhere {
        /// Its name.
        interface: String,
    },
    /// Any other system error.
    #[error("cannot {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
