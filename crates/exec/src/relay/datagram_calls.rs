//! Calls of an application on a relayed UDP socket. Each datagram is behind a [`Header`], which these
//! calls write and read.

use super::calls::{GONE_PAUSE, int_option, is_owner_alive};
use super::guest;
use super::name::Name;
use super::protocol::{DATAGRAM_MAX, HEADER, Header};
use crate::calls::{length, rooms};
use crate::control::{self, Ancillary, Beside, Given};
use crate::sock::last_errno;
use crate::{address, cancel, real, signals};
use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::slice::from_raw_parts;

/// Sends a datagram.
///
/// # Safety
/// `message` is valid.
pub(crate) unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let result = unsafe { send(fd, &*message, flags) };
    length(result)
}

/// # Safety
/// `message` is valid.
unsafe fn send(fd: c_int, message: &msghdr, flags: c_int) -> Result<usize, c_int> {
    let header = if message.msg_name.is_null() {
        Header::Connected
    } else {
        // SAFETY: a valid message has a valid name.
        let to = unsafe { address::read(message.msg_name.cast(), message.msg_namelen) }?;
        check(fd, to)?;
        Header::Address(to)
    };
    // SAFETY: a valid message has valid ancillary data.
    let given = unsafe { given(fd, message, header) }?;
    let mut header = header.with(given.to_bytes());
    // SAFETY: a valid message has valid buffers.
    let parts = unsafe { parts(message, &mut header) };
    let len: usize = parts.iter().skip(1).map(|part| part.iov_len).sum();
    if len > DATAGRAM_MAX {
        return Err(libc::EMSGSIZE);
    }
    // SAFETY: all fields of a zeroed message are valid.
    let mut behind: msghdr = unsafe { zeroed() };
    behind.msg_iov = parts.as_ptr().cast_mut();
    behind.msg_iovlen = parts.len();
    let kept = flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // The wait is the kernel's, which handlers interrupt.
    let sent = cancel::wait((fd, &raw const behind, kept), |(fd, behind, kept)| {
        // SAFETY: the message is valid.
        unsafe { real::sendmsg(fd, behind, kept) }
    });
    if let Ok(sent) = usize::try_from(sent) {
        return Ok(sent.saturating_sub(HEADER));
    }
    match last_errno() {
        libc::EPIPE | libc::ECONNRESET => Err(gone(fd).unwrap_or(libc::EPIPE)),
        error => Err(error),
    }
}

/// The ancillary data of a message with this header.
///
/// # Safety
/// `message` is valid.
unsafe fn given(fd: c_int, message: &msghdr, header: Header) -> Result<Given, c_int> {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return Ok(Given::default());
    }
    let _inside = signals::enter();
    let domain = Name::of(fd).ok_or(libc::ENOTSOCK)?.domain;
    let to = match header {
        Header::Address(to) => Some(to),
        _ => guest::names(fd)?.1,
    };
    let to_v4 = to.is_none_or(|to| address::unmapped(to).is_ipv4());
    // SAFETY: the caller's promise.
    unsafe { Given::read(message, domain, to_v4) }
}

/// Refuses a destination as the kernel does.
fn check(fd: c_int, to: SocketAddr) -> Result<(), c_int> {
    let domain = Name::of(fd).ok_or(libc::ENOTSOCK)?.domain;
    if to.is_ipv6() && domain == libc::AF_INET {
        return Err(libc::EAFNOSUPPORT);
    }
    let is_broadcast = matches!(to, SocketAddr::V4(v4) if v4.ip().is_broadcast());
    if is_broadcast && int_option(fd, libc::SO_BROADCAST) != Some(1) {
        return Err(libc::EACCES);
    }
    Ok(())
}

/// The buffers of a message behind a header.
///
/// # Safety
/// The message has valid buffers.
unsafe fn parts(message: &msghdr, header: &mut [u8; HEADER]) -> Vec<iovec> {
    let mut parts = vec![iovec {
        iov_base: header.as_mut_ptr().cast(),
        iov_len: HEADER,
    }];
    if message.msg_iovlen > 0 && !message.msg_iov.is_null() {
        // SAFETY: the caller's promise.
        parts.extend(unsafe { from_raw_parts(message.msg_iov, message.msg_iovlen) });
    }
    parts
}

/// Receives a datagram into a message.
///
/// # Safety
/// `message` is valid.
pub(crate) unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let result = unsafe { receive(fd, &mut *message, flags) };
    length(result)
}

