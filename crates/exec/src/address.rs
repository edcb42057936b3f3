//! Socket addresses between C and Rust.

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::copy_nonoverlapping;

/// The family of an address that is too short for one.
const NONE: c_int = -1;

/// The unspecified address of a family, with port 0.
pub(crate) fn unspecified(domain: c_int) -> SocketAddr {
    if domain == libc::AF_INET {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    }
}

/// Whether an address of IPv6 stands for one of IPv4.
pub(crate) fn is_mapped(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().to_canonical().is_ipv4()
}

/// The family of a socket address; -1 if the address is too short for a family.
///
/// # Safety
/// `len` bytes can be read at `address`, unless `address` is null.
pub(crate) unsafe fn family(address: *const sockaddr, len: socklen_t) -> c_int {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return NONE;
    }
    // SAFETY: the family comes first; the caller's structure need not be aligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    family.into()
}

/// Reads a socket address of IPv4 or IPv6.
///
/// # Errors
/// `EINVAL` if the address is too short, `EAFNOSUPPORT` if it is of another family.
///
/// # Safety
/// `len` bytes can be read at `address`, unless `address` is null.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr, c_int> {
    // SAFETY: the caller's promise.
    match unsafe { family(address, len) } {
        libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: as many bytes can be read.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = v4.sin_addr.s_addr.to_ne_bytes().into();
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        // The scope may be missing (RFC 2133).
        libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() - 4 => {
            let mut bytes = [0_u8; size_of::<sockaddr_in6>()];
            let count = bytes.len().min(len as usize);
            // SAFETY: as many bytes can be read.
            unsafe { copy_nonoverlapping(address.cast(), bytes.as_mut_ptr(), count) };
            // SAFETY: all values of the bytes are valid.
            let v6 = unsafe { bytes.as_ptr().cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (port, scope) = (u16::from_be(v6.sin6_port), v6.sin6_scope_id);
            Ok(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        libc::AF_INET | libc::AF_INET6 | NONE => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// The address as the stack knows it: IPv4-mapped IPv6 addresses are IPv4 addresses, and the
/// scope is kept for addresses that have one.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The address as a socket of this family shows it: IPv4 addresses are mapped for IPv6 (RFC 3493
/// §3.7).
pub(crate) fn shown(address: SocketAddr, domain: c_int) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if domain == libc::AF_INET6 => {
            let ip = if v4.ip().is_unspecified() {
                Ipv6Addr::UNSPECIFIED
            } else {
                v4.ip().to_ipv6_mapped()
            };
            SocketAddrV6::new(ip, v4.port(), 0, 0).into()
        }
        other => other,
    }
}

/// Writes a socket address as `getsockname(2)` does: cut to the caller's room, with its whole
/// length.
///
/// # Errors
/// `EINVAL` if the caller's length is negative.
///
/// # Safety
/// Unless `to` is null, `len` points to the number of bytes that can be written there.
pub(crate) unsafe fn write(
    address: SocketAddr,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), c_int> {
    if to.is_null() || len.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let room = unsafe { len.read_unaligned() };
    if i32::try_from(room).is_err() {
        return Err(libc::EINVAL);
    }
    let mut bytes = [0_u8; size_of::<sockaddr_in6>()];
    let whole = match address {
        SocketAddr::V4(v4) => {
            let family = libc::AF_INET as libc::sa_family_t;
            bytes[..2].copy_from_slice(&family.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let family = libc::AF_INET6 as libc::sa_family_t;
            bytes[..2].copy_from_slice(&family.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            size_of::<sockaddr_in6>()
        }
    };
    let count = whole.min(room as usize);
    // SAFETY: as many bytes can be written there; `len` can be written.
    unsafe {
        copy_nonoverlapping(bytes.as_ptr(), to.cast(), count);
        len.write_unaligned(whole as socklen_t);
    }
    Ok(())
}
