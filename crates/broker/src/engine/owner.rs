//! The owner of a port.

use crate::policy::PeerCred;

/// The owner of a port; the port ends with the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The connection's number, which is unique.
    pub connection: u64,
    /// The process and its user.
    pub who: PeerCred,
}
