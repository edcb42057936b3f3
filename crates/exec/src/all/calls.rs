//! The answers to the program's calls.
//!
//! ```text
//!  socket()     the kernel's, and not trapped
//!  bind()       TCP, weir's address: Bound, a pair whose end says when the socket is closed
//!  listen()     the relayed listener            accept()   the descriptors that it passes
//!  connect()    the relayed connection; UDP: the relayed socket, datagrams without headers
//! ```
//!
//! Each step puts a new descriptor in the place of the former one. What it is stands in the name of the
//! Unix socket ([`Name`]), so that `dup`, `fork` and `SCM_RIGHTS` need no attention here.

use super::notice::{Call, Notices, OVER};
use super::socket::{
    OPTIONS, Socket, State, as_relayed, connect_again, deadline, is_nonblocking, is_over,
    is_time_limit, kernels_socket, option_of, own_port, ready, set_nonblocking, state, which,
};
use super::target::{Target, UNSEEN, VALUE_MAX};
use crate::calls::connect::start;
use crate::calls::opening::{bind_udp, check_port, listener_of, reserve};
use crate::host::{self, Owner, owner_of_local, owner_of_remote, say};
use crate::options::Recorded;
use crate::relay::calls as relayed;
use crate::relay::name::{self, Kind, Name};
use crate::relay::{self, Key, guest, passing};
use crate::sock::{Endpoint, Sock, errno};
use crate::stats;
use crate::{address, options, real};
use libc::{c_int, c_long};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::Timeout;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use weir_socket::Net;

/// Addresses at a time that are bound by sockets which neither listen nor connect.
const BOUND_MAX: usize = 1024;
/// Results that are kept for calls that a signal has interrupted.
const KEPT_MAX: usize = 1024;

/// What a call is about, besides its registers. A call that a signal has interrupted begins again with
/// the same registers, and a new call may have them too.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Subject {
    /// The file's number.
    inode: u64,
    /// The address of `bind` and `connect`, and its family.
    family: c_int,
    address: Result<SocketAddr, c_int>,
}

/// A call, the process that makes it, and a copy of its descriptor.
struct Asked {
    call: Call,
    subject: Subject,
    target: Target,
    fd: OwnedFd,
}

fn inode(fd: &OwnedFd) -> Result<u64, c_int> {
    let about = rustix::fs::fstat(fd).map_err(rustix::io::Errno::raw_os_error)?;
    Ok(about.st_ino)
}

impl Asked {
    fn new(call: Call, target: Target, fd: OwnedFd) -> Result<Asked, c_int> {
        let (family, address) = match call.number {
            libc::SYS_bind | libc::SYS_connect => {
                target.address(call.arguments[1], call.arguments[2])
            }
            _ => (-1, Err(libc::EINVAL)),
        };
        let subject = Subject {
            inode: inode(&fd)?,
            family,
            address,
        };
        Ok(Asked {
            call,
            subject,
            target,
            fd,
        })
    }

    /// The address, if it is of the socket's family.
    fn address_of(&self, domain: c_int) -> Result<SocketAddr, c_int> {
        let address = self.subject.address?;
        if self.subject.family == domain {
            Ok(address)
        } else {
            Err(libc::EAFNOSUPPORT)
        }
    }

    fn write_address(&self, notices: &Notices, shown: SocketAddr) -> Result<(), c_int> {
        let room = (self.call.arguments[1], self.call.arguments[2]);
        let check = || notices.check(&self.call);
        self.target.write_address(shown, room, &check)
    }
}

/// How a call goes on.
enum Answer {
    /// The kernel does it.
    Kernel,
    Done(i64),
    /// As `Done`, of a call that would have another result if it began again.
    Settled(Subject, Result<i64, c_int>),
    /// It returns a connection of the listener with this key.
    Accepted(OwnedFd, Key),
    /// When a descriptor is ready.
    Later(Waiting),
    /// A signal has interrupted it.
    Interrupted,
}

