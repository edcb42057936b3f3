//! Whose a port is.

use crate::policy::PeerCred;

/// Whose a port is: it goes with the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The connection; no other has the number.
    pub connection: u64,
    /// The process and its user.
    pub who: PeerCred,
}
