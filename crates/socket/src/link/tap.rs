//! TAP interfaces: the kernel is at the other end.

use super::{BATCH, Link, Take};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use weir_link::net::{self, TapGso, TapHeader};
use weir_stack::Outlet;
use weir_stack::host::{Offload, Partial, Received};

/// The longest frame, in bytes: an IPv6 packet of most, a VLAN tag's header.
const FRAME_LEN_MAX: usize = 40 + 65_535 + 18;

/// One end of a TAP interface, as a link.
#[derive(Debug)]
pub struct Tap {
    tap: net::Tap,
    /// Bytes before each frame: a [`TapHeader`]'s, or none.
    header_len: usize,
    received: Vec<u8>,
    /// The frame that is being sent, behind its header, of so many bytes in
    /// all.
    sent: Vec<u8>,
    sent_len: usize,
    /// It was not taken, and goes first.
    is_full: bool,
}

impl Tap {
    /// Opens the interface, or makes it, so that the kernel and we hand each
    /// other TCP segments of up to 64 KB whose checksums are not computed.
    /// See [`net::Tap::open_offloading`].
    ///
    /// # Errors
    /// As there.
    pub fn open(name: &str) -> io::Result<Tap> {
        net::Tap::open_offloading(name).map(|tap| Tap::of(tap, TapHeader::LEN))
    }

    /// As [`Tap::open`], with frames as they would be on a wire.
    ///
    /// # Errors
    /// As there.
    pub fn open_plain(name: &str) -> io::Result<Tap> {
        net::Tap::open(name).map(|tap| Tap::of(tap, 0))
    }

    /// As [`Tap::open`], of an interface of so many queues, for a host of as many
    /// stacks: see [`net::Tap::open_queues`].
    ///
    /// # Errors
    /// As there.
    pub fn queues(name: &str, count: usize) -> io::Result<Vec<Box<dyn Link>>> {
        let taps = net::Tap::open_queues(name, count, true)?;
        Ok(boxed(taps, TapHeader::LEN))
    }

    /// As [`Tap::queues`], with frames as they would be on a wire.
    ///
    /// # Errors
    /// As there.
    pub fn queues_plain(name: &str, count: usize) -> io::Result<Vec<Box<dyn Link>>> {
        let taps = net::Tap::open_queues(name, count, false)?;
        Ok(boxed(taps, 0))
    }

    fn of(tap: net::Tap, header_len: usize) -> Tap {
        Tap {
            tap,
            header_len,
            received: vec![0; TapHeader::LEN + FRAME_LEN_MAX],
            sent: vec![0; TapHeader::LEN + FRAME_LEN_MAX],
            sent_len: 0,
            is_full: false,
        }
    }

    /// What is sent to an interface that is down is lost, as on a cable that
    /// is not plugged in.
    fn send(&mut self) {
        let sent = self.tap.send(&self.sent[..self.sent_len]);
        self.is_full = matches!(sent, Ok(false));
    }
}

fn boxed(taps: Vec<net::Tap>, header_len: usize) -> Vec<Box<dyn Link>> {
    let boxed = |tap| Box::new(Tap::of(tap, header_len)) as Box<dyn Link>;
    taps.into_iter().map(boxed).collect()
}

impl Outlet for Tap {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full {
            self.send();
        }
        if self.is_full {
            return None;
        }
        self.sent_len = self.header_len + len;
        if self.sent.len() < self.sent_len {
            self.sent.resize(self.sent_len, 0);
        }
        Some(&mut self.sent[self.header_len..self.sent_len])
    }

    fn submit(&mut self) {
        self.sent[..self.header_len].fill(0);
        self.send();
    }

    fn submit_partial(&mut self, partial: Partial, payload: [&[u8]; 2]) {
        let mut header = TapHeader {
            needs_checksum: true,
            checksum_start: partial.checksum_start,
            checksum_offset: partial.checksum_offset,
            ..TapHeader::default()
        };
        if let Some(gso) = partial.gso {
            header.gso = if gso.v6 { TapGso::Tcp6 } else { TapGso::Tcp4 };
            header.gso_size = gso.size;
            header.header_len = gso.header_len;
        }
        self.sent[..TapHeader::LEN].copy_from_slice(&header.to_bytes());
        let [first, rest] = payload;
        let head = &self.sent[..self.sent_len];
        let sent = self.tap.send_all(&[head, first, rest].map(IoSlice::new));
        self.is_full = matches!(sent, Ok(false));
        if self.is_full {
            // It goes later, when the bytes may lie elsewhere.
            for part in payload {
                let end = self.sent_len + part.len();
                self.sent[self.sent_len..end].copy_from_slice(part);
                self.sent_len = end;
            }
        }
    }
}

impl Link for Tap {
    fn fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    fn offload(&self) -> Offload {
        match self.header_len {
            0 => Offload::default(),
            _ => Offload::ALL,
        }
    }

    fn receive(&mut self, take: &mut Take<'_>) -> io::Result<bool> {
        for _ in 0..BATCH {
            let len = match self.tap.receive(&mut self.received) {
                Ok(Some(len)) => len,
                Ok(None) => return Ok(false),
                // The interface is down, not gone.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            };
            let Some(frame) = self.received.get(self.header_len..len) else {
                continue;
            };
            let header = match self.header_len {
                0 => None,
                _ => TapHeader::parse(&self.received),
            };
            let vouched = header.is_some_and(|header| header.needs_checksum || header.checked);
            let received = Received {
                vouched,
                ..Received::default()
            };
            take(frame, received);
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}
