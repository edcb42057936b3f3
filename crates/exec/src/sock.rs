//! [`Sock`]: a socket of the application, from `socket(2)` to the last `close(2)`.
//!
//! ```text
//!  socket()   Open: a socket of the kernel, with the options that were set
//!    │ bind, connect, listen or send: whose is the address?
//!    ├─► the kernel's: the socket leaves the table, and the kernel does the call
//!    └─► weir's: Stream, Listener or Udp; the descriptor's numbers are given to a descriptor
//!        with the readiness of the socket, and the options are set again
//!          ├─► a connect has failed, or a listener was shut down: Open again
//!          └─► another process uses it: Relay; the numbers are given to one end of a pair
//! ```

use crate::options::Recorded;
use crate::ports::Reserved;
use crate::ready_sets::Place;
use crate::{ready_sets, real, signals, table};
use libc::{c_int, epoll_event};
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use weir_socket::{TcpListener, TcpStream, UdpSocket};

/// The present kind of a socket.
#[derive(Clone)]
pub(crate) enum Endpoint {
    /// Of the kernel, until an address decides.
    Open,
    Listener(TcpListener),
    Stream(TcpStream),
    Udp(UdpSocket),
    /// Leased from the process that forked this one, by this number there; 0 is none.
    Foreign(u64),
    /// Moved onto a pair, of which this is the application's end: the kernel does all calls.
    Relay(Arc<OwnedFd>),
}

impl Endpoint {
    /// The descriptor that is ready when the socket is; `None` if it is not one of weir.
    pub(crate) fn ready_fd(&self) -> Option<io::Result<BorrowedFd<'_>>> {
        match self {
            Endpoint::Listener(listener) => Some(listener.ready_fd()),
            Endpoint::Stream(stream) => Some(stream.ready_fd()),
            Endpoint::Udp(udp) => Some(udp.ready_fd()),
            Endpoint::Open | Endpoint::Foreign(_) | Endpoint::Relay(_) => None,
        }
    }
}

/// The error of a call on a socket that has moved meanwhile: the call begins again. It is Linux'
/// own `ERESTARTSYS`, which no application sees.
pub(crate) const MOVED: c_int = 512;

/// The number of the last socket.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// How far `connect(2)` of a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Opening {
    /// The peer has not answered.
    Waits = 0,
    /// It is open; no call has said so.
    Unsaid = 1,
    /// It is open.
    Done = 2,
    /// It failed without blocking, and another call than `connect(2)` has reported the error: the
    /// next `connect(2)` says so, and the one after it can connect again.
    Aborted = 3,
}

/// A place of a descriptor in an epoll set.
#[derive(Clone, Copy)]
struct Member {
    set: c_int,
    fd: c_int,
    event: epoll_event,
}