/// # Safety
/// `message` is valid.
unsafe fn receive(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<usize, c_int> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: the caller's promise.
        return unsafe { receive_error(fd, message, flags) };
    }
    loop {
        let mut header = [0; HEADER];
        // SAFETY: a valid message has valid buffers.
        let parts = unsafe { parts(message, &mut header) };
        // SAFETY: all fields of a zeroed message are valid.
        let mut behind: msghdr = unsafe { zeroed() };
        behind.msg_iov = parts.as_ptr().cast_mut();
        behind.msg_iovlen = parts.len();
        // The wait is the kernel's, which handlers interrupt.
        let count = cancel::wait((fd, &raw mut behind, flags), |(fd, behind, flags)| {
            // SAFETY: the message is valid.
            unsafe { real::recvmsg(fd, behind, flags) }
        });
        let count = match usize::try_from(count) {
            Ok(0) => return gone(fd).map_or(Ok(0), Err),
            Ok(count) => count,
            Err(_) if last_errno() == libc::ECONNRESET => {
                return Err(gone(fd).unwrap_or(libc::ECONNRESET));
            }
            Err(_) => return Err(last_errno()),
        };
        let from = match Header::from_bytes(&header) {
            Some(Header::Address(from)) => from,
            Some(Header::Error(error)) => {
                if flags & libc::MSG_PEEK != 0 {
                    drop_first(fd);
                }
                return Err(error);
            }
            // Not of the owner.
            Some(Header::Connected) | None => {
                if flags & libc::MSG_PEEK != 0 {
                    drop_first(fd);
                }
                continue;
            }
        };
        let beside = Beside::from_bytes(&Header::ancillary(&header));
        let ancillary = beside.map_or(Ancillary::None, Ancillary::Datagram);
        // SAFETY: the caller's promise.
        unsafe { describe(fd, message, from, &ancillary) }?;
        message.msg_flags |= behind.msg_flags & libc::MSG_TRUNC;
        return Ok(count.saturating_sub(HEADER));
    }
}

/// Writes a message's name, ancillary data and flags.
///
/// # Safety
/// `message` is valid.
unsafe fn describe(
    fd: c_int,
    message: &mut msghdr,
    from: SocketAddr,
    ancillary: &Ancillary,
) -> Result<(), c_int> {
    let domain = Name::of(fd).map_or(libc::AF_INET6, |name| name.domain);
    let name = message.msg_name.cast::<libc::sockaddr>();
    let from = address::shown(from, domain);
    if name.is_null() {
        message.msg_namelen = 0;
    } else {
        // SAFETY: a valid message has a valid name.
        unsafe { address::write(from, name, &raw mut message.msg_namelen) }?;
    }
    // SAFETY: a valid message has a valid buffer for ancillary data.
    message.msg_flags = unsafe { control::write(message, domain, ancillary) };
    Ok(())
}

/// Receives an ICMP error, which the owner has.
///
/// # Safety
/// `message` is valid.
unsafe fn receive_error(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<usize, c_int> {
    // What is wrong with the message costs no error.
    // SAFETY: a valid message has valid buffers.
    drop(unsafe { rooms(message.msg_iov, message.msg_iovlen) }?);
    let inside = signals::enter();
    let error = guest::icmp_error(fd)?;
    if matches!(peek(fd), Some((Header::Error(_), _))) {
        // The error's other report.
        drop_first(fd);
    }
    drop(inside);
    let (bytes, to) = (error.bytes.clone(), error.to);
    // SAFETY: the caller's promise.
    unsafe { describe(fd, message, to, &Ancillary::Error(Box::new(error))) }?;
    let mut rest = &bytes[..];
    // SAFETY: a valid message has valid buffers.
    for room in &mut unsafe { rooms(message.msg_iov, message.msg_iovlen) }? {
        let count = room.len().min(rest.len());
        room[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
    }
    message.msg_flags |= libc::MSG_ERRQUEUE;
    if !rest.is_empty() {
        message.msg_flags |= libc::MSG_TRUNC;
    }
    Ok(match flags & libc::MSG_TRUNC {
        0 => bytes.len() - rest.len(),
        _ => bytes.len(),
    })
}

/// Drops the first message, which a call has only looked at.
fn drop_first(fd: c_int) {
    let mut byte = 0_u8;
    // SAFETY: the buffer has as many bytes.
    unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
}

/// As [`receive_message`], into one buffer.
///
/// # Safety
/// `len` bytes can be written at `to`.
pub(crate) unsafe fn read(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let mut part = iovec {
        iov_base: to,
        iov_len: len,
    };
    // SAFETY: the caller's promise.
    unsafe { read_parts(fd, &raw mut part, 1, flags) }
}

/// As [`receive_message`], into several buffers.
///
/// # Safety
/// `parts` are `count` buffers.
pub(crate) unsafe fn read_parts(
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
    unsafe { receive_message(fd, &raw mut message, flags) }
}

/// Bytes of the next datagram (`FIONREAD`).
pub(crate) fn readable(fd: c_int) -> c_int {
    match peek(fd) {
        Some((Header::Address(_), len)) => len as c_int,
        _ => 0,
    }
}

/// `SO_ERROR`: the error that stands before all datagrams, once.
pub(crate) fn take_error(fd: c_int) -> c_int {
    match peek(fd) {
        Some((Header::Error(error), _)) => {
            drop_first(fd);
            error
        }
        _ => 0,
    }
}

/// The next message's header and the length of its datagram.
fn peek(fd: c_int) -> Option<(Header, usize)> {
    let mut header = [0; HEADER];
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the buffer has the stated length.
    let count = unsafe { real::recv(fd, header.as_mut_ptr().cast(), HEADER, flags) };
    let count = usize::try_from(count).ok()?;
    Some((Header::from_bytes(&header)?, count.saturating_sub(HEADER)))
}

/// Why there is no more to receive or to send: `ENETDOWN` if the owner has ended, after a pause, so
/// that a server that goes on asking leaves the processor to others.
fn gone(fd: c_int) -> Option<c_int> {
    let _inside = signals::enter();
    if is_owner_alive(fd) {
        return None;
    }
    std::thread::sleep(GONE_PAUSE);
    Some(libc::ENETDOWN)
}
