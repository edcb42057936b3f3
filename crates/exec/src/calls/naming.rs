//! `getsockname`, `getpeername`, `getsockopt`, `setsockopt`, `shutdown`, `sockatmark`.

use super::answer;
use super::connect::is_answered;
use crate::relay::name::{Kind, Name};
use crate::relay::{self, guest};
use crate::signals;
use crate::sock::{Endpoint, MOVED, Opening, Sock, errno};
use crate::stats::{self, Call};
use crate::{address, options, real, table};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::net::{Shutdown, SocketAddr};
use std::ptr::copy_nonoverlapping;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// `getsockname(2)`.
///
/// # Safety
/// As `getsockname(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let inside = signals::enter();
    let known = table::any(fd).filter(|sock| sock.is_live() || sock.local().is_some());
    let Some(sock) = known else {
        let relayed = table::is_relay(fd).then(|| Name::of(fd)).flatten();
        let relayed = relayed.map(|name| {
            let own = address::shown(name.local, name.domain);
            // A UDP socket's address changes with its peer.
            let now = table::is_datagrams(fd)
                .then(|| guest::names(fd).ok())
                .flatten();
            now.map_or(own, |(local, _)| local)
        });
        drop(inside);
        if let Some(local) = relayed {
            stats::weirs(Call::Name);
            // SAFETY: the caller's promise.
            return answer(unsafe { address::write(local, to, len) }.map(|()| 0));
        }
        stats::kernels(Call::Name);
        // SAFETY: the caller's promises.
        return unsafe { real::getsockname(fd, to, len) };
    };
    stats::weirs(Call::Name);
    let local = sock.local().unwrap_or(address::unspecified(sock.domain));
    let local = address::shown(local, sock.domain);
    // SAFETY: the caller's promise.
    answer(unsafe { address::write(local, to, len) }.map(|()| 0))
}

/// `getpeername(2)`.
///
/// # Safety
/// As `getpeername(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(sock) = table::live(fd) else {
        if table::is_relay(fd)
            && let Some(name) = Name::of(fd)
        {
            stats::weirs(Call::Name);
            let peer = relayed_peer(fd, name);
            return answer(peer.and_then(|peer| {
                // SAFETY: the caller's promise.
                unsafe { address::write(peer, to, len) }.map(|()| 0)
            }));
        }
        stats::kernels(Call::Name);
        // SAFETY: the caller's promises.
        return unsafe { real::getpeername(fd, to, len) };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Name);
    answer(peer(&sock).and_then(|peer| {
        let peer = address::shown(peer, sock.domain);
        // SAFETY: the caller's promise.
        unsafe { address::write(peer, to, len) }.map(|()| 0)
    }))
}

/// The peer of a relayed socket.
fn relayed_peer(fd: c_int, name: Name) -> Result<SocketAddr, c_int> {
    let _inside = signals::enter();
    let peer = if name.kind == Kind::Datagrams {
        guest::names(fd)?.1
    } else if relay::calls::is_unopened(fd) {
        None
    } else {
        name.peer.map(|peer| address::shown(peer, name.domain))
    };
    peer.ok_or(libc::ENOTCONN)
}

fn peer(sock: &Sock) -> Result<SocketAddr, c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => {
            use weir_stack::tcp::State;
            let state = stream.info().map(|info| info.state);
            // A connection that both ends have closed has none any more.
            let none = matches!(
                state,
                Ok(State::SynSent | State::TimeWait | State::Closed) | Err(_)
            );
            if none {
                return Err(libc::ENOTCONN);
            }
            stream.peer_addr().map_err(|error| errno(&error))
        }
        Endpoint::Udp(udp) => udp.peer_addr().map_err(|error| errno(&error)),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Listener(_) | Endpoint::Open => Err(libc::ENOTCONN),
    }
}

/// `setsockopt(2)`.
///
/// # Safety
/// As `setsockopt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    /// Length of the longest value that is looked at.
    const VALUE_MAX: usize = 256;
    let known = table::any(fd);
    let bytes = || {
        let mut bytes = vec![0_u8; (len as usize).min(VALUE_MAX)];
        if !value.is_null() {
            // SAFETY: the caller promises `len` bytes.
            unsafe { copy_nonoverlapping(value.cast(), bytes.as_mut_ptr(), bytes.len()) };
        }
        bytes
    };
    let Some(sock) = known.filter(|sock| sock.is_live()) else {
        if table::is_relay(fd)
            && let Some(set) = relay::calls::set_option(fd, (level, name), &bytes())
        {
            stats::weirs(Call::Option);
            return answer(set.map(|()| 0));
        }
        let is_v6_only = (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        let is_bound = |sock: &Sock| sock.domain == libc::AF_INET6 && sock.is_bound();
        if is_v6_only && table::any(fd).is_some_and(|sock| is_bound(&sock)) {
            return answer(Err(libc::EINVAL));
        }
        stats::kernels(Call::Option);
        // SAFETY: the caller's promises.
        let set = unsafe { real::setsockopt(fd, level, name, value, len) };
        if set == 0
            && let Some(sock) = table::any(fd)
        {
            let _inside = signals::enter();
            let options = sock.options.lock();
            let mut options = options.unwrap_or_else(PoisonError::into_inner);
            options.set((level, name), &bytes());
        }
        return set;
    };
    let _inside = signals::enter();
    stats::weirs(Call::Option);
    if value.is_null() {
        return answer(Err(libc::EFAULT));
    }
    answer(options::set(&sock, (level, name), &bytes()).map(|()| 0))
}

