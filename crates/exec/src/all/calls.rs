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

use super::notice::{Call, Notices};
use super::socket::{
    OPTIONS, Socket, is_nonblocking, is_over, kernels_socket, option_of, own_port, ready,
    set_nonblocking, which,
};
use super::target::{Target, UNSEEN, VALUE_MAX, keep};
use crate::calls::connect::start;
use crate::calls::opening::{bind_udp, check_port, listener_of, reserve};
use crate::host::{self, Owner, owner_of_local, owner_of_remote, say};
use crate::options::Recorded;
use crate::relay::calls as relayed;
use crate::relay::name::{self, Kind, Name};
use crate::relay::{self, Key, guest, passing};
use crate::sock::{Endpoint, Sock, errno};
use crate::stats;
use crate::{address, options, real, table};
use libc::{c_int, c_long};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::PoisonError;

/// Addresses at a time that are bound by sockets which neither listen nor connect.
const BOUND_MAX: usize = 1024;
/// Results that are kept for calls that a signal has interrupted.
const KEPT_MAX: usize = 1024;
/// `TCP_SYN_SENT` of `struct tcp_info`.
const SYN_SENT: u8 = 2;

/// How a call goes on.
enum Answer {
    /// The kernel does it.
    Kernel,
    Done(i64),
    /// It returns a connection.
    Accepted(OwnedFd),
    /// When a descriptor is ready.
    Later(OwnedFd, Waits),
    /// A signal has interrupted it.
    Interrupted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// A listener, for a connection.
    Accept,
    /// The end of a connection, until it has opened or failed.
    Connect,
}

struct Waiting {
    call: Call,
    fd: OwnedFd,
    waits: Waits,
}

