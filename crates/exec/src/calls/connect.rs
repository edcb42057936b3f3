//! `connect(2)`.

use super::answer;
use crate::host::{Owner, owner_of_remote};
use crate::relay::{calls as relay, guest};
use crate::signals;
use crate::sock::{Endpoint, MOVED, Opening, Sock, errno, is_over};
use crate::stats::{self, Call};
use crate::wait::{Side, Wait};
use crate::{address, cancel, real, table};
use libc::{c_int, sockaddr, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use weir_socket::{Net, TcpSocket, TcpStream};

/// `connect(2)`.
///
/// # Safety
/// As `connect(2)`.
pub(super) unsafe fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Connect);
        if table::is_relay(fd) {
            stats::weirs(Call::Connect);
            // SAFETY: the caller's promise.
            let remote = unsafe { address::read(to, len) };
            return answer(relay::connect_again(fd, remote).map(|()| 0));
        }
        // SAFETY: the caller's promises.
        return unsafe { real::connect(fd, to, len) };
    };
    let inside = signals::enter();
    // SAFETY: the caller's promise.
    let family = unsafe { address::family(to, len) };
    // SAFETY: as above.
    let remote = unsafe { address::read(to, len) };
    let done = match remote {
        _ if family == libc::AF_UNSPEC && sock.is_live() => disconnect(&sock),
        Ok(remote) if family == sock.domain => {
            guest::or_by_next_owner(|| connect_to(&sock, remote))
        }
        Err(error) if sock.is_live() => Err(error),
        Ok(_) if sock.is_live() => Err(libc::EAFNOSUPPORT),
        // The kernel knows the error.
        _ => Ok(false),
    };
    drop(inside);
    match done {
        Ok(true) => {
            stats::weirs(Call::Connect);
            0
        }
        Ok(false) => {
            stats::kernels(Call::Connect);
            let connected = cancel::wait((fd, to, len), |(fd, to, len)| {
                // SAFETY: the caller's promises.
                unsafe { real::connect(fd, to, len) as isize }
            }) as c_int;
            let is_begun = connected == 0 || is_in_progress();
            if is_begun && matches!(sock.endpoint(), Endpoint::Open) {
                sock.count(false);
                sock.leave_to_kernel();
            }
            connected
        }
        Err(error) => {
            stats::weirs(Call::Connect);
            answer(Err(error))
        }
    }
}

/// Whether the kernel goes on with a connect that has failed.
fn is_in_progress() -> bool {
    matches!(
        crate::sock::last_errno(),
        libc::EINPROGRESS | libc::EINTR | libc::EALREADY | cancel::CANCELLED
    )
}

/// Connects a socket of weir, or one that may become so; false if the kernel is to do it.
fn connect_to(sock: &Arc<Sock>, remote: SocketAddr) -> Result<bool, c_int> {
    match sock.endpoint() {
        Endpoint::Open => match owner_of_remote(remote, sock.kind)? {
            Owner::Kernel => {
                bind_taken_in_kernel(sock)?;
                Ok(false)
            }
            Owner::Other => connect_as_guest(sock, remote),
            Owner::Weir(net) if sock.kind == libc::SOCK_STREAM => {
                sock.count(true);
                open(sock, &net, remote).map(|()| true)
            }
            Owner::Weir(net) => {
                let udp = super::opening::open_udp(sock, &net, None)?;
                let to = at_loopback(address::unmapped(remote));
                udp.connect(to).map_err(|error| errno(&error))?;
                Ok(true)
            }
        },
        Endpoint::Stream(stream) => {
            again(sock, &stream)?;
            Ok(true)
        }
        Endpoint::Udp(udp) => {
            let to = of_this_host(address::unmapped(remote), || sock.local());
            check_version(sock.local(), to)?;
            udp.connect(to).map_err(|error| errno(&error))?;
            Ok(true)
        }
        Endpoint::Listener(_) => Err(libc::EISCONN),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
    }
}

/// Connects a socket by the process that has the host; false if the kernel is to do it.
fn connect_as_guest(sock: &Arc<Sock>, remote: SocketAddr) -> Result<bool, c_int> {
    let is_stream = sock.kind == libc::SOCK_STREAM;
    let is_ours = if is_stream {
        guest::start(sock, remote)?
    } else {
        guest::datagrams(sock, None, Some(remote))?
    };
    if !is_ours {
        bind_taken_in_kernel(sock)?;
        return Ok(false);
    }
    sock.count(true);
    let Some(fd) = sock.first_fd() else {
        // Another thread has closed it.
        return Err(libc::EBADF);
    };
    if !is_stream {
        guest::set_peer(fd, remote)?;
    } else if sock.nonblocking.load(Relaxed) {
        return Err(libc::EINPROGRESS);
    } else {
        relay::await_open(fd, sock.timeout(false))?;
    }
    Ok(true)
}

