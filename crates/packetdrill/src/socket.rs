//! Sockets and their descriptors.

use crate::errqueue::{ErrEvent, Seen, TxWatch};
use crate::poll::Epoll;
use crate::simulation::Inner;
use crate::{Answer, Errno, user_memory};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use weir_stack::tcp::{ListenerId, TcpError, TcpId};

/// An object behind a descriptor. The descriptor is a real one without other use, so that its
/// number is unique.
pub(crate) struct Entry {
    file: ManuallyDrop<File>,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Socket(Box<Socket>),
    Epoll(Epoll),
}

impl Entry {
    fn open(kind: Kind) -> Answer<(i32, Entry)> {
        let file = File::open("/dev/null").map_err(|error| errno_of(&error))?;
        let fd = file.as_raw_fd();
        let file = ManuallyDrop::new(file);
        Ok((fd, Entry { file, kind }))
    }

    /// Closes the descriptor.
    pub(crate) fn close(self) -> Kind {
        drop(ManuallyDrop::into_inner(self.file));
        self.kind
    }

    /// Drops the entry without closing the descriptor, which the process has already closed.
    pub(crate) fn forget(self) {}
}

/// The phase of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketPhase {
    /// Neither listening nor connected; possibly bound to an address.
    New(Option<SocketAddr>),
    Listens(ListenerId),
    /// Has a connection, which may be opening or closed.
    Stream(TcpId),
}

/// A TCP socket.
pub(crate) struct Socket {
    pub(crate) phase: SocketPhase,
    /// Created for IPv6; IPv4 addresses are mapped.
    pub(crate) is_v6: bool,
    pub(crate) nonblocking: bool,
    pub(crate) options: Options,
    /// Whether the application has shut down reading.
    pub(crate) deaf: bool,
    /// Whether its connection was ever established.
    pub(crate) was_open: bool,
    /// The error of its connection that was already reported.
    pub(crate) reported: Option<TcpError>,
    /// The peer of a `connect` that waits for the first data (`TCP_FASTOPEN_CONNECT`).
    pub(crate) deferred: Option<SocketAddr>,
    /// Number of bytes written.
    pub(crate) written: u64,
    /// Writes with a requested timestamp.
    pub(crate) watched: Vec<TxWatch>,
    /// Number of zero-copy writes.
    pub(crate) zero_copies: u32,
    /// The byte from which timestamps count.
    pub(crate) stamps_from: u64,
    /// Whether a write found no room.
    pub(crate) starved: bool,
    /// The state at the last check.
    pub(crate) seen: Seen,
    /// The error queue.
    pub(crate) notices: VecDeque<ErrEvent>,
    /// Number of events that would wake a waiter.
    pub(crate) happened: u64,
}

/// The options of this socket and of sockets that it accepts.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Options without effect here, stored for `getsockopt`.
    pub(crate) kept: Vec<((i32, i32), Vec<u8>)>,
    pub(crate) send_buffer: usize,
    pub(crate) linger: Option<u32>,
    pub(crate) notsent_lowat: u32,
    pub(crate) backlog: usize,
    pub(crate) fast_open_key: Option<[u8; 16]>,
    pub(crate) receive_timeout_ns: u64,
    pub(crate) send_timeout_ns: u64,
}

impl Socket {
    pub(crate) fn new(inner: &Inner, stage: SocketPhase, is_v6: bool) -> Socket {
        Socket {
            phase: stage,
            is_v6,
            nonblocking: false,
            options: Options {
                kept: Vec::new(),
                send_buffer: inner.settings.send_buffer(),
                linger: None,
                notsent_lowat: 0,
                backlog: 0,
                fast_open_key: None,
                receive_timeout_ns: 0,
                send_timeout_ns: 0,
            },
            deaf: false,
            was_open: false,
            reported: None,
            deferred: None,
            written: 0,
            watched: Vec::new(),
            zero_copies: 0,
            stamps_from: 0,
            starved: false,
            seen: Seen::default(),
            notices: VecDeque::new(),
            happened: 0,
        }
    }

    pub(crate) fn stream(&self) -> Option<TcpId> {
        match self.phase {
            SocketPhase::Stream(id) => Some(id),
            _ => None,
        }
    }
}

impl Inner {
    /// Adds an object; returns its descriptor.
    pub(crate) fn enter(&mut self, kind: Kind) -> Answer<i32> {
        let (fd, entry) = Entry::open(kind)?;
        self.entries.insert(fd, entry);
        Ok(fd)
    }

    pub(crate) fn socket(&mut self, fd: i32) -> Answer<&mut Socket> {
        match self.entries.get_mut(&fd).map(|entry| &mut entry.kind) {
            Some(Kind::Socket(socket)) => Ok(socket),
            Some(Kind::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno(libc::EBADF)),
        }
    }
}

/// The error number of a system error.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The error number of a stack error.
pub(crate) fn errno(error: TcpError) -> Errno {
    Errno(match error {
        TcpError::WouldBlock => libc::EAGAIN,
        TcpError::Refused => libc::ECONNREFUSED,
        TcpError::HostUnreachable => libc::EHOSTUNREACH,
        TcpError::NetworkUnreachable => libc::ENETUNREACH,
        TcpError::Reset => libc::ECONNRESET,
        TcpError::TimedOut => libc::ETIMEDOUT,
        TcpError::WriteClosed => libc::EPIPE,
        TcpError::Closed => libc::ENOTCONN,
        TcpError::AddrNotAvailable(_) => libc::EADDRNOTAVAIL,
        TcpError::AddrInUse(_) => libc::EADDRINUSE,
        TcpError::NoRoute(_) => libc::ENETUNREACH,
        TcpError::Full => libc::ENOBUFS,
    })
}

/// An address in the caller's memory (`sockaddr_in`, `sockaddr_in6`); `None`
/// is `AF_UNSPEC`.
pub(crate) fn take_address(at: usize, len: u32) -> Answer<Option<SocketAddr>> {
    let bytes = user_memory::take(at, (len as usize).min(128))?;
    let family = bytes.get(..2).ok_or(Errno(libc::EINVAL))?;
    let family = i32::from(u16::from_ne_bytes([family[0], family[1]]));
    let port = || u16::from_be_bytes([bytes[2], bytes[3]]);
    match family {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET if bytes.len() >= 8 => {
            let address = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Ok(Some(SocketAddr::new(address.into(), port())))
        }
        libc::AF_INET6 if bytes.len() >= 24 => {
            let address: [u8; 16] = bytes[8..24].try_into().expect("sixteen bytes");
            let address = Ipv6Addr::from(address).to_canonical();
            Ok(Some(SocketAddr::new(address, port())))
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno(libc::EINVAL)),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes an address to the caller's buffer, if there is one.
pub(crate) fn give_address(
    address: SocketAddr,
    is_v6: bool,
    at: usize,
    len_at: usize,
) -> Answer<()> {
    if at == 0 || len_at == 0 {
        return Ok(());
    }
    let mut bytes = Vec::new();
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    bytes.extend_from_slice(&(family as u16).to_ne_bytes());
    bytes.extend_from_slice(&address.port().to_be_bytes());
    match (address.ip(), is_v6) {
        (IpAddr::V4(ip), false) => {
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 8]);
        }
        (ip, _) => {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 4]);
        }
    }
    let room = user_memory::take_u32(len_at)? as usize;
    user_memory::give(at, &bytes[..bytes.len().min(room)])?;
    user_memory::give(len_at, &(bytes.len() as u32).to_ne_bytes())
}
