//! Names of relayed descriptors: what a Unix socket stands for, in the socket itself.
//!
//! The application's end of a relayed pair is bound to an abstract name (unix(7)) that holds the
//! addresses of the connection. The name survives `fork`, `exec` and `SCM_RIGHTS`, so that each
//! process with this library recognises the descriptor. The owner's end gets a name when the
//! connection is over; the name says why, and stays readable at the application's end though the
//! owner's end is closed then.
//!
//! ```text
//!  application's end   "weir-relay", kind, family, local address, peer's address, key
//!  owner's end         "weir-ended", errno or 0, 16 random bytes
//! ```
//!
//! The key is 16 random bytes, by which a process names the socket in requests to its owner. A UDP
//! socket's peer can change, and is not in the name: the owner knows it.

use super::protocol::{ADDRESS, KEY, Key, put_address, take_address};
use crate::real;
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

const RELAY: &[u8] = b"\0weir-relay";
const ENDED: &[u8] = b"\0weir-ended";
/// The kind of a relayed socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Listener,
    Connection,
    Datagrams,
    /// A TCP socket with an address, which neither listens nor connects ([`crate::all`]).
    Bound,
}

/// What a relayed descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) kind: Kind,
    /// `AF_INET` or `AF_INET6`.
    pub(crate) domain: c_int,
    /// The local address, as the stack knows it.
    pub(crate) local: SocketAddr,
    /// The peer's address, of a connection alone.
    pub(crate) peer: Option<SocketAddr>,
    /// New for [`Name::give`].
    pub(crate) key: Key,
}

/// Random bytes, which make a name the only one of its kind.
pub(super) fn random() -> Key {
    let mut bytes = [0; KEY];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

impl Name {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = RELAY.to_vec();
        let family = if self.domain == libc::AF_INET6 { 6 } else { 4 };
        let kind = match self.kind {
            Kind::Listener => 0,
            Kind::Connection => 1,
            Kind::Datagrams => 2,
            Kind::Bound => 3,
        };
        bytes.extend([kind, family]);
        put_address(&mut bytes, self.local);
        put_address(&mut bytes, self.peer.unwrap_or(self.local));
        bytes.extend(self.key);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Name> {
        let bytes = bytes.strip_prefix(RELAY)?;
        if bytes.len() != 2 + 2 * ADDRESS + KEY {
            return None;
        }
        let (head, bytes) = bytes.split_at(2);
        let domain = match head[1] {
            4 => libc::AF_INET,
            6 => libc::AF_INET6,
            _ => return None,
        };
        let kind = match head[0] {
            0 => Kind::Listener,
            1 => Kind::Connection,
            2 => Kind::Datagrams,
            3 => Kind::Bound,
            _ => return None,
        };
        let peer = take_address(&bytes[ADDRESS..])?;
        Some(Name {
            kind,
            domain,
            local: take_address(bytes)?,
            peer: (kind == Kind::Connection).then_some(peer),
            key: *bytes.last_chunk()?,
        })
    }

    /// Gives a new descriptor this name.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(super) fn give(self, fd: &OwnedFd) -> Result<(), c_int> {
        bind(fd, &self.to_bytes())
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

    /// As [`Name::of`], of a descriptor that another process has passed: `None` also if the pair may be one
    /// that no owner has made, since any process can take such a name.
    ///
    /// The process that made the pair is of this one's user, or the superuser's, and the other end has no
    /// name, or that of [`say_end`]: what is connected to a server has the server's.
    pub(crate) fn of_passed(fd: c_int) -> Option<Name> {
        let name = Name::of(fd)?;
        let maker = super::calls::credentials(fd)?.uid;
        let is_owner = maker == 0 || maker == rustix::process::geteuid().as_raw();
        let mut bytes = [0; ROOM];
        // SAFETY: the buffer has the stated length.
        let other = named(&mut bytes, |at, len| unsafe {
            real::getpeername(fd, at, len)
        })?;
        let is_pair = other.is_empty() || other.starts_with(ENDED);
        (is_owner && is_pair).then_some(name)
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

pub(super) const ROOM: usize = size_of::<libc::sockaddr_un>();
/// Where the name begins in `struct sockaddr_un`.
const PATH: usize = size_of::<libc::sa_family_t>();

/// The socket address of an abstract name, and its length.
pub(super) fn address(name: &[u8]) -> ([u8; ROOM], socklen_t) {
    let mut bytes = [0_u8; ROOM];
    let family = libc::AF_UNIX as libc::sa_family_t;
    bytes[..PATH].copy_from_slice(&family.to_ne_bytes());
    bytes[PATH..PATH + name.len()].copy_from_slice(name);
    (bytes, (PATH + name.len()) as socklen_t)
}

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
    let (bytes, len) = address(name);
    // SAFETY: the buffer is as long.
    match unsafe { real::bind(fd.as_raw_fd(), bytes.as_ptr().cast(), len) } {
        0 => Ok(()),
        _ => Err(crate::sock::last_errno()),
    }
}
