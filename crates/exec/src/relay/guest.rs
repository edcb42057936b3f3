//! Requests of this process to the owner of the sockets: new ones, and what concerns those that it
//! has by relay.
//!
//! A request is answered at once: what takes time, as a connection to a peer, goes on while the
//! process has the descriptor. Requests wait for each other, and a limited time.

use super::door;
use super::name::{Kind, Name};
use super::passing;
use super::protocol::{KERNELS, Key, MESSAGE_MAX, Reader, Request, UNKNOWN, Wanted};
use crate::calls::opening::sharing;
use crate::control::Reported;
use crate::dns::Ports;
use crate::host;
use crate::ports::Reserved;
use crate::sock::{Sock, last_errno, replace};
use crate::{address, options, real, signals, table};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for the welcome of an owner, which may wait for its addresses meanwhile.
const WELCOME: Duration = Duration::from_secs(25);
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The connection to the owner.
fn connection() -> MutexGuard<'static, Option<OwnedFd>> {
    let guest = host::process().guest.lock();
    guest.unwrap_or_else(PoisonError::into_inner)
}

fn limit(fd: &OwnedFd, time: Duration) -> Result<(), c_int> {
    for at in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        let set = sockopt::set_socket_timeout(fd, at, Some(time));
        set.map_err(|error| error.raw_os_error())?;
    }
    Ok(())
}

/// Connects to the owner, if there is one.
///
/// # Errors
/// `ECONNREFUSED` or `ECONNRESET` if there is none, or it is about to end; `EACCES` if another user
/// pretends to be the owner; `EAGAIN` if the owner does not answer in time.
fn enter() -> Result<OwnedFd, c_int> {
    let pass = door::pass().ok_or(libc::ECONNREFUSED)?;
    let error = |error: rustix::io::Errno| error.raw_os_error();
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = host::hide(socket.map_err(error)?);
    limit(&socket, WELCOME)?;
    let (bytes, len) = door::at(pass);
    loop {
        // SAFETY: the address has the stated length.
        let done = unsafe { real::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), len) };
        match done {
            0 => break,
            _ if last_errno() == libc::EINTR => {}
            _ => return Err(last_errno()),
        }
    }
    let about = sockopt::socket_peercred(&socket).map_err(error)?;
    if !about.uid.is_root() && about.uid != rustix::process::geteuid() {
        return Err(libc::EACCES);
    }
    passing::send(&socket, &pass.secret, None)?;
    let (number, _, _) = receive(&socket, WELCOME)?;
    if number != 0 {
        return Err(libc::EACCES);
    }
    limit(&socket, ANSWER)?;
    Ok(socket)
}

/// Whether an owner has let this process in.
///
/// # Errors
/// As [`enter`].
pub(crate) fn connect() -> Result<(), c_int> {
    // An earlier connection may be to a process that has ended.
    let mut connection = connection();
    connection.take();
    *connection = Some(enter()?);
    Ok(())
}

/// Whether the process that has let this one in lives.
pub(crate) fn has_owner() -> bool {
    let connection = connection();
    connection.as_ref().is_some_and(|owner| {
        let mut fds = [PollFd::new(owner, PollFlags::empty())];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let polled = poll(&mut fds, Some(&none));
        polled.is_ok() && !fds[0].revents().contains(PollFlags::HUP)
    })
}

/// An answer: its error's number, its bytes, its descriptor.
type Got = (c_int, Vec<u8>, Option<OwnedFd>);

/// Receives an answer. Signals of the application do not prolong the wait for more than twice `most`.
fn receive(from: &OwnedFd, most: Duration) -> Result<Got, c_int> {
    let mut room = vec![0; MESSAGE_MAX];
    let began = Instant::now();
    let (count, fd) = loop {
        match passing::receive_owned(from.as_raw_fd(), &mut room, 0) {
            Err(libc::EINTR) if began.elapsed() < most => {}
            Err(libc::EINTR) => return Err(libc::EAGAIN),
            got => break got?,
        }
    };
    let (number, bytes) = room[..count].split_first_chunk().ok_or(libc::ECONNRESET)?;
    Ok((c_int::from_ne_bytes(*number), bytes.to_vec(), fd))
}

/// The error if there is no owner, or it does not answer: the next call that needs a host looks for
/// one again. No error of Linux has this number.
const GONE: c_int = 4094;