/// A socket of the application.
pub(crate) struct Sock {
    /// Number of the socket in its process.
    pub(crate) id: u64,
    /// Held for writing while the socket moves onto a pair, and for reading by attempts of calls.
    pub(crate) moving: RwLock<()>,
    /// `AF_INET` or `AF_INET6`.
    pub(crate) domain: c_int,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub(crate) kind: c_int,
    /// `O_NONBLOCK`.
    pub(crate) nonblocking: AtomicBool,
    /// Limits of waits in nanoseconds; 0 is none (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    pub(crate) receive_timeout_ns: AtomicU64,
    pub(crate) send_timeout_ns: AtomicU64,
    pub(crate) options: Mutex<Recorded>,
    /// The address of `bind(2)` until the socket is closed, or of a listener without it until it ends.
    pub(crate) reserved: Mutex<Option<Reserved>>,
    /// Connections that may wait for `accept(2)`, of a listener.
    pub(crate) backlog: AtomicUsize,
    /// Whether `shutdown(2)` has ended receiving and sending of a datagram socket.
    pub(crate) shut: AtomicBool,
    pub(crate) shut_write: AtomicBool,
    /// Whether the last send announced more (`MSG_MORE`).
    pub(crate) corked: AtomicBool,
    /// The port of a connection that has failed, or of a listener without `bind(2)`: the name keeps it,
    /// as in Linux, though the socket has it no more.
    last_port: AtomicU16,
    /// The IP address of `bind(2)` of a socket that has lost the port, which the system had chosen.
    kept_address: Mutex<Option<IpAddr>>,
    /// Whether a failed bind has taken the address, and left the port, of the name of a connection that is over.
    has_lost_address: AtomicBool,
    /// Whether a connection that is over has been bound again: the address is not the connection's.
    is_rebound: AtomicBool,
    opening: AtomicU8,
    /// The inode of the application's end of the pair, of a socket that the owner's relay keeps; 0 if unknown.
    end_inode: AtomicU64,
    live: AtomicBool,
    /// Whether the socket has been counted.
    counted: AtomicBool,
    /// Whether the socket has moved onto a pair.
    moved: AtomicBool,
    /// Held while the descriptors become weir's, or the kernel's again.
    changing: Mutex<()>,
    endpoint: RwLock<Endpoint>,
    /// The descriptor's numbers.
    fds: Mutex<Vec<c_int>>,
    /// The epoll sets that the descriptors were added to.
    sets: Mutex<Vec<Member>>,
    /// Whether each arrival shows as an edge.
    shows_edges: AtomicBool,
    /// Whether the socket is in the list of its epoll set. Held while that changes.
    place_in_list: Mutex<Place>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sock {
    fn with(domain: c_int, kind: c_int, endpoint: Endpoint) -> Sock {
        Sock {
            id: LAST_ID.fetch_add(1, Relaxed) + 1,
            moving: RwLock::new(()),
            domain,
            kind,
            nonblocking: AtomicBool::new(false),
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
            options: Mutex::default(),
            reserved: Mutex::new(None),
            backlog: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            shut_write: AtomicBool::new(false),
            corked: AtomicBool::new(false),
            last_port: AtomicU16::new(0),
            kept_address: Mutex::new(None),
            has_lost_address: AtomicBool::new(false),
            is_rebound: AtomicBool::new(false),
            opening: AtomicU8::new(Opening::Waits as u8),
            end_inode: AtomicU64::new(0),
            live: AtomicBool::new(!matches!(endpoint, Endpoint::Open)),
            counted: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            changing: Mutex::new(()),
            endpoint: RwLock::new(endpoint),
            fds: Mutex::default(),
            sets: Mutex::default(),
            shows_edges: AtomicBool::new(false),
            place_in_list: Mutex::default(),
        }
    }

    /// A new socket, which the kernel has made.
    pub(crate) fn open(domain: c_int, kind: c_int, nonblocking: bool) -> Sock {
        let sock = Sock::with(domain, kind, Endpoint::Open);
        sock.nonblocking.store(nonblocking, Relaxed);
        sock
    }

    /// A socket of the process that forked this one, with its number there.
    pub(crate) fn foreign(id: u64, domain: c_int, kind: c_int) -> Sock {
        Sock::with(domain, kind, Endpoint::Foreign(id))
    }

    /// A connection that `listener` accepted; it has the listener's options.
    pub(crate) fn accepted(listener: &Sock, stream: TcpStream, nonblocking: bool) -> Sock {
        // The stream's own calls do not wait.
        let _ = stream.set_nonblocking(true);
        let sock = Sock::with(listener.domain, libc::SOCK_STREAM, Endpoint::Stream(stream));
        sock.nonblocking.store(nonblocking, Relaxed);
        sock.set_opening(Opening::Done);
        *lock(&sock.options) = lock(&listener.options).clone();
        crate::options::apply_all(&sock);
        sock
    }

    /// The socket `of` as the owner's relay keeps it, without descriptors; it takes the address.
    pub(crate) fn kept(of: &Sock) -> Sock {
        let sock = Sock::with(of.domain, of.kind, of.endpoint());
        sock.set_opening(of.opening());
        *lock(&sock.options) = lock(&of.options).clone();
        *lock(&sock.reserved) = of.take_reserved();
        sock.backlog.store(of.backlog.load(Relaxed), Relaxed);
        sock
    }

    /// The options of a connection that is over, for calls on what the application still has of it.
    pub(crate) fn options_of(over: &Sock) -> Sock {
        let sock = Sock::open(over.domain, over.kind, false);
        *lock(&sock.options) = lock(&over.options).clone();
        sock
    }

    /// A new socket with the options of this one, and its address, which both have.
    pub(crate) fn twin(&self) -> Sock {
        let sock = Sock::open(self.domain, self.kind, false);
        *lock(&sock.options) = lock(&self.options).clone();
        *lock(&sock.reserved) = lock(&self.reserved).as_ref().map(Reserved::share);
        sock
    }

    /// A socket of a guest that has become one of weir, with the options that were set.
    pub(crate) fn with_endpoint(self, endpoint: Endpoint) -> Sock {
        {
            let mut now = self
                .endpoint
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            *now = endpoint;
        }
        self.live.store(true, Release);
        crate::options::apply_all(&self);
        self
    }

    /// Takes the address of `bind(2)` away.
    pub(crate) fn take_reserved(&self) -> Option<Reserved> {
        lock(&self.reserved).take()
    }

    /// The descriptor's numbers.
    pub(crate) fn fds(&self) -> Vec<c_int> {
        lock(&self.fds).clone()
    }

    /// Whether the socket is one of weir.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Acquire)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let endpoint = self.endpoint.read();
        endpoint.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection.
    ///
    /// # Errors
    /// As a call for connected sockets fails on another socket.
    pub(crate) fn stream(&self) -> Result<TcpStream, c_int> {
        match &*self.endpoint.read().unwrap_or_else(PoisonError::into_inner) {
            Endpoint::Stream(stream) => Ok(stream.clone()),
            Endpoint::Foreign(_) => Err(crate::fork::refuse()),
            Endpoint::Relay(_) => Err(MOVED),
            _ => Err(libc::ENOTCONN),
        }
    }

    pub(crate) fn opening(&self) -> Opening {
        match self.opening.load(Relaxed) {
            0 => Opening::Waits,
            1 => Opening::Unsaid,
            2 => Opening::Done,
            _ => Opening::Aborted,
        }
    }

    pub(crate) fn set_opening(&self, opening: Opening) {
        self.opening.store(opening as u8, Relaxed);
    }

    pub(crate) fn add_fd(&self, fd: c_int) {
        lock(&self.fds).push(fd);
    }

    /// One of the descriptor's numbers; `None` once all are closed.
    pub(crate) fn first_fd(&self) -> Option<c_int> {
        lock(&self.fds).first().copied()
    }

    pub(crate) fn remove_fd(&self, fd: c_int) {
        lock(&self.fds).retain(|other| *other != fd);
        lock(&self.sets).retain(|member| member.fd != fd);
    }

    /// Notes what `epoll_ctl(2)` did with a descriptor: an event, or removal.
    pub(crate) fn note_set(&self, set: c_int, fd: c_int, event: Option<epoll_event>) {
        let mut sets = lock(&self.sets);
        sets.retain(|member| (member.set, member.fd) != (set, fd));
        sets.extend(event.map(|event| Member { set, fd, event }));
    }

    /// Has each arrival show as an edge if a place in an epoll set is edge-triggered.
    pub(crate) fn update_edges(&self) {
        let is_edge = |member: &Member| member.event.events & libc::EPOLLET as u32 != 0;
        let on = lock(&self.sets).iter().any(is_edge);
        let shows = self.shows_edges.swap(on, Relaxed);
        if shows == on {
            return;
        }
        // Without a descriptor the socket is in no set.
        let _ = match self.endpoint() {
            Endpoint::Stream(stream) => stream.set_edges(on),
            Endpoint::Listener(listener) => listener.set_edges(on),
            Endpoint::Udp(udp) => udp.set_edges(on),
            Endpoint::Open | Endpoint::Foreign(_) | Endpoint::Relay(_) => {
                self.shows_edges.store(false, Relaxed);
                Ok(())
            }
        };
    }

    /// Forgets the places in an epoll set that is closed.
    pub(crate) fn forget_set(&self, set: c_int) {
        lock(&self.sets).retain(|member| member.set != set);
    }

    /// The event for a descriptor in an epoll set.
    pub(crate) fn place(&self, set: c_int, fd: c_int) -> Option<epoll_event> {
        let sets = lock(&self.sets);
        let mut places = sets.iter();
        let place = places.find(|member| (member.set, member.fd) == (set, fd))?;
        Some(place.event)
    }

    /// The epoll set, the descriptor and the event, if there is one of each.
    pub(crate) fn only_place(&self) -> Option<(c_int, c_int, epoll_event)> {
        if lock(&self.fds).len() != 1 {
            return None;
        }
        match lock(&self.sets).as_slice() {
            [member] => Some((member.set, member.fd, member.event)),
            _ => None,
        }
    }

    pub(crate) fn place_in_list(&self) -> MutexGuard<'_, Place> {
        lock(&self.place_in_list)
    }

