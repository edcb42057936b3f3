//! What a descriptor of the program is, by a copy of it in this process.

use crate::relay::name::{self, Name};
use crate::relay::{calls as relayed, guest};
use crate::{address, real, table};
use libc::c_int;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::{self, Timeout};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// `TCP_SYN_SENT` of `struct tcp_info`.
const SYN_SENT: u8 = 2;
/// Linux' `IPPROTO_MPTCP`: such a socket is one of TCP for a peer without Multipath TCP (RFC 8684).
const MPTCP: c_int = 262;

/// Of what kind a descriptor of the program is.
pub(super) enum Socket {
    /// An end of a pair of this process.
    Weirs(Name),
    /// An Internet socket of the kernel: its family and its type.
    Kernels(c_int, c_int),
    Other,
}

/// Options that a socket of the kernel hands over to one of weir.
pub(super) const OPTIONS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// What a copy of a descriptor is.
pub(super) fn which(fd: &OwnedFd) -> Socket {
    let raw = fd.as_raw_fd();
    let number = |option| {
        let value = option_of(fd, (libc::SOL_SOCKET, option))?;
        value
            .first_chunk()
            .map(|bytes| c_int::from_ne_bytes(*bytes))
    };
    match (number(libc::SO_DOMAIN), number(libc::SO_TYPE)) {
        (Some(libc::AF_UNIX), _) => {
            let own = rustix::process::getpid().as_raw_nonzero().get();
            let is_own = relayed::credentials(raw).is_some_and(|about| about.pid == own);
            match Name::of(raw).filter(|_| is_own) {
                Some(name) => Socket::Weirs(name),
                None => Socket::Other,
            }
        }
        (Some(domain @ (libc::AF_INET | libc::AF_INET6)), Some(kind)) => {
            match (kind, number(libc::SO_PROTOCOL)) {
                (libc::SOCK_STREAM, Some(libc::IPPROTO_TCP | MPTCP))
                | (libc::SOCK_DGRAM, Some(libc::IPPROTO_UDP)) => Socket::Kernels(domain, kind),
                _ => Socket::Other,
            }
        }
        _ => Socket::Other,
    }
}

pub(super) fn option_of(fd: &OwnedFd, (level, name): (c_int, c_int)) -> Option<Vec<u8>> {
    let mut value = [0_u8; 16];
    let mut len = value.len() as libc::socklen_t;
    let at = value.as_mut_ptr().cast();
    // SAFETY: the buffer has the stated length.
    let got = unsafe { real::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len) };
    (got == 0).then(|| value[..(len as usize).min(value.len())].to_vec())
}

/// The local port of a socket of the kernel; 0 before it has one.
pub(super) fn own_port(fd: &OwnedFd) -> u16 {
    let mut room = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut len = room.len() as libc::socklen_t;
    let at = room.as_mut_ptr().cast();
    // SAFETY: the buffer has the stated length.
    let named = unsafe {
        match real::getsockname(fd.as_raw_fd(), at, &raw mut len) {
            0 => address::read(at, len).ok(),
            _ => None,
        }
    };
    named.map_or(0, |address| address.port())
}

pub(super) fn kernels_socket(domain: c_int, kind: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: the call takes numbers.
    let made = unsafe { real::socket(domain, kind | libc::SOCK_CLOEXEC, 0) };
    if made < 0 {
        return Err(crate::sock::last_errno());
    }
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Whether an option is the time limit of calls, which a Unix socket has too.
pub(super) fn is_time_limit(option: (c_int, c_int)) -> bool {
    matches!(
        option,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
    )
}

/// When a call on a socket that begins now is to end.
pub(super) fn deadline(fd: &OwnedFd, limit: Timeout) -> Option<Instant> {
    let limit = sockopt::socket_timeout(fd, limit).ok()??;
    Instant::now().checked_add(limit)
}

pub(super) fn is_nonblocking(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

pub(super) fn set_nonblocking(fd: &OwnedFd, on: bool) {
    let flags = if on {
        rustix::fs::OFlags::NONBLOCK
    } else {
        rustix::fs::OFlags::empty()
    };
    // A socket of this process takes the flag.
    let _ = rustix::fs::fcntl_setfl(fd, flags);
}

/// What `poll(2)` says at once.
pub(super) fn ready(fd: &OwnedFd, flags: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd, flags)];
    let none = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut fds, Some(&none)) {
        Ok(1..) => fds[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// Whether the other end of a pair is closed.
pub(super) fn is_over(fd: &OwnedFd) -> bool {
    ready(fd, PollFlags::empty()).contains(PollFlags::HUP)
}

#[derive(PartialEq, Eq)]
pub(super) enum State {
    Opening,
    Open,
    Failed(c_int),
}

/// How far a connection is.
pub(super) fn state(fd: &OwnedFd) -> State {
    if let Some(error @ 1..) = name::said_end(fd.as_raw_fd()) {
        return State::Failed(error);
    }
    let info = guest::get(fd.as_raw_fd(), (libc::IPPROTO_TCP, libc::TCP_INFO));
    match info {
        Ok(info) if info.first() == Some(&SYN_SENT) => State::Opening,
        _ => State::Open,
    }
}

/// The error of `connect(2)` of a connection.
pub(super) fn connect_again(fd: &OwnedFd) -> c_int {
    match state(fd) {
        State::Opening => libc::EALREADY,
        State::Open => libc::EISCONN,
        State::Failed(error) => error,
    }
}

/// Does what the relay's calls do, which know descriptors by their numbers.
pub(super) fn as_relayed<T>(fd: &OwnedFd, is_datagrams: bool, act: impl FnOnce(c_int) -> T) -> T {
    let raw = fd.as_raw_fd();
    table::mark_relay(raw, is_datagrams);
    let done = act(raw);
    table::forget_relay(raw);
    done
}