/// Repeats an attempt of a call once, if the owner has ended meanwhile: then another process, or
/// this one, is the owner.
pub(crate) fn or_by_next_owner<T>(
    mut attempt: impl FnMut() -> Result<T, c_int>,
) -> Result<T, c_int> {
    let again = match attempt() {
        Err(GONE) => attempt(),
        done => return done,
    };
    match again {
        Err(GONE) => Err(libc::ENETDOWN),
        done => done,
    }
}

/// As [`ask`], of a socket of the owner, which ends with it.
fn ask_of(request: &Request) -> Result<Vec<u8>, c_int> {
    match ask(request) {
        Ok((bytes, _)) => Ok(bytes),
        Err(GONE) => Err(libc::ENETDOWN),
        Err(error) => Err(error),
    }
}

/// Has a request answered: bytes, and a descriptor.
///
/// # Errors
/// The owner's error; [`GONE`].
fn ask(request: &Request) -> Result<(Vec<u8>, Option<OwnedFd>), c_int> {
    let _inside = signals::enter();
    let answer = {
        let mut connection = connection();
        let answer = exchange(&mut connection, request);
        if answer.is_err() {
            connection.take();
        }
        answer
    };
    match answer {
        Ok((0, bytes, fd)) => Ok((bytes, fd)),
        Ok((error, _, _)) => Err(error),
        Err(_) => {
            host::forget_owner();
            Err(GONE)
        }
    }
}

/// Sends a request, on a new connection if there is none, and receives its answer.
fn exchange(connection: &mut Option<OwnedFd>, request: &Request) -> Result<Got, c_int> {
    let owner = match connection {
        Some(owner) => owner,
        None => connection.insert(enter()?),
    };
    passing::send(owner, &request.to_bytes(), None)?;
    receive(owner, ANSWER)
}

fn wanted(sock: &Sock) -> Wanted {
    let options = sock.options.lock();
    Wanted {
        domain: sock.domain,
        kind: sock.kind,
        options: options.unwrap_or_else(PoisonError::into_inner).list(),
    }
}

/// False if the owner has said that the kernel is to do the call.
fn unless_kernels<T>(answer: Result<T, c_int>) -> Result<Option<T>, c_int> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(KERNELS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `bind(2)` of a TCP socket: takes the address. False if it is the kernel's.
pub(crate) fn bind(sock: &Sock, local: SocketAddr) -> Result<bool, c_int> {
    let request = Request::Bind {
        wanted: wanted(sock),
        to: local,
    };
    let Some((bytes, _)) = unless_kernels(ask(&request))? else {
        return Ok(false);
    };
    let mut from = Reader(&bytes);
    let number = from.u64().ok_or(libc::EIO)?;
    let at = from.address().ok_or(libc::EIO)?;
    let reserved = Reserved::of_owner(number, at, sharing(sock, at));
    *sock.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Some(reserved);
    Ok(true)
}

/// Gives back an address that [`bind`] has taken.
pub(crate) fn release(number: u64) {
    if connection().is_some() {
        // An owner that has ended has no addresses.
        let _ = ask(&Request::Release { number });
    }
}

/// The number of a socket's taken address, or 0.
fn number(sock: &Sock) -> u64 {
    let reserved = sock.reserved.lock();
    let reserved = reserved.unwrap_or_else(PoisonError::into_inner);
    reserved.as_ref().map_or(0, Reserved::number)
}

/// Gives a socket's descriptors to the end that an answer has brought.
fn adopt(sock: &Sock, answer: (Vec<u8>, Option<OwnedFd>)) -> Result<Arc<OwnedFd>, c_int> {
    let end = Arc::new(answer.1.ok_or(libc::EMFILE)?);
    options::apply_all(sock);
    sock.hand_over(&end)?;
    if let Some(reserved) = sock.take_reserved() {
        // It belongs to the owner's socket now.
        reserved.forget();
    }
    Ok(end)
}

/// `listen(2)`.
pub(crate) fn listen(sock: &Sock, backlog: c_int) -> Result<(), c_int> {
    let request = Request::Listen {
        wanted: wanted(sock),
        number: number(sock),
        backlog,
    };
    adopt(sock, ask(&request)?).map(drop)
}

/// Begins a connection. False if the kernel is to do it.
pub(crate) fn start(sock: &Sock, to: SocketAddr) -> Result<bool, c_int> {
    let request = Request::Connect {
        wanted: wanted(sock),
        number: number(sock),
        to,
    };
    let Some(answer) = unless_kernels(ask(&request))? else {
        return Ok(false);
    };
    adopt(sock, answer)?;
    for fd in sock.fds() {
        table::set_opening(fd, true);
    }
    Ok(true)
}

/// Begins another connection on a descriptor whose first one has failed, without its options.
pub(crate) fn restart(fd: c_int, to: SocketAddr) -> Result<(), c_int> {
    let name = Name::of(fd).ok_or(libc::ENOTSOCK)?;
    let request = Request::Connect {
        wanted: Wanted {
            domain: name.domain,
            kind: libc::SOCK_STREAM,
            options: Vec::new(),
        },
        number: 0,
        to,
    };
    let answer = unless_kernels(ask(&request))?;
    // The kernel has no socket any more.
    let (_, end) = answer.ok_or(libc::ENETUNREACH)?;
    let end = end.ok_or(libc::EMFILE)?;
    // SAFETY: the commands take no pointers.
    unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        real::fcntl(end.as_raw_fd(), libc::F_SETFL, flags.max(0) as usize);
    }
    replace(end.as_fd(), fd)?;
    table::mark_relay(fd, false);
    table::set_opening(fd, true);
    Ok(())
}

