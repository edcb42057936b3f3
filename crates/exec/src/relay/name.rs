//! Names of relayed descriptors: what a Unix socket stands for, in the socket itself.
//!
//! The application's end of a relayed pair is bound to an abstract name (unix(7)) that holds the
//! addresses of the connection. The name survives `fork`, `exec` and `SCM_RIGHTS`, so that each
//! process with this library recognises the descriptor. The owner's end gets a name when the
//! connection is over; the name says why, and stays readable at the application's end though the
//! owner's end is closed then.
//!
//! ```text
//!  application's end   "weir-relay", kind, family, local address, peer's address, 16 random bytes
//!  owner's end         "weir-ended", errno or 0, 16 random bytes
//! ```

use crate::real;
use libc::{c_int, sockaddr, socklen_t};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

const RELAY: &[u8] = b"\0weir-relay";
const ENDED: &[u8] = b"\0weir-ended";
/// Length of an address: IP, transport port, scope.
const ADDRESS: usize = 16 + 2 + 4;
/// Length of random bytes, which make a name the only one of its kind.
const RANDOM: usize = 16;

/// What a relayed descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// `AF_INET` or `AF_INET6`.
    pub(crate) domain: c_int,
    /// The local address, as the stack knows it.
    pub(crate) local: SocketAddr,
    /// The peer's address; `None` for a listener.
    pub(crate) peer: Option<SocketAddr>,
}

fn put(bytes: &mut Vec<u8>, address: SocketAddr) {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    bytes.extend(ip.octets());
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(scope.to_be_bytes());
}

fn take(bytes: &[u8]) -> Option<SocketAddr> {
    let ip: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    let port = u16::from_be_bytes(bytes.get(16..18)?.try_into().ok()?);
    let scope = u32::from_be_bytes(bytes.get(18..ADDRESS)?.try_into().ok()?);
    let ip = Ipv6Addr::from(ip);
    Some(match IpAddr::V6(ip).to_canonical() {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
    })
}

fn random() -> [u8; RANDOM] {
    let mut bytes = [0; RANDOM];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

impl Name {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = RELAY.to_vec();
        let family = if self.domain == libc::AF_INET6 { 6 } else { 4 };
        bytes.extend([u8::from(self.peer.is_some()), family]);
        put(&mut bytes, self.local);
        put(&mut bytes, self.peer.unwrap_or(self.local));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Name> {
        let bytes = bytes.strip_prefix(RELAY)?;
        if bytes.len() != 2 + 2 * ADDRESS + RANDOM {
            return None;
        }
        let (head, bytes) = bytes.split_at(2);
        let domain = match head[1] {
            4 => libc::AF_INET,
            6 => libc::AF_INET6,
            _ => return None,
        };
        let peer = take(&bytes[ADDRESS..])?;
        Some(Name {
            domain,
            local: take(bytes)?,
            peer: match head[0] {
                0 => None,
                1 => Some(peer),
                _ => return None,
            },
        })
    }

    /// Gives a new descriptor this name.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(super) fn give(self, fd: &OwnedFd) -> Result<(), c_int> {
        let mut bytes = self.to_bytes();
        bytes.extend(random());
        bind(fd, &bytes)
    }

    /// What the other end of a pair stands for.
    pub(crate) fn of_peer(fd: c_int) -> Option<Name> {
        let mut bytes = [0; ROOM];
        // SAFETY: the buffer has the stated length.
        let bytes = named(&mut bytes, |at, len| unsafe {
            real::getpeername(fd, at, len)
        })?;
        Name::from_bytes(bytes)
    }

    /// What a descriptor stands for, if it is relayed.
    pub(crate) fn of(fd: c_int) -> Option<Name> {
        let mut bytes = [0; ROOM];
        // SAFETY: the buffer has the stated length.
        let bytes = named(&mut bytes, |at, len| unsafe {
            real::getsockname(fd, at, len)
        })?;
        Name::from_bytes(bytes)
    }
}

/// Says at the owner's end why the connection is over: an error's number, or 0.
pub(super) fn say_end(fd: &OwnedFd, error: c_int) {
    let mut bytes = ENDED.to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(random());
    // Without the name the end looks like an orderly one.
    let _ = bind(fd, &bytes);
}

/// What the owner has said of the end: an error's number, or 0. `None` if it has said nothing.
pub(crate) fn said_end(fd: c_int) -> Option<c_int> {
    let mut bytes = [0; ROOM];
    // SAFETY: the buffer has the stated length.
    let bytes = named(&mut bytes, |at, len| unsafe {
        real::getpeername(fd, at, len)
    })?;
    let bytes = bytes.strip_prefix(ENDED)?;
    let error: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    let error = c_int::from_be_bytes(error);
    // What the application's `errno` may be.
    (0..4096).contains(&error).then_some(error)
}

const ROOM: usize = size_of::<libc::sockaddr_un>();
/// Where the name begins in `struct sockaddr_un`.
const PATH: usize = size_of::<libc::sa_family_t>();

/// The name that `ask` writes, if it is of a Unix socket.
fn named(
    bytes: &mut [u8; ROOM],
    ask: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<&[u8]> {
    let mut len = ROOM as socklen_t;
    let _errno = crate::signals::Errno::keep();
    if ask(bytes.as_mut_ptr().cast(), &raw mut len) != 0 {
        return None;
    }
    let family = libc::sa_family_t::from_ne_bytes([bytes[0], bytes[1]]);
    let is_unix = c_int::from(family) == libc::AF_UNIX;
    bytes.get(PATH..len as usize).filter(|_| is_unix)
}

fn bind(fd: &OwnedFd, name: &[u8]) -> Result<(), c_int> {
    let mut bytes = [0_u8; ROOM];
    let family = libc::AF_UNIX as libc::sa_family_t;
    bytes[..PATH].copy_from_slice(&family.to_ne_bytes());
    bytes[PATH..PATH + name.len()].copy_from_slice(name);
    let len = (PATH + name.len()) as socklen_t;
    // SAFETY: the buffer is as long.
    match unsafe { real::bind(fd.as_raw_fd(), bytes.as_ptr().cast(), len) } {
        0 => Ok(()),
        _ => Err(crate::sock::last_errno()),
    }
}
