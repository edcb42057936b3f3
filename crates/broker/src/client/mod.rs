//! Ports, for programs that use them.

mod builder;
mod connection;
mod local;
mod local_registry;
mod port;
mod sigio;
mod tx;

pub use builder::{Builder, SOCKET_DEFAULT};
pub use connection::Connection;
pub(crate) use local_registry::sweep as sweep_roster;
pub use local_registry::{LocalPorts, in_process};
pub use port::{Frame, Frames, Port, PortCounters, Timeout};
pub use rustix::process::Signal;

use crate::compile::CompileError;
use crate::protocol::{ErrorKind, Refusal, TooLong};
use std::io;
use std::path::PathBuf;

/// Why something could not be done with a port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The filter is wrong.
    #[error(transparent)]
    Filter(#[from] CompileError),
    /// The broker, or the engine in this process, refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No broker listens, and without privilege there is no other way.
    #[error("no broker listens on {}: start `weir broker` as root ({source})", path.display())]
    NoBroker {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The broker ended the connection.
    #[error("the broker ended the connection: {reason}")]
    Ended {
        /// As it said.
        reason: String,
    },
    /// What the broker said makes no sense.
    #[error("the broker said something that makes no sense: {0}")]
    Protocol(String),
    /// The request is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The ring cannot be read.
    #[error(transparent)]
    Ring(#[from] weir_ring::Error),
    /// Frames were not sent.
    #[error(transparent)]
    Send(#[from] weir_link::live::SendError),
    /// Frames were not sent by a path that checks.
    #[error(transparent)]
    Path(#[from] weir_ring::SendError),
    /// Anything else.
    #[error("cannot {what} ({source})")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PortError {
    /// Whether a path to send by is gone.
    fn is_egress_path_gone(&self) -> bool {
        matches!(self, PortError::Path(weir_ring::SendError::Down { .. }))
    }

    /// Whether there is no broker for the interfaces of this network
    /// namespace.
    fn is_of_no_broker(&self) -> bool {
        match self {
            PortError::NoBroker { .. } => true,
            PortError::Refused(refusal) => refusal.kind == ErrorKind::Namespace,
            _ => false,
        }
    }
}
