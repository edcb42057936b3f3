//! `recvmsg`, `sendmsg` and the calls for several messages.

use super::connect::sender;
use super::data::{destination, receive, rooms, send_parts_with, slices};
use super::length;
use crate::control::{self, Given};
use crate::relay::datagram_calls;
use crate::signals;
use crate::sock::{Endpoint, MOVED, Sock};
use crate::stats::{self, Call};
use crate::{address, host, ready_sets, real, relay, table};
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most messages of one call, as in Linux (`UIO_MAXIOV`).
const MESSAGES_MAX: c_uint = 1024;

/// `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
pub(super) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Receive);
        if table::is_datagrams(fd) {
            // SAFETY: the caller's promises.
            return unsafe { datagram_calls::receive_message(fd, message, flags) };
        }
        // SAFETY: the caller's promises.
        let count = unsafe { real::recvmsg(fd, message, flags) };
        if count < 0 || !host::is_configured() {
            return count;
        }
        // SAFETY: the kernel has filled the message.
        unsafe { recognise(message) };
        if table::is_relay(fd) {
            // SAFETY: the caller's promise.
            unsafe { (*message).msg_namelen = 0 };
        }
        return relay::calls::received(fd, usize::MAX, count);
    };
    let inside = signals::enter();
    stats::weirs(Call::Receive);
    // SAFETY: the caller's promises.
    let received = unsafe { receive_message(&sock, message, flags) };
    length(or_again!(inside, received, recvmsg(fd, message, flags)))
}

/// # Safety
/// `message` points to a valid message.
unsafe fn receive_message(sock: &Sock, message: *mut msghdr, flags: c_int) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let message = unsafe { &mut *message };
    // SAFETY: a valid message has valid buffers.
    let mut rooms = unsafe { rooms(message.msg_iov, message.msg_iovlen) }?;
    let received = receive(sock, &mut rooms, flags)?;
    let name = message.msg_name.cast();
    match received.from {
        Some(peer) => {
            let peer = address::shown(peer, sock.domain);
            // SAFETY: a valid message has a valid name.
            unsafe { address::write(peer, name, &raw mut message.msg_namelen) }?;
        }
        None => message.msg_namelen = 0,
    }
    // SAFETY: a valid message has a valid buffer for ancillary data.
    let cut = unsafe { control::write(message, sock.domain, &received.ancillary) };
    message.msg_flags = received.flags | cut;
    Ok(received.count)
}

/// `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
pub(super) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let inside = signals::enter();
    // SAFETY: the caller's promises.
    let Some(sock) = unsafe { sender_of(fd, message, flags) }.transpose() else {
        drop(inside);
        stats::kernels(Call::Send);
        // SAFETY: the caller's promises.
        if host::is_configured() && !unsafe { may_pass(message) } {
            return length(Err(refuse_passing()));
        }
        if table::is_relay(fd) {
            // SAFETY: the caller's promises.
            return unsafe { relay::calls::send_message(fd, message, flags) };
        }
        // SAFETY: the caller's promises.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    match sock {
        Ok(sock) => {
            stats::weirs(Call::Send);
            // SAFETY: the caller's promises.
            let sent = unsafe { send_message(&sock, message, flags) };
            length(or_again!(inside, sent, sendmsg(fd, message, flags)))
        }
        Err(MOVED) => {
            drop(inside);
            // SAFETY: the caller's promises.
            unsafe { sendmsg(fd, message, flags) }
        }
        Err(error) => length(Err(error)),
    }
}

/// The socket of weir that sends a message, if one does.
///
/// # Safety
/// `message` points to a valid message.
unsafe fn sender_of(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Result<Option<Arc<Sock>>, c_int> {
    if let Some(sock) = table::live(fd) {
        return Ok(Some(sock));
    }
    if table::any(fd).is_none() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let message = unsafe { &*message };
    // SAFETY: a valid message has a valid name.
    let remote = unsafe { address::read(message.msg_name.cast(), message.msg_namelen) };
    sender(fd, remote.ok(), flags)
}

/// # Safety
/// `message` points to a valid message.
unsafe fn send_message(sock: &Sock, message: *const msghdr, flags: c_int) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let message = unsafe { &*message };
    // SAFETY: a valid message has a valid name and valid buffers.
    let (remote, parts) = unsafe {
        (
            address::read(message.msg_name.cast(), message.msg_namelen),
            slices(message.msg_iov, message.msg_iovlen)?,
        )
    };
    let to = destination(sock, message.msg_name.cast(), remote)?;
    let Endpoint::Udp(udp) = sock.endpoint() else {
        // SAFETY: a valid message has valid ancillary data.
        unsafe { control::check_of_stream(message) }?;
        return send_parts_with(sock, &parts, flags, (to, &Default::default()));
    };
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return send_parts_with(sock, &parts, flags, (to, &Default::default()));
    }
    let peer = to.or_else(|| udp.peer_addr().ok());
    let to_v4 = peer.is_none_or(|peer| address::unmapped(peer).is_ipv4());
    // SAFETY: a valid message has valid ancillary data.
    let given = unsafe { Given::read(message, sock.domain, to_v4) }?;
    send_parts_with(sock, &parts, flags, (to, &given.resolve()?))
}

