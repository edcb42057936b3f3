//! `socket`, `bind`, `listen`, `accept`.

use super::answer;
use crate::host::{self, Found, Owner, owner_of_local};
use crate::ports::{Reserved, Sharing};
use crate::relay::name::{Kind, Name};
use crate::relay::{self, guest};
use crate::signals;
use crate::sock::{Endpoint, MOVED, Sock, errno, is_over};
use crate::stats::{self, Call};
use crate::wait::{Side, Wait};
use crate::{address, real, table};
use libc::{c_int, sockaddr, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use weir_socket::{Net, TcpListener, TcpSocket, TcpStream, UdpSocket};
use weir_stack::udp::UdpBind;

/// `socket(2)`: the kernel's, until an address decides.
///
/// # Safety
/// As `socket(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    stats::kernels(Call::Socket);
    // SAFETY: the caller's promises.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    let is_ours = is_internet(domain, kind) && has_protocol(kind, protocol);
    if fd >= 0 && is_ours && host::is_for_all() && !signals::is_inside() {
        note(fd, domain, kind);
    }
    fd
}

/// `socket(2)` of a program that asks for weir's sockets by name ([`crate::own`]).
pub(crate) fn socket_of_weir(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return answer(Err(libc::EAFNOSUPPORT));
    }
    if !is_internet(domain, kind) || !has_protocol(kind, protocol) {
        return answer(Err(libc::EPROTONOSUPPORT));
    }
    if !host::is_configured() {
        return answer(Err(libc::ENETDOWN));
    }
    // SAFETY: the call takes numbers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 {
        note(fd, domain, kind);
    }
    fd
}

const KIND_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

fn is_internet(domain: c_int, kind: c_int) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && matches!(kind & !KIND_FLAGS, libc::SOCK_STREAM | libc::SOCK_DGRAM)
}

fn has_protocol(kind: c_int, protocol: c_int) -> bool {
    match kind & !KIND_FLAGS {
        libc::SOCK_STREAM => matches!(protocol, 0 | libc::IPPROTO_TCP),
        _ => matches!(protocol, 0 | libc::IPPROTO_UDP),
    }
}

/// Enters a new socket of the kernel, which may become one of weir.
fn note(fd: c_int, domain: c_int, kind: c_int) {
    let _inside = signals::enter();
    let is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    let sock = Arc::new(Sock::open(domain, kind & !KIND_FLAGS, is_nonblocking));
    table::insert(fd, &sock);
}

/// `bind(2)`.
///
/// # Safety
/// As `bind(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Bind);
        // SAFETY: the caller's promises.
        return unsafe { real::bind(fd, to, len) };
    };
    let inside = signals::enter();
    // SAFETY: the caller's promise.
    let local = unsafe { address::read(to, len) };
    let family = if sock.domain == libc::AF_INET {
        SocketAddr::is_ipv4
    } else {
        SocketAddr::is_ipv6
    };
    let done = match local {
        Ok(local) if family(&local) => guest::or_by_next_owner(|| bind_to(&sock, local)),
        Err(error) if sock.is_live() => Err(error),
        Ok(_) if sock.is_live() => Err(libc::EINVAL),
        // The kernel knows the error.
        _ => Ok(false),
    };
    drop(inside);
    match done {
        Ok(false) => {
            stats::kernels(Call::Bind);
            // SAFETY: the caller's promises.
            let bound = unsafe { real::bind(fd, to, len) };
            if bound == 0 {
                sock.count(false);
                sock.leave_to_kernel();
            }
            bound
        }
        done => {
            stats::weirs(Call::Bind);
            answer(done.map(|_| 0))
        }
    }
}

/// Binds a socket to an address of weir's host; false if the kernel is to do it.
fn bind_to(sock: &Arc<Sock>, local: SocketAddr) -> Result<bool, c_int> {
    let over = match sock.endpoint() {
        Endpoint::Open => None,
        // A connection that is over has lost a port that `bind(2)` has not named.
        Endpoint::Stream(stream) if is_over(&stream) => Some(stream),
        Endpoint::Foreign(_) => return Err(crate::fork::refuse()),
        Endpoint::Relay(_) => return Err(MOVED),
        _ => return Err(bound_again(sock, local)),
    };
    if address::is_mapped(local) && sock.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        return Err(libc::EINVAL);
    }
    if sock.is_bound() || chosen_port(sock).is_some() {
        return Err(bound_again(sock, local));
    }
    if over.is_some() {
        // The port that it had is free, also for this bind.
        sock.lose_port();
    }
    let bound = match owner_of_local(local, sock.kind)? {
        Owner::Kernel => match &over {
            Some(stream) => leave_over(sock, stream, local),
            None => Ok(false),
        },
        owner => bind_at(sock, local, owner),
    };
    match bound {
        Err(libc::EADDRINUSE) => sock.lose_address(over.is_some()),
        Ok(true) if over.is_some() => sock.note_rebound(),
        _ => {}
    }
    bound
}

