//! Relayed descriptors: how other processes use a socket of this one.
//!
//! A socket belongs to the process that runs the host, its owner. When a descriptor of the socket
//! crosses `fork`, `exec` or `SCM_RIGHTS`, the owner moves the socket onto a pair of Unix sockets:
//! the application's descriptors, in all processes, become one end, and the owner's relay thread
//! copies between the other end and the stack. From then on the kernel does what it does with
//! every descriptor: it shares the end, counts its users, and says when the last has closed it.
//!
//! ```text
//!  parent, child, exec'ed program                  owner
//!   read, write, poll, dup, close ──► pair ──► relay thread ──► stack ──► link
//!   accept ──► descriptors of pairs ◄── pair ◄── relay thread ◄── listener
//! ```
//!
//! A process that did not start the host asks the owner for new sockets too, as its *guest*: they are
//! relayed from the beginning.
//!
//! | file | what |
//! |---|---|
//! | `protocol` | all messages between owner and processes |
//! | `name` | what a descriptor stands for, and why it has ended |
//! | `pair`, `listening`, `datagrams` | one connection, listener, UDP socket of the owner |
//! | `lease`, `door` | the owner's answers to its children, and to guests |
//! | `pump` | the owner's thread, which does the work of the five |
//! | `guest` | requests of a process to the owner |
//! | `calls`, `datagram_calls` | the calls of an application on its end |
//! | `passing` | descriptors in messages |
//!
//! A child does not get pairs at once: see [`crate::fork`].

pub(crate) mod calls;
pub(crate) mod datagram_calls;
mod datagrams;
pub(crate) mod door;
pub(crate) mod guest;
mod lease;
mod listening;
pub(crate) mod name;
mod pair;
pub(crate) mod passing;
pub(crate) mod protocol;
mod pump;

use crate::sock::{Endpoint, Opening, Sock, errno};
use crate::status::Status;
use crate::{host, table};
use datagrams::Datagrams;
use door::Door;
pub(crate) use lease::Child;
use libc::c_int;
use listening::Listening;
use name::{Kind, Name};
use pair::Pair;
pub(crate) use passing::{Got, receive_passed, refuse_descriptors};
pub(crate) use protocol::Key;
use pump::Item;
pub(crate) use pump::Pump;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket};

/// A fork must not see a socket that is half moved.
static GATE: Mutex<()> = Mutex::new(());

/// No socket moves while the result lives.
pub(crate) fn hold() -> std::sync::MutexGuard<'static, ()> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the relay thread of a host. Without it the process's sockets are its own, and not listed.
pub(crate) fn start(net: &Net, door: Option<Door>) {
    let Ok(pump) = Pump::start(net.clone()) else {
        return;
    };
    if let Some(status) = Status::open() {
        pump.add(Item::Status(status));
    }
    if let Some(door) = door {
        pump.add(Item::Door(door));
    }
    let kept = host::process().pump.lock();
    *kept.unwrap_or_else(PoisonError::into_inner) = Some(pump);
}

/// The relay thread, if it runs.
pub(crate) fn running() -> Option<Pump> {
    let pump = host::process().pump.lock();
    pump.unwrap_or_else(PoisonError::into_inner).clone()
}

/// A new pair: the owner's end, and the application's with this name.
fn pair_of(kind: SocketType, name: Name) -> Result<(OwnedFd, OwnedFd), c_int> {
    let made = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (own, other) = made.map_err(|error| error.raw_os_error())?;
    name.give(&other)?;
    refuse_descriptors(&own);
    Ok((host::hide(own), other))
}

fn name_of(kind: Kind, domain: c_int, local: std::io::Result<SocketAddr>) -> Result<Name, c_int> {
    Ok(Name {
        kind,
        domain,
        local: local.map_err(|error| errno(&error))?,
        peer: None,
        key: name::random(),
    })
}

/// The pair of a connection: the application's end, and the item for the thread.
fn relay_stream(sock: Sock, stream: TcpStream) -> Result<(OwnedFd, Item), c_int> {
    let name = Name {
        peer: Some(stream.peer_addr().map_err(|error| errno(&error))?),
        ..name_of(Kind::Connection, sock.domain, stream.local_addr())?
    };
    let (own, other) = pair_of(SocketType::STREAM, name)?;
    sock.note_end(&other);
    // The relay must neither gather bytes that no later call would send, nor wait at a close.
    let _ = stream.set_cork(false);
    let _ = stream.set_nodelay(true);
    if stream.linger().is_some_and(|linger| !linger.is_zero()) {
        stream.set_linger(None);
    }
    stream.set_recv_lowat(1);
    // No call has said whether it opens: not even if it has failed already.
    let plug = if sock.opening() == Opening::Waits {
        pair::plug(&other)?
    } else {
        0
    };
    Ok((
        other,
        Item::Pair(Pair::new(sock, stream, own, name.key, plug)),
    ))
}