    /// Notes the application's end of the pair that the owner's relay keeps the socket for.
    pub(crate) fn note_end(&self, end: &OwnedFd) {
        let inode = rustix::fs::fstat(end).map_or(0, |about| about.st_ino);
        self.end_inode.store(inode, Relaxed);
    }

    /// The inode of the application's end: the processes that have a descriptor of it may use the socket.
    pub(crate) fn end_inode(&self) -> Option<u64> {
        Some(self.end_inode.load(Relaxed)).filter(|inode| *inode > 0)
    }

    /// Whether the socket has moved onto a pair.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.load(Acquire)
    }

    /// Whether the socket is leased from another process.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.endpoint(), Endpoint::Foreign(_))
    }

    /// The application's end of the pair, if the socket has moved onto one.
    pub(crate) fn relay(&self) -> Option<Arc<OwnedFd>> {
        match self.endpoint() {
            Endpoint::Relay(end) => Some(end),
            _ => None,
        }
    }

    /// Gives the socket's descriptors to `end`, the application's end of a pair. Calls that wait
    /// for the socket begin again.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn hand_over(&self, end: &Arc<OwnedFd>) -> Result<(), c_int> {
        ready_sets::leave(self);
        let before = self.endpoint();
        if !matches!(before, Endpoint::Foreign(_)) {
            for (name, receives) in [(libc::SO_RCVTIMEO, true), (libc::SO_SNDTIMEO, false)] {
                limit(end, name, self.timeout(receives));
            }
            let flags = if self.nonblocking.load(Relaxed) {
                libc::O_NONBLOCK
            } else {
                0
            };
            // SAFETY: the command takes a number.
            unsafe { real::fcntl(end.as_raw_fd(), libc::F_SETFL, flags as usize) };
        }
        let ready = before.ready_fd().and_then(Result::ok);
        {
            let endpoint = self.endpoint.write();
            *endpoint.unwrap_or_else(PoisonError::into_inner) = Endpoint::Relay(Arc::clone(end));
        }
        self.moved.store(true, Release);
        // A descriptor that is entered from now on becomes the end by that.
        let sets = std::mem::take(&mut *lock(&self.sets));
        for member in &sets {
            let none = std::ptr::null_mut();
            // SAFETY: removal takes no event; what is not a member is refused.
            unsafe { real::epoll_ctl(member.set, libc::EPOLL_CTL_DEL, member.fd, none) };
        }
        let fds = lock(&self.fds).clone();
        let mut result = Ok(());
        for fd in fds {
            result = result.and(table::hand_over(fd, self, end));
        }
        for mut member in sets {
            let event = &raw mut member.event;
            // SAFETY: the event is a valid one; a set that was closed is refused.
            unsafe { real::epoll_ctl(member.set, libc::EPOLL_CTL_ADD, member.fd, event) };
        }
        if let Some(ready) = ready {
            // Threads that wait for the descriptor of before look again.
            let _ = rustix::net::shutdown(ready, rustix::net::Shutdown::Both);
        }
        result
    }

    /// The descriptor that is ready when the socket is.
    ///
    /// # Errors
    /// If the system provides no descriptor.
    pub(crate) fn with_ready_fd<T>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> Result<T, c_int> {
        let endpoint = self.endpoint();
        match (endpoint.ready_fd(), &endpoint) {
            (Some(fd), _) => Ok(act(fd.map_err(|error| errno(&error))?)),
            (None, Endpoint::Foreign(_)) => Err(crate::fork::refuse()),
            (None, Endpoint::Relay(_)) => Err(MOVED),
            (None, _) => Err(libc::EINVAL),
        }
    }

    /// Makes the socket one of weir: from now on its descriptors are those of `endpoint`.
    ///
    /// # Errors
    /// If the system provides no descriptor.
    pub(crate) fn adopt(self: &Arc<Sock>, endpoint: Endpoint) -> Result<(), c_int> {
        let _changes = lock(&self.changing);
        let fds = lock(&self.fds);
        {
            let mut now = self
                .endpoint
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            *now = endpoint;
        }
        crate::options::apply_all(self);
        let replaced = self.with_ready_fd(|ready| {
            for fd in fds.iter() {
                replace(ready, *fd)?;
            }
            Ok(())
        });
        replaced.flatten()?;
        self.live.store(true, Release);
        table::set_live(&fds);
        self.enter_sets_again();
        drop(fds);
        self.update_edges();
        ready_sets::update(self);
        Ok(())
    }

    /// Gives the descriptors back to a socket of the kernel, as before the address was decided, after a
    /// connect has failed; nothing happens if another thread has done it already. The address stays taken
    /// if `bind(2)` has named it.
    ///
    /// # Errors
    /// If the system provides no descriptor.
    pub(crate) fn reopen(&self, failed: &TcpStream) -> Result<(), c_int> {
        self.reopen_if(|now| matches!(now, Endpoint::Stream(stream) if stream.is_same(failed)))
    }

    /// As [`Sock::reopen`], of a listener that was shut down.
    ///
    /// # Errors
    /// As [`Sock::reopen`].
    pub(crate) fn reopen_listener(&self) -> Result<(), c_int> {
        self.reopen_if(|now| matches!(now, Endpoint::Listener(_)))
    }

    fn reopen_if(&self, is_over: impl Fn(&Endpoint) -> bool) -> Result<(), c_int> {
        let made = self.kernel_socket()?;
        // It does not move onto a pair meanwhile, nor get another endpoint.
        let moving = self.moving.read();
        let _stays = moving.unwrap_or_else(PoisonError::into_inner);
        let _changes = lock(&self.changing);
        let before = {
            let endpoint = self.endpoint.write();
            let mut endpoint = endpoint.unwrap_or_else(PoisonError::into_inner);
            if !is_over(&endpoint) {
                return Ok(());
            }
            std::mem::replace(&mut *endpoint, Endpoint::Open)
        };
        let local = match &before {
            Endpoint::Stream(stream) => stream.local_addr().ok(),
            Endpoint::Listener(listener) => listener.local_addr().ok(),
            _ => None,
        };
        // A listener that is shut down may know its own no more.
        let taken = lock(&self.reserved).as_ref().map(Reserved::address);
        let local = local.filter(|local| local.port() != 0).or(taken);
        let port = local.map_or(0, |local| local.port());
        self.last_port.store(port, Relaxed);
        self.has_lost_address.store(false, Relaxed);
        self.shows_edges.store(false, Relaxed);
        self.set_opening(Opening::Waits);
        self.corked.store(false, Relaxed);
        // Until the descriptor is the kernel's, calls on it are weir's, and fail.
        let fds = lock(&self.fds).clone();
        let replaced = fds.iter().map(|fd| table::reopen(*fd, self, &made));
        let result = replaced.fold(Ok(()), Result::and);
        self.live.store(false, Release);
        if !self.is_rebound.swap(false, Relaxed) {
            self.lose_port();
        }
        if let Some(reserved) = &*lock(&self.reserved) {
            reserved.stop_listening();
        }
        self.enter_sets_again();
        drop(before);
        result
    }

    /// A socket of the kernel with the options and flags of this one.
    pub(crate) fn kernel_socket(&self) -> Result<OwnedFd, c_int> {
        // SAFETY: the call takes numbers.
        let made = unsafe { real::socket(self.domain, self.kind | libc::SOCK_CLOEXEC, 0) };
        if made < 0 {
            return Err(last_errno());
        }
        // SAFETY: the descriptor is the new one, which nothing else has.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        let options = lock(&self.options).list();
        for ((level, name), value) in options {
            let (value, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
            // What the kernel does not have is kept for the next time.
            // SAFETY: the value has the stated length.
            unsafe { real::setsockopt(made.as_raw_fd(), level, name, value, len) };
        }
        if self.nonblocking.load(Relaxed) {
            // SAFETY: the command takes a number.
            unsafe { real::fcntl(made.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize) };
        }
        Ok(made)
    }

    /// Adds the descriptors to their epoll sets: the kernel has forgotten those that were replaced.
    fn enter_sets_again(&self) {
        for mut member in lock(&self.sets).clone() {
            let event = &raw mut member.event;
            // SAFETY: the event is a valid one; a set that was closed is refused.
            unsafe { real::epoll_ctl(member.set, libc::EPOLL_CTL_ADD, member.fd, event) };
        }
    }

    /// Frees the port that the system had chosen for a connection that is over. The address stays.
    pub(crate) fn lose_port(&self) {
        if let Some(lost) = lock(&self.reserved).take_if(|reserved| reserved.is_chosen()) {
            let ip = lost.address().ip();
            *lock(&self.kept_address) = Some(ip).filter(|ip| !ip.is_unspecified());
        }
    }

    /// The socket has no address any more, since a bind has failed (`inet_reset_saddr`); nor has the
    /// name of its connection, if it has one that is over.
    pub(crate) fn lose_address(&self, is_over: bool) {
        *lock(&self.kept_address) = None;
        self.has_lost_address.store(is_over, Relaxed);
    }

    /// A connection that is over has been bound again.
    pub(crate) fn note_rebound(&self) {
        self.is_rebound.store(true, Relaxed);
    }

    /// The address of `bind(2)`, with port 0, of a socket that has lost the port.
    pub(crate) fn kept_address(&self) -> Option<SocketAddr> {
        lock(&self.kept_address).map(|ip| SocketAddr::new(ip, 0))
    }

    /// Whether `bind(2)` or `listen(2)` has taken an address. A connection that is over has lost a port that the
    /// system had chosen.
    pub(crate) fn is_bound(&self) -> bool {
        let is_over = matches!(self.endpoint(), Endpoint::Stream(stream) if is_over(&stream));
        let has_lost = is_over && !self.is_rebound.load(Relaxed);
        let reserved = lock(&self.reserved);
        reserved
            .as_ref()
            .is_some_and(|reserved| !(has_lost && reserved.is_chosen()))
    }

    /// Counts the socket once, as one of weir or of the kernel.
    pub(crate) fn count(&self, is_weirs: bool) {
        if !self.counted.swap(true, Relaxed) {
            crate::stats::socket(is_weirs);
        }
    }

    /// Ends a connection for its peer, though other calls hold the socket.
    pub(crate) fn end(&self) {
        if let Endpoint::Stream(stream) = self.endpoint() {
            // A connection that is over has sent its FIN.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Leaves the socket to the kernel for good.
    pub(crate) fn leave_to_kernel(&self) {
        let _inside = signals::enter();
        let fds = lock(&self.fds).clone();
        for fd in fds {
            drop(table::remove(fd));
        }
    }

    /// The time limit of receiving calls, or of sending calls.
    pub(crate) fn timeout(&self, receives: bool) -> Option<Duration> {
        let ns = if receives {
            &self.receive_timeout_ns
        } else {
            &self.send_timeout_ns
        };
        match ns.load(Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// The local address, as the stack knows it; `None` before it is bound.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        match self.endpoint() {
            Endpoint::Stream(_) if self.is_rebound.load(Relaxed) => None,
            Endpoint::Stream(stream) => {
                let local = stream.local_addr().ok();
                let lost = self.has_lost_address.load(Relaxed);
                let any = crate::address::unspecified(self.domain).ip();
                local.map(|local| {
                    if lost {
                        SocketAddr::new(any, local.port())
                    } else {
                        local
                    }
                })
            }
            Endpoint::Listener(listener) => listener.local_addr().ok(),
            Endpoint::Udp(udp) => udp.local_addr().ok(),
            Endpoint::Open | Endpoint::Foreign(_) | Endpoint::Relay(_) => None,
        }
        .or_else(|| lock(&self.reserved).as_ref().map(Reserved::address))
        .or_else(|| {
            let port = self.last_port.load(Relaxed);
            let any = crate::address::unspecified(self.domain);
            let ip = self.kept_address().unwrap_or(any).ip();
            (port != 0).then(|| SocketAddr::new(ip, port))
        })
    }
}

impl Drop for Sock {
    /// Closes the socket where no handler runs in the middle of it, whichever call had it last, and
    /// leaves the call's `errno` alone.
    fn drop(&mut self) {
        let _inside = signals::enter();
        let _errno = signals::Errno::keep();
        let endpoint = self.endpoint.get_mut();
        let endpoint = endpoint.unwrap_or_else(PoisonError::into_inner);
        if let Endpoint::Foreign(id @ 1..) = endpoint {
            crate::fork::closed(*id);
        }
        *endpoint = Endpoint::Open;
        let reserved = self.reserved.get_mut();
        reserved.unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Limits the waits of a pair's end.
fn limit(end: &OwnedFd, name: c_int, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return;
    };
    let time = libc::timeval {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_usec: limit.subsec_micros().into(),
    };
    let (value, len) = ((&raw const time).cast(), size_of::<libc::timeval>());
    let len = len as libc::socklen_t;
    // SAFETY: the value has the stated length.
    unsafe { real::setsockopt(end.as_raw_fd(), libc::SOL_SOCKET, name, value, len) };
}

/// Puts `ready` in the place of a descriptor of the application, which keeps its flags.
pub(crate) fn replace(ready: BorrowedFd<'_>, fd: c_int) -> Result<(), c_int> {
    // SAFETY: the commands take no pointers; a descriptor that was closed is refused.
    let done = unsafe {
        let flags = real::fcntl(fd, libc::F_GETFD, 0);
        let cloexec = if flags & libc::FD_CLOEXEC != 0 {
            libc::O_CLOEXEC
        } else {
            0
        };
        real::dup3(ready.as_raw_fd(), fd, cloexec)
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The number of an error.
pub(crate) fn errno(error: &io::Error) -> c_int {
    match error.raw_os_error() {
        Some(number) => number,
        None if error.kind() == io::ErrorKind::WouldBlock => libc::EAGAIN,
        None => libc::EIO,
    }
}

/// The error of the C library's last call in this thread.
pub(crate) fn last_errno() -> c_int {
    errno(&io::Error::last_os_error())
}

/// Whether a connection is over for the application.
pub(crate) fn is_over(stream: &TcpStream) -> bool {
    use weir_stack::tcp::State;
    stream.info().map_or(true, |info| {
        matches!(info.state, State::TimeWait | State::Closed)
    })
}
