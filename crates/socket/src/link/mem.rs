//! [`Mem`]: a link in memory between two nets of one process.

use super::{BATCH, Link, RxSink};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_link::mem::{End, Impairments, MemLink};
use weir_stack::TxSink;
use weir_stack::iface::RxMeta;

/// One end of a link in memory.
#[derive(Debug)]
pub struct Mem {
    wire: Arc<Wire>,
    end: End,
    frame: Vec<u8>,
}

#[derive(Debug)]
struct Wire {
    link: Mutex<MemLink>,
    start: Instant,
    /// Readable when a frame was sent to that end.
    wake_fds: [OwnedFd; 2],
}

/// Creates both ends of a link that delivers every frame at once and in order.
///
/// # Errors
/// If the system provides no descriptors.
pub fn mem() -> io::Result<(Mem, Mem)> {
    pair(MemLink::perfect())
}

/// Creates both ends of a link that drops, delays, duplicates and damages frames, equally in
/// both directions, as the seed decides.
///
/// # Errors
/// If the impairments contradict each other, or the system provides no descriptors.
pub fn mem_with(impairments: Impairments, seed: u64) -> io::Result<(Mem, Mem)> {
    let link = MemLink::new(impairments, impairments, seed);
    pair(link.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?)
}

fn pair(link: MemLink) -> io::Result<(Mem, Mem)> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wire = Arc::new(Wire {
        link: Mutex::new(link),
        start: Instant::now(),
        wake_fds: [eventfd(0, flags)?, eventfd(0, flags)?],
    });
    let end = |end| Mem {
        wire: Arc::clone(&wire),
        end,
        frame: Vec::new(),
    };
    Ok((end(End::A), end(End::B)))
}

impl Mem {
    fn lock(&self) -> MutexGuard<'_, MemLink> {
        self.wire
            .link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.wire.start.elapsed().as_nanos() as u64
    }
}

impl TxSink for Mem {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    /// A frame without room on the link is lost, as on a wire.
    fn submit(&mut self) {
        let now_ns = self.now_ns();
        let sent = self.lock().send(self.end, now_ns, &self.frame);
        if sent.is_ok() {
            let other = match self.end {
                End::A => &self.wire.wake_fds[1],
                End::B => &self.wire.wake_fds[0],
            };
            // The counter cannot overflow, and a failed write means that it is already set.
            let _ = rustix::io::write(other, &1_u64.to_ne_bytes());
        }
    }
}

impl Link for Mem {
    fn fd(&self) -> BorrowedFd<'_> {
        match self.end {
            End::A => self.wire.wake_fds[0].as_fd(),
            End::B => self.wire.wake_fds[1].as_fd(),
        }
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        // Cleared before receiving, so that a frame sent afterwards sets it again.
        let _ = rustix::io::read(self.fd(), &mut [0; 8]);
        let now_ns = self.now_ns();
        for _ in 0..BATCH {
            let received = self.lock().receive(self.end, now_ns);
            match received {
                Some(received) => take(&received.bytes, RxMeta::default()),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn next_arrival(&self) -> Option<Duration> {
        let arrival_ns = self.lock().next_arrival_ns(self.end)?;
        Some(Duration::from_nanos(
            arrival_ns.saturating_sub(self.now_ns()),
        ))
    }
}
