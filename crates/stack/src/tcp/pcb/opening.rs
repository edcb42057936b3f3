//! [`Opening`]: how a connection was opened: by a listener or not, with data in its SYN or not.

use crate::slab::Handle;
use crate::tcp::listen::fastopen::TfoConnect;

/// The opening of one connection. `is_half_open` implies a listener.
#[derive(Default)]
pub(in crate::tcp) struct Opening {
    /// The listener that opened the connection, until the connection is accepted.
    pub(in crate::tcp) listener: Option<Handle>,
    /// The state of TCP Fast Open (RFC 7413), while the connection opens by it.
    pub(in crate::tcp) tfo: Option<Box<TfoConnect>>,
    /// Whether the connection counts among the listener's half-open ones.
    pub(in crate::tcp) is_half_open: bool,
    /// Whether data in a SYN was accepted, by the peer or by this side.
    pub(in crate::tcp) syn_data_acked: bool,
}

impl Opening {
    /// The listener of a connection that the application was given before the peer had
    /// acknowledged the SYN-ACK; `None` of any other connection.
    pub(in crate::tcp) fn early_listener(&self) -> Option<Handle> {
        self.tfo.as_ref()?.listener
    }
}
