//! The system calls on sockets, except transfers.

use crate::options::{CLIENT, CLIENT_WITHOUT_COOKIE};
use crate::poll::Epoll;
use crate::simulation::{AGAIN, Inner, Simulation};
use crate::socket::{Kind, Socket, SocketPhase, errno, give_address, take_address};
use crate::{Answer, Errno, user_memory};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_stack::tcp::{State, TcpId};

impl Simulation {
    pub(crate) fn socket(&self, domain: i32, kind: i32, _protocol: i32) -> Answer {
        let is_v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        if kind & 0xf != libc::SOCK_STREAM {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let mut inner = self.lock();
        let mut socket = Socket::new(&inner, SocketPhase::New(None), is_v6);
        socket.nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        inner.enter(Kind::Socket(Box::new(socket))).map(i64::from)
    }

    pub(crate) fn bind(&self, fd: i32, address: usize, len: u32) -> Answer {
        let address = take_address(address, len)?.ok_or(Errno(libc::EAFNOSUPPORT))?;
        let mut inner = self.lock();
        let known = inner.stack.addresses().any(|ip| ip == address.ip());
        let socket = inner.socket(fd)?;
        let is_new = socket.phase == SocketPhase::New(None);
        match (is_new, known || address.ip().is_unspecified()) {
            (false, _) => Err(Errno(libc::EINVAL)),
            (true, false) => Err(Errno(libc::EADDRNOTAVAIL)),
            (true, true) => {
                socket.phase = SocketPhase::New(Some(address));
                Ok(0)
            }
        }
    }

    pub(crate) fn listen(&self, fd: i32, backlog: i32) -> Answer {
        self.act(|inner| {
            let socket = inner.socket(fd)?;
            let any = if socket.is_v6 {
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)
            } else {
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)
            };
            let SocketPhase::New(local) = socket.phase else {
                return Err(Errno(libc::EINVAL));
            };
            let backlog = usize::try_from(backlog).unwrap_or(0).saturating_add(1);
            inner.prepare(fd, false)?;
            let listener = inner.stack.tcp_listen(local.unwrap_or(any), backlog);
            let listener = listener.map_err(errno)?;
            let socket = inner.socket(fd)?;
            socket.phase = SocketPhase::Listens(listener);
            socket.options.backlog = backlog - 1;
            inner.open_fast(fd)?;
            Ok(0)
        })
    }

    pub(crate) fn accept(&self, fd: i32, address: usize, len: usize) -> Answer {
        let (nonblocking, until_ns) = {
            let mut inner = self.lock();
            let now_ns = inner.now_ns;
            let socket = inner.socket(fd)?;
            let timeout_ns = socket.options.receive_timeout_ns;
            let until_ns = (timeout_ns > 0).then(|| now_ns + timeout_ns);
            (socket.nonblocking, until_ns)
        };
        let attempt = |inner: &mut Inner| match inner.take_opened(fd) {
            Err(error) if error == AGAIN && !nonblocking => None,
            answer => Some(answer),
        };
        let accepted = self.wait(until_ns, attempt).unwrap_or(Err(AGAIN))?;
        let mut inner = self.lock();
        let socket = inner.socket(accepted)?;
        let is_v6 = socket.is_v6;
        let remote = socket.stream().and_then(|id| inner.stack.tcp_ends(id));
        if let Some((_, remote)) = remote {
            give_address(remote, is_v6, address, len)?;
        }
        Ok(accepted.into())
    }

    pub(crate) fn connect(&self, fd: i32, address: usize, len: u32) -> Answer {
        let remote = take_address(address, len)?;
        // Begun and waited for under one lock: otherwise the clock could
        // advance in between.
        let mut nonblocking = None;
        let mut attempt = |inner: &mut Inner| {
            if nonblocking.is_none() {
                nonblocking = inner.start(fd, remote)?;
                inner.pump();
            }
            let Some(nonblocking) = nonblocking else {
                return Ok(Some(0));
            };
            let connected = inner.progress(fd)?;
            if !connected && nonblocking {
                return Err(Errno(libc::EINPROGRESS));
            }
            Ok(connected.then_some(0))
        };
        let attempt = |inner: &mut Inner| attempt(inner).transpose();
        self.wait(None, attempt)
            .unwrap_or(Err(Errno(libc::ETIMEDOUT)))
    }

    pub(crate) fn shutdown(&self, fd: i32, how: i32) -> Answer {
        self.act(|inner| {
            let now_ns = inner.now_ns;
            let socket = inner.socket(fd)?;
            let SocketPhase::Stream(id) = socket.phase else {
                return Err(Errno(libc::ENOTCONN));
            };
            if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
                socket.deaf = true;
            }
            if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
                inner.stack.tcp_shutdown(now_ns, id).map_err(errno)?;
            }
            Ok(0)
        })
    }

    pub(crate) fn close(&self, fd: i32) -> Answer {
        self.act(|inner| {
            let entry = inner.entries.remove(&fd).ok_or(Errno(libc::EBADF))?;
            for entry in inner.entries.values_mut() {
                if let Kind::Epoll(epoll) = &mut entry.kind {
                    epoll.forget(fd);
                }
            }
            if let Kind::Socket(socket) = entry.close() {
                let now_ns = inner.now_ns;
                match socket.phase {
                    SocketPhase::New(_) => {}
                    SocketPhase::Listens(id) => inner.stack.tcp_unlisten(now_ns, id),
                    SocketPhase::Stream(id) if socket.options.linger == Some(0) => {
                        inner.stack.tcp_abort(now_ns, id);
                    }
                    SocketPhase::Stream(id) => inner.stack.tcp_close(now_ns, id),
                }
            }
            Ok(0)
        })
    }

    pub(crate) fn fcntl(&self, fd: i32, command: i32, argument: usize) -> Answer {
        let mut inner = self.lock();
        let socket = inner.socket(fd)?;
        match command {
            libc::F_GETFL => {
                let nonblocking = if socket.nonblocking {
                    libc::O_NONBLOCK
                } else {
                    0
                };
                Ok((libc::O_RDWR | nonblocking).into())
            }
            libc::F_SETFL => {
                socket.nonblocking = argument as i32 & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    pub(crate) fn ioctl(&self, fd: i32, request: u64, argument: usize) -> Answer {
        let mut inner = self.lock();
        let id = inner.socket(fd)?.stream();
        // FIONREAD and TIOCOUTQ are SIOCINQ and SIOCOUTQ (tcp(7)).
        let now_ns = inner.now_ns;
        let info = id.and_then(|id| inner.stack.tcp_info(now_ns, id));
        let count = match (request, info) {
            (libc::FIONREAD, Some(info)) => info.readable,
            (libc::TIOCOUTQ, Some(info)) => info.unacknowledged + info.unsent,
            (libc::FIONREAD | libc::TIOCOUTQ, None) => return Err(Errno(libc::EINVAL)),
            _ => return Err(Errno(libc::ENOTTY)),
        };
        user_memory::give(argument, &(count as i32).to_ne_bytes())?;
        Ok(0)
    }

    pub(crate) fn epoll_create(&self, size: i32) -> Answer {
        if size <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut inner = self.lock();
        inner.enter(Kind::Epoll(Epoll::default())).map(i64::from)
    }
}

impl Inner {
    /// Applies the options to new connections.
    pub(crate) fn prepare(&mut self, fd: i32, opens: bool) -> Answer<()> {
        let mut config = self.settings.tcp(opens);
        let options = &self.socket(fd)?.options;
        options.apply(&mut config);
        self.stack.tcp_configure(config);
        Ok(())
    }

    /// The next connection of a listener, as a socket.
    fn take_opened(&mut self, fd: i32) -> Answer<i32> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        let (is_v6, options) = (socket.is_v6, socket.options.clone());
        let SocketPhase::Listens(listener) = socket.phase else {
            return Err(Errno(libc::EINVAL));
        };
        let id = self.stack.tcp_accept(now_ns, listener).map_err(errno)?;
        let mut socket = Socket::new(self, SocketPhase::Stream(id), is_v6);
        socket.options = options;
        socket.was_open = true;
        let nodelay = socket.options.number(libc::IPPROTO_TCP, libc::TCP_NODELAY) != 0;
        self.stack.tcp_set_nodelay(id, nodelay).map_err(errno)?;
        let fd = self.enter(Kind::Socket(Box::new(socket)))?;
        self.apply(fd)?;
        Ok(fd)
    }

    /// The start of `connect`: returns whether the socket is non-blocking;
    /// `None` if the call is complete.
    fn start(&mut self, fd: i32, remote: Option<SocketAddr>) -> Answer<Option<bool>> {
        let nonblocking = self.socket(fd)?.nonblocking;
        match remote {
            Some(remote) if self.defers(fd, remote)? => return Ok(None),
            Some(remote) => self.begin(fd, remote)?,
            None => self.disconnect(fd)?,
        }
        Ok(remote.map(|_| nonblocking))
    }

    /// Whether `connect` leaves the SYN to the first write, whose data it can
    /// carry.
    fn defers(&mut self, fd: i32, remote: SocketAddr) -> Answer<bool> {
        let bits = self.settings.fast_open();
        let known = self.stack.tcp_has_cookie(remote.ip());
        let may = known || bits & CLIENT_WITHOUT_COOKIE != 0;
        let socket = self.socket(fd)?;
        if socket.deferred.is_some() {
            return Err(Errno(libc::EISCONN));
        }
        let asked = socket
            .options
            .number(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT)
            != 0;
        let is_new = matches!(socket.phase, SocketPhase::New(_));
        let defers = asked && is_new && may && bits & CLIENT != 0;
        if defers {
            socket.deferred = Some(remote);
        }
        Ok(defers)
    }

    /// Opens a connection by TCP Fast Open; returns how many bytes the SYN
    /// carries.
    pub(crate) fn begin_fast(
        &mut self,
        fd: i32,
        remote: SocketAddr,
        bytes: &[u8],
        flags: i32,
    ) -> Answer<usize> {
        let now_ns = self.now_ns;
        let bits = self.settings.fast_open();
        let SocketPhase::New(local) = self.socket(fd)?.phase else {
            return Err(Errno(libc::EALREADY));
        };
        self.prepare(fd, true)?;
        let without_cookie = bits & CLIENT_WITHOUT_COOKIE != 0;
        let stack = &mut self.stack;
        let opened = stack.tcp_connect_fast(now_ns, local, remote, bytes, without_cookie);
        let (id, len) = opened.map_err(errno)?;
        let socket = self.socket(fd)?;
        (socket.phase, socket.deferred) = (SocketPhase::Stream(id), None);
        socket.watch(len, flags);
        self.apply(fd)?;
        Ok(len)
    }

    /// Opens a connection.
    pub(crate) fn begin(&mut self, fd: i32, remote: SocketAddr) -> Answer<()> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        let local = match socket.phase {
            SocketPhase::New(local) => local,
            SocketPhase::Listens(_) => return Err(Errno(libc::EISCONN)),
            SocketPhase::Stream(_) if socket.was_open => return Err(Errno(libc::EISCONN)),
            SocketPhase::Stream(_) => return Err(Errno(libc::EALREADY)),
        };
        let options = &self.socket(fd)?.options;
        if options.number(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) != 0 {
            return self.begin_fast(fd, remote, &[], 0).map(|_| ());
        }
        self.prepare(fd, true)?;
        let id = self
            .stack
            .tcp_connect(now_ns, local, remote)
            .map_err(errno)?;
        self.socket(fd)?.phase = SocketPhase::Stream(id);
        self.apply(fd)
    }

    /// `connect` with `AF_UNSPEC`: resets the connection.
    fn disconnect(&mut self, fd: i32) -> Answer<()> {
        let now_ns = self.now_ns;
        let socket = self.socket(fd)?;
        if let SocketPhase::Stream(id) = socket.phase {
            socket.phase = SocketPhase::New(None);
            socket.was_open = false;
            self.stack.tcp_abort(now_ns, id);
        }
        Ok(())
    }

    /// Whether a connection is established, or the error.
    pub(crate) fn progress(&mut self, fd: i32) -> Answer<bool> {
        let id = self.socket(fd)?.stream().ok_or(Errno(libc::ENOTCONN))?;
        match self.stack.tcp_state(id) {
            Some(State::SynSent | State::SynReceived) => Ok(false),
            Some(State::Closed) | None => {
                Err(self.failure(fd, id).unwrap_or(Errno(libc::ECONNABORTED)))
            }
            Some(_) => {
                self.socket(fd)?.was_open = true;
                Ok(true)
            }
        }
    }

    /// The error of a connection, reported once.
    pub(crate) fn failure(&mut self, fd: i32, id: TcpId) -> Option<Errno> {
        let now_ns = self.now_ns;
        let error = self.stack.tcp_info(now_ns, id)?.error?;
        if let Ok(socket) = self.socket(fd) {
            socket.reported = Some(error);
        }
        Some(errno(error))
    }
}
