//! Calls that carry data in one buffer or several: `read`, `write`, `recv`, `send` and their like.

use super::connect::{is_answered, sender};
use super::{datagram, length};
use crate::control::Ancillary;
use crate::relay::{calls as relay, datagram_calls};
use crate::signals;
use crate::sock::{Endpoint, MOVED, Sock, errno};
use crate::stats::{self, Call};
use crate::wait::{Side, Wait};
use crate::{address, real, table};
use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t, ssize_t};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::Ordering::Relaxed;
use weir_socket::TcpStream;
use weir_stack::udp::SendInfo;

/// Largest number of buffers of one call (`IOV_MAX`).
pub(super) const PARTS_MAX: usize = 1024;

/// Bytes of one buffer that a call looks at, as in Linux (`MAX_RW_COUNT`).
const LEN_MAX: usize = 0x7fff_f000;

/// A received message.
pub(super) struct Received {
    /// Bytes that lie in the buffers; with `MSG_TRUNC`, the datagram's length.
    pub(super) count: usize,
    /// The sender of a datagram.
    pub(super) from: Option<SocketAddr>,
    /// `MSG_TRUNC` if the datagram was cut; `MSG_ERRQUEUE` for an ICMP error.
    pub(super) flags: c_int,
    /// What else a datagram brings.
    pub(super) ancillary: Ancillary,
}

/// A buffer of the caller to be read.
///
/// # Safety
/// Unless `len` is 0, as many bytes can be read at `from` while the result lives.
unsafe fn bytes<'a>(from: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { from_raw_parts(from.cast(), len.min(LEN_MAX)) }
}

/// A buffer of the caller to be written.
///
/// # Safety
/// Unless `len` is 0, as many bytes can be written at `to` while the result lives.
unsafe fn room<'a>(to: *mut c_void, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { from_raw_parts_mut(to.cast(), len.min(LEN_MAX)) }
}

/// Buffers of the caller to be read.
///
/// # Errors
/// `EINVAL` for too many.
///
/// # Safety
/// `parts` are `count` valid buffers while the result lives.
pub(super) unsafe fn slices<'a>(
    parts: *const iovec,
    count: usize,
) -> Result<Vec<IoSlice<'a>>, c_int> {
    if count > PARTS_MAX {
        return Err(libc::EINVAL);
    }
    let parts = if count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts(parts, count) }
    };
    // SAFETY: as above.
    let slice = |part: &iovec| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) });
    Ok(parts.iter().map(slice).collect())
}

/// Buffers of the caller to be written.
///
/// # Errors
/// `EINVAL` for too many.
///
/// # Safety
/// As [`slices`].
pub(crate) unsafe fn rooms<'a>(
    parts: *const iovec,
    count: usize,
) -> Result<Vec<IoSliceMut<'a>>, c_int> {
    if count > PARTS_MAX {
        return Err(libc::EINVAL);
    }
    let parts = if count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts(parts, count) }
    };
    // SAFETY: as above.
    let room = |part: &iovec| IoSliceMut::new(unsafe { room(part.iov_base, part.iov_len) });
    Ok(parts.iter().map(room).collect())
}

