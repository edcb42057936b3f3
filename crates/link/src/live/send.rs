//! Sending whole frames through a packet socket, with privilege.
#![allow(unsafe_code)] // Addresses of packet sockets, and many messages at once.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Largest number of frames in one system call: the kernel's limit
/// (`UIO_MAXIOV`).
pub(super) const BATCH_FRAMES_MAX: usize = 1024;

/// Why frames were not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The caller lacks privilege.
    #[error(
        "sending frames is not permitted: run as root or with CAP_NET_RAW, or ask the broker for a port that sends"
    )]
    NotPermitted,
    /// The frame is shorter than a link-layer header, or longer than the
    /// interface's maximum.
    #[error(
        "a frame of {len} bytes cannot be sent here: from a link-layer header up to the MTU and the header"
    )]
    Length {
        /// Bytes of the frame.
        len: usize,
    },
    /// The interface is down.
    #[error("the interface is down: `ip link set … up`")]
    Down,
    /// The interface is gone.
    #[error("the interface is gone")]
    Gone,
    /// The interface's queue or the sender's buffer is full; retry later.
    #[error("the queue of the interface is full: send again later")]
    Full,
    /// Any other error.
    #[error("the kernel did not {what} ({source})")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Sends whole frames, with their link-layer header, on one interface.
///
/// Frames take the path of the kernel's own frames: the qdisc and the programs
/// at tc egress, packet sockets included. A `Sender` receives nothing. Do not
/// pass its descriptor to unprivileged processes: a packet socket can be bound
/// to another interface.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
}

impl Sender {
    /// Opens a sender for the interface with that number, in the calling
    /// thread's network namespace.
    ///
    /// # Errors
    /// Without privilege, or if there is no such interface.
    pub fn open(ifindex: u32) -> Result<Sender, SendError> {
        let made = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // no protocol: nothing is received
        );
        let socket = made.map_err(|error| explain("make a packet socket", error.into(), 0))?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: i32::try_from(ifindex).map_err(|_| SendError::Gone)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address has the family's layout and the given length.
        let bound = unsafe {
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        };
        if bound != 0 {
            return Err(explain(
                "bind a packet socket",
                io::Error::last_os_error(),
                0,
            ));
        }
        Ok(Sender { socket })
    }

    /// Wraps the socket of a sender that another process opened.
    pub fn from_fd(socket: OwnedFd) -> Sender {
        Sender { socket }
    }

    /// Sends a frame; blocks while the sender's buffer is full.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&self, frame: &[u8]) -> Result<(), SendError> {
        let flags = rustix::net::SendFlags::empty();
        match rustix::net::send(&self.socket, frame, flags) {
            Ok(_) => Ok(()),
            Err(error) => Err(explain("send a frame", error.into(), frame.len())),
        }
    }

    /// Sends frames, up to 1,024 in one system call; returns how many were
    /// sent, from the first.
    ///
    /// # Errors
    /// If the first frame could not be sent.
    pub fn send_batch(&self, frames: &[&[u8]]) -> Result<usize, SendError> {
        let mut sent = 0;
        for chunk in frames.chunks(BATCH_FRAMES_MAX) {
            match self.send_chunk(chunk) {
                Ok(count) => sent += count,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
            }
            if !sent.is_multiple_of(BATCH_FRAMES_MAX) {
                break;
            }
        }
        Ok(sent)
    }

    fn send_chunk(&self, frames: &[&[u8]]) -> Result<usize, SendError> {
        let vectors: Vec<libc::iovec> = frames.iter().map(|frame| vector(frame)).collect();
        let mut messages: Vec<libc::mmsghdr> = vectors.iter().map(message).collect();
        // SAFETY: each message has one iovec, which points to a frame; both
        // outlive the call, and the kernel only reads them.
        let sent = unsafe {
            let count = messages.len() as libc::c_uint;
            libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0)
        };
        usize::try_from(sent).map_err(|_| {
            let len = frames.first().map_or(0, |frame| frame.len());
            explain("send a batch of frames", io::Error::last_os_error(), len)
        })
    }
}

fn vector(frame: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: frame.as_ptr().cast_mut().cast(),
        iov_len: frame.len(),
    }
}

fn message(vector: &libc::iovec) -> libc::mmsghdr {
    // SAFETY: all zeros is an empty message on every platform, whatever the
    // structure's padding.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = std::ptr::from_ref(vector).cast_mut();
    message.msg_hdr.msg_iovlen = 1;
    message
}

fn explain(what: &'static str, source: io::Error, len: usize) -> SendError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SendError::NotPermitted,
        Some(libc::EMSGSIZE | libc::EINVAL) if len > 0 => SendError::Length { len },
        Some(libc::ENETDOWN) => SendError::Down,
        Some(libc::ENODEV | libc::ENXIO) => SendError::Gone,
        Some(libc::ENOBUFS | libc::EAGAIN) => SendError::Full,
        _ => SendError::System { what, source },
    }
}

impl From<Sender> for OwnedFd {
    fn from(sender: Sender) -> OwnedFd {
        sender.socket
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
