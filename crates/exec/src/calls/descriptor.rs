//! `close`, `dup`, `fcntl`, `ioctl`, `epoll_ctl`: calls on descriptors of all kinds.

use super::{answer, length};
use crate::host;
use crate::ready_sets;
use crate::relay;
use crate::signals;
use crate::sock::{Endpoint, MOVED, Sock};
use crate::stats::{self, Call};
use crate::{real, table};
use libc::{c_int, c_uint, c_ulong, epoll_event};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Linux' number of the command (`asm-generic/sockios.h`).
pub(super) const SIOCATMARK: c_ulong = 0x8905;

/// `close(2)`.
///
/// # Safety
/// As `close(2)`.
pub(super) unsafe fn close(fd: c_int) -> c_int {
    if table::is_hidden(fd) {
        if !is_own_thread() {
            return answer(Err(libc::EBADF));
        }
        table::unhide(fd);
        // Not in the table, unless the application has closed a socket of the number past this library: the host,
        // in the middle of whose work this may be, must not end that socket.
        // SAFETY: the descriptor is this library's own.
        return unsafe { real::close(fd) };
    }
    forget_set(fd);
    // A leased socket ends here without being taken.
    let Some(sock) = table::remove(fd) else {
        stats::kernels(Call::Close);
        // SAFETY: the caller's promises.
        return unsafe { real::close(fd) };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Close);
    // SAFETY: the caller's promises.
    let closed = unsafe { real::close(fd) };
    // Only now, since it may send.
    drop(sock);
    closed
}

/// Forgets an epoll set whose descriptor is closed.
#[inline]
fn forget_set(fd: c_int) {
    if table::is_set(fd) {
        table::mark_set(fd, false);
        ready_sets::close(fd);
    }
    if table::is_plain_set(fd) {
        table::mark_plain_set(fd, false);
    }
}

/// Whether the library itself closes a descriptor, in a call or on one of its threads.
fn is_own_thread() -> bool {
    let is_nets = || {
        let thread = std::thread::current();
        thread.name().is_some_and(|name| name.starts_with("weir-"))
    };
    signals::is_inside() || is_nets()
}

/// `_exit(2)`: peers get what was written.
///
/// # Safety
/// As `_exit(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    host::end();
    stats::print();
    // SAFETY: the call takes a number.
    unsafe { real::_exit(status) };
    unreachable!("the process has ended")
}

/// `_Exit(3)`.
///
/// # Safety
/// As `_Exit(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the call takes a number.
    unsafe { _exit(status) }
}

/// `close_range(2)`.
///
/// # Safety
/// As `close_range(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if !host::is_configured() || flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        // SAFETY: the caller's promises.
        return unsafe { real::close_range(first, last, flags) };
    }
    let _inside = signals::enter();
    let sockets = table::range(first as usize, last as usize);
    for (fd, _) in &sockets {
        drop(table::remove(*fd));
    }
    for fd in table::relays(first as usize, last as usize) {
        table::forget_relay(fd);
    }
    let sets = table::sets().into_iter();
    sets.filter(|fd| (first..=last).contains(&(*fd as c_uint)))
        .for_each(forget_set);
    let mut done = 0;
    let mut start = first;
    // The pieces between the library's own descriptors.
    for own in table::hidden(first as usize, last as usize) {
        if own > start {
            // SAFETY: the caller's promises.
            done |= unsafe { real::close_range(start, own - 1, flags) };
        }
        start = own + 1;
    }
    if start <= last {
        // SAFETY: the caller's promises.
        done |= unsafe { real::close_range(start, last, flags) };
    }
    drop(sockets);
    done
}

/// `closefrom(3)`.
///
/// # Safety
/// As `closefrom(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's promises.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Enters `new`, a copy of the descriptor `fd`.
fn copied(fd: c_int, sock: Option<Arc<Sock>>, new: c_int) -> c_int {
    if table::is_plain_set(fd) {
        ready_sets::end(fd);
    }
    if sock.is_none() && new >= 0 && table::is_relay(fd) {
        table::mark_relay(new, table::is_datagrams(fd));
        table::set_opening(new, table::is_opening(fd));
    }
    let Some(sock) = sock.filter(|_| new >= 0) else {
        return new;
    };
    if table::insert(new, &sock) {
        ready_sets::update(&sock);
        return new;
    }
    // SAFETY: the descriptor is the new one.
    unsafe { real::close(new) };
    answer(Err(libc::EMFILE))
}