/// Gives a connection that is over back to the kernel, unless the kernel binds no socket to `local`; false if it
/// does.
fn leave_over(sock: &Sock, stream: &TcpStream, local: SocketAddr) -> Result<bool, c_int> {
    let tried = sock.kernel_socket()?;
    bind_in_kernel(tried.as_raw_fd(), local)?;
    drop(tried);
    sock.reopen(stream).map(|()| false)
}

/// Has the kernel bind a socket to an address of the socket's family.
pub(super) fn bind_in_kernel(fd: c_int, local: SocketAddr) -> Result<(), c_int> {
    let mut bytes = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut len = bytes.len() as socklen_t;
    let to = bytes.as_mut_ptr().cast::<sockaddr>();
    // SAFETY: the buffer has the stated length.
    unsafe { address::write(local, to, &raw mut len) }?;
    // SAFETY: the address was written there.
    match unsafe { real::bind(fd, to, len) } {
        0 => Ok(()),
        _ => Err(crate::sock::last_errno()),
    }
}

/// Binds a socket to an address of `owner`, which is not the kernel, as [`bind_to`].
fn bind_at(sock: &Arc<Sock>, local: SocketAddr, owner: Owner) -> Result<bool, c_int> {
    match owner {
        Owner::Kernel => Ok(false),
        Owner::Other => {
            check_port(local.port())?;
            if sock.kind == libc::SOCK_STREAM {
                let is_ours = guest::bind(sock, local)?;
                if is_ours {
                    show_only_v6(sock, local);
                }
                return Ok(is_ours);
            }
            let is_ours = guest::datagrams(sock, Some(local), None)?;
            if is_ours {
                sock.count(true);
            }
            Ok(is_ours)
        }
        Owner::Weir(net) => {
            check_port(local.port())?;
            if sock.kind == libc::SOCK_STREAM {
                reserve(sock, local)?;
            } else {
                open_udp(sock, &net, Some(local))?;
            }
            show_only_v6(sock, local);
            Ok(true)
        }
    }
}

/// Sets `IPV6_V6ONLY` of a socket that was bound to one address of IPv6, as Linux does: until it connects or listens,
/// the kernel shows the option.
fn show_only_v6(sock: &Sock, local: SocketAddr) {
    let is_one = local.is_ipv6() && !local.ip().is_unspecified();
    if !is_one || address::is_mapped(local) {
        return;
    }
    let on = 1_i32.to_ne_bytes();
    {
        let options = sock.options.lock();
        let mut options = options.unwrap_or_else(PoisonError::into_inner);
        options.set((libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), &on);
    }
    if let Some(fd) = sock.first_fd().filter(|_| !sock.is_live()) {
        let (value, len) = (on.as_ptr().cast(), on.len() as socklen_t);
        // SAFETY: the value has the stated length.
        unsafe { real::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, value, len) };
    }
}

/// The port that the kernel has chosen for a UDP socket whose first datagram had no destination.
fn chosen_port(sock: &Sock) -> Option<u16> {
    if sock.kind != libc::SOCK_DGRAM || sock.is_live() {
        return None;
    }
    let fd = sock.first_fd()?;
    let mut bytes = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut len = bytes.len() as socklen_t;
    let to = bytes.as_mut_ptr().cast::<sockaddr>();
    // SAFETY: the buffer has the stated length.
    let named = unsafe { real::getsockname(fd, to, &raw mut len) };
    // SAFETY: as above.
    let name = unsafe { address::read(to, len) }.ok()?;
    (named == 0 && name.port() != 0).then_some(name.port())
}

/// The error of binding a socket that is bound: of IPv4, Linux looks at the address first.
fn bound_again(sock: &Sock, local: SocketAddr) -> c_int {
    let is_foreign = sock.domain == libc::AF_INET
        && !local.ip().to_canonical().is_loopback()
        && matches!(owner_of_local(local, sock.kind), Ok(Owner::Kernel));
    if is_foreign {
        libc::EADDRNOTAVAIL
    } else {
        libc::EINVAL
    }
}

/// Fails as the kernel does for a port that only the superuser may have.
pub(crate) fn check_port(port: u16) -> Result<(), c_int> {
    if port == 0 || port >= 1024 || rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // The kernel's limit says what an ordinary user may have.
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = text.ok().and_then(|text| text.trim().parse().ok());
    if port >= first.unwrap_or(1024) || has_bind_capability() {
        Ok(())
    } else {
        Err(libc::EACCES)
    }
}

