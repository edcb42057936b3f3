//! Sockets by which programs send past libpcap, and ask for addresses: packet(7) of `SOCK_RAW`, and
//! raw(7) of `IPPROTO_RAW`.
//!
//! libdnet and libnet open them, and so do nmap, arp-scan and arping. Where the kernel refuses one
//! for lack of privilege, the application gets a datagram socket in its place, which answers the
//! requests of netdevice(7) and is shut down for data. What is sent by it goes out by a port, which
//! the broker's policy checks. Receiving fails at once: libpcap receives.

mod ip;
mod next;
mod ports;
mod route;
mod sockets;
mod writes;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use sockets::Kind;

/// An error of a call: what `errno` becomes.
type Result<T> = std::result::Result<T, c_int>;

/// Parts of a message, at most (Linux' `UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;
/// Bytes of a packet, at most: IP's total length is of 16 bits; and a link's header.
const LEN_MAX: usize = 65_535 + 64;

fn answer<T: TryInto<R>, R: From<i8>>(result: Result<T>) -> R {
    match result {
        Ok(value) => value.try_into().unwrap_or_else(|_| R::from(-1)),
        Err(number) => {
            // SAFETY: the C library's pointer is valid in its thread.
            unsafe { *libc::__errno_location() = number };
            R::from(-1)
        }
    }
}

fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// `socket(2)`.
///
/// # Safety
/// As `socket(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let is_raw = kind & !flags == libc::SOCK_RAW;
    let instead = match domain {
        libc::AF_PACKET if is_raw => Kind::Link,
        libc::AF_INET if is_raw && protocol == libc::IPPROTO_RAW => Kind::Ip,
        _ => return fd,
    };
    if fd >= 0 || last_errno() != libc::EPERM {
        return fd;
    }
    let kind = kind & flags | libc::SOCK_DGRAM;
    // SAFETY: numbers alone.
    let fd = unsafe { next::socket(libc::AF_INET, kind, 0) };
    if fd >= 0 {
        // Also of one that is not connected: what is not defined here then fails at once.
        // SAFETY: the descriptor is new.
        unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        sockets::insert(fd, instead);
    }
    fd
}

/// `bind(2)`.
///
/// # Safety
/// As `bind(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    match sockets::find(fd) {
        Some(socket) if socket.kind == Kind::Link => {
            // SAFETY: the caller's promise.
            let index = unsafe { link_address(to, len) };
            answer(index.and_then(|index| {
                // 0 stands for none.
                if index != 0 {
                    ports::name(index)?;
                }
                sockets::bind(fd, index);
                Ok(0)
            }))
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { next::bind(fd, to, len) },
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
    let kind = match level {
        libc::SOL_PACKET | libc::IPPROTO_IP => sockets::find(fd).map(|socket| socket.kind),
        _ => None,
    };
    match (kind, level, name) {
        // What a port does anyway: it sends past queueing disciplines, and complete packets.
        (Some(Kind::Link), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS)
        | (Some(Kind::Ip), libc::IPPROTO_IP, libc::IP_HDRINCL) => 0,
        (Some(Kind::Link), libc::SOL_PACKET, _) => {
            sockets::refuse_to_receive();
            answer(Err::<c_int, _>(libc::ENOPROTOOPT))
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { next::setsockopt(fd, level, name, value, len) },
    }
}

/// The interface that an address of packet(7) names.
///
/// # Safety
/// An address of that length.
unsafe fn link_address(address: *const sockaddr, len: socklen_t) -> Result<u32> {
    let is_whole = len as usize >= std::mem::offset_of!(libc::sockaddr_ll, sll_hatype);
    if address.is_null() || !is_whole {
        return Err(libc::EINVAL);
    }
    let address = address.cast::<libc::sockaddr_ll>();
    // SAFETY: the address is long enough for these fields.
    let (family, index) = unsafe {
        (
            (&raw const (*address).sll_family).read_unaligned(),
            (&raw const (*address).sll_ifindex).read_unaligned(),
        )
    };
    if c_int::from(family) != libc::AF_PACKET {
        return Err(libc::EINVAL);
    }
    u32::try_from(index).map_err(|_| libc::ENODEV)
}

/// Sends a packet by one of weir's sockets.
///
/// # Safety
/// As `sendto(2)`.
unsafe fn send_by(
    socket: sockets::Socket,
    packet: &[u8],
    to: *const sockaddr,
    len: socklen_t,
) -> Result<usize> {
    match socket.kind {
        Kind::Link => {
            let index = if to.is_null() {
                socket.index.ok_or(libc::ENOTCONN)?
            } else {
                // SAFETY: the caller's promise.
                unsafe { link_address(to, len) }?
            };
            ports::with(index, |port| port.send(packet))?;
        }
        Kind::Ip => {
            // SAFETY: the caller's promise.
            let to = unsafe { ip_address(to, len) }?;
            ip::send(packet, to)?;
        }
    }
    Ok(packet.len())
}

/// The address of an IPv4 packet's destination.
///
/// # Safety
/// An address of that length.
unsafe fn ip_address(address: *const sockaddr, len: socklen_t) -> Result<std::net::Ipv4Addr> {
    if address.is_null() {
        return Err(libc::EDESTADDRREQ);
    }
    if (len as usize) < size_of::<libc::sockaddr_in>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the address is long enough.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    if c_int::from(address.sin_family) != libc::AF_INET {
        return Err(libc::EAFNOSUPPORT);
    }
    Ok(u32::from_be(address.sin_addr.s_addr).into())
}

/// The bytes of a packet.
///
/// # Safety
/// This many bytes.
unsafe fn bytes<'a>(packet: *const c_void, len: size_t) -> Result<&'a [u8]> {
    if len > LEN_MAX {
        return Err(libc::EMSGSIZE);
    }
    if packet.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(packet.cast(), len) })
}