/// The result of a call that has not returned, and the descriptor that it could not be given.
struct Kept {
    call: Call,
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
    has_said: [bool; 3],
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
            has_said: [false; 3],
        }
    }

    /// What to wait for: the notifications first.
    pub(super) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let first = PollFd::new(self.notices.fd(), PollFlags::IN);
        let waiting = self.waiting.iter().map(|one| {
            let flags = match one.waits {
                Waits::Accept => PollFlags::IN,
                Waits::Connect => PollFlags::OUT,
            };
            PollFd::new(&one.fd, flags)
        });
        std::iter::once(first).chain(waiting).collect()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
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
        if let Some(kept) = self.kept.remove(&call.thread)
            && kept.call.is_again(&call)
        {
            let answer = match kept.new {
                Some(new) => self.replace_again(&call, new, kept.result),
                None => kept.result.map(Answer::Done),
            };
            self.give(call, answer);
            return;
        }
        // A thread is in one call at a time.
        let at = self
            .waiting
            .iter()
            .position(|one| one.call.thread == call.thread);
        if let Some(at) = at {
            if self.waiting[at].call.is_again(&call) {
                self.waiting[at].call = call;
                return;
            }
            self.waiting.swap_remove(at);
        }
        let answer = Target::of(call.thread).and_then(|target| self.decide(&call, &target));
        self.give(call, answer);
    }

    fn give(&mut self, call: Call, answer: Result<Answer, c_int>) {
        match answer {
            Ok(Answer::Kernel) => self.notices.leave(&call),
            Ok(Answer::Done(value)) => self.finish(&call, Ok(value)),
            Ok(Answer::Interrupted) => {}
            Ok(Answer::Later(fd, waits)) => self.waiting.push(Waiting { call, fd, waits }),
            Ok(Answer::Accepted(fd)) => {
                let cloexec = accept_flags(&call) & libc::SOCK_CLOEXEC != 0;
                match self.notices.give(&call, &fd, cloexec) {
                    Ok(()) => stats::socket(true),
                    Err(libc::ENOENT) => self.return_connection(&call, fd),
                    Err(error) => self.finish(&call, Err(error)),
                }
            }
            // The kernel finds what is wrong with the descriptor.
            Err(libc::EBADF) => self.notices.leave(&call),
            Err(UNSEEN) => {
                if !std::mem::replace(&mut self.has_said[0], true) {
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

    fn finish(&mut self, call: &Call, result: Result<i64, c_int>) {
        if !self.notices.answer(call, result) {
            self.keep(call, result, None);
        }
    }

    fn keep(&mut self, call: &Call, result: Result<i64, c_int>, new: Option<OwnedFd>) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        let kept = Kept {
            call: *call,
            result,
            new,
        };
        self.kept.insert(call.thread, kept);
    }

    /// Keeps a connection whose `accept` was interrupted, for the next one.
    fn return_connection(&mut self, call: &Call, fd: OwnedFd) {
        let listener = Target::of(call.thread).and_then(|target| target.copy(call.fd()));
        if let Some(name) = listener
            .ok()
            .and_then(|listener| Name::of(listener.as_raw_fd()))
        {
            self.returned.push((name.key, fd));
        }
    }

    /// Goes on with calls whose descriptors are ready.
    pub(super) fn resume(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            let flags = match one.waits {
                Waits::Accept => PollFlags::IN,
                Waits::Connect => PollFlags::OUT,
            };
            if ready(&one.fd, flags).is_empty() {
                at += 1;
                continue;
            }
            let Waiting { call, fd, waits } = self.waiting.swap_remove(at);
            if !self.notices.is_valid(&call) {
                continue;
            }
            let answer = match waits {
                Waits::Accept => match Target::of(call.thread) {
                    Ok(target) => self.accept_from(&call, &target, fd),
                    Err(error) => Err(error),
                },
                Waits::Connect => self.connected(&call, fd),
            };
            self.give(call, answer);
        }
    }

    fn decide(&mut self, call: &Call, target: &Target) -> Result<Answer, c_int> {
        let fd = target.copy(call.fd())?;
        let which = which(&fd);
        if matches!(which, Socket::Other) {
            return Ok(Answer::Kernel);
        }
        if !self.notices.is_valid(call) {
            // The numbers may be another process's by now.
            return Ok(Answer::Kernel);
        }
        let count = counted(call.number);
        let answer = match call.number {
            libc::SYS_bind => self.bind(call, target, &fd, &which),
            libc::SYS_listen => self.listen(call, target, &fd, &which),
            libc::SYS_connect => self.connect(call, target, &fd, &which),
            libc::SYS_accept | libc::SYS_accept4 => match &which {
                Socket::Weirs(name) if name.kind == Kind::Datagrams => Err(libc::EOPNOTSUPP),
                Socket::Weirs(name) if name.kind != Kind::Listener => Err(libc::EINVAL),
                Socket::Weirs(_) => self.accept_from(call, target, fd),
                _ => Ok(Answer::Kernel),
            },
            libc::SYS_getsockname | libc::SYS_getpeername => names(call, target, &fd, &which),
            libc::SYS_getsockopt => self.get_option(call, target, &fd, &which),
            libc::SYS_setsockopt => self.set_option(call, target, &fd, &which),
            _ => Ok(Answer::Kernel),
        };
        stats::trapped(count, !matches!(answer, Ok(Answer::Kernel)));
        answer
    }

    fn bind(
        &mut self,
        call: &Call,
        target: &Target,
        fd: &OwnedFd,
        which: &Socket,
    ) -> Result<Answer, c_int> {
        let Socket::Kernels(domain, kind) = *which else {
            return Err(libc::EINVAL);
        };
        let (family, local) = target.address(call.arguments[1], call.arguments[2]);
        // The kernel knows the error.
        let Ok(local) = local.filter_family(family, domain) else {
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
        if own_port(fd) != 0 {
            return Err(libc::EINVAL);
        }
        self.bound.retain(|_, one| !is_over(&one.own));
        if self.bound.len() >= BOUND_MAX {
            return Err(libc::ENOBUFS);
        }
        check_port(local.port())?;
        let sock = self.sock_of(fd, domain, kind);
        reserve(&sock, local)?;
        let at = sock.local().ok_or(libc::EINVAL)?;
        let (own, other, key) = relay::hold_bound(domain, at)?;
        self.bound.insert(key, Bound { sock, own });
        self.replace(call, target, fd, keep(other), Ok(0))
    }

    fn say_datagrams(&mut self, local: SocketAddr) {
        if !std::mem::replace(&mut self.has_said[1], true) {
            say(&format!(
                "with --all a UDP socket is weir's from connect on: one that is bound to {local} cannot be \
                 had; run a dynamically linked program without --all"
            ));
        }
    }

    fn listen(
        &mut self,
        call: &Call,
        target: &Target,
        fd: &OwnedFd,
        which: &Socket,
    ) -> Result<Answer, c_int> {
        let backlog = call.arguments[1] as c_int;
        let (sock, key) = match which {
            Socket::Weirs(name) => match name.kind {
                // The backlog of a listener stays.
                Kind::Listener => return Ok(Answer::Done(0)),
                Kind::Connection => return Err(libc::EINVAL),
                Kind::Datagrams => return Err(libc::EOPNOTSUPP),
                Kind::Bound => {
                    let bound = self.bound.remove(&name.key).ok_or(libc::EINVAL)?;
                    (bound.sock, Some((name.key, bound.own)))
                }
            },
            Socket::Kernels(domain, libc::SOCK_STREAM) if own_port(fd) == 0 => {
                (self.sock_of(fd, *domain, libc::SOCK_STREAM), None)
            }
            _ => {
                count_kernels(which);
                return Ok(Answer::Kernel);
            }
        };
        let listener = match listener_of(&sock, &host::own()?, backlog) {
            Ok(listener) => listener,
            Err(error) => {
                if let Some((key, own)) = key {
                    self.bound.insert(key, Bound { sock, own });
                }
                return Err(error);
            }
        };
        let end = keep(relay::relay_new(sock, Endpoint::Listener(listener))?);
        stats::socket(true);
        self.replace(call, target, fd, end, Ok(0))
    }

    fn connect(
        &mut self,
        call: &Call,
        target: &Target,
        fd: &OwnedFd,
        which: &Socket,
    ) -> Result<Answer, c_int> {
        let (family, remote) = target.address(call.arguments[1], call.arguments[2]);
        let (domain, kind) = match which {
            Socket::Kernels(domain, kind) => (*domain, *kind),
            Socket::Weirs(name) => match name.kind {
                Kind::Connection => return connect_again(fd),
                Kind::Listener => return Err(libc::EISCONN),
                Kind::Bound => (name.domain, libc::SOCK_STREAM),
                Kind::Datagrams => (name.domain, libc::SOCK_DGRAM),
            },
            Socket::Other => return Ok(Answer::Kernel),
        };
        let is_ours = match remote.filter_family(family, domain) {
            Ok(remote) => match owner_of_remote(remote, kind)? {
                Owner::Weir(net) => Some((net, remote)),
                Owner::Kernel | Owner::Other => None,
            },
            Err(_) => None,
        };
        let Some((net, remote)) = is_ours else {
            if matches!(which, Socket::Weirs(_)) {
                // The kernel connects, or ends a connection, on a socket of its own.
                let made = keep(kernels_socket(domain, kind)?);
                return match self.replace(call, target, fd, made, Ok(0))? {
                    Answer::Done(_) => Ok(Answer::Kernel),
                    other => Ok(other),
                };
            }
            stats::socket(false);
            return Ok(Answer::Kernel);
        };
        if kind == libc::SOCK_DGRAM {
            let sock = self.sock_of(fd, domain, kind);
            let port = if matches!(which, Socket::Weirs(_)) {
                0
            } else {
                own_port(fd)
            };
            let local = SocketAddr::new(address::unspecified(domain).ip(), port);
            let udp = bind_udp(&sock, &net, Some(local))?;
            let to = crate::calls::connect::at_loopback(address::unmapped(remote));
            udp.connect(to).map_err(|error| errno(&error))?;
            let sock = sock.with_endpoint(Endpoint::Udp(udp.clone()));
            let end = keep(relay::relay_connected(sock, udp)?);
            stats::socket(true);
            return self.replace(call, target, fd, end, Ok(0));
        }
        let sock = match which {
            Socket::Weirs(name) => {
                let bound = self.bound.remove(&name.key).ok_or(libc::EINVAL)?;
                bound.sock
            }
            _ if own_port(fd) != 0 => {
                // It has an address of the kernel.
                stats::socket(false);
                return Ok(Answer::Kernel);
            }
            _ => self.sock_of(fd, domain, kind),
        };
        let stream = start(&sock, &net, remote)?;
        let end = keep(relay::relay_new(sock, Endpoint::Stream(stream))?);
        stats::socket(true);
        if !is_nonblocking(fd) {
            return Ok(Answer::Later(end, Waits::Connect));
        }
        self.replace(call, target, fd, end, Err(libc::EINPROGRESS))
    }

    /// The end of a blocking `connect`: a socket whose connection has failed stays as it was.
    fn connected(&mut self, call: &Call, end: OwnedFd) -> Result<Answer, c_int> {
        if let Some(error @ 1..) = name::said_end(end.as_raw_fd()) {
            return Err(error);
        }
        self.replace_again(call, end, Ok(0))
    }

    /// As [`Calls::replace`], of a call that has waited.
    fn replace_again(
        &mut self,
        call: &Call,
        new: OwnedFd,
        result: Result<i64, c_int>,
    ) -> Result<Answer, c_int> {
        let target = Target::of(call.thread)?;
        let old = target.copy(call.fd())?;
        self.replace(call, &target, &old, new, result)
    }

    fn accept_from(
        &mut self,
        call: &Call,
        target: &Target,
        listener: OwnedFd,
    ) -> Result<Answer, c_int> {
        let flags = accept_flags(call);
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(libc::EINVAL);
        }
        let name = Name::of(listener.as_raw_fd()).ok_or(libc::EINVAL)?;
        let kept = self.returned.iter().position(|(key, _)| *key == name.key);
        let new = match kept {
            Some(at) => self.returned.swap_remove(at).1,
            None => {
                let mut word = [0; 4];
                let got =
                    passing::receive_owned(listener.as_raw_fd(), &mut word, libc::MSG_DONTWAIT);
                match got {
                    Ok((_, Some(new))) => new,
                    Ok((0, None)) => return Err(libc::EINVAL),
                    Ok((_, None)) => return Err(libc::EMFILE),
                    Err(libc::EAGAIN) if is_nonblocking(&listener) => return Err(libc::EAGAIN),
                    Err(libc::EAGAIN) => return Ok(Answer::Later(listener, Waits::Accept)),
                    Err(error) => return Err(error),
                }
            }
        };
        let about = Name::of(new.as_raw_fd()).ok_or(libc::ECONNABORTED)?;
        let peer = about.peer.ok_or(libc::ECONNABORTED)?;
        set_nonblocking(&new, flags & libc::SOCK_NONBLOCK != 0);
        let shown = address::shown(peer, about.domain);
        target.write_address(shown, call.arguments[1], call.arguments[2])?;
        Ok(Answer::Accepted(new))
    }

    fn get_option(
        &mut self,
        call: &Call,
        target: &Target,
        fd: &OwnedFd,
        which: &Socket,
    ) -> Result<Answer, c_int> {
        let Socket::Weirs(name) = which else {
            return Ok(Answer::Kernel);
        };
        let option = (call.arguments[1] as c_int, call.arguments[2] as c_int);
        let is_datagrams = name.kind == Kind::Datagrams;
        let value = match (name.kind, option) {
            (Kind::Bound, _) => {
                let bound = self.bound.get(&name.key).ok_or(libc::EINVAL)?;
                Some(options::get(&bound.sock, option))
            }
            // Without headers there are none of errors.
            (Kind::Datagrams, (libc::SOL_SOCKET, libc::SO_ERROR)) => {
                Some(Ok(0_i32.to_ne_bytes().to_vec()))
            }
            _ => as_relayed(fd, is_datagrams, |fd| relayed::option(fd, option)),
        };
        let Some(value) = value else {
            return Ok(Answer::Kernel);
        };
        target.write_value(&value?, call.arguments[3], call.arguments[4])?;
        Ok(Answer::Done(0))
    }

    fn set_option(
        &mut self,
        call: &Call,
        target: &Target,
        fd: &OwnedFd,
        which: &Socket,
    ) -> Result<Answer, c_int> {
        let Socket::Weirs(name) = which else {
            return Ok(Answer::Kernel);
        };
        let option = (call.arguments[1] as c_int, call.arguments[2] as c_int);
        let len = call.arguments[4] as u32 as usize;
        let value = target.read(call.arguments[3], len.min(VALUE_MAX))?;
        if let Some(bound) = self.bound.get(&name.key) {
            let recorded = bound.sock.options.lock();
            let mut recorded = recorded.unwrap_or_else(PoisonError::into_inner);
            recorded.set(option, &value);
            return Ok(Answer::Done(0));
        }
        let is_datagrams = name.kind == Kind::Datagrams;
        match as_relayed(fd, is_datagrams, |fd| {
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
        call: &Call,
        target: &Target,
        old: &OwnedFd,
        new: OwnedFd,
        result: Result<i64, c_int>,
    ) -> Result<Answer, c_int> {
        let about = rustix::fs::fstat(old).map_err(|error| error.raw_os_error())?;
        set_nonblocking(&new, is_nonblocking(old));
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            if let Some(value) = option_of(old, (libc::SOL_SOCKET, name)) {
                let (at, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
                // SAFETY: the value has the stated length.
                unsafe { real::setsockopt(new.as_raw_fd(), libc::SOL_SOCKET, name, at, len) };
            }
        }
        let (numbers, places) = target.numbers(about.st_ino);
        if !numbers.iter().any(|(fd, _)| *fd == call.fd()) {
            // It was closed meanwhile.
            return Err(libc::EBADF);
        }
        for (fd, cloexec) in numbers {
            match self.notices.replace(call, &new, fd, cloexec) {
                Ok(()) => {}
                Err(libc::ENOENT) => {
                    self.keep(call, result, Some(new));
                    return Ok(Answer::Interrupted);
                }
                Err(error) => return Err(error),
            }
        }
        for place in places {
            if target.enter(&place, &new).is_err()
                && !std::mem::replace(&mut self.has_said[2], true)
            {
                say(
                    "a socket has lost its place in an epoll set: the program may not see it ready",
                );
            }
        }
        result.map(Answer::Done)
    }
}

trait FilterFamily {
    /// The address, if it is of the socket's family.
    fn filter_family(self, family: c_int, domain: c_int) -> Result<SocketAddr, c_int>;
}

impl FilterFamily for Result<SocketAddr, c_int> {
    fn filter_family(self, family: c_int, domain: c_int) -> Result<SocketAddr, c_int> {
        self.and_then(|address| {
            if family == domain {
                Ok(address)
            } else {
                Err(libc::EAFNOSUPPORT)
            }
        })
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

/// `getsockname(2)` and `getpeername(2)`.
fn names(call: &Call, target: &Target, fd: &OwnedFd, which: &Socket) -> Result<Answer, c_int> {
    let Socket::Weirs(name) = which else {
        return Ok(Answer::Kernel);
    };
    let is_local = call.number == libc::SYS_getsockname;
    let shown = if name.kind == Kind::Datagrams {
        let (local, peer) = guest::names(fd.as_raw_fd())?;
        if is_local { Some(local) } else { peer }
    } else {
        let peer = name
            .peer
            .filter(|_| is_local || state(fd) != State::Opening);
        let one = if is_local { Some(name.local) } else { peer };
        one.map(|one| address::shown(one, name.domain))
    };
    let shown = shown.ok_or(libc::ENOTCONN)?;
    target.write_address(shown, call.arguments[1], call.arguments[2])?;
    Ok(Answer::Done(0))
}

#[derive(PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Failed(c_int),
}

/// How far a connection is.
fn state(fd: &OwnedFd) -> State {
    if let Some(error @ 1..) = name::said_end(fd.as_raw_fd()) {
        return State::Failed(error);
    }
    let info = guest::get(fd.as_raw_fd(), (libc::IPPROTO_TCP, libc::TCP_INFO));
    match info {
        Ok(info) if info.first() == Some(&SYN_SENT) => State::Opening,
        _ => State::Open,
    }
}

/// `connect(2)` of a connection.
fn connect_again(fd: &OwnedFd) -> Result<Answer, c_int> {
    Err(match state(fd) {
        State::Opening => libc::EALREADY,
        State::Open => libc::EISCONN,
        State::Failed(error) => error,
    })
}

/// Does what the relay's calls do, which know descriptors by their numbers.
fn as_relayed<T>(fd: &OwnedFd, is_datagrams: bool, act: impl FnOnce(c_int) -> T) -> T {
    let raw = fd.as_raw_fd();
    table::mark_relay(raw, is_datagrams);
    let done = act(raw);
    table::forget_relay(raw);
    done
}
