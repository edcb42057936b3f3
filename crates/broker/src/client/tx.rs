//! The means by which a port sends.

use super::PortError;
use super::connection::unexpected_reply;
use crate::protocol::TxReady;
use std::os::fd::OwnedFd;
use weir_link::live::Sender;
use weir_ring::XskTx;

/// A socket or path for sending.
#[derive(Debug)]
pub(super) enum TxPath {
    /// A packet socket, for the superuser.
    Packet(Sender),
    /// An AF_XDP socket on an egress path that checks frames, for other users.
    Checked(XskTx),
}

impl TxPath {
    pub(super) fn new(sends: &TxReady, fds: Vec<OwnedFd>) -> Result<TxPath, PortError> {
        let names: Vec<&str> = sends.fds.iter().map(String::as_str).collect();
        let mut fds = fds.into_iter();
        match (&names[..], fds.next(), fds.next()) {
            (["packet"], Some(socket), None) => Ok(TxPath::Packet(Sender::from_fd(socket))),
            (["xdp", "memory"], Some(socket), Some(memory)) => {
                let bytes = usize::try_from(sends.memory).map_err(|_| unexpected_reply())?;
                let chunk = sends.chunk as usize;
                Ok(TxPath::Checked(XskTx::open(socket, memory, bytes, chunk)?))
            }
            _ => Err(unexpected_reply()),
        }
    }

    pub(super) fn send(&mut self, frames: &[&[u8]]) -> Result<usize, PortError> {
        match self {
            TxPath::Packet(sender) => Ok(sender.send_batch(frames)?),
            TxPath::Checked(transmitter) => Ok(transmitter.send_batch(frames)?),
        }
    }
}