/// `sendto(2)`.
///
/// # Safety
/// As `sendto(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    packet: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let Some(socket) = sockets::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::sendto(fd, packet, len, flags, to, to_len) };
    };
    // SAFETY: the caller's promise.
    let sent = unsafe { bytes(packet, len) };
    // SAFETY: likewise.
    answer(sent.and_then(|packet| unsafe { send_by(socket, packet, to, to_len) }))
}

/// `send(2)`.
///
/// # Safety
/// As `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    packet: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    if sockets::find(fd).is_none() {
        // SAFETY: the caller's arguments.
        return unsafe { next::send(fd, packet, len, flags) };
    }
    // SAFETY: the caller's arguments, and no address.
    unsafe { sendto(fd, packet, len, flags, std::ptr::null(), 0) }
}

/// `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = sockets::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::sendmsg(fd, message, flags) };
    };
    // SAFETY: the caller's message.
    answer(unsafe { gathered(message) }.and_then(|(packet, to, len)| {
        // SAFETY: the message's own address.
        unsafe { send_by(socket, &packet, to, len) }
    }))
}

/// The bytes of a message in one piece, and its address.
///
/// # Safety
/// A message as `sendmsg(2)` takes it.
unsafe fn gathered(message: *const msghdr) -> Result<(Vec<u8>, *const sockaddr, socklen_t)> {
    // SAFETY: the caller's promise.
    let message = unsafe { message.as_ref() }.ok_or(libc::EFAULT)?;
    if message.msg_iovlen > PARTS_MAX || message.msg_iov.is_null() {
        return Err(libc::EMSGSIZE);
    }
    // SAFETY: the caller's promise.
    let packet = unsafe { joined(message.msg_iov, message.msg_iovlen) }?;
    Ok((packet, message.msg_name.cast(), message.msg_namelen))
}

/// The bytes of parts in one piece.
///
/// # Safety
/// This many parts, at most [`PARTS_MAX`], that are valid.
unsafe fn joined(parts: *const iovec, count: usize) -> Result<Vec<u8>> {
    // SAFETY: the caller's promise.
    let parts: &[iovec] = unsafe { std::slice::from_raw_parts(parts, count) };
    let mut packet = Vec::new();
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the caller's promise.
        packet.extend_from_slice(unsafe { bytes(part.iov_base, part.iov_len) }?);
        if packet.len() > LEN_MAX {
            return Err(libc::EMSGSIZE);
        }
    }
    Ok(packet)
}

/// `recv(2)`.
///
/// # Safety
/// As `recv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if sockets::find(fd).is_some() {
        return answer(Err::<ssize_t, _>(sockets::refuse_to_receive()));
    }
    // SAFETY: the caller's arguments.
    unsafe { next::recv(fd, to, len, flags) }
}

/// `recvfrom(2)`.
///
/// # Safety
/// As `recvfrom(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if sockets::find(fd).is_some() {
        return answer(Err::<ssize_t, _>(sockets::refuse_to_receive()));
    }
    // SAFETY: the caller's arguments.
    unsafe { next::recvfrom(fd, to, len, flags, from, from_len) }
}

/// `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if sockets::find(fd).is_some() {
        return answer(Err::<ssize_t, _>(sockets::refuse_to_receive()));
    }
    // SAFETY: the caller's arguments.
    unsafe { next::recvmsg(fd, message, flags) }
}
