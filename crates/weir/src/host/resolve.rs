//! Names of hosts, connections to them, and unspecified addresses.

use super::link_config::named;
use crate::error::CliError;
use crate::signals::ShutdownSignal;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpSocket, TcpStream};

/// The addresses of a name, for the IP versions that the host has: by the
/// system's resolver, unless the name is an address, which may be followed by
/// its link.
pub(crate) fn resolve(
    net: &Net,
    links: &[String],
    name: &str,
    port: u16,
    stop: &ShutdownSignal,
) -> Result<Vec<SocketAddr>, CliError> {
    let found = match address(links, name, port)? {
        Some(address) => vec![address],
        None => query_resolver(name, port, stop)?,
    };
    let addresses = net.addresses();
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    let (ours, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| has(address.is_ipv4()));
    match (ours.is_empty(), others.first()) {
        (false, _) => Ok(ours),
        (true, Some(other)) => {
            let version = if other.is_ipv4() { "IPv4" } else { "IPv6" };
            Err(CliError::refused(format!(
                "`{name}` has addresses of {version} alone, and the host has none: give it one \
                 more, with --addr"
            )))
        }
        (true, None) => Err(CliError::run(format!("`{name}` has no address"))),
    }
}

/// The address, if the name is one.
fn address(links: &[String], name: &str, port: u16) -> Result<Option<SocketAddr>, CliError> {
    let (text, zone) = match name.split_once('%') {
        Some((text, zone)) => (text, Some(zone)),
        None => (name, None),
    };
    let address = match (text.parse(), named(links, zone)) {
        (Err(_), _) => return Ok(None),
        (Ok(IpAddr::V4(ip)), _) => return Ok(Some((ip, port).into())),
        (Ok(IpAddr::V6(ip)), Ok(at)) => SocketAddrV6::new(ip, port, 0, at.unwrap_or(0) as u32),
        (Ok(_), Err(failure)) => return Err(failure),
    };
    Ok(Some(address.into()))
}

/// Calls the resolver on a separate thread, since a signal does not end its
/// call.
fn query_resolver(
    name: &str,
    port: u16,
    stop: &ShutdownSignal,
) -> Result<Vec<SocketAddr>, CliError> {
    /// How often the wait checks for a signal.
    const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);
    let (sender, receiver) = mpsc::channel();
    let asked = (name.to_owned(), port);
    let look_up = move || {
        let found = asked.to_socket_addrs();
        // After a signal the caller no longer waits.
        let _ = sender.send(found.map(Iterator::collect));
    };
    let thread = thread::Builder::new().spawn(look_up);
    thread.map_err(|error| CliError::run(format!("cannot start a thread: {error}")))?;
    loop {
        match receiver.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => {
                return Err(CliError::run(format!(
                    "the system's resolver does not know `{name}` ({error})"
                )));
            }
            Err(_) if stop.is_requested() => return Err(CliError::Stopped(stop.signal())),
            Err(_) => {}
        }
    }
}

/// The reason why a peer cannot be reached.
pub(crate) fn unreached(net: &Net, peer: SocketAddr, error: &io::Error) -> CliError {
    let (ip, kind) = (peer.ip(), error.kind());
    let all = IpAddr::from(Ipv4Addr::BROADCAST);
    let why = match kind {
        io::ErrorKind::NetworkUnreachable if ip.to_canonical().is_loopback() => format!(
            "{error}: no link leads to {ip}; this machine's kernel is reached by its address on \
             the link"
        ),
        io::ErrorKind::NetworkUnreachable
            if ip.is_unspecified() || ip.is_multicast() || ip == all =>
        {
            format!("{error}: {ip} is not the address of a single host")
        }
        io::ErrorKind::NetworkUnreachable if net.addresses().contains(&ip) => {
            format!("{error}: {ip} is this host's own; ask another")
        }
        io::ErrorKind::NetworkUnreachable => {
            format!("{error}: give the router that leads to {ip} with --gateway")
        }
        io::ErrorKind::HostUnreachable => {
            format!("{error}: no station answers for {ip}, or for the router to it")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("{error}: no application listens at port {}", peer.port())
        }
        _ => error.to_string(),
    };
    CliError::run(format!("{peer}: {why}"))
}

/// Opens a connection; a signal ends the attempt.
pub(crate) fn connect(
    net: &Net,
    to: SocketAddr,
    within: Duration,
    stop: &ShutdownSignal,
) -> io::Result<TcpStream> {
    /// How often the wait checks for a signal.
    const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);
    let stream = TcpSocket::new(net).start(to)?;
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + within;
    loop {
        if let Poll::Ready(opened) = stream.poll_opened(&mut context) {
            return opened.map(|()| stream);
        } else if stop.is_requested() {
            return Err(io::Error::other("asked to stop"));
        } else if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::park_timeout(STOP_POLL_INTERVAL);
    }
}

/// Unparks a thread that waits for a socket.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The unspecified addresses of the IP versions that the net has.
pub(crate) fn any_of(net: &Net, port: u16) -> Vec<SocketAddr> {
    let addresses = net.addresses();
    let any = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    any.into_iter().filter(|any| has(any.is_ipv4())).collect()
}

/// The unspecified address of a peer's IP version, with transport port 0.
pub(crate) fn any_towards(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}
