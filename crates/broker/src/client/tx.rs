//! What a port sends by.

use super::PortError;
use super::connection::odd;
use crate::protocol::Sends;
use std::os::fd::OwnedFd;
use weir_link::live::Sender;
use weir_ring::Transmitter;

/// A way for frames out.
#[derive(Debug)]
pub(super) enum Way {
    /// The superuser's.
    Packet(Sender),
    /// Everybody else's, which checks.
    Checked(Transmitter),
}

impl Way {
    pub(super) fn new(sends: &Sends, fds: Vec<OwnedFd>) -> Result<Way, PortError> {
        let names: Vec<&str> = sends.fds.iter().map(String::as_str).collect();
        let mut fds = fds.into_iter();
        match (&names[..], fds.next(), fds.next()) {
            (["packet"], Some(socket), None) => Ok(Way::Packet(Sender::from_fd(socket))),
            (["xdp", "memory"], Some(socket), Some(memory)) => {
                let bytes = usize::try_from(sends.memory).map_err(|_| odd())?;
                let chunk = sends.chunk as usize;
                Ok(Way::Checked(Transmitter::open(
                    socket, memory, bytes, chunk,
                )?))
            }
            _ => Err(odd()),
        }
    }

    pub(super) fn send(&mut self, frames: &[&[u8]]) -> Result<usize, PortError> {
        match self {
            Way::Packet(sender) => Ok(sender.send_batch(frames)?),
            Way::Checked(transmitter) => Ok(transmitter.send_batch(frames)?),
        }
    }
}
