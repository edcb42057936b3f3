//! Names of hosts, how they are reached, and the addresses that stand for all
//! of ours.

use crate::failure::Failure;
use crate::stop::Stop;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpSocket, TcpStream};

/// The addresses of a name, by the system's resolver, of the versions that the
/// host has.
pub(crate) fn resolve(net: &Net, name: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let found = (name, port).to_socket_addrs().map_err(|error| {
        Failure::run(format!(
            "the system's resolver does not know `{name}` ({error})"
        ))
    })?;
    let addresses = net.addresses();
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    let (ours, others): (Vec<_>, Vec<_>) = found.partition(|address| has(address.is_ipv4()));
    match (ours.is_empty(), others.first()) {
        (false, _) => Ok(ours),
        (true, Some(other)) => {
            let version = if other.is_ipv4() { "IPv4" } else { "IPv6" };
            Err(Failure::refused(format!(
                "`{name}` has addresses of {version} alone, and the host has none: give it one \
                 more, with --addr"
            )))
        }
        (true, None) => Err(Failure::run(format!("`{name}` has no address"))),
    }
}

/// Why a peer cannot be asked.
pub(crate) fn unreached(peer: SocketAddr, error: &io::Error) -> Failure {
    let (ip, kind) = (peer.ip(), error.kind());
    let why = match kind {
        io::ErrorKind::NetworkUnreachable => {
            format!("{error}: give the router that leads to {ip} with --gateway")
        }
        io::ErrorKind::HostUnreachable => {
            format!("{error}: nobody answers for {ip}, or for the router to it")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("{error}: nobody listens at port {}", peer.port())
        }
        _ => error.to_string(),
    };
    Failure::run(format!("{peer}: {why}"))
}

/// Opens a connection; ends with a signal, too.
pub(crate) fn connect(
    net: &Net,
    to: SocketAddr,
    within: Duration,
    stop: &Stop,
) -> io::Result<TcpStream> {
    /// How often it is looked whether a signal came.
    const LOOK_EACH: Duration = Duration::from_millis(50);
    let stream = TcpSocket::new(net).start(to)?;
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + within;
    loop {
        if let Poll::Ready(opened) = stream.poll_opened(&mut context) {
            return opened.map(|()| stream);
        } else if stop.asked() {
            return Err(io::Error::other("asked to stop"));
        } else if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::park_timeout(LOOK_EACH);
    }
}

/// Wakes a thread that waits for a socket.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The unspecified addresses of the versions that the net has.
pub(crate) fn any_of(net: &Net, port: u16) -> Vec<SocketAddr> {
    let addresses = net.addresses();
    let any = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    any.into_iter().filter(|any| has(any.is_ipv4())).collect()
}

/// The unspecified address of a peer's version, and any transport port.
pub(crate) fn any_towards(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}
