//! The owner's door: where other processes ask for sockets, and the answers that they get.
//!
//! Requests come from processes that may be anything by now: what is not a request ends the
//! connection, and the number of connections, of taken addresses and of sockets has a limit.

use super::name::{ROOM, address};
use super::protocol::{
    KERNELS, Key, MESSAGE_MAX, Pass, Request, SECRET, UNKNOWN, VARIABLE, Wanted, put_address,
    put_optional,
};
use super::pump::{Interest, Item};
use super::{passing, relay_any};
use crate::address::unmapped;
use crate::calls::connect::{of_this_host, start};
use crate::calls::opening::{bind_udp, listener_of, reserve};
use crate::control::Reported;
use crate::dns::forwarder;
use crate::host::{self, Owner, owner_of_local, owner_of_remote};
use crate::options::{self, Recorded};
use crate::ports::Reserved;
use crate::real;
use crate::sock::{Endpoint, Sock, errno};
use libc::c_int;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use weir_socket::Net;

/// Connections that wait for the relay's thread.
const BACKLOG: i32 = 128;
/// Connections that are accepted in one turn, and requests of one guest.
const TURN_MAX: usize = 64;
/// Guests at a time: processes that have asked. Each has a descriptor in the owner.
pub(super) const GUESTS_MAX: usize = 1024;
/// Connections at a time that have not sent the secret: a further one ends the oldest.
pub(super) const STRANGERS_MAX: usize = 16;
/// Addresses at a time that a guest has bound sockets to which neither listen nor connect.
const TAKEN_MAX: usize = 1024;

/// How long, and how long after another, a door is tried that an owner has and lets no process in:
/// the owner is about to end, and waits up to 5 s for its peers.
const TRIED: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(10);

/// The pass in the environment.
pub(super) fn pass() -> Option<&'static Pass> {
    static PASS: std::sync::OnceLock<Option<Pass>> = std::sync::OnceLock::new();
    let read = || Pass::from_text(&std::env::var(VARIABLE).ok()?);
    PASS.get_or_init(read).as_ref()
}

/// Reads the pass before the program changes its environment.
pub(crate) fn configure() {
    pass();
}

/// The door's socket address.
pub(super) fn at(pass: &Pass) -> ([u8; ROOM], libc::socklen_t) {
    let mut name = b"\0weir-door".to_vec();
    name.extend(pass.name);
    address(&name)
}

/// The socket that guests connect to. The process that has it is the owner, or about to be.
pub(crate) struct Door(OwnedFd);

/// Why a process cannot be the owner of a door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoDoor {
    /// Another process is.
    Taken,
    /// Another process is, and does not answer.
    Silent,
    /// There is no pass, or no descriptor.
    Impossible,
}

impl Door {
    /// Opens the door.
    ///
    /// # Errors
    /// If another process has it, or none can have it.
    pub(crate) fn open() -> Result<Door, NoDoor> {
        let pass = pass().ok_or(NoDoor::Impossible)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = made.map_err(|_| NoDoor::Impossible)?;
        let (bytes, len) = at(pass);
        // SAFETY: the address has the stated length.
        if unsafe { real::bind(socket.as_raw_fd(), bytes.as_ptr().cast(), len) } != 0 {
            return Err(NoDoor::Taken);
        }
        passing::refuse_descriptors(&socket);
        match rustix::net::listen(&socket, BACKLOG) {
            Ok(()) => Ok(Door(host::hide(socket))),
            Err(_) => Err(NoDoor::Impossible),
        }
    }

    /// As [`Door::open`], after a while if `connect` is refused at it.
    pub(crate) fn open_or(mut connect: impl FnMut() -> Result<(), c_int>) -> Result<Door, NoDoor> {
        let began = Instant::now();
        while began.elapsed() < TRIED {
            match Door::open() {
                Err(NoDoor::Taken) => match connect() {
                    Ok(()) => return Err(NoDoor::Taken),
                    Err(libc::EAGAIN) => return Err(NoDoor::Silent),
                    Err(_) => std::thread::sleep(PAUSE),
                },
                done => return done,
            }
        }
        Err(NoDoor::Impossible)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Processes that may be guests: those of the owner's user, or all if that is the superuser.
    pub(super) fn strangers(&self) -> Vec<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let next = || rustix::net::accept_with(&self.0, flags).ok();
        let own = rustix::process::geteuid();
        let may = |stranger: &OwnedFd| {
            let about = rustix::net::sockopt::socket_peercred(stranger);
            about.is_ok_and(|about| own.is_root() || about.uid == own)
        };
        let strangers = std::iter::from_fn(next).take(TURN_MAX);
        strangers.filter(may).map(host::hide).collect()
    }
}

/// A process that asks for sockets.
pub(crate) struct Guest {
    fd: OwnedFd,
    /// Whether it has sent the secret.
    is_known: bool,
    /// Addresses of its sockets that neither listen nor connect.
    taken: HashMap<u64, Reserved>,
    /// A request for an address that another socket has: it is answered once the sockets that ended before it
    /// have freed theirs.
    put_off: Option<Vec<u8>>,
}

