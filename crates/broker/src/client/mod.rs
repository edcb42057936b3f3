//! The client API: opening ports, receiving and sending frames.
//!
//! `builder` states a port, `port` is an open one; `connection` talks to the
//! broker, `local` runs an engine in this process.

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

/// The reason why an operation on a port failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The filter is invalid.
    #[error(transparent)]
    Filter(#[from] CompileError),
    /// The broker, or the engine in this process, refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No broker listens, and this process has no privilege to open ports
    /// itself.
    #[error("no broker listens on {}: start `weir broker` as root ({source})", path.display())]
    NoBroker {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The broker ended the connection.
    #[error("the broker ended the connection: {reason}")]
    Ended {
        /// The broker's reason.
        reason: String,
    },
    /// No broker runs, and the port was removed with what the last one had left.
    #[error(
        "the port was removed with what the broker had left (weir broker --clean): nothing is \
         received any more"
    )]
    Removed,
    /// The broker sent an invalid message.
    #[error("the broker said something that makes no sense: {0}")]
    Protocol(String),
    /// The request exceeds the message length limit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The ring is damaged.
    #[error(transparent)]
    Ring(#[from] weir_ring::Error),
    /// Frames were not sent by the packet socket.
    #[error(transparent)]
    Send(#[from] weir_link::live::SendError),
    /// Frames were not sent by the egress path that checks them.
    #[error(transparent)]
    Path(#[from] weir_ring::SendError),
    /// Any other system error.
    #[error("cannot {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl PortError {
    /// Whether the error of [`Port::events`] or [`Port::counters`] means that the port has ended. A port
    /// goes on while no broker runs ([`NoBroker`](Self::NoBroker)), if the broker keeps its state.
    pub fn is_end_of_port(&self) -> bool {
        matches!(
            self,
            PortError::Refused(_) | PortError::Ended { .. } | PortError::Removed
        )
    }

    /// Whether the interface's queue is full: the frame is lost, the port is well.
    pub fn is_queue_full(&self) -> bool {
        matches!(self, PortError::Send(weir_link::live::SendError::Full))
    }

    /// Whether the egress path is gone.
    fn is_egress_path_gone(&self) -> bool {
        matches!(self, PortError::Path(weir_ring::SendError::Down { .. }))
    }

    /// Whether the error means that no broker serves this network namespace.
    fn is_of_no_broker(&self) -> bool {
        match self {
            PortError::NoBroker { .. } => true,
            PortError::Refused(refusal) => refusal.kind == ErrorKind::Namespace,
            _ => false,
        }
    }
}