/// The unspecified address stands for this host, as for the kernel: that of IPv4 for the socket's own address, if it
/// has one; that of IPv6, on a socket that is bound to an address of IPv4, for `127.0.0.1`.
pub(crate) fn of_this_host(
    to: SocketAddr,
    local: impl FnOnce() -> Option<SocketAddr>,
) -> SocketAddr {
    if !to.ip().is_unspecified() {
        return to;
    }
    match local().map(|local| address::unmapped(local).ip()) {
        Some(IpAddr::V4(own)) if to.is_ipv4() && !own.is_unspecified() => (own, to.port()).into(),
        Some(IpAddr::V4(_)) => (Ipv4Addr::LOCALHOST, to.port()).into(),
        _ => at_loopback(to),
    }
}

/// Fails for a socket that is bound to an IPv4-mapped address and sends to one of IPv6, as in Linux
/// (`ip6_dst_lookup_tail`).
pub(super) fn check_version(local: Option<SocketAddr>, to: SocketAddr) -> Result<(), c_int> {
    let is_v4 = local.is_some_and(|local| address::unmapped(local).is_ipv4());
    if is_v4 && to.is_ipv6() {
        return Err(libc::EAFNOSUPPORT);
    }
    Ok(())
}

/// The unspecified address stands for this host, as for the kernel.
pub(crate) fn at_loopback(to: SocketAddr) -> SocketAddr {
    match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, to.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, to.port()).into(),
        _ => to,
    }
}

/// The kernel binds the socket to the address that was taken for it.
fn bind_taken_in_kernel(sock: &Sock) -> Result<(), c_int> {
    let taken = sock.take_reserved().map(|reserved| reserved.address());
    let Some(local) = taken.or_else(|| sock.kept_address()) else {
        return Ok(());
    };
    let Some(fd) = sock.first_fd() else {
        return Ok(());
    };
    super::opening::bind_in_kernel(fd, address::shown(local, sock.domain))
}

/// Opens a connection.
fn open(sock: &Arc<Sock>, net: &Net, remote: SocketAddr) -> Result<(), c_int> {
    let stream = start(sock, net, remote)?;
    sock.set_opening(Opening::Waits);
    sock.adopt(Endpoint::Stream(stream.clone()))?;
    if sock.nonblocking.load(Relaxed) {
        return Err(libc::EINPROGRESS);
    }
    opened(sock, &stream)
}

/// Begins a connection with the address and the options of a socket.
pub(crate) fn start(sock: &Sock, net: &Net, remote: SocketAddr) -> Result<TcpStream, c_int> {
    let remote = of_this_host(address::unmapped(remote), || sock.local());
    if remote.is_ipv4() != (sock.domain == libc::AF_INET)
        && sock.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
    {
        return Err(libc::ENETUNREACH);
    }
    let mut socket = TcpSocket::new(net);
    let local = {
        let reserved = sock.reserved.lock();
        let reserved = reserved.unwrap_or_else(PoisonError::into_inner);
        reserved.as_ref().map(|reserved| reserved.address())
    };
    let local = local.or_else(|| sock.kept_address());
    check_version(local, remote)?;
    if let Some(mut local) = local {
        if local.ip().is_unspecified() && local.is_ipv4() != remote.is_ipv4() {
            let any: IpAddr = if remote.is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            local.set_ip(any);
        }
        socket.bind(local).map_err(|error| errno(&error))?;
    }
    let set = socket.set_options(sock.tcp_options());
    set.map_err(|error| errno(&error))?;
    let stream = socket.start(remote).map_err(|error| errno(&error))?;
    let _ = stream.set_nonblocking(true);
    Ok(stream)
}

/// Waits until the peer has answered.
fn opened(sock: &Sock, stream: &TcpStream) -> Result<(), c_int> {
    let mut wait = Wait::new(sock, Side::Send, 0);
    while !is_answered(stream) {
        match wait.wait() {
            // The time limit of a connect is that of sends.
            Err(libc::EAGAIN) => return Err(libc::EINPROGRESS),
            waited => waited?,
        }
    }
    answered(sock, stream)
}

/// The result of a `connect` whose peer has answered.
fn answered(sock: &Sock, stream: &TcpStream) -> Result<(), c_int> {
    let error = match take_error(sock, stream) {
        // Another call has reported why it failed.
        0 if sock.opening() == Opening::Aborted => libc::ECONNABORTED,
        0 => {
            sock.set_opening(Opening::Done);
            return Ok(());
        }
        error => error,
    };
    // Without a descriptor the next call says why it failed.
    let _ = sock.reopen(stream);
    Err(error)
}