/// The descriptors that a message passes on (`SCM_RIGHTS`).
///
/// # Safety
/// `message` points to a valid message.
unsafe fn passed(message: *const msghdr) -> Vec<c_int> {
    let mut fds = Vec::new();
    if message.is_null() {
        return fds;
    }
    // SAFETY: a valid message has valid ancillary data, which the macros walk along.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let about = &*header;
            if about.cmsg_level == libc::SOL_SOCKET && about.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let empty = libc::CMSG_LEN(0) as usize;
                let bytes = (about.cmsg_len as usize).saturating_sub(empty);
                for at in 0..bytes / size_of::<c_int>() {
                    fds.push(data.cast::<c_int>().add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

/// Moves the sockets of weir that a message passes on onto pairs; false if one cannot be moved.
///
/// # Safety
/// `message` points to a valid message.
unsafe fn may_pass(message: *const msghdr) -> bool {
    let _inside = signals::enter();
    // SAFETY: the caller's promise.
    let fds = unsafe { passed(message) };
    for set in fds.iter().filter(|fd| table::is_plain_set(**fd)) {
        ready_sets::end(*set);
    }
    let sockets = fds.into_iter().filter_map(table::live);
    let mut moved = sockets.map(|sock| relay::convert(&sock).is_ok());
    moved.all(|is_moved| is_moved)
}

/// Recognises relayed descriptors that a message has brought.
///
/// # Safety
/// `message` points to a message that was received.
unsafe fn recognise(message: *const msghdr) {
    // SAFETY: the caller's promise.
    let fds = unsafe { passed(message) };
    if !fds.is_empty() {
        let _inside = signals::enter();
        relay::recognise(fds.into_iter());
    }
}

fn refuse_passing() -> c_int {
    host::say("a socket of weir cannot be passed to another process: no descriptor is left");
    libc::EOPNOTSUPP
}

/// `recvmmsg(2)`.
///
/// # Safety
/// As `recvmmsg(2)`.
pub(super) unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if table::live(fd).is_none() && !table::is_datagrams(fd) {
        stats::kernels(Call::Receive);
        // SAFETY: the caller's promises.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let limit = if timeout.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let time = unsafe { timeout.read() };
        let time = Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32);
        Instant::now().checked_add(time)
    };
    let mut flags = flags;
    for at in 0..count.min(MESSAGES_MAX) {
        // SAFETY: the caller promises that many messages.
        let message = unsafe { &mut *messages.add(at as usize) };
        // SAFETY: as above.
        let received =
            unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        match usize::try_from(received) {
            Ok(len) => message.msg_len = len as c_uint,
            // An error stays for the next call.
            Err(_) if at > 0 => return at as c_int,
            Err(_) => return -1,
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // As the kernel, which looks at the time after each message.
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            return at as c_int + 1;
        }
    }
    count.min(MESSAGES_MAX) as c_int
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
pub(super) unsafe fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let count = count.min(MESSAGES_MAX);
    if table::any(fd).is_none() && !table::is_relay(fd) || count == 0 {
        stats::kernels(Call::Send);
        // SAFETY: the caller's promises.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    for at in 0..count {
        // SAFETY: the caller promises that many messages.
        let message = unsafe { &mut *messages.add(at as usize) };
        // SAFETY: as above.
        let sent = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        match usize::try_from(sent) {
            Ok(len) => message.msg_len = len as c_uint,
            Err(_) if at > 0 => return at as c_int,
            Err(_) => return -1,
        }
    }
    count as c_int
}