/// `dup(2)`.
///
/// # Safety
/// As `dup(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Dup);
        // SAFETY: the caller's promises.
        return copied(fd, None, unsafe { real::dup(fd) });
    };
    let _inside = signals::enter();
    stats::weirs(Call::Dup);
    // SAFETY: the caller's promises.
    copied(fd, Some(sock), unsafe { real::dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
/// As `dup2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        // SAFETY: the caller's promises.
        return unsafe { real::dup2(fd, to) };
    }
    // SAFETY: the caller's promises.
    unsafe { dup3(fd, to, 0) }
}

/// `dup3(2)`.
///
/// # Safety
/// As `dup3(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let sock = table::any(fd);
    count(Call::Dup, sock.is_some());
    if table::is_hidden(to) {
        return answer(Err(libc::EBUSY));
    }
    let _inside = signals::enter();
    let replaced = if sock.is_some() || table::is_known(to) {
        // The number is free only if `fd` is a descriptor.
        // SAFETY: the command takes no pointer.
        let is_open = fd != to && unsafe { real::fcntl(fd, libc::F_GETFD, 0) } >= 0;
        is_open.then(|| table::remove(to)).flatten()
    } else {
        None
    };
    // SAFETY: the caller's promises.
    let new = unsafe { real::dup3(fd, to, flags) };
    if new >= 0 && fd != to {
        forget_set(to);
    }
    let new = copied(fd, sock, new);
    drop(replaced);
    new
}

fn count(call: Call, is_weirs: bool) {
    if is_weirs {
        stats::weirs(call)
    } else {
        stats::kernels(call)
    }
}

/// `fcntl(2)`. The argument is a word, which C passes as it passes the variable argument.
///
/// # Safety
/// As `fcntl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Control);
        // SAFETY: the caller's promises.
        let done = unsafe { real::fcntl(fd, command, argument) };
        return match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, None, done),
            _ => done,
        };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Control);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            // SAFETY: the caller's promises.
            copied(fd, Some(sock), unsafe {
                real::fcntl(fd, command, argument)
            })
        }
        libc::F_GETFL if sock.is_live() => {
            // SAFETY: the command takes no pointer.
            let flags = unsafe { real::fcntl(fd, command, 0) } & !libc::O_NONBLOCK;
            if sock.nonblocking.load(Relaxed) {
                flags | libc::O_NONBLOCK
            } else {
                flags
            }
        }
        libc::F_SETFL => {
            // The descriptor of a socket of weir never blocks, whatever reads from it.
            let flags = if sock.is_live() {
                argument | libc::O_NONBLOCK as usize
            } else {
                argument
            };
            // SAFETY: the command takes a number.
            let set = unsafe { real::fcntl(fd, command, flags) };
            if set == 0 {
                let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
                sock.nonblocking.store(nonblocking, Relaxed);
            }
            set
        }
        // SAFETY: the caller's promises.
        _ => unsafe { real::fcntl(fd, command, argument) },
    }
}

/// `fcntl(2)`, as programs call it that are built for large files.
///
/// # Safety
/// As `fcntl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`. The argument is a word, which C passes as it passes the variable argument.
///
/// # Safety
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, command: c_ulong, argument: usize) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Control);
        if command == libc::FIONREAD && table::is_datagrams(fd) {
            let value = relay::datagram_calls::readable(fd);
            // SAFETY: the command takes a pointer to a number.
            unsafe { (argument as *mut c_int).write_unaligned(value) };
            return 0;
        }
        // SAFETY: the caller's promises.
        return unsafe { real::ioctl(fd, command, argument) };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Control);
    if command == libc::FIONBIO {
        // SAFETY: the command takes a pointer to a number.
        let on = unsafe { (argument as *const c_int).read_unaligned() } != 0;
        sock.nonblocking.store(on, Relaxed);
        if sock.is_live() {
            return 0;
        }
    }
    let value = if sock.is_live() {
        match command {
            libc::FIONREAD => readable(&sock).map(Some),
            libc::TIOCOUTQ => unsent(&sock).map(Some),
            SIOCATMARK => at_mark(&sock).map(Some),
            _ => Ok(None),
        }
    } else {
        Ok(None)
    };
    match value {
        // SAFETY: the caller's promises.
        Ok(None) => unsafe { real::ioctl(fd, command, argument) },
        Ok(Some(value)) => {
            // SAFETY: the command takes a pointer to a number.
            unsafe { (argument as *mut c_int).write_unaligned(value) };
            0
        }
        Err(error) => answer(Err(error)),
    }
}

