//! The sockets that a child of a fork has from this process, and may ask for ([`crate::fork`]).

use super::convert;
use super::passing::pass;
use super::protocol::{LEASE, TAKE};
use super::pump::Interest;
use crate::sock::Sock;
use libc::c_int;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Requests that are answered in one turn, so that no child keeps the other items waiting.
const TURN_MAX: usize = 64;

/// A child of this process, and the sockets that it has from its parent and has not used.
pub(crate) struct Child {
    control: OwnedFd,
    leases: HashMap<u64, Arc<Sock>>,
}

impl Child {
    pub(crate) fn new(control: OwnedFd, sockets: impl Iterator<Item = Arc<Sock>>) -> Child {
        Child {
            control,
            leases: sockets.map(|sock| (sock.id, sock)).collect(),
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.control
    }

    /// Answers requests; returns `None` once the child has ended or runs another program.
    pub(super) fn turn(&mut self, again: &mut bool) -> Option<Interest> {
        let mut request = [0; LEASE];
        for _ in 0..TURN_MAX {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            match rustix::net::recv(&self.control, &mut request, flags) {
                Ok((LEASE, _)) => {
                    self.answer(&request)?;
                    if self.leases.is_empty() {
                        // There is nothing left to ask for.
                        return None;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    return Some(Interest {
                        read: true,
                        write: false,
                    });
                }
                Ok(_) | Err(_) => return None,
            }
        }
        *again = true;
        Some(Interest {
            read: true,
            write: false,
        })
    }

    fn answer(&mut self, request: &[u8; LEASE]) -> Option<()> {
        let mut id = [0; 8];
        id.copy_from_slice(&request[1..]);
        let lease = self.leases.remove(&u64::from_ne_bytes(id));
        if request[0] != TAKE {
            return Some(());
        }
        let error = match lease {
            Some(sock) => match self.hand_out(&sock)? {
                0 => return Some(()),
                error => {
                    self.leases.insert(sock.id, sock);
                    error
                }
            },
            None => libc::EBADF,
        };
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&self.control, &error.to_ne_bytes(), flags);
        sent.ok().map(drop)
    }

    /// Moves a leased socket onto a pair, and passes the child its end; returns 0 or the error that the
    /// child may ask again after, and `None` if the child takes no answers.
    fn hand_out(&self, sock: &Arc<Sock>) -> Option<c_int> {
        match convert(sock).and_then(|end| pass(&self.control, &end)) {
            Ok(()) => Some(0),
            Err(libc::EAGAIN | libc::EPIPE | libc::ECONNRESET) => None,
            Err(error) => Some(error),
        }
    }
}
