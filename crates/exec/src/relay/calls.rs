//! Calls of an application on its end of a relayed pair. The kernel does them; what differs from a
//! socket of TCP is made up for here.

use super::Got;
use super::datagram_calls;
use super::guest;
use super::name::{self, Kind, Name};
use super::passing::await_passed;
use crate::cancel::{self, CANCELLED};
use crate::sock::last_errno;
use crate::{address, control, real, signals, table};
use libc::{c_int, c_short, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pause of a call on a listener whose owner is gone, so that a server that goes on asking leaves
/// the processor to others.
pub(super) const GONE_PAUSE: Duration = Duration::from_millis(50);

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
    ready(fd, 0) & libc::POLLHUP != 0
}

/// What `poll(2)` says of a descriptor at once.
fn ready(fd: c_int, events: c_short) -> c_short {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one descriptor is given.
    let polled = unsafe { real::poll(&raw mut one, 1, 0) };
    if polled > 0 { one.revents } else { 0 }
}

/// Whether a connection that `connect(2)` has begun has neither opened nor failed.
fn is_waiting(fd: c_int) -> bool {
    table::is_opening(fd) && ready(fd, libc::POLLOUT) == 0
}

/// Whether a connection has not opened, as far as is known.
pub(crate) fn is_unopened(fd: c_int) -> bool {
    is_waiting(fd) || has_failed(fd)
}

/// Waits until a connection has opened, up to a time limit; then no call says any more that it is
/// opening.
///
/// # Errors
/// Why it has failed; `EINPROGRESS` after the time limit; `EINTR` after a signal whose handler was
/// not installed with `SA_RESTART`; [`CANCELLED`] in a cancelled thread.
pub(crate) fn await_open(fd: c_int, limit: Option<Duration>) -> Result<(), c_int> {
    let interrupts = signals::interrupts();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    while is_waiting(fd) {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(libc::EINPROGRESS);
        }
        let time_ms = left.map_or(-1, |left| left.as_millis().min(1 << 30) as c_int + 1);
        let mut one = libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        let polled = signals::outside(|state| {
            cancel::point(state, (&raw mut one, time_ms), |(one, time_ms)| {
                // SAFETY: one descriptor is given.
                unsafe { real::poll(one, 1, time_ms) as isize }
            })
        });
        if polled < 0 && last_errno() == CANCELLED {
            return Err(CANCELLED);
        }
        if signals::interrupts() != interrupts {
            return Err(libc::EINTR);
        }
    }
    if !has_failed(fd) {
        table::set_opening(fd, false);
    }
    match take_error(fd) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Whether a connection that `connect(2)` has begun has failed.
fn has_failed(fd: c_int) -> bool {
    table::is_opening(fd) && is_hung_up(fd) && name::said_end(fd) != Some(0)
}

/// `connect(2)` of a descriptor that is relayed already.
pub(crate) fn connect_again(fd: c_int, to: Result<SocketAddr, c_int>) -> Result<(), c_int> {
    let _inside = signals::enter();
    if table::is_datagrams(fd) {
        return match to {
            // The stack cannot undo it.
            Err(libc::EAFNOSUPPORT) => Err(libc::EOPNOTSUPP),
            to => guest::set_peer(fd, to?),
        };
    }
    if !table::is_opening(fd) {
        return Err(libc::EISCONN);
    }
    let is_nonblocking = is_nonblocking(fd);
    if is_waiting(fd) && is_nonblocking {
        return Err(libc::EALREADY);
    }
    let had_failed = has_failed(fd);
    await_open(fd, None)?;
    if !had_failed {
        return Ok(());
    }
    // Its error was reported: the socket connects anew.
    guest::restart(fd, to?)?;
    if is_nonblocking {
        return Err(libc::EINPROGRESS);
    }
    await_open(fd, None)
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the command takes no pointer.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// `SO_ERROR` of a connection, once.
fn take_error(fd: c_int) -> c_int {
    if !is_hung_up(fd) {
        return 0;
    }
    // The kernel's own error of the pair, which stands for the connection's, is taken with it.
    let _ = int_option(fd, libc::SO_ERROR);
    take_end(fd)
}

/// A number among the options of the Unix socket.
pub(super) fn int_option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: the value has the stated length.
    let got = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
    (got == 0).then_some(value)
}

/// Sets a number among the options of the Unix socket.
pub(super) fn set_int(fd: c_int, name: c_int, value: c_int) {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value has the stated length.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
}

/// The process that made a pair (`SO_PEERCRED`).
pub(crate) fn credentials(fd: c_int) -> Option<libc::ucred> {
    // SAFETY: all fields of zeroed credentials are valid.
    let mut about: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut about).cast();
    // SAFETY: the value has the stated length.
    let got =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    (got == 0).then_some(about)
}