/// `getsockopt(2)`.
///
/// # Safety
/// As `getsockopt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(sock) = table::live(fd) else {
        if table::is_relay(fd)
            && let Some(known) = relay::calls::option(fd, (level, name))
        {
            stats::weirs(Call::Option);
            // SAFETY: the caller's promises.
            return answer(known.and_then(|bytes| unsafe { give(&bytes, value, len) }));
        }
        stats::kernels(Call::Option);
        // SAFETY: the caller's promises.
        return unsafe { real::getsockopt(fd, level, name, value, len) };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Option);
    let bytes = options::get(&sock, (level, name));
    // SAFETY: the caller's promises.
    answer(bytes.and_then(|bytes| unsafe { give(&bytes, value, len) }))
}

/// Writes an option's value, cut to the caller's room.
///
/// # Safety
/// As `getsockopt(2)`.
unsafe fn give(bytes: &[u8], value: *mut c_void, len: *mut socklen_t) -> Result<c_int, c_int> {
    if value.is_null() || len.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller promises a length, and as many bytes.
    unsafe {
        let room = i32::try_from(len.read_unaligned()).map_err(|_| libc::EINVAL)?;
        let count = bytes.len().min(usize::try_from(room).unwrap_or(0));
        copy_nonoverlapping(bytes.as_ptr(), value.cast(), count);
        len.write_unaligned(count as socklen_t);
    }
    Ok(0)
}

/// `shutdown(2)`.
///
/// # Safety
/// As `shutdown(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(sock) = table::live(fd) else {
        stats::kernels(Call::Shutdown);
        // As in Linux, one without a peer is shut down too, and the call fails.
        let has_no_peer =
            table::is_datagrams(fd) && guest::names(fd).is_ok_and(|(_, peer)| peer.is_none());
        // SAFETY: the caller's promises.
        let shut = unsafe { real::shutdown(fd, how) };
        if let Some(sock) = table::any(fd) {
            // An address may make the socket one of weir later.
            note_shut(&sock, how);
        }
        if shut == 0 && has_no_peer {
            return answer(Err(libc::ENOTCONN));
        }
        return shut;
    };
    let _inside = signals::enter();
    stats::weirs(Call::Shutdown);
    answer(shut(&sock, how).map(|()| 0))
}

/// Records which directions of a datagram socket are shut down.
fn note_shut(sock: &Sock, how: c_int) {
    let reads = matches!(how, libc::SHUT_RD | libc::SHUT_RDWR);
    let writes = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    sock.shut.fetch_or(reads, Relaxed);
    sock.shut_write.fetch_or(writes, Relaxed);
}

fn shut(sock: &Sock, number: c_int) -> Result<(), c_int> {
    let how = match number {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(libc::EINVAL),
    };
    match sock.endpoint() {
        Endpoint::Stream(stream) => {
            if sock.opening() == Opening::Aborted {
                return Err(libc::ENOTCONN);
            }
            let shut = stream.shutdown(how).map_err(|error| errno(&error));
            // As in Linux, `connect(2)` has nothing to say from then on.
            let is_open = shut.is_ok() && is_answered(&stream);
            if is_open || sock.opening() == Opening::Unsaid {
                sock.set_opening(Opening::Done);
            }
            shut
        }
        Endpoint::Listener(listener) => {
            if how == Shutdown::Write {
                return Ok(());
            }
            listener.shutdown();
            sock.reopen_listener()
        }
        // As in Linux, one without a peer is shut down too, and the call fails.
        Endpoint::Udp(udp) => {
            note_shut(sock, number);
            udp.shutdown(how);
            udp.peer_addr().map(drop).map_err(|_| libc::ENOTCONN)
        }
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Open => Err(libc::ENOTCONN),
    }
}

/// `sockatmark(3)`: whether the next byte is the urgent one.
///
/// # Safety
/// As `sockatmark(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    let mut at: c_int = 0;
    // SAFETY: the command writes a number.
    match unsafe { super::ioctl(fd, super::descriptor::SIOCATMARK, &raw mut at as usize) } {
        0 => at,
        _ => -1,
    }
}