#[derive(Clone, Copy)]
enum Waits {
    /// A listener, for a connection.
    Accept,
    /// The end of a connection, until it has opened or failed.
    Connect(Subject),
}

struct Waiting {
    call: Call,
    fd: OwnedFd,
    waits: Waits,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO`.
    deadline: Option<Instant>,
}

impl Waiting {
    fn flags(&self) -> PollFlags {
        match self.waits {
            Waits::Accept => PollFlags::IN,
            Waits::Connect(_) => PollFlags::OUT,
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= Instant::now())
    }
}

/// The result of a call that has not returned, and the descriptor that it could not be given.
struct Kept {
    call: Call,
    subject: Subject,
    result: Result<i64, c_int>,
    new: Option<OwnedFd>,
}

/// A socket with an address, and the owner's end of its pair.
struct Bound {
    sock: Sock,
    own: OwnedFd,
}

pub(super) struct Calls {
    notices: Notices,
    waiting: Vec<Waiting>,
    bound: HashMap<Key, Bound>,
    /// Connections that no call has taken, of listeners by their keys.
    returned: Vec<(Key, OwnedFd)>,
    /// Calls that a signal has interrupted, by thread: the kernel may begin them again.
    kept: HashMap<i32, Kept>,
    /// Values of options of a new socket, by family and type.
    fresh: HashMap<(c_int, c_int), Vec<Option<Vec<u8>>>>,
    has_said_unseen: bool,
    has_said_datagrams: bool,
}

impl Calls {
    pub(super) fn new(notices: Notices) -> Calls {
        Calls {
            notices,
            waiting: Vec::new(),
            bound: HashMap::new(),
            returned: Vec::new(),
            kept: HashMap::new(),
            fresh: HashMap::new(),
            has_said_unseen: false,
            has_said_datagrams: false,
        }
    }

    /// What to wait for: the notifications first.
    pub(super) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let first = PollFd::new(self.notices.fd(), PollFlags::IN);
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|one| PollFd::new(&one.fd, one.flags()));
        std::iter::once(first).chain(waiting).collect()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The time until the first call ends that waits for a limited time.
    pub(super) fn left(&self) -> Duration {
        let deadlines = self.waiting.iter().filter_map(|one| one.deadline);
        deadlines.min().map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }

    /// Forgets calls that were interrupted, and addresses of sockets that are closed.
    pub(super) fn sweep(&mut self) {
        let notices = &self.notices;
        self.waiting.retain(|one| notices.is_valid(&one.call));
        self.bound.retain(|_, one| !is_over(&one.own));
        self.returned.retain(|(_, fd)| !is_over(fd));
    }

    /// Answers the next call.
    pub(super) fn next(&mut self) {
        let Some(call) = self.notices.next() else {
            return;
        };
        let answer = Target::of(call.thread).and_then(|target| self.decide(call, target));
        self.give(call, answer);
    }

    fn give(&mut self, call: Call, answer: Result<Answer, c_int>) {
        match answer {
            Ok(Answer::Kernel) => self.notices.leave(&call),
            Ok(Answer::Done(value)) => self.finish(&call, Ok(value)),
            Ok(Answer::Settled(subject, result)) => {
                if !self.notices.answer(&call, result) {
                    self.keep(call, subject, result, None);
                }
            }
            Ok(Answer::Interrupted) | Err(OVER) => {}
            Ok(Answer::Later(waiting)) => self.waiting.push(waiting),
            Ok(Answer::Accepted(fd, key)) => {
                let cloexec = accept_flags(&call) & libc::SOCK_CLOEXEC != 0;
                match self.notices.give(&call, &fd, cloexec) {
                    Ok(()) => stats::socket(true),
                    Err(libc::ENOENT) => self.returned.push((key, fd)),
                    Err(error) => self.finish(&call, Err(error)),
                }
            }
            // The kernel finds what is wrong with the descriptor.
            Err(libc::EBADF) => self.notices.leave(&call),
            Err(UNSEEN) => {
                if !std::mem::replace(&mut self.has_said_unseen, true) {
                    say(
                        "this user may not trace a process of the program, as one that has changed its \
                         user: the process's Internet sockets fail",
                    );
                }
                self.finish(&call, Err(libc::ENETDOWN));
            }
            Err(error) => self.finish(&call, Err(error)),
        }
    }

    /// Has a call return that a signal may interrupt without harm: it is decided anew.
    fn finish(&self, call: &Call, result: Result<i64, c_int>) {
        self.notices.answer(call, result);
    }

    fn keep(
        &mut self,
        call: Call,
        subject: Subject,
        result: Result<i64, c_int>,
        new: Option<OwnedFd>,
    ) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        let kept = Kept {
            call,
            subject,
            result,
            new,
        };
        self.kept.insert(call.thread, kept);
    }

    /// Goes on with calls whose descriptors are ready, or whose time is over.
    pub(super) fn resume(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            let is_ready = !ready(&one.fd, one.flags()).is_empty();
            if !is_ready && !one.is_late() {
                at += 1;
                continue;
            }
            let one = self.waiting.swap_remove(at);
            let call = one.call;
            let answer = self.go_on(one, is_ready);
            self.give(call, answer);
        }
    }

    fn go_on(&mut self, one: Waiting, is_ready: bool) -> Result<Answer, c_int> {
        let Waiting {
            call, fd, waits, ..
        } = one;
        let target = Target::of(call.thread)?;
        self.notices.check(&call)?;
        let subject = match waits {
            Waits::Accept if is_ready => {
                return self.accept_from(Asked::new(call, target, fd)?, one.deadline);
            }
            Waits::Accept => return Err(libc::EAGAIN),
            Waits::Connect(subject) => subject,
        };
        let result = match name::said_end(fd.as_raw_fd()) {
            // A socket whose connection has failed stays as it was.
            Some(error @ 1..) => return Ok(Answer::Settled(subject, Err(error))),
            _ if is_ready => Ok(0),
            // The connection goes on.
            _ => Err(libc::EINPROGRESS),
        };
        let old = target.copy(call.fd());
        let Some(old) = old.ok().filter(|old| inode(old) == Ok(subject.inode)) else {
            // It was closed meanwhile.
            return Ok(Answer::Settled(subject, Err(libc::EBADF)));
        };
        let asked = Asked {
            call,
            subject,
            target,
            fd: old,
        };
        self.replace(&asked, fd, result)
    }

    /// Whether there may be another socket of weir.
    fn check_room(&self) -> Result<(), c_int> {
        relay::check_room(self.bound.len() + self.waiting.len())
    }

    fn decide(&mut self, call: Call, target: Target) -> Result<Answer, c_int> {
        // A thread is in one call at a time: what is left of another one is over.
        let kept = self.kept.remove(&call.thread);
        let waiting = self
            .waiting
            .iter()
            .position(|one| one.call.thread == call.thread);
        let waiting = waiting.map(|at| self.waiting.swap_remove(at));
        let fd = target.copy(call.fd())?;
        let which = which(&fd);
        if matches!(which, Socket::Other) {
            return Ok(Answer::Kernel);
        }
        let asked = Asked::new(call, target, fd)?;
        if !self.notices.is_valid(&call) {
            // The numbers may be another process's by now.
            return Ok(Answer::Kernel);
        }
        let is_again =
            |before: &Call, subject: &Subject| before.is_again(&call) && *subject == asked.subject;
        if let Some(kept) = kept.filter(|kept| is_again(&kept.call, &kept.subject)) {
            return match kept.new {
                Some(new) => self.replace(&asked, new, kept.result),
                None => Ok(Answer::Settled(kept.subject, kept.result)),
            };
        }
        if let Some(waiting) = waiting
            && let Waits::Connect(subject) = &waiting.waits
            && is_again(&waiting.call, subject)
        {
            return Ok(Answer::Later(Waiting { call, ..waiting }));
        }
        let count = counted(call.number);
        let answer = match call.number {
            libc::SYS_bind => self.bind(&asked, &which),
            libc::SYS_listen => self.listen(&asked, &which),
            libc::SYS_connect => self.connect(&asked, &which),
            libc::SYS_accept | libc::SYS_accept4 => match &which {
                Socket::Weirs(name) if name.kind == Kind::Datagrams => Err(libc::EOPNOTSUPP),
                Socket::Weirs(name) if name.kind != Kind::Listener => Err(libc::EINVAL),
                Socket::Weirs(_) => {
                    let deadline = deadline(&asked.fd, Timeout::Recv);
                    self.accept_from(asked, deadline)
                }
                _ => Ok(Answer::Kernel),
            },
            libc::SYS_getsockname | libc::SYS_getpeername => self.names(&asked, &which),
            libc::SYS_getsockopt => self.get_option(&asked, &which),
            libc::SYS_setsockopt => self.set_option(&asked, &which),
            _ => Ok(Answer::Kernel),
        };
        stats::trapped(count, !matches!(answer, Ok(Answer::Kernel)));
        answer
    }

    fn bind(&mut self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let Socket::Kernels(domain, kind) = *which else {
            return Err(libc::EINVAL);
        };
        // The kernel knows the error.
        let Ok(local) = asked.address_of(domain) else {
            return Ok(Answer::Kernel);
        };
        if kind == libc::SOCK_DGRAM {
            if !local.ip().is_unspecified()
                && !local.ip().is_multicast()
                && matches!(owner_of_local(local, kind)?, Owner::Weir(_))
            {
                self.say_datagrams(local);
                return Err(libc::EADDRNOTAVAIL);
            }
            return Ok(Answer::Kernel);
        }
        if !matches!(owner_of_local(local, kind)?, Owner::Weir(_)) {
            return Ok(Answer::Kernel);
        }
        if own_port(&asked.fd) != 0 {
            return Err(libc::EINVAL);
        }
        self.bound.retain(|_, one| !is_over(&one.own));
        if self.bound.len() >= BOUND_MAX {
            return Err(libc::ENOBUFS);
        }
        self.check_room()?;
        check_port(local.port())?;
        let sock = self.sock_of(&asked.fd, domain, kind);
        reserve(&sock, local)?;
        let at = sock.local().ok_or(libc::EINVAL)?;
        let (own, other, key) = relay::hold_bound(domain, at)?;
        self.bound.insert(key, Bound { sock, own });
        self.replace(asked, other, Ok(0))
    }

    fn say_datagrams(&mut self, local: SocketAddr) {
        if !std::mem::replace(&mut self.has_said_datagrams, true) {
            say(&format!(
                "with --all a UDP socket is weir's from connect on: one that is bound to {local} cannot be \
                 had; run a dynamically linked program without --all"
            ));
        }
    }

    /// The socket of one that is bound, which has its address still if the call fails.
    fn twin(&self, name: &Name) -> Result<Sock, c_int> {
        let bound = self.bound.get(&name.key).ok_or(libc::EINVAL)?;
        Ok(bound.sock.twin())
    }

    fn listen(&mut self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let (sock, key) = match which {
            Socket::Weirs(name) => match name.kind {
                // The backlog of a listener stays.
                Kind::Listener => return Ok(Answer::Done(0)),
                Kind::Connection => return Err(libc::EINVAL),
                Kind::Datagrams => return Err(libc::EOPNOTSUPP),
                Kind::Bound => (self.twin(name)?, Some(name.key)),
            },
            Socket::Kernels(domain, libc::SOCK_STREAM) if own_port(&asked.fd) == 0 => {
                (self.sock_of(&asked.fd, *domain, libc::SOCK_STREAM), None)
            }
            _ => {
                count_kernels(which);
                return Ok(Answer::Kernel);
            }
        };
        let listens = self.listen_with(asked, sock);
        if listens.is_err()
            && let Some(bound) = key.and_then(|key| self.bound.get(&key))
        {
            let reserved = bound.sock.reserved.lock();
            let reserved = reserved.unwrap_or_else(PoisonError::into_inner);
            if let Some(reserved) = &*reserved {
                reserved.stop_listening();
            }
        }
        listens
    }

    fn listen_with(&mut self, asked: &Asked, sock: Sock) -> Result<Answer, c_int> {
        self.check_room()?;
        let backlog = asked.call.arguments[1] as c_int;
        let listener = listener_of(&sock, &host::own()?, backlog)?;
        let end = relay::relay_new(sock, Endpoint::Listener(listener))?;
        stats::socket(true);
        self.replace(asked, end, Ok(0))
    }

    fn connect(&mut self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let (domain, kind) = match which {
            Socket::Kernels(domain, kind) => (*domain, *kind),
            Socket::Weirs(name) => match name.kind {
                Kind::Connection => return Err(connect_again(&asked.fd)),
                Kind::Listener => return Err(libc::EISCONN),
                Kind::Bound => (name.domain, libc::SOCK_STREAM),
                Kind::Datagrams => (name.domain, libc::SOCK_DGRAM),
            },
            Socket::Other => return Ok(Answer::Kernel),
        };
        let is_weirs = matches!(which, Socket::Weirs(_));
        let is_ours = match asked.address_of(domain) {
            Ok(remote) => match owner_of_remote(remote, kind)? {
                Owner::Weir(net) => Some((net, remote)),
                Owner::Kernel | Owner::Other => None,
            },
            // Before anything is changed.
            Err(error) if is_weirs && asked.subject.family != libc::AF_UNSPEC => return Err(error),
            Err(_) => None,
        };
        let Some((net, remote)) = is_ours else {
            if is_weirs {
                // The kernel connects, or ends a connection, on a socket of its own.
                let made = kernels_socket(domain, kind)?;
                return match self.replace(asked, made, Ok(0))? {
                    Answer::Settled(_, Ok(_)) => Ok(Answer::Kernel),
                    Answer::Interrupted => {
                        // It is decided anew.
                        self.kept.remove(&asked.call.thread);
                        Ok(Answer::Interrupted)
                    }
                    other => Ok(other),
                };
            }
            stats::socket(false);
            return Ok(Answer::Kernel);
        };
        if kind == libc::SOCK_DGRAM {
            return self.connect_datagrams(asked, &net, remote, is_weirs);
        }
        let sock = match which {
            Socket::Weirs(name) => self.twin(name)?,
            _ if own_port(&asked.fd) != 0 => {
                // It has an address of the kernel.
                stats::socket(false);
                return Ok(Answer::Kernel);
            }
            _ => self.sock_of(&asked.fd, domain, kind),
        };
        self.check_room()?;
        let stream = start(&sock, &net, remote)?;
        let end = relay::relay_new(sock, Endpoint::Stream(stream))?;
        stats::socket(true);
        if is_nonblocking(&asked.fd) {
            return self.replace(asked, end, Err(libc::EINPROGRESS));
        }
        Ok(Answer::Later(Waiting {
            call: asked.call,
            fd: end,
            waits: Waits::Connect(asked.subject),
            deadline: deadline(&asked.fd, Timeout::Send),
        }))
    }

    fn connect_datagrams(
        &mut self,
        asked: &Asked,
        net: &Net,
        remote: SocketAddr,
        is_weirs: bool,
    ) -> Result<Answer, c_int> {
        self.check_room()?;
        let any = address::unspecified(asked.subject.family);
        let sock = self.sock_of(&asked.fd, asked.subject.family, libc::SOCK_DGRAM);
        let port = if is_weirs { 0 } else { own_port(&asked.fd) };
        let udp = bind_udp(&sock, net, Some(SocketAddr::new(any.ip(), port)))?;
        let to = crate::calls::connect::at_loopback(address::unmapped(remote));
        udp.connect(to).map_err(|error| errno(&error))?;
        let end = relay::relay_new(sock, Endpoint::Udp(udp))?;
        stats::socket(true);
        self.replace(asked, end, Ok(0))
    }

    /// `accept(2)`, up to the deadline.
    fn accept_from(&mut self, asked: Asked, deadline: Option<Instant>) -> Result<Answer, c_int> {
        let flags = accept_flags(&asked.call);
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(libc::EINVAL);
        }
        let key = Name::of(asked.fd.as_raw_fd()).ok_or(libc::EINVAL)?.key;
        let returned = self.returned.iter().position(|(of, _)| *of == key);
        let new = match returned {
            Some(at) => self.returned.swap_remove(at).1,
            None => {
                let mut word = [0; 4];
                let from = asked.fd.as_raw_fd();
                match passing::receive_owned(from, &mut word, libc::MSG_DONTWAIT) {
                    Ok((_, Some(new))) => new,
                    Ok((0, None)) => return Err(libc::EINVAL),
                    Ok((_, None)) => return Err(libc::EMFILE),
                    Err(libc::EAGAIN) if !is_nonblocking(&asked.fd) => {
                        return Ok(Answer::Later(Waiting {
                            call: asked.call,
                            fd: asked.fd,
                            waits: Waits::Accept,
                            deadline,
                        }));
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let about = Name::of(new.as_raw_fd()).ok_or(libc::ECONNABORTED)?;
        let peer = about.peer.ok_or(libc::ECONNABORTED)?;
        set_nonblocking(&new, flags & libc::SOCK_NONBLOCK != 0);
        let shown = address::shown(peer, about.domain);
        match asked.write_address(&self.notices, shown) {
            Ok(()) => Ok(Answer::Accepted(new, key)),
            Err(OVER) => {
                // For the next one.
                self.returned.push((key, new));
                Err(OVER)
            }
            Err(error) => Err(error),
        }
    }

    /// `getsockname(2)` and `getpeername(2)`.
    fn names(&self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let Socket::Weirs(name) = which else {
            return Ok(Answer::Kernel);
        };
        let is_local = asked.call.number == libc::SYS_getsockname;
        let shown = if name.kind == Kind::Datagrams {
            let (local, peer) = guest::names(asked.fd.as_raw_fd())?;
            if is_local { Some(local) } else { peer }
        } else {
            let peer = name
                .peer
                .filter(|_| is_local || state(&asked.fd) != State::Opening);
            let one = if is_local { Some(name.local) } else { peer };
            one.map(|one| address::shown(one, name.domain))
        };
        let shown = shown.ok_or(libc::ENOTCONN)?;
        asked.write_address(&self.notices, shown)?;
        Ok(Answer::Done(0))
    }

    fn get_option(&self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let Socket::Weirs(name) = which else {
            return Ok(Answer::Kernel);
        };
        let arguments = &asked.call.arguments;
        let option = (arguments[1] as c_int, arguments[2] as c_int);
        let is_datagrams = name.kind == Kind::Datagrams;
        let value = match (name.kind, option) {
            (Kind::Bound, _) if !is_time_limit(option) => {
                let bound = self.bound.get(&name.key).ok_or(libc::EINVAL)?;
                Some(options::get(&bound.sock, option))
            }
            // Without headers there are none of errors.
            (Kind::Datagrams, (libc::SOL_SOCKET, libc::SO_ERROR)) => {
                Some(Ok(0_i32.to_ne_bytes().to_vec()))
            }
            _ => as_relayed(&asked.fd, is_datagrams, |fd| relayed::option(fd, option)),
        };
        let Some(value) = value else {
            return Ok(Answer::Kernel);
        };
        let check = || self.notices.check(&asked.call);
        let room = (arguments[3], arguments[4]);
        asked.target.write_value(&value?, room, &check)?;
        Ok(Answer::Done(0))
    }

    fn set_option(&self, asked: &Asked, which: &Socket) -> Result<Answer, c_int> {
        let Socket::Weirs(name) = which else {
            return Ok(Answer::Kernel);
        };
        let arguments = &asked.call.arguments;
        let option = (arguments[1] as c_int, arguments[2] as c_int);
        let len = arguments[4] as u32 as usize;
        let value = asked.target.read(arguments[3], len.min(VALUE_MAX))?;
        let bound = self.bound.get(&name.key);
        if let Some(bound) = bound.filter(|_| !is_time_limit(option)) {
            let recorded = bound.sock.options.lock();
            let mut recorded = recorded.unwrap_or_else(PoisonError::into_inner);
            recorded.set(option, &value);
            return Ok(Answer::Done(0));
        }
        let is_datagrams = name.kind == Kind::Datagrams;
        match as_relayed(&asked.fd, is_datagrams, |fd| {
            relayed::set_option(fd, option, &value)
        }) {
            Some(done) => done.map(|()| Answer::Done(0)),
            None => Ok(Answer::Kernel),
        }
    }

    /// A socket with the options that a socket of the kernel has.
    fn sock_of(&mut self, fd: &OwnedFd, domain: c_int, kind: c_int) -> Sock {
        let sock = Sock::open(domain, kind, false);
        let fresh = self.fresh.entry((domain, kind)).or_insert_with(|| {
            let new = kernels_socket(domain, kind);
            let new = new.map(|new| OPTIONS.iter().map(|one| option_of(&new, *one)).collect());
            new.unwrap_or_default()
        });
        let options = OPTIONS.iter().zip(&*fresh).filter_map(|(option, fresh)| {
            let value = option_of(fd, *option).filter(|value| Some(value) != fresh.as_ref())?;
            Some((*option, value))
        });
        let recorded = Recorded::of(options.collect());
        *sock.options.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
        sock
    }

    /// Puts a descriptor in the place of another one of the program, under all its numbers in the process,
    /// with its flags, its time limits and its places in epoll sets. The call then has this result.
    fn replace(
        &mut self,
        asked: &Asked,
        new: OwnedFd,
        result: Result<i64, c_int>,
    ) -> Result<Answer, c_int> {
        let Asked {
            call,
            subject,
            target,
            fd: old,
        } = asked;
        set_nonblocking(&new, is_nonblocking(old));
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            if let Some(value) = option_of(old, (libc::SOL_SOCKET, name)) {
                let (at, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
                // SAFETY: the value has the stated length.
                unsafe { real::setsockopt(new.as_raw_fd(), libc::SOL_SOCKET, name, at, len) };
            }
        }
        let (mut numbers, places) = target.numbers(subject.inode);
        if !numbers.iter().any(|(fd, _)| *fd == call.fd()) {
            // It was closed meanwhile.
            return Ok(Answer::Settled(*subject, Err(libc::EBADF)));
        }
        // The call's own last: if a signal interrupts it before, it begins again at the same socket.
        numbers.sort_by_key(|(fd, _)| *fd == call.fd());
        for (fd, cloexec) in numbers {
            match self.notices.replace(call, &new, fd, cloexec) {
                Ok(()) => {}
                Err(libc::ENOENT) => {
                    self.keep(*call, *subject, result, Some(new));
                    return Ok(Answer::Interrupted);
                }
                Err(error) => return Err(error),
            }
        }
        target.enter(&places, &new);
        if let Some(name) = Name::of(old.as_raw_fd()) {
            self.bound.remove(&name.key);
        }
        let inode = inode(&new)?;
        Ok(Answer::Settled(Subject { inode, ..*subject }, result))
    }
}

fn count_kernels(which: &Socket) {
    if matches!(which, Socket::Kernels(..)) {
        stats::socket(false);
    }
}

fn counted(number: c_long) -> stats::Call {
    match number {
        libc::SYS_bind => stats::Call::Bind,
        libc::SYS_listen => stats::Call::Listen,
        libc::SYS_connect => stats::Call::Connect,
        libc::SYS_accept | libc::SYS_accept4 => stats::Call::Accept,
        libc::SYS_getsockname | libc::SYS_getpeername => stats::Call::Name,
        _ => stats::Call::Option,
    }
}

fn accept_flags(call: &Call) -> c_int {
    if call.number == libc::SYS_accept4 {
        call.arguments[3] as c_int
    } else {
        0
    }
}
