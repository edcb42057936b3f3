//! Calls of an application on its end of a relayed pair. The kernel does them; what differs from a
//! socket of TCP is made up for here.

use super::name::{self, Name};
use super::{Got, receive_passed};
use crate::sock::last_errno;
use crate::{address, real, signals, table};
use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::time::Duration;

/// Pause of a call on a listener whose owner is gone, so that a server that goes on asking leaves
/// the processor to others.
const GONE_PAUSE: Duration = Duration::from_millis(50);

/// Why there is no more to read or to write: an error's number, once, or 0 for an orderly end.
pub(crate) fn take_end(fd: c_int) -> c_int {
    let error = match name::said_end(fd) {
        Some(error) => error,
        // The owner has ended without a word, as when it was killed.
        None if is_hung_up(fd) && !is_owner_alive(fd) => libc::ECONNRESET,
        None => 0,
    };
    if error != 0 && table::report_once(fd) {
        error
    } else {
        0
    }
}

fn is_hung_up(fd: c_int) -> bool {
    let mut one = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one descriptor is given.
    let polled = unsafe { real::poll(&raw mut one, 1, 0) };
    polled > 0 && one.revents & libc::POLLHUP != 0
}

/// Whether the process that made the pair lives (`SO_PEERCRED`).
fn is_owner_alive(fd: c_int) -> bool {
    // SAFETY: all fields of zeroed credentials are valid.
    let mut about: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut about).cast();
    // SAFETY: the value has the stated length.
    let got =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    if got != 0 || about.pid <= 0 {
        return true;
    }
    match std::fs::read_to_string(format!("/proc/{}/stat", about.pid)) {
        Ok(text) => !is_ending(&text),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Whether the process with this `/proc/PID/stat` (proc_pid_stat(5)) has ended, or is about to: it
/// closes its descriptors before it counts as dead.
fn is_ending(stat: &str) -> bool {
    /// Linux' `PF_EXITING`.
    const EXITING: u32 = 4;
    // The fields stand behind the name, which is in parentheses: state, six numbers, flags.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let flags = rest.split(' ').nth(6).and_then(|flags| flags.parse().ok());
    rest.starts_with(['Z', 'X']) || flags.is_some_and(|flags: u32| flags & EXITING != 0)
}

/// The result of a call that receives: the end of a connection that has failed is its error.
pub(crate) fn received(fd: c_int, wanted: usize, count: ssize_t) -> ssize_t {
    if count != 0 || wanted == 0 || !table::is_relay(fd) {
        return count;
    }
    let _inside = signals::enter();
    match take_end(fd) {
        0 => 0,
        error => crate::calls::length(Err(error)),
    }
}

/// Sends a message. The kernel's signal for a closed pair comes only where TCP sends one.
///
/// # Safety
/// `message` is valid.
pub(crate) unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let mut copy = unsafe { *message };
    // A connection has its peer already.
    copy.msg_name = std::ptr::null_mut();
    copy.msg_namelen = 0;
    let own = libc::MSG_DONTWAIT;
    let kept = flags & own | libc::MSG_NOSIGNAL;
    // SAFETY: the caller's promise.
    let sent = unsafe { real::sendmsg(fd, &raw const copy, kept) };
    if sent >= 0 || last_errno() != libc::EPIPE {
        return sent;
    }
    let inside = signals::enter();
    let error = match take_end(fd) {
        0 => libc::EPIPE,
        error => error,
    };
    drop(inside);
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: the call takes a number.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    crate::calls::length(Err(error))
}

/// As [`send_message`], for one buffer.
///
/// # Safety
/// `len` bytes can be read at `from`.
pub(crate) unsafe fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let part = iovec {
        iov_base: from.cast_mut(),
        iov_len: len,
    };
    // SAFETY: the caller's promise.
    unsafe { send_parts(fd, &raw const part, 1, flags) }
}

/// As [`send_message`], for several buffers.
///
/// # Safety
/// `parts` are `count` buffers.
pub(crate) unsafe fn send_parts(
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = parts.cast_mut();
    message.msg_iovlen = count;
    // SAFETY: the caller's promise.
    unsafe { send_message(fd, &raw const message, flags) }
}

/// Accepts a connection from a listener's pair: its descriptor and its peer.
pub(crate) fn accept(fd: c_int, name: Name, flags: c_int) -> Result<(c_int, SocketAddr), c_int> {
    if name.peer.is_some() || flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL);
    }
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 {
        libc::MSG_CMSG_CLOEXEC
    } else {
        0
    };
    let new = match receive_passed(fd, cloexec)? {
        Got::Descriptor(new) => new,
        Got::Error(error) => return Err(error),
        Got::End => {
            if !is_owner_alive(fd) {
                std::thread::sleep(GONE_PAUSE);
                return Err(libc::ENETDOWN);
            }
            return Err(libc::EINVAL);
        }
    };
    let peer = Name::of(new).and_then(|name| name.peer);
    let Some(peer) = peer else {
        // SAFETY: the descriptor is the new one.
        unsafe { real::close(new) };
        return Err(libc::ECONNABORTED);
    };
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: the command takes a number.
        unsafe { real::fcntl(new, libc::F_SETFL, libc::O_NONBLOCK as usize) };
    }
    table::mark_relay(new);
    Ok((new, address::shown(peer, name.domain)))
}

/// The value of an option that a Unix socket has differently; `None` if the kernel is to answer.
pub(crate) fn option(fd: c_int, (level, option): (c_int, c_int)) -> Option<Result<c_int, c_int>> {
    let name = Name::of(fd)?;
    match (level, option) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(Ok(name.domain)),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(Ok(libc::IPPROTO_TCP)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Some(Ok(libc::SOCK_STREAM)),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(Ok(name.peer.is_none().into())),
        (libc::SOL_SOCKET, libc::SO_ERROR) if name.peer.is_some() && is_hung_up(fd) => {
            Some(Ok(take_end(fd)))
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(Ok(1)),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Some(Err(libc::ENOPROTOOPT)),
        (libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => Some(Ok(0)),
        _ => None,
    }
}

/// Whether an option is one that the kernel's Unix sockets do not have.
pub(crate) fn has_no_option(level: c_int) -> bool {
    matches!(
        level,
        libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6
    )
}
