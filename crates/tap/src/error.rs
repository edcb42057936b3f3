//! What can go wrong.

use std::io;
use std::path::PathBuf;
use weir_link::net::InterfaceError;
use weir_link::xdp::{GateError, MEMBERS_MAX, XskError};
use weir_ring::queue::Corrupt;
use weir_ring::umem::UmemError;

/// Why a tap does not work.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No memory for frames.
    #[error(transparent)]
    Memory(#[from] UmemError),
    /// The interface is not there.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// It carries no Ethernet frames.
    #[error("`{interface}` carries no Ethernet frames: it cannot be tapped")]
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// It leads nowhere but to the host itself.
    #[error(
        "`{interface}` is the host's loopback, and the host would lose it: name an interface that leads elsewhere"
    )]
    Loopback {
        /// Its name.
        interface: String,
    },
    /// The same interface twice.
    #[error("a bridge joins two different interfaces, not `{interface}` with itself")]
    Same {
        /// Its name.
        interface: String,
    },
    /// A setting that cannot be.
    #[error("{what} of {value} is not possible: {range}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        range: &'static str,
    },
    /// The programs in the kernel.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The sockets.
    #[error(transparent)]
    Socket(#[from] XskError),
    /// A ring is not as it should be.
    #[error("`{interface}`: {source}")]
    Ring {
        /// The interface's name.
        interface: String,
        /// What is wrong.
        source: Corrupt,
    },
    /// An interface is gone, or its program was detached.
    #[error("`{interface}` is gone, or its program was detached: nothing is tapped any more")]
    Gone {
        /// Its name.
        interface: String,
    },
    /// A link that is not tapped.
    #[error("link {link} is not tapped")]
    NotTapped {
        /// Its number.
        link: usize,
    },
    /// Its processes have the links of when it was shared.
    #[error(
        "the tap is shared: its links are those that it had by then; end all its processes to change them"
    )]
    IsShared,
    /// What it has the kernel remember is one process's.
    #[error(
        "a tap that has the kernel remember verdicts is one process's: share it without `Config::flow_cache`"
    )]
    Remembers,
    /// It cannot be shared at a path.
    #[error(
        "cannot share a tap at `{path}` ({source}); take another path, or end the tap that is shared there"
    )]
    CannotShare {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no tap to join.
    #[error("no tap is shared at `{path}` ({source}): start the process that shares it first")]
    NotShared {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is shared by another version of weir.
    #[error("the tap is shared by another version of weir: all its processes must be of one")]
    OtherVersion,
    /// So many processes share it already.
    #[error("{MEMBERS_MAX} processes share the tap, which is as many as can: end one first")]
    Full,
    /// A shared link is none of the calling thread's network namespace.
    #[error("the tap has `{interface}`, which is not here: join from its network namespace")]
    Elsewhere {
        /// Its name.
        interface: String,
    },
    /// Anything else.
    #[error("cannot {what} ({source})")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