/// Receives into these buffers.
pub(super) fn receive(
    sock: &Sock,
    rooms: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<Received, c_int> {
    match sock.endpoint() {
        Endpoint::Udp(udp) if flags & libc::MSG_ERRQUEUE != 0 => {
            datagram::receive_error(sock, &udp, rooms, flags)
        }
        Endpoint::Stream(_) | Endpoint::Listener(_) if flags & libc::MSG_ERRQUEUE != 0 => {
            Err(libc::EAGAIN)
        }
        Endpoint::Stream(stream) => receive_stream(sock, &stream, rooms, flags),
        Endpoint::Udp(udp) => datagram::receive(sock, &udp, rooms, flags),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Listener(_) | Endpoint::Open => Err(libc::ENOTCONN),
    }
}

fn receive_stream(
    sock: &Sock,
    stream: &TcpStream,
    rooms: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<Received, c_int> {
    if flags & libc::MSG_OOB != 0 {
        // Urgent bytes are in order with all others.
        return Err(libc::EINVAL);
    }
    let mut wait = Wait::new(sock, Side::Receive, flags);
    let received = |count| Received {
        count,
        from: None,
        flags: 0,
        ancillary: Ancillary::None,
    };
    let first = rooms.iter_mut().find(|room| !room.is_empty());
    let Some(first) = first else {
        // As in Linux, the call waits once for what it does not take.
        let is_there = wait.once(|| stream.peek(&mut [0]));
        match is_there.map_err(|error| errno(&error)) {
            Err(libc::EAGAIN) if wait.blocks() => match wait.wait() {
                Ok(()) | Err(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        return Ok(received(0));
    };
    if flags & libc::MSG_PEEK != 0 {
        return wait.until(|| stream.peek(first)).map(received);
    }
    let all = flags & libc::MSG_WAITALL != 0;
    let mut count = 0;
    for room in rooms.iter_mut().filter(|room| !room.is_empty()) {
        let mut filled = 0;
        while filled < room.len() {
            let mut read = || {
                let mut stream = stream;
                let room = &mut room[filled..];
                if count > 0 {
                    stream.read_rest(room)
                } else {
                    stream.read(room)
                }
            };
            // Bytes that are there already end the wait.
            let read = if count > 0 && !all {
                wait.once(read).map_err(|error| errno(&error))
            } else {
                wait.until(&mut read)
            };
            match read {
                Ok(0) => return Ok(received(count)),
                Ok(more) => {
                    filled += more;
                    count += more;
                    if filled < room.len() && !all {
                        return Ok(received(count));
                    }
                }
                Err(_) if count > 0 => return Ok(received(count)),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(received(count))
}

/// Sends these buffers, to `to` if it is given.
pub(super) fn send_parts(
    sock: &Sock,
    parts: &[IoSlice<'_>],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize, c_int> {
    send_parts_with(sock, parts, flags, (to, &SendInfo::default()))
}

/// As [`send_parts`], with what a datagram has in place of its socket's address and options.
pub(super) fn send_parts_with(
    sock: &Sock,
    parts: &[IoSlice<'_>],
    flags: c_int,
    (to, info): (Option<SocketAddr>, &SendInfo),
) -> Result<usize, c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => {
            let sent = send_stream(sock, &stream, parts, flags);
            if sent == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
                // SAFETY: the call takes a number.
                unsafe { libc::raise(libc::SIGPIPE) };
            }
            sent
        }
        Endpoint::Udp(udp) => datagram::send(sock, &udp, parts, flags, (to, info)),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Listener(_) | Endpoint::Open => Err(libc::EPIPE),
    }
}

fn send_stream(
    sock: &Sock,
    stream: &TcpStream,
    parts: &[IoSlice<'_>],
    flags: c_int,
) -> Result<usize, c_int> {
    use crate::sock::Opening;
    if sock.opening() == Opening::Aborted {
        return Err(libc::EPIPE);
    }
    let more = flags & libc::MSG_MORE != 0;
    if more || sock.corked.load(Relaxed) {
        sock.corked.store(more, Relaxed);
        let cork = more || sock.is_on(libc::IPPROTO_TCP, libc::TCP_CORK);
        let _ = stream.set_cork(cork);
    }
    let mut wait = Wait::new(sock, Side::Send, flags);
    while sock.opening() == Opening::Waits && !is_answered(stream) {
        if !wait.blocks() {
            return Err(libc::EAGAIN);
        }
        wait.wait()?;
    }
    if flags & libc::MSG_OOB != 0 {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        return wait.until(|| stream.send_urgent(&all));
    }
    let whole: usize = parts.iter().map(|part| part.len()).sum();
    let mut count = 0;
    loop {
        let sent = wait.until(|| {
            let mut stream = stream;
            match parts {
                _ if count > 0 => stream.write_rest(&rest(parts, count)),
                [part] => stream.write(part),
                _ => stream.write_vectored(parts),
            }
        });
        match sent {
            Ok(sent) => count += sent,
            Err(_) if count > 0 => return Ok(count),
            Err(error) => return Err(error),
        }
        if count >= whole || flags & libc::MSG_DONTWAIT != 0 || sock.nonblocking.load(Relaxed) {
            return Ok(count);
        }
    }
}

/// The buffers without their first `skip` bytes.
fn rest<'a>(parts: &'a [IoSlice<'_>], mut skip: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let start = skip.min(part.len());
        skip -= start;
        rest.push(IoSlice::new(&part[start..]));
    }
    rest
}

/// `read(2)`.
///
/// # Safety
/// As `read(2)`.
pub(super) unsafe fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Read);
        if table::is_datagrams(fd) {
            // SAFETY: the caller's promises.
            return unsafe { datagram_calls::read(fd, to, len, 0) };
        }
        // SAFETY: the caller's promises.
        let count = unsafe { real::read(fd, to, len) };
        return relay::received(fd, len, count);
    };
    let inside = signals::enter();
    stats::weirs(Call::Read);
    if len == 0 {
        // As in Linux (`sock_read_iter`), of any socket.
        return 0;
    }
    // SAFETY: the caller's promise.
    let room = unsafe { room(to, len) };
    let received = receive(&sock, &mut [IoSliceMut::new(room)], 0);
    let received = or_again!(inside, received, read(fd, to, len));
    length(received.map(|received| received.count))
}

/// `read(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `read(2)`.
pub(super) unsafe fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    to_len: size_t,
) -> ssize_t {
    check_room(len, to_len);
    // SAFETY: the caller's promises.
    unsafe { read(fd, to, len) }
}

/// Ends the program that would write past its buffer, as the C library does.
pub(super) fn check_room(len: size_t, room: size_t) {
    if len > room {
        crate::host::say("a buffer is shorter than the program says: the program ends");
        std::process::abort();
    }
}

/// `write(2)`.
///
/// # Safety
/// As `write(2)`.
pub(super) unsafe fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Write);
        if table::is_relay(fd) {
            // SAFETY: the caller's promises.
            return unsafe { relay::send(fd, from, len, 0) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::write(fd, from, len) };
    };
    let inside = signals::enter();
    stats::weirs(Call::Write);
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(from, len) };
    let sent = send_parts(&sock, &[IoSlice::new(bytes)], 0, None);
    length(or_again!(inside, sent, write(fd, from, len)))
}