/// Whether the peer has answered, or the attempt has failed.
pub(super) fn is_answered(stream: &TcpStream) -> bool {
    use weir_stack::tcp::State;
    stream
        .info()
        .map_or(true, |info| info.state != State::SynSent)
}

/// `SO_ERROR`: why the connection failed, once.
pub(crate) fn take_error(sock: &Sock, stream: &TcpStream) -> c_int {
    match stream.take_error() {
        Ok(Some(error)) => {
            if sock.opening() == Opening::Waits {
                sock.set_opening(Opening::Aborted);
            }
            errno(&error)
        }
        Ok(None) => {
            if sock.opening() == Opening::Waits && is_answered(stream) {
                sock.set_opening(if is_over(stream) {
                    Opening::Aborted
                } else {
                    Opening::Unsaid
                });
            }
            0
        }
        Err(error) => errno(&error),
    }
}

/// A `connect` after the first one.
fn again(sock: &Sock, stream: &TcpStream) -> Result<(), c_int> {
    match sock.opening() {
        Opening::Waits if !is_answered(stream) => {
            if sock.nonblocking.load(Relaxed) {
                return Err(libc::EALREADY);
            }
            // Not the call that has begun it.
            opened(sock, stream).map_err(|error| match error {
                libc::EINPROGRESS => libc::EALREADY,
                error => error,
            })
        }
        Opening::Waits => answered(sock, stream),
        Opening::Unsaid if is_over(stream) => {
            let error = take_error(sock, stream);
            let _ = sock.reopen(stream);
            Err(if error == 0 {
                libc::ECONNABORTED
            } else {
                error
            })
        }
        Opening::Unsaid => {
            sock.set_opening(Opening::Done);
            Ok(())
        }
        Opening::Done => Err(libc::EISCONN),
        Opening::Aborted => {
            let _ = sock.reopen(stream);
            Err(libc::ECONNABORTED)
        }
    }
}

/// `connect(2)` to `AF_UNSPEC`.
fn disconnect(sock: &Sock) -> Result<bool, c_int> {
    match sock.endpoint() {
        Endpoint::Stream(stream) => {
            stream.reset();
            sock.reopen(&stream).map(|()| true)
        }
        Endpoint::Listener(listener) => {
            listener.shutdown();
            sock.reopen_listener().map(|()| true)
        }
        Endpoint::Udp(udp) => {
            udp.disconnect().map_err(|error| errno(&error))?;
            Ok(true)
        }
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(MOVED),
        Endpoint::Open => Err(libc::EINVAL),
    }
}

/// The socket of a call that sends to an address, which may decide whose the socket is; `None`
/// if the kernel is to do the call.
///
/// # Errors
/// As `connect(2)`; [`MOVED`] if the socket is now a relayed one; `EOPNOTSUPP` for `MSG_FASTOPEN` to
/// an address of weir, as where Linux has it switched off.
pub(super) fn sender(
    fd: c_int,
    to: Option<SocketAddr>,
    flags: c_int,
) -> Result<Option<Arc<Sock>>, c_int> {
    let Some(sock) = table::any(fd) else {
        return Ok(None);
    };
    if sock.is_live() {
        return Ok(Some(sock));
    }
    let opens = sock.kind == libc::SOCK_STREAM;
    let Some(to) = to.filter(|_| !opens || flags & libc::MSG_FASTOPEN != 0) else {
        return Ok(None);
    };
    if to.is_ipv4() != (sock.domain == libc::AF_INET) {
        return Ok(None);
    }
    guest::or_by_next_owner(|| decided(&sock, to))
}

/// As [`sender`], of a socket that is no one's yet.
fn decided(sock: &Arc<Sock>, to: SocketAddr) -> Result<Option<Arc<Sock>>, c_int> {
    let opens = sock.kind == libc::SOCK_STREAM;
    match owner_of_remote(to, sock.kind)? {
        Owner::Kernel => {
            sock.count(false);
            sock.leave_to_kernel();
            Ok(None)
        }
        Owner::Weir(_) | Owner::Other if opens => Err(libc::EOPNOTSUPP),
        Owner::Weir(net) => {
            super::opening::open_udp(sock, &net, None)?;
            Ok(Some(Arc::clone(sock)))
        }
        Owner::Other if guest::datagrams(sock, None, Some(to))? => {
            sock.count(true);
            Err(MOVED)
        }
        Owner::Other => {
            sock.count(false);
            sock.leave_to_kernel();
            Ok(None)
        }
    }
}