/// Whether the process that made the pair lives.
pub(super) fn is_owner_alive(fd: c_int) -> bool {
    let _inside = signals::enter();
    let Some(about) = credentials(fd).filter(|about| about.pid > 0) else {
        return true;
    };
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
    let is_end = count == 0 && wanted > 0;
    if count > 0 || !table::is_relay(fd) || !is_end && last_errno() != libc::ECONNRESET {
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
    if table::is_datagrams(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram_calls::send_message(fd, message, flags) };
    }
    // SAFETY: the caller's promise.
    let mut copy = unsafe { *message };
    // SAFETY: a valid message has valid ancillary data.
    if let Err(error) = unsafe { control::check_of_stream(&copy) } {
        return crate::calls::length(Err(error));
    }
    copy.msg_control = std::ptr::null_mut();
    copy.msg_controllen = 0;
    if table::is_opening(fd) {
        let _inside = signals::enter();
        if is_waiting(fd) && (flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(fd)) {
            return crate::calls::length(Err(libc::EAGAIN));
        }
        if let Err(error) = await_open(fd, None) {
            return crate::calls::length(Err(error));
        }
    }
    // A connection has its peer already.
    copy.msg_name = std::ptr::null_mut();
    copy.msg_namelen = 0;
    let own = libc::MSG_DONTWAIT;
    let kept = flags & own | libc::MSG_NOSIGNAL;
    // SAFETY: the caller's promise.
    let sent = unsafe { real::sendmsg(fd, &raw const copy, kept) };
    // The second, of a pair that was closed with bytes unread, comes before the first.
    if sent >= 0 || ![libc::EPIPE, libc::ECONNRESET].contains(&last_errno()) {
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
    // SAFETY: the caller's promise.
    unsafe { send_to(fd, (from, len), flags, (std::ptr::null(), 0)) }
}

/// As [`send_message`], for one buffer and a destination, which may be null.
///
/// # Safety
/// `len` bytes can be read at `from`, and the destination has the stated length.
pub(crate) unsafe fn send_to(
    fd: c_int,
    (from, len): (*const c_void, size_t),
    flags: c_int,
    (to, to_len): (*const sockaddr, socklen_t),
) -> ssize_t {
    let mut part = iovec {
        iov_base: from.cast_mut(),
        iov_len: len,
    };
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_name = to.cast_mut().cast();
    message.msg_namelen = to_len;
    // SAFETY: the caller's promise.
    unsafe { send_message(fd, &raw const message, flags) }
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
    if name.kind == Kind::Datagrams {
        return Err(libc::EOPNOTSUPP);
    }
    if name.kind == Kind::Connection || flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL);
    }
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 {
        libc::MSG_CMSG_CLOEXEC
    } else {
        0
    };
    let new = match await_passed(fd, cloexec)? {
        Got::Descriptor(new) => new,
        Got::Error(error) => return Err(error),
        Got::End => {
            if !is_owner_alive(fd) {
                let _inside = signals::enter();
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
    table::mark_relay(new, false);
    Ok((new, address::shown(peer, name.domain)))
}

/// Options of which a relayed connection has its own: the relay gathers no bytes.
const OF_RELAY: &[c_int] = &[libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_QUICKACK];

/// Whether the owner has an option, rather than the Unix socket.
fn is_owners((level, option): (c_int, c_int)) -> bool {
    match level {
        libc::IPPROTO_TCP => !OF_RELAY.contains(&option),
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        libc::SOL_SOCKET => matches!(
            option,
            libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_BROADCAST
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
        ),
        _ => false,
    }
}

/// The value of an option that a Unix socket has differently; `None` if the kernel is to answer.
pub(crate) fn option(fd: c_int, option: (c_int, c_int)) -> Option<Result<Vec<u8>, c_int>> {
    let name = Name::of(fd)?;
    let is_datagrams = name.kind == Kind::Datagrams;
    let number = match option {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => name.domain,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) if is_datagrams => libc::IPPROTO_UDP,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_TYPE) if is_datagrams => libc::SOCK_DGRAM,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (name.kind == Kind::Listener).into(),
        (libc::SOL_SOCKET, libc::SO_ERROR) if is_datagrams => datagram_calls::take_error(fd),
        (libc::SOL_SOCKET, libc::SO_ERROR) if name.peer.is_some() => take_error(fd),
        (libc::IPPROTO_TCP, _) if is_datagrams => return Some(guest::get(fd, option)),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => 1,
        (libc::IPPROTO_TCP, own) if OF_RELAY.contains(&own) => 0,
        _ if is_owners(option) => return Some(guest::get(fd, option)),
        _ => return None,
    };
    Some(Ok(number.to_ne_bytes().to_vec()))
}

/// Sets an option that a Unix socket has differently; `None` if the kernel is to do it.
pub(crate) fn set_option(
    fd: c_int,
    option: (c_int, c_int),
    value: &[u8],
) -> Option<Result<(), c_int>> {
    let _inside = signals::enter();
    if option == (libc::SOL_SOCKET, libc::SO_BROADCAST) {
        // A call that sends looks at it here.
        let value = value
            .first_chunk()
            .map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
        set_int(fd, libc::SO_BROADCAST, value);
    }
    if is_owners(option) || table::is_datagrams(fd) && option.0 == libc::IPPROTO_TCP {
        return Some(guest::set(fd, option, value));
    }
    (option.0 == libc::IPPROTO_TCP).then_some(Ok(()))
}