/// Whether the process has `CAP_NET_BIND_SERVICE`.
fn has_bind_capability() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> 10 & 1 != 0)
}

/// Whether a socket at the unspecified IPv6 address is IPv4's too.
fn is_for_both(sock: &Sock) -> bool {
    sock.domain == libc::AF_INET6 && !sock.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
}

/// How a socket shares its address, by its options.
pub(crate) fn sharing(sock: &Sock, local: SocketAddr) -> Sharing {
    Sharing {
        address: sock.is_on(libc::SOL_SOCKET, libc::SO_REUSEADDR),
        port: sock.is_on(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        both_versions: is_for_both(sock) && local.ip().is_unspecified(),
    }
}

/// Takes an address for a TCP socket.
pub(crate) fn reserve(sock: &Sock, local: SocketAddr) -> Result<(), c_int> {
    let local = address::unmapped(local);
    let mut reserved = Reserved::take(local, sharing(sock, local))?;
    if local.port() == 0 {
        reserved = reserved.chosen();
    }
    *sock.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Some(reserved);
    Ok(())
}

/// Binds a UDP socket, which becomes one of weir: to `local`, or to any address and port.
pub(super) fn open_udp(
    sock: &Arc<Sock>,
    net: &Net,
    local: Option<SocketAddr>,
) -> Result<UdpSocket, c_int> {
    let any = address::unspecified(sock.domain);
    let chosen = chosen_port(sock).map(|port| SocketAddr::new(any.ip(), port));
    let udp = bind_udp(sock, net, local.or(chosen))?;
    sock.count(true);
    sock.adopt(Endpoint::Udp(udp.clone()))?;
    Ok(udp)
}

/// Binds a socket of weir with the options of `sock`: to `local`, or to any address and port.
pub(crate) fn bind_udp(
    sock: &Sock,
    net: &Net,
    local: Option<SocketAddr>,
) -> Result<UdpSocket, c_int> {
    let any = address::unspecified(sock.domain);
    let local = local.map_or(any, address::unmapped);
    // A group's address stands for all, as far as the port is concerned.
    let local = match local {
        SocketAddr::V4(v4) if v4.ip().is_multicast() || v4.ip().is_broadcast() => {
            (Ipv4Addr::UNSPECIFIED, v4.port()).into()
        }
        SocketAddr::V6(v6) if v6.ip().is_multicast() => (Ipv6Addr::UNSPECIFIED, v6.port()).into(),
        other => other,
    };
    let how = UdpBind {
        both_versions: is_for_both(sock) && local.ip().is_unspecified(),
        shared: sock.is_on(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        reuse_address: sock.is_on(libc::SOL_SOCKET, libc::SO_REUSEADDR),
    };
    let udp = UdpSocket::bind_with(net, local, how).map_err(|error| errno(&error))?;
    let _ = udp.set_nonblocking(true);
    if sock.shut.load(Relaxed) {
        udp.shutdown(Shutdown::Read);
    }
    if sock.shut_write.load(Relaxed) {
        udp.shutdown(Shutdown::Write);
    }
    Ok(udp)
}

/// `listen(2)`.
///
/// # Safety
/// As `listen(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(sock) = table::any(fd) else {
        stats::kernels(Call::Listen);
        if table::is_relay(fd) && Name::of(fd).is_some_and(|name| name.kind == Kind::Listener) {
            // The backlog of a listener stays.
            return 0;
        }
        // SAFETY: the caller's promises.
        return unsafe { real::listen(fd, backlog) };
    };
    let _inside = signals::enter();
    stats::weirs(Call::Listen);
    let listens = guest::or_by_next_owner(|| listen_on(&sock, backlog));
    answer(listens.map(|()| 0))
}

fn listen_on(sock: &Arc<Sock>, backlog: c_int) -> Result<(), c_int> {
    if sock.kind != libc::SOCK_STREAM {
        return Err(libc::EOPNOTSUPP);
    }
    match sock.endpoint() {
        Endpoint::Open => {}
        Endpoint::Listener(listener) => {
            let backlog = connections(backlog);
            listener
                .set_backlog(backlog)
                .map_err(|error| errno(&error))?;
            sock.backlog.store(backlog, Relaxed);
            return Ok(());
        }
        Endpoint::Stream(_) | Endpoint::Udp(_) => return Err(libc::EINVAL),
        Endpoint::Foreign(_) => return Err(crate::fork::refuse()),
        Endpoint::Relay(_) => return Err(MOVED),
    }
    let listener = match host::host()? {
        Found::Own(net) => listener_of(sock, &net, backlog)?,
        Found::Other => {
            guest::listen(sock, backlog)?;
            sock.count(true);
            return Ok(());
        }
    };
    sock.count(true);
    sock.adopt(Endpoint::Listener(listener))
}