/// As [`relay_stream`], of a listener.
fn relay_listener(sock: Sock, listener: TcpListener) -> Result<(OwnedFd, Item), c_int> {
    let name = name_of(Kind::Listener, sock.domain, listener.local_addr())?;
    let (own, other) = pair_of(SocketType::SEQPACKET, name)?;
    sock.note_end(&other);
    let backlog = sock.backlog.load(Relaxed).min(host::relays_max() / 2);
    listening::limit(&own, &other, backlog)?;
    let listening = Listening::new(sock, listener, own, name.key);
    Ok((other, Item::Listening(listening)))
}

/// As [`relay_stream`], of a UDP socket; a plain one's datagrams have no headers.
fn relay_datagrams(sock: Sock, udp: UdpSocket, is_plain: bool) -> Result<(OwnedFd, Item), c_int> {
    let name = name_of(Kind::Datagrams, sock.domain, udp.local_addr())?;
    let (own, other) = pair_of(SocketType::SEQPACKET, name)?;
    sock.note_end(&other);
    if sock.is_on(libc::SOL_SOCKET, libc::SO_BROADCAST) {
        calls::set_int(other.as_raw_fd(), libc::SO_BROADCAST, 1);
    }
    let datagrams = Datagrams::new(sock, udp, own, name.key, is_plain);
    Ok((other, Item::Datagrams(datagrams)))
}

/// Whether another socket may be relayed, when `others` have a descriptor each besides.
///
/// # Errors
/// `ENFILE` if there are as many as there may be.
pub(crate) fn check_room(others: usize) -> Result<(), c_int> {
    let pump = running().ok_or(libc::ENETDOWN)?;
    if pump.relays() + others < host::relays_max() {
        Ok(())
    } else {
        Err(libc::ENFILE)
    }
}

/// Moves a socket without descriptors onto a pair, and returns the end of a program without the library.
///
/// # Errors
/// The system's error if it provides no pair.
pub(crate) fn relay_new(sock: Sock, endpoint: Endpoint) -> Result<OwnedFd, c_int> {
    let pump = running().ok_or(libc::ENETDOWN)?;
    let sock = sock.with_endpoint(endpoint);
    let (end, item) = match sock.endpoint() {
        Endpoint::Udp(udp) => relay_datagrams(sock, udp, true)?,
        _ => relay_any(sock)?,
    };
    pump.add(item);
    Ok(end)
}

/// The ends of a pair for an address that is bound, of a TCP socket that neither listens nor connects:
/// the owner's, which ends with the last descriptor of the application's; and the key.
pub(crate) fn hold_bound(domain: c_int, at: SocketAddr) -> Result<(OwnedFd, OwnedFd, Key), c_int> {
    let name = name_of(Kind::Bound, domain, Ok(at))?;
    let (own, other) = pair_of(SocketType::STREAM, name)?;
    Ok((own, other, name.key))
}

/// As [`relay_stream`], of a socket of any kind that can be relayed.
fn relay_any(sock: Sock) -> Result<(OwnedFd, Item), c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => relay_stream(sock, stream),
        Endpoint::Listener(listener) => relay_listener(sock, listener),
        Endpoint::Udp(udp) => relay_datagrams(sock, udp, false),
        Endpoint::Relay(_) | Endpoint::Open | Endpoint::Foreign(_) => Err(libc::EOPNOTSUPP),
    }
}

/// Moves a socket of this process onto a pair, and returns the application's end; a socket that has
/// moved before has one.
///
/// # Errors
/// `EOPNOTSUPP` for a socket that cannot be relayed; the system's error if it provides no pair.
pub(crate) fn convert(sock: &Arc<Sock>) -> Result<Arc<OwnedFd>, c_int> {
    let pump = running().ok_or(libc::EOPNOTSUPP)?;
    let _gate = hold();
    let _moving = sock.moving.write().unwrap_or_else(PoisonError::into_inner);
    if let Endpoint::Relay(end) = sock.endpoint() {
        return Ok(end);
    }
    let (end, item) = relay_any(Sock::kept(sock))?;
    let end = Arc::new(end);
    sock.hand_over(&end)?;
    pump.add(item);
    Ok(end)
}

impl Pump {
    /// Looks after a child's sockets.
    pub(crate) fn add_child(&self, child: Child) {
        self.add(Item::Child(child));
    }
}

/// Marks the relayed ones of these descriptors, which have come from another program or process.
pub(crate) fn recognise(fds: impl Iterator<Item = c_int>) {
    for fd in fds {
        if let Some(name) = Name::of_passed(fd) {
            table::mark_relay(fd, name.kind == Kind::Datagrams);
        }
    }
}