/// `readv(2)`.
///
/// # Safety
/// As `readv(2)`.
pub(super) unsafe fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Read);
        if let (true, Ok(count)) = (table::is_datagrams(fd), usize::try_from(count)) {
            // SAFETY: the caller's promises.
            return unsafe { datagram_calls::read_parts(fd, parts, count, 0) };
        }
        // SAFETY: the caller's promises.
        let count = unsafe { real::readv(fd, parts, count) };
        return relay::received(fd, usize::MAX, count);
    };
    let inside = signals::enter();
    stats::weirs(Call::Read);
    let number = usize::try_from(count).map_err(|_| libc::EINVAL);
    let received = number.and_then(|count| {
        // SAFETY: the caller's promise.
        let mut rooms = unsafe { rooms(parts, count) }?;
        if rooms.iter().all(|room| room.is_empty()) {
            return Ok(0);
        }
        Ok(receive(&sock, &mut rooms, 0)?.count)
    });
    length(or_again!(inside, received, readv(fd, parts, count)))
}

/// `writev(2)`.
///
/// # Safety
/// As `writev(2)`.
pub(super) unsafe fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Write);
        if let (true, Ok(count)) = (table::is_relay(fd), usize::try_from(count)) {
            // SAFETY: the caller's promises.
            return unsafe { relay::send_parts(fd, parts, count, 0) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::writev(fd, parts, count) };
    };
    let inside = signals::enter();
    stats::weirs(Call::Write);
    let number = usize::try_from(count).map_err(|_| libc::EINVAL);
    let sent = number.and_then(|count| {
        // SAFETY: the caller's promise.
        let parts = unsafe { slices(parts, count) }?;
        if parts.iter().all(|part| part.is_empty()) {
            // Not even an empty datagram.
            return Ok(0);
        }
        send_parts(&sock, &parts, 0, None)
    });
    length(or_again!(inside, sent, writev(fd, parts, count)))
}

/// `recv(2)`.
///
/// # Safety
/// As `recv(2)`.
pub(super) unsafe fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Receive);
        if table::is_datagrams(fd) {
            // SAFETY: the caller's promises.
            return unsafe { datagram_calls::read(fd, to, len, flags) };
        }
        // SAFETY: the caller's promises.
        let count = unsafe { real::recv(fd, to, len, flags) };
        return relay::received(fd, len, count);
    };
    let inside = signals::enter();
    stats::weirs(Call::Receive);
    // SAFETY: the caller's promise.
    let room = unsafe { room(to, len) };
    let received = receive(&sock, &mut [IoSliceMut::new(room)], flags);
    let received = or_again!(inside, received, recv(fd, to, len, flags));
    length(received.map(|received| received.count))
}

/// `recv(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `recv(2)`.
pub(super) unsafe fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    to_len: size_t,
    flags: c_int,
) -> ssize_t {
    check_room(len, to_len);
    // SAFETY: the caller's promises.
    unsafe { recv(fd, to, len, flags) }
}