/// What a request leads to, besides an answer.
type Opened = (OwnedFd, Item);

/// A number for a taken address, by chance: a guest may still have one of another owner, or of an
/// earlier connection, and it means nothing here.
fn new_number() -> Result<u64, c_int> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(|error| error.raw_os_error())?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// The answer to a request: bytes, and a socket that is relayed from now on.
type Answer = Result<(Vec<u8>, Option<Opened>), c_int>;

/// What the thread has for guests.
pub(super) struct Household<'a> {
    /// Whether there is room for another socket.
    pub(super) has_room: bool,
    /// Whether the owner is about to end: its guests are to look for another.
    pub(super) is_closed: bool,
    /// A relayed socket by its key.
    pub(super) find: &'a dyn Fn(&Key) -> Option<&'a Sock>,
}

impl Guest {
    pub(super) fn new(fd: OwnedFd) -> Guest {
        Guest {
            fd,
            is_known: false,
            taken: HashMap::new(),
            put_off: None,
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Answers requests, up to one that opens a socket; returns `None` once the guest has ended, or
    /// has sent what is not a request.
    pub(super) fn turn(
        &mut self,
        scratch: &mut [u8],
        house: &Household<'_>,
        again: &mut bool,
    ) -> Option<(Interest, Option<Item>)> {
        let interest = Interest {
            read: true,
            write: false,
        };
        if house.is_closed {
            return None;
        }
        for _ in 0..TURN_MAX {
            let put_off = self.put_off.take();
            let is_second = put_off.is_some();
            let count = match put_off {
                Some(message) => {
                    scratch[..message.len()].copy_from_slice(&message);
                    message.len()
                }
                None => {
                    let room = &mut scratch[..MESSAGE_MAX + 1];
                    let fd = self.fd.as_raw_fd();
                    match passing::receive_owned(fd, room, libc::MSG_DONTWAIT) {
                        Ok((count @ 1..=MESSAGE_MAX, None)) => count,
                        Err(libc::EINTR) => continue,
                        Err(libc::EAGAIN) => return Some((interest, None)),
                        _ => return None,
                    }
                }
            };
            let message = &scratch[..count];
            if !self.is_known {
                self.is_known = is_secret(message);
                if !self.is_known {
                    return None;
                }
                passing::send(&self.fd, &0_i32.to_ne_bytes(), None).ok()?;
                continue;
            }
            let request = Request::from_bytes(message)?;
            let (bytes, opened) = match self.answer(request, house) {
                Ok((body, opened)) => (with_error(0, &body), opened),
                Err(libc::EADDRINUSE | libc::EADDRNOTAVAIL) if !is_second => {
                    self.put_off = Some(message.to_vec());
                    *again = true;
                    return Some((interest, None));
                }
                Err(error) => (with_error(error, &[]), None),
            };
            let (fd, item) = opened.unzip();
            // A guest takes each answer before it asks again, so that there is room.
            match passing::send(&self.fd, &bytes, fd.as_ref()) {
                Ok(()) => {}
                Err(error) if passing::is_short(error) => {
                    // The socket ends; the guest may ask again.
                    passing::send(&self.fd, &with_error(error, &[]), None).ok()?;
                    continue;
                }
                Err(_) => return None,
            }
            if item.is_some() {
                *again = true;
                return Some((interest, item));
            }
        }
        *again = true;
        Some((interest, None))
    }

    fn answer(&mut self, request: Request, house: &Household<'_>) -> Answer {
        match request {
            Request::Bind { wanted, to } => self.bind(wanted, to),
            Request::Release { number } => {
                self.taken.remove(&number);
                Ok((Vec::new(), None))
            }
            _ if !house.has_room && opens(&request) => Err(libc::ENFILE),
            Request::Listen {
                wanted,
                number,
                backlog,
            } => self.with_taken(wanted, number, |sock| {
                let listener = listener_of(sock, &host::own()?, backlog)?;
                Ok(Endpoint::Listener(listener))
            }),
            Request::Connect { wanted, number, to } => self.with_taken(wanted, number, |sock| {
                let net = own_net(owner_of_remote(to, sock.kind)?)?;
                Ok(Endpoint::Stream(start(sock, &net, to)?))
            }),
            Request::Datagrams {
                wanted,
                local,
                peer,
            } => {
                let sock = socket_of(wanted);
                let endpoint = datagrams(&sock, local, peer)?;
                opened(sock, endpoint)
            }
            Request::Peer { key, to } => {
                let Endpoint::Udp(udp) = found(house, &key)?.endpoint() else {
                    return Err(libc::EISCONN);
                };
                let to = of_this_host(unmapped(to), || udp.local_addr().ok());
                let done = udp.connect(to);
                done.map_err(|error| errno(&error))?;
                Ok((Vec::new(), None))
            }
            Request::Names { key } => {
                let Endpoint::Udp(udp) = found(house, &key)?.endpoint() else {
                    return Err(libc::EINVAL);
                };
                let mut bytes = Vec::new();
                put_address(&mut bytes, udp.local_addr().map_err(|error| errno(&error))?);
                put_optional(&mut bytes, udp.peer_addr().ok());
                Ok((bytes, None))
            }
            Request::Set { key, option, value } => {
                let sock = found(house, &key)?;
                options::set(sock, option, &value)?;
                if let Endpoint::Stream(stream) = sock.endpoint()
                    && stream.linger().is_some_and(|time| !time.is_zero())
                {
                    // The relay's thread does not wait at a close.
                    stream.set_linger(None);
                }
                Ok((Vec::new(), None))
            }
            Request::Get { key, option } => {
                let value = options::get(found(house, &key)?, option)?;
                Ok((value, None))
            }
            Request::Forwarders => {
                let ports = forwarder::ports(&host::own()?)?;
                let bytes = ports.iter().flat_map(|port| port.to_ne_bytes());
                Ok((bytes.collect(), None))
            }
            Request::IcmpError { key } => {
                let sock = found(house, &key)?;
                let Endpoint::Udp(udp) = sock.endpoint() else {
                    return Err(libc::EAGAIN);
                };
                let error = udp.recv_icmp_error().map_err(|error| errno(&error))?;
                Ok((Reported::of(sock, &udp, error).to_bytes(), None))
            }
        }
    }

    fn bind(&mut self, wanted: Wanted, to: SocketAddr) -> Answer {
        own_net(owner_of_local(to, wanted.kind)?)?;
        if self.taken.len() >= TAKEN_MAX {
            return Err(libc::ENOBUFS);
        }
        let sock = socket_of(wanted);
        reserve(&sock, to)?;
        let reserved = sock.take_reserved().ok_or(libc::EINVAL)?;
        let number = new_number()?;
        let mut bytes = number.to_ne_bytes().to_vec();
        put_address(&mut bytes, reserved.address());
        self.taken.insert(number, reserved);
        Ok((bytes, None))
    }

    /// Opens a socket at a taken address, which stays taken if that fails.
    fn with_taken(
        &mut self,
        wanted: Wanted,
        number: u64,
        open: impl FnOnce(&Sock) -> Result<Endpoint, c_int>,
    ) -> Answer {
        if wanted.kind != libc::SOCK_STREAM {
            return Err(libc::EOPNOTSUPP);
        }
        let sock = socket_of(wanted);
        let reserved = self.taken.remove(&number);
        if number > 0 && reserved.is_none() {
            // It went with a socket that could not be passed.
            return Err(libc::EADDRNOTAVAIL);
        }
        *sock.reserved.lock().unwrap_or_else(PoisonError::into_inner) = reserved;
        match open(&sock) {
            Ok(endpoint) => opened(sock, endpoint),
            Err(error) => {
                if let Some(reserved) = sock.take_reserved().filter(|_| number > 0) {
                    self.taken.insert(number, reserved);
                }
                Err(error)
            }
        }
    }
}

fn opens(request: &Request) -> bool {
    matches!(
        request,
        Request::Listen { .. } | Request::Connect { .. } | Request::Datagrams { .. }
    )
}

/// Whether a message is the secret, in a time that does not depend on it.
fn is_secret(message: &[u8]) -> bool {
    pass().is_some_and(|pass| {
        let pairs = pass.secret.iter().zip(message);
        let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
        message.len() == SECRET && differ == 0
    })
}

fn with_error(error: c_int, body: &[u8]) -> Vec<u8> {
    let mut bytes = error.to_ne_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// A socket of a guest, as the owner keeps it.
fn socket_of(wanted: Wanted) -> Sock {
    let sock = Sock::open(wanted.domain, wanted.kind, false);
    let recorded = Recorded::of(wanted.options);
    *sock.options.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
    sock
}

/// The host, if it is the owner of an address.
fn own_net(owner: Owner) -> Result<Net, c_int> {
    match owner {
        Owner::Weir(net) => Ok(net),
        Owner::Kernel => Err(KERNELS),
        // This process is about to end.
        Owner::Other => Err(libc::ENETDOWN),
    }
}

fn datagrams(
    sock: &Sock,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
) -> Result<Endpoint, c_int> {
    let owner = match (local, peer) {
        (Some(local), _) => owner_of_local(local, libc::SOCK_DGRAM)?,
        (None, Some(peer)) => owner_of_remote(peer, libc::SOCK_DGRAM)?,
        (None, None) => return Err(libc::EINVAL),
    };
    let net = own_net(owner)?;
    Ok(Endpoint::Udp(bind_udp(sock, &net, local)?))
}

/// Puts a new socket of a guest onto a pair.
fn opened(sock: Sock, endpoint: Endpoint) -> Answer {
    let sock = sock.with_endpoint(endpoint);
    let opened = relay_any(sock)?;
    Ok((Vec::new(), Some(opened)))
}

fn found<'a>(house: &Household<'a>, key: &Key) -> Result<&'a Sock, c_int> {
    (house.find)(key).ok_or(UNKNOWN)
}
