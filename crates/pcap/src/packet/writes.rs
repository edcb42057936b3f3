//! Sending by `write`, `writev` and `sendmmsg`.

use super::{PARTS_MAX, answer, bytes, gathered, joined, next, send_by, sockets};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, size_t, ssize_t};
use std::ptr::null;

/// `write(2)`.
///
/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    let Some(socket) = sockets::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::write(fd, from, len) };
    };
    // SAFETY: the caller's promise.
    let packet = unsafe { bytes(from, len) };
    // SAFETY: no address.
    answer(packet.and_then(|packet| unsafe { send_by(socket, packet, null(), 0) }))
}

/// `writev(2)`.
///
/// # Safety
/// As `writev(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = sockets::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::writev(fd, parts, count) };
    };
    let count = usize::try_from(count).ok();
    let packet = match count.filter(|count| *count <= PARTS_MAX && !parts.is_null()) {
        // SAFETY: the caller's promise.
        Some(count) => unsafe { joined(parts, count) },
        None => Err(libc::EINVAL),
    };
    // SAFETY: no address.
    answer(packet.and_then(|packet| unsafe { send_by(socket, &packet, null(), 0) }))
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let Some(socket) = sockets::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    };
    if messages.is_null() {
        return answer(Err::<c_int, _>(libc::EFAULT));
    }
    let mut sent = 0;
    for number in 0..(count as usize).min(PARTS_MAX) {
        // SAFETY: the caller's promise: this many messages.
        let message = unsafe { &mut *messages.add(number) };
        // SAFETY: the caller's message.
        let done = unsafe { gathered(&raw const message.msg_hdr) };
        // SAFETY: the message's own address.
        let done = done.and_then(|(packet, to, len)| unsafe { send_by(socket, &packet, to, len) });
        match done {
            Ok(len) => message.msg_len = len as c_uint,
            // As the kernel: an error is that of the first message alone.
            Err(error) if sent == 0 => return answer(Err::<c_int, _>(error)),
            Err(_) => break,
        }
        sent += 1;
    }
    sent
}
