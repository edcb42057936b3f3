//! [`UserSide`]: what the application has to do with a connection (RFC 9293 §3.9.1).

use super::{TcpError, TcpOptions};

/// The application's side of one connection. A connection without an application is an orphan:
/// its handle is invalid, and the PCB is dropped as soon as the connection is over.
pub(in crate::tcp) struct UserSide {
    /// Why the connection is over; boxed, since few connections end with an error.
    error: Option<Box<TcpError>>,
    pub(in crate::tcp) options: TcpOptions,
    /// Whether the application has closed the connection or was never given it.
    pub(in crate::tcp) orphaned: bool,
    /// Whether the application has shut the connection down for reading.
    pub(in crate::tcp) read_shut: bool,
    /// Whether the connection was closed with a linger time, after which it is reset unless
    /// everything was acknowledged.
    pub(in crate::tcp) linger_reset: bool,
}

impl UserSide {
    pub(super) fn new() -> UserSide {
        UserSide {
            error: None,
            options: TcpOptions::default(),
            orphaned: false,
            read_shut: false,
            linger_reset: false,
        }
    }

    /// Why the connection is over, if it ended with an error.
    pub(in crate::tcp) fn error(&self) -> Option<TcpError> {
        self.error.as_deref().copied()
    }

    /// Keeps the reason why the connection ends; the first one counts.
    pub(super) fn end(&mut self, error: Option<TcpError>) {
        self.error = self.error.take().or(error.map(Box::new));
    }
}
