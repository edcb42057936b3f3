//! TAP interfaces: the kernel is at the other end.

use super::{BATCH, Link};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use weir_link::net;
use weir_stack::Outlet;

/// The longest frame that comes, in bytes.
const FRAME_LEN_MAX: usize = 65_536 + 18;

/// One end of a TAP interface, as a link.
#[derive(Debug)]
pub struct Tap {
    tap: net::Tap,
    buffer: Vec<u8>,
    frame: Vec<u8>,
    /// `frame` was not taken and goes first.
    is_full: bool,
}

impl Tap {
    /// See [`net::Tap::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(name: &str) -> io::Result<Tap> {
        net::Tap::open(name).map(Tap::from)
    }

    /// What is sent to an interface that is down is lost, as on a cable that
    /// is not plugged in.
    fn send(&mut self) {
        self.is_full = matches!(self.tap.send(&self.frame), Ok(false));
    }
}

impl From<net::Tap> for Tap {
    fn from(tap: net::Tap) -> Tap {
        Tap {
            tap,
            buffer: vec![0; FRAME_LEN_MAX],
            frame: Vec::new(),
            is_full: false,
        }
    }
}

impl Outlet for Tap {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full {
            self.send();
        }
        if self.is_full {
            return None;
        }
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        self.send();
    }
}

impl Link for Tap {
    fn fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        for _ in 0..BATCH {
            match self.tap.receive(&mut self.buffer) {
                Ok(Some(len)) => take(&self.buffer[..len]),
                Ok(None) => return Ok(false),
                // The interface is down, not gone.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}