/// Bytes that can be read, or the length of the next datagram.
fn readable(sock: &Sock) -> Result<c_int, c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => Ok(stream.info().map_or(0, |info| info.readable) as c_int),
        Endpoint::Udp(udp) => Ok(udp.next_len().unwrap_or(0) as c_int),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Listener(_) | Endpoint::Open => Err(libc::EINVAL),
    }
}

/// Written bytes that the peer has not acknowledged.
fn unsent(sock: &Sock) -> Result<c_int, c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => {
            let info = stream.info();
            Ok(info.map_or(0, |info| info.unsent + info.unacknowledged) as c_int)
        }
        Endpoint::Udp(_) => Ok(0),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Listener(_) | Endpoint::Open => Err(libc::EINVAL),
    }
}

fn at_mark(sock: &Sock) -> Result<c_int, c_int> {
    Ok((sock.stream()?.urgent() == Some(1)).into())
}

/// `epoll_ctl(2)`: the set keeps a socket of the kernel that becomes one of weir.
///
/// # Safety
/// As `epoll_ctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    how: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let sock = table::any(fd);
    count(Call::Epoll, sock.is_some());
    if table::is_plain_set(fd) {
        ready_sets::end(fd);
    }
    // SAFETY: the caller's promises.
    let done = unsafe { real::epoll_ctl(set, how, fd, event) };
    if done == 0 && sock.is_some() {
        table::mark_set(set, true);
    }
    if let Some(sock) = sock.filter(|_| done == 0) {
        let _inside = signals::enter();
        let event = match how {
            libc::EPOLL_CTL_DEL => None,
            // SAFETY: the call has read it.
            _ => Some(unsafe { event.read_unaligned() }),
        };
        sock.note_set(set, fd, event);
        sock.update_edges();
        ready_sets::update(&sock);
    }
    done
}

/// `fdopen(3)`. The C library's own streams read and write past this library, so that a stream
/// on a socket of weir is one with its own functions (`fopencookie(3)`).
///
/// # Safety
/// As `fdopen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const libc::c_char) -> *mut libc::FILE {
    if !table::is_live(fd) {
        // SAFETY: the caller's promises.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = CookieFunctions {
        read: cookie_read,
        write: cookie_write,
        seek: std::ptr::null_mut(),
        close: cookie_close,
    };
    // SAFETY: the functions have the types that the call asks for.
    unsafe { fopencookie(fd as usize as *mut libc::c_void, mode, functions) }
}

/// `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut libc::c_void, *mut libc::c_char, usize) -> isize,
    write: unsafe extern "C-unwind" fn(*mut libc::c_void, *const libc::c_char, usize) -> isize,
    seek: *mut libc::c_void,
    close: unsafe extern "C-unwind" fn(*mut libc::c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut libc::c_void,
        mode: *const libc::c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

unsafe extern "C-unwind" fn cookie_read(
    cookie: *mut libc::c_void,
    to: *mut libc::c_char,
    len: usize,
) -> isize {
    // SAFETY: the C library's buffer.
    unsafe { super::read(cookie as usize as c_int, to.cast(), len) }
}

unsafe extern "C-unwind" fn cookie_write(
    cookie: *mut libc::c_void,
    from: *const libc::c_char,
    len: usize,
) -> isize {
    // SAFETY: the C library's buffer.
    match unsafe { super::write(cookie as usize as c_int, from.cast(), len) } {
        // The C library takes 0 for an error.
        -1 => 0,
        count => count,
    }
}

unsafe extern "C-unwind" fn cookie_close(cookie: *mut libc::c_void) -> c_int {
    // SAFETY: the stream's own descriptor.
    unsafe { super::close(cookie as usize as c_int) }
}

/// Fails a call that weir's sockets do not have.
pub(super) fn unsupported() -> isize {
    length(Err(libc::EINVAL))
}