/// `recvfrom(2)`.
///
/// # Safety
/// As `recvfrom(2)`.
pub(super) unsafe fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Receive);
        if table::is_datagrams(fd) {
            // SAFETY: the caller's promises.
            return unsafe { receive_from(fd, (to, len), flags, from, from_len) };
        }
        if table::is_relay(fd) {
            if !from.is_null() && !from_len.is_null() {
                // SAFETY: the caller's promise.
                unsafe { from_len.write_unaligned(0) };
            }
            // SAFETY: the caller's promises.
            return unsafe { recv(fd, to, len, flags) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::recvfrom(fd, to, len, flags, from, from_len) };
    };
    let inside = signals::enter();
    stats::weirs(Call::Receive);
    // SAFETY: the caller's promise.
    let room = unsafe { room(to, len) };
    let received = receive(&sock, &mut [IoSliceMut::new(room)], flags);
    let received = or_again!(
        inside,
        received,
        recvfrom(fd, to, len, flags, from, from_len)
    );
    length(received.and_then(|received| {
        match received.from {
            Some(peer) => {
                let peer = address::shown(peer, sock.domain);
                // SAFETY: the caller's promise.
                unsafe { address::write(peer, from, from_len) }?;
            }
            // A stream names no sender.
            None if !from.is_null() && !from_len.is_null() => {
                // SAFETY: the caller's promise.
                unsafe { from_len.write_unaligned(0) };
            }
            None => {}
        }
        Ok(received.count)
    }))
}

/// `recvfrom(2)` of a relayed UDP socket.
///
/// # Safety
/// As `recvfrom(2)`.
unsafe fn receive_from(
    fd: c_int,
    (to, len): (*mut c_void, size_t),
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let has_name = !from.is_null() && !from_len.is_null();
    let mut part = iovec {
        iov_base: to,
        iov_len: len,
    };
    // SAFETY: all fields of a zeroed message are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if has_name {
        message.msg_name = from.cast();
        // SAFETY: the caller's promise.
        message.msg_namelen = unsafe { from_len.read_unaligned() };
    }
    // SAFETY: the caller's promises.
    let count = unsafe { datagram_calls::receive_message(fd, &raw mut message, flags) };
    if has_name && count >= 0 {
        // SAFETY: the caller's promise.
        unsafe { from_len.write_unaligned(message.msg_namelen) };
    }
    count
}

/// `recvfrom(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `recvfrom(2)`.
pub(super) unsafe fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    to_len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    check_room(len, to_len);
    // SAFETY: the caller's promises.
    unsafe { recvfrom(fd, to, len, flags, from, from_len) }
}

/// `send(2)`.
///
/// # Safety
/// As `send(2)`.
pub(super) unsafe fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Send);
        if table::is_relay(fd) {
            // SAFETY: the caller's promises.
            return unsafe { relay::send(fd, from, len, flags) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::send(fd, from, len, flags) };
    };
    let inside = signals::enter();
    stats::weirs(Call::Send);
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(from, len) };
    let sent = send_parts(&sock, &[IoSlice::new(bytes)], flags, None);
    length(or_again!(inside, sent, send(fd, from, len, flags)))
}

/// `sendto(2)`.
///
/// # Safety
/// As `sendto(2)`.
pub(super) unsafe fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let inside = signals::enter();
    // SAFETY: the caller's promise.
    let remote = unsafe { address::read(to, to_len) };
    let sock = if table::is_live(fd) {
        Ok(table::live(fd))
    } else {
        sender(fd, remote.ok(), flags)
    };
    let Some(sock) = sock.transpose() else {
        drop(inside);
        stats::kernels(Call::Send);
        if table::is_relay(fd) {
            // SAFETY: the caller's promises.
            return unsafe { relay::send_to(fd, (from, len), flags, (to, to_len)) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::sendto(fd, from, len, flags, to, to_len) };
    };
    let result = match sock {
        Ok(sock) => destination(&sock, to, remote).and_then(|remote| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { bytes(from, len) };
            send_parts(&sock, &[IoSlice::new(bytes)], flags, remote)
        }),
        Err(error) => Err(error),
    };
    stats::weirs(Call::Send);
    length(or_again!(
        inside,
        result,
        sendto(fd, from, len, flags, to, to_len)
    ))
}

/// The destination of a datagram on a socket of weir, if one is given.
pub(super) fn destination(
    sock: &Sock,
    to: *const sockaddr,
    remote: Result<SocketAddr, c_int>,
) -> Result<Option<SocketAddr>, c_int> {
    if to.is_null() || sock.kind == libc::SOCK_STREAM {
        return Ok(None);
    }
    let remote = remote?;
    if remote.is_ipv4() && sock.domain == libc::AF_INET6 {
        return Ok(Some(remote));
    }
    if remote.is_ipv4() != (sock.domain == libc::AF_INET) {
        return Err(libc::EAFNOSUPPORT);
    }
    Ok(Some(remote))
}