/// Opens a UDP socket, bound to `local`, or for datagrams to `peer`. False if it is the kernel's.
pub(crate) fn datagrams(
    sock: &Sock,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
) -> Result<bool, c_int> {
    let request = Request::Datagrams {
        wanted: wanted(sock),
        local,
        peer,
    };
    match unless_kernels(ask(&request))? {
        Some(answer) => adopt(sock, answer).map(|_| true),
        None => Ok(false),
    }
}

fn key(fd: c_int) -> Result<Key, c_int> {
    Ok(Name::of(fd).ok_or(libc::ENOTSOCK)?.key)
}

/// `connect(2)` of a relayed UDP socket.
pub(crate) fn set_peer(fd: c_int, to: SocketAddr) -> Result<(), c_int> {
    ask_of(&Request::Peer { key: key(fd)?, to }).map(drop)
}

/// The local address and the peer of a relayed UDP socket, as its family shows them.
pub(crate) fn names(fd: c_int) -> Result<(SocketAddr, Option<SocketAddr>), c_int> {
    let name = Name::of(fd).ok_or(libc::ENOTSOCK)?;
    let shown = |at| address::shown(at, name.domain);
    let Ok(bytes) = ask_of(&Request::Names { key: name.key }) else {
        // Without the owner the socket has no peer any more.
        return Ok((shown(name.local), None));
    };
    let mut from = Reader(&bytes);
    let local = from.address().ok_or(libc::EIO)?;
    let peer = from.optional().ok_or(libc::EIO)?;
    Ok((shown(local), peer.map(shown)))
}

/// `setsockopt(2)` of a relayed socket.
pub(crate) fn set(fd: c_int, option: (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let request = Request::Set {
        key: key(fd)?,
        option,
        value: value.to_vec(),
    };
    match ask_of(&request) {
        Err(UNKNOWN) => options::set(&defaults(fd)?, option, value),
        set => set.map(drop),
    }
}

/// A socket without options, for a connection that is over and that the owner has forgotten.
fn defaults(fd: c_int) -> Result<Sock, c_int> {
    let name = Name::of(fd).ok_or(libc::ENOTSOCK)?;
    if name.kind != Kind::Connection {
        // Of an owner that is gone.
        return Err(libc::ENETDOWN);
    }
    Ok(Sock::open(name.domain, libc::SOCK_STREAM, false))
}

/// `getsockopt(2)` of a relayed socket.
pub(crate) fn get(fd: c_int, option: (c_int, c_int)) -> Result<Vec<u8>, c_int> {
    let request = Request::Get {
        key: key(fd)?,
        option,
    };
    match ask_of(&request) {
        Err(UNKNOWN) => options::get(&defaults(fd)?, option),
        got => got,
    }
}

/// `recvmsg(2)` with `MSG_ERRQUEUE` of a relayed UDP socket.
pub(crate) fn icmp_error(fd: c_int) -> Result<Reported, c_int> {
    let bytes = ask_of(&Request::IcmpError { key: key(fd)? })?;
    Reported::from_bytes(&bytes).ok_or(libc::EIO)
}

/// The transport ports of the owner's forwarders of names.
pub(crate) fn forwarders() -> Result<Ports, c_int> {
    let bytes = or_by_next_owner(|| ask(&Request::Forwarders))?.0;
    let mut ports = Ports::default();
    for (port, bytes) in ports.iter_mut().zip(bytes.as_chunks().0) {
        *port = u16::from_ne_bytes(*bytes);
    }
    Ok(ports)
}