/// Connections that wait with a backlog: the kernel takes one more, at most `somaxconn`; a negative
/// backlog is the largest.
fn connections(backlog: c_int) -> usize {
    usize::try_from(backlog).unwrap_or(4096).min(4096) + 1
}

/// A listener at the address of a socket, or at a free one, with the socket's options.
pub(crate) fn listener_of(sock: &Sock, net: &Net, backlog: c_int) -> Result<TcpListener, c_int> {
    if !sock.is_bound() {
        let any = address::unspecified(sock.domain);
        reserve(sock, sock.kept_address().unwrap_or(any))?;
    }
    let reserved = sock.reserved.lock().unwrap_or_else(PoisonError::into_inner);
    let reserved_ref = reserved.as_ref().ok_or(libc::EINVAL)?;
    reserved_ref.listen()?;
    let mut socket = TcpSocket::new(net);
    let bound = socket.bind(reserved_ref.address());
    bound.map_err(|error| errno(&error))?;
    socket.set_only_v6(!reserved_ref.sharing().both_versions);
    socket.set_reuse_port(reserved_ref.sharing().port);
    drop(reserved);
    let set = socket.set_options(sock.tcp_options());
    set.map_err(|error| errno(&error))?;
    let backlog = connections(backlog);
    let listener = socket.listen(backlog).map_err(|error| errno(&error))?;
    sock.backlog.store(backlog, Relaxed);
    let _ = listener.set_nonblocking(true);
    Ok(listener)
}

/// `accept(2)`.
///
/// # Safety
/// As `accept(2)`.
pub(super) unsafe fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { accept4(fd, from, len, 0) }
}

/// `accept4(2)`.
///
/// # Safety
/// As `accept4(2)`.
pub(super) unsafe fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(sock) = table::live(fd) else {
        if table::is_relay(fd)
            && let Some(name) = Name::of(fd)
        {
            stats::weirs(Call::Accept);
            // The wait is the kernel's, which handlers interrupt.
            let accepted = relay::calls::accept(fd, name, flags);
            if accepted.is_ok() {
                stats::socket(true);
            }
            // SAFETY: the caller's promise.
            return answer(accepted.and_then(|new| unsafe { told(new, from, len) }));
        }
        stats::kernels(Call::Accept);
        // SAFETY: the caller's promises.
        return unsafe { real::accept4(fd, from, len, flags) };
    };
    let inside = signals::enter();
    stats::weirs(Call::Accept);
    let accepted = or_again!(
        inside,
        accept_from(&sock, flags),
        accept4(fd, from, len, flags)
    );
    answer(accepted.and_then(|(new, peer)| {
        let peer = address::shown(peer, sock.domain);
        // SAFETY: the caller's promise.
        unsafe { told((new, peer), from, len) }
    }))
}

/// Gives the caller the peer of a new descriptor, which is closed if that fails.
///
/// # Safety
/// As `accept(2)`.
unsafe fn told(
    (new, peer): (c_int, SocketAddr),
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<c_int, c_int> {
    // SAFETY: the caller's promise.
    let written = unsafe { address::write(peer, from, len) };
    if let Err(error) = written {
        // SAFETY: the descriptor is the new one, of which no other code knows yet.
        unsafe { super::descriptor::close(new) };
        return Err(error);
    }
    Ok(new)
}

fn accept_from(sock: &Arc<Sock>, flags: c_int) -> Result<(c_int, SocketAddr), c_int> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL);
    }
    let listener = match sock.endpoint() {
        Endpoint::Listener(listener) => listener,
        Endpoint::Udp(_) => return Err(libc::EOPNOTSUPP),
        Endpoint::Foreign(_) => return Err(crate::fork::refuse()),
        Endpoint::Relay(_) => return Err(MOVED),
        Endpoint::Stream(_) | Endpoint::Open => return Err(libc::EINVAL),
    };
    let mut wait = Wait::new(sock, Side::Receive, 0);
    let (stream, peer) = wait.until(|| listener.accept())?;
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let accepted = Arc::new(Sock::accepted(sock, stream, nonblocking));
    stats::socket(true);
    let new = accepted.with_ready_fd(|ready| {
        let command = if flags & libc::SOCK_CLOEXEC != 0 {
            libc::F_DUPFD_CLOEXEC
        } else {
            libc::F_DUPFD
        };
        // SAFETY: the command takes a number.
        unsafe { real::fcntl(ready.as_raw_fd(), command, 0) }
    })?;
    if new < 0 {
        return Err(crate::sock::last_errno());
    }
    if !table::insert(new, &accepted) {
        // SAFETY: the descriptor is the new one.
        unsafe { real::close(new) };
        return Err(libc::EMFILE);
    }
    Ok((new, peer))
}
