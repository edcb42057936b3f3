//! Socket options.
//!
//! While a socket is the kernel's, the kernel judges each option, and the accepted ones are
//! recorded. When the socket becomes one of weir, they are set again. Afterwards this module
//! judges: an option that the stack does not have is refused with `ENOPROTOOPT`, except for those
//! that only advise the kernel ([`ADVICE`]), which are recorded.

use crate::control::{Requested, is_request};
use crate::sock::{Endpoint, Sock, errno, is_over};
use libc::{c_int, timeval};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use weir_socket::TcpStream;
use weir_stack::tcp::{KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES_MAX, TcpOptions};
use weir_stack::udp::UDP_QUEUE_BYTES_MAX;

/// The options that were set, with their values.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Vec<((c_int, c_int), Vec<u8>)>);

/// Number of options that one socket can have.
const RECORDED_MAX: usize = 64;

impl Recorded {
    /// Of another process's socket.
    pub(crate) fn of(mut options: Vec<((c_int, c_int), Vec<u8>)>) -> Recorded {
        options.truncate(RECORDED_MAX);
        Recorded(options)
    }

    /// All options, with their values.
    pub(crate) fn list(&self) -> Vec<((c_int, c_int), Vec<u8>)> {
        self.0.clone()
    }

    fn get(&self, option: (c_int, c_int)) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| *other == option);
        found.map(|(_, value)| value.as_slice())
    }

    /// The value as a number.
    fn int(&self, option: (c_int, c_int)) -> Option<c_int> {
        self.get(option).and_then(int)
    }

    fn remove(&mut self, option: (c_int, c_int)) {
        self.0.retain(|(other, _)| *other != option);
    }

    /// Records a value.
    pub(crate) fn set(&mut self, option: (c_int, c_int), value: &[u8]) {
        // The two forms of time replace each other.
        match option {
            (SOL_SOCKET, libc::SO_TIMESTAMP) => self.remove((SOL_SOCKET, libc::SO_TIMESTAMPNS)),
            (SOL_SOCKET, libc::SO_TIMESTAMPNS) => self.remove((SOL_SOCKET, libc::SO_TIMESTAMP)),
            _ => {}
        }
        // Each membership of a group is a value of its own.
        if !is_membership(option) {
            self.remove(option);
        }
        if self.0.len() < RECORDED_MAX {
            self.0.push((option, value.to_vec()));
        }
    }
}

/// The first four bytes, or the one, as a number.
fn int(value: &[u8]) -> Option<c_int> {
    match value.first_chunk() {
        Some(bytes) => Some(c_int::from_ne_bytes(*bytes)),
        None => value.first().map(|byte| (*byte).into()),
    }
}

const SOL_SOCKET: c_int = libc::SOL_SOCKET;
const TCP: c_int = libc::IPPROTO_TCP;
const IP: c_int = libc::IPPROTO_IP;
const IPV6: c_int = libc::IPPROTO_IPV6;

/// Options without an effect on weir's sockets: they concern the kernel's own work, or
/// are true already.
const ADVICE: &[(c_int, c_int)] = &[
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_BROADCAST),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (SOL_SOCKET, libc::SO_INCOMING_CPU),
    (SOL_SOCKET, libc::SO_SNDLOWAT),
    (SOL_SOCKET, libc::SO_DONTROUTE),
    (TCP, libc::TCP_DEFER_ACCEPT),
    (TCP, libc::TCP_SYNCNT),
    (TCP, libc::TCP_LINGER2),
    (TCP, libc::TCP_WINDOW_CLAMP),
    (TCP, libc::TCP_FASTOPEN),
    (TCP, libc::TCP_FASTOPEN_CONNECT),
    (IP, libc::IP_MTU_DISCOVER),
    (IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IP, libc::IP_FREEBIND),
    (IPV6, libc::IPV6_V6ONLY),
    (IPV6, libc::IPV6_MTU_DISCOVER),
];

fn is_membership((level, name): (c_int, c_int)) -> bool {
    level == IP && matches!(name, libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP)
        || level == IPV6 && matches!(name, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP)
}

impl Sock {
    fn recorded<T>(&self, act: impl FnOnce(&mut Recorded) -> T) -> T {
        act(&mut self.options.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a recorded option is not zero.
    pub(crate) fn is_on(&self, level: c_int, name: c_int) -> bool {
        self.recorded(|all| all.int((level, name)).unwrap_or(0) != 0)
    }

    /// The ancillary data that the socket asks for.
    pub(crate) fn requested(&self) -> Requested {
        self.recorded(|all| Requested::of(|option| all.int(option).unwrap_or(0) != 0))
    }

    /// The options of a connection that is about to be opened.
    pub(crate) fn tcp_options(&self) -> TcpOptions {
        let mut options = TcpOptions::default();
        self.recorded(|all| {
            for ((level, name), value) in &all.0 {
                if let Some(value) = int(value) {
                    let _ = change(&mut options, (*level, *name), value);
                }
            }
        });
        options
    }
}

/// Changes one of the stack's options; `None` if it is not one of them.
fn change(
    options: &mut TcpOptions,
    option: (c_int, c_int),
    value: c_int,
) -> Option<Result<(), c_int>> {
    match option {
        (IP, libc::IP_TTL) | (IPV6, libc::IPV6_UNICAST_HOPS) => match value {
            -1 => options.hop_limit = TcpOptions::default().hop_limit,
            1..=255 => options.hop_limit = value as u8,
            _ => return Some(Err(libc::EINVAL)),
        },
        (IP, libc::IP_TOS) | (IPV6, libc::IPV6_TCLASS) => options.traffic_class = value as u8,
        (TCP, libc::TCP_USER_TIMEOUT) if value < 0 => return Some(Err(libc::EINVAL)),
        (TCP, libc::TCP_USER_TIMEOUT) => {
            options.user_timeout_ms = u32::try_from(value).ok().and_then(NonZeroU32::new);
        }
        // As the kernel, which doubles the value for its own overhead.
        (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            let bytes = value.max(1024) as u32;
            options.receive_buffer = NonZeroU32::new(bytes.saturating_mul(2));
        }
        _ => return None,
    }
    Some(Ok(()))
}

/// Sets the recorded options on a socket that has become one of weir.
pub(crate) fn apply_all(sock: &Sock) {
    for (option, value) in sock.recorded(|all| all.0.clone()) {
        // The kernel has accepted it before. What weir does not have is lost here.
        let _ = apply(sock, option, &value);
    }
}

/// `setsockopt(2)` on a socket of weir.
///
/// # Errors
/// `EINVAL` for a value that is not one, `ENOPROTOOPT` for an option that weir does not have.
pub(crate) fn set(sock: &Sock, option: (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    apply(sock, option, value)?;
    sock.recorded(|all| all.set(option, value));
    Ok(())
}

fn apply(sock: &Sock, option: (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let endpoint = sock.endpoint();
    match option {
        (IPV6, _) if sock.domain == libc::AF_INET => return Err(libc::ENOPROTOOPT),
        (TCP, _) if sock.kind == libc::SOCK_DGRAM => return Err(libc::ENOPROTOOPT),
        (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            let ns = time_ns(value)?;
            let at = if option.1 == libc::SO_RCVTIMEO {
                &sock.receive_timeout_ns
            } else {
                &sock.send_timeout_ns
            };
            at.store(ns, Relaxed);
            return Ok(());
        }
        (SOL_SOCKET, libc::SO_LINGER) => return linger(&endpoint, value),
        // Before a port is bound alone, or once a connection that is over has lost its own.
        (IPV6, libc::IPV6_V6ONLY) if sock.is_live() => {
            let is_over = matches!(&endpoint, Endpoint::Stream(stream) if is_over(stream));
            let has_port = !is_over || sock.is_bound();
            return if has_port { Err(libc::EINVAL) } else { Ok(()) };
        }
        _ if is_membership(option) => return membership(&endpoint, option, value),
        (IP, libc::IP_MULTICAST_IF) | (IPV6, libc::IPV6_MULTICAST_IF) => return Ok(()),
        _ => {}
    }
    let number = int(value).ok_or(libc::EINVAL)?;
    check_keep_alive(option, number)?;
    if ADVICE.contains(&option) {
        return Ok(());
    }
    match &endpoint {
        Endpoint::Stream(_) | Endpoint::Listener(_) | Endpoint::Open
            if matches!(
                option,
                (IP, libc::IP_MULTICAST_LOOP) | (IPV6, libc::IPV6_MULTICAST_LOOP)
            ) =>
        {
            Ok(())
        }
        Endpoint::Stream(_) | Endpoint::Listener(_) | Endpoint::Open
            if option == (IP, libc::IP_MULTICAST_TTL) =>
        {
            Err(libc::EINVAL)
        }
        // Streams have no ancillary data of IP.
        Endpoint::Stream(_) | Endpoint::Listener(_) | Endpoint::Open
            if option.0 != SOL_SOCKET && is_request(option) || is_error_queue(option) =>
        {
            Ok(())
        }
        Endpoint::Stream(stream) => on_stream(sock, stream, option, number),
        Endpoint::Listener(listener) => {
            let mut options = listener.options().map_err(|error| errno(&error))?;
            match change(&mut options, option, number) {
                Some(changed) => {
                    changed?;
                    listener.set_options(options).map_err(|error| errno(&error))
                }
                // For the connections that it accepts.
                None if is_for_streams(option) => Ok(()),
                None => Err(libc::ENOPROTOOPT),
            }
        }
        Endpoint::Udp(udp) => {
            let mut options = udp.options().map_err(|error| errno(&error))?;
            match option {
                (IP, libc::IP_TTL) | (IPV6, libc::IPV6_UNICAST_HOPS) => match number {
                    -1 => options.hop_limit = 64,
                    1..=255 => options.hop_limit = number as u8,
                    _ => return Err(libc::EINVAL),
                },
                (IP, libc::IP_MULTICAST_TTL) | (IPV6, libc::IPV6_MULTICAST_HOPS) => match number {
                    -1 => options.group_hop_limit = 1,
                    0..=255 => options.group_hop_limit = number as u8,
                    _ => return Err(libc::EINVAL),
                },
                (IP, libc::IP_MULTICAST_LOOP) | (IPV6, libc::IPV6_MULTICAST_LOOP) => {
                    options.group_loop = number != 0;
                }
                (IP, libc::IP_TOS) | (IPV6, libc::IPV6_TCLASS) => {
                    options.traffic_class = number as u8;
                }
                (IP, libc::IP_RECVERR) => options.icmp_errors = number != 0,
                (IPV6, libc::IPV6_RECVERR) => options.icmpv6_errors = number != 0,
                _ if is_request(option) => return Ok(()),
                // As the kernel, which doubles the value for its own overhead.
                (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                    let bytes = (number.max(1152) as usize).saturating_mul(2);
                    options.queue_bytes = bytes.min(UDP_QUEUE_BYTES_MAX);
                }
                // Datagrams leave at once.
                (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => return Ok(()),
                // Without an effect on datagrams, as in Linux.
                (SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_RCVLOWAT) => return Ok(()),
                _ => return Err(libc::ENOPROTOOPT),
            }
            udp.set_options(options).map_err(|error| errno(&error))
        }
        // A relayed connection that is over.
        Endpoint::Open => match change(&mut TcpOptions::default(), option, number) {
            Some(changed) => changed,
            None if is_for_streams(option) => Ok(()),
            None => Err(libc::ENOPROTOOPT),
        },
        Endpoint::Foreign(_) => Err(crate::fork::refuse()),
        Endpoint::Relay(_) => Err(crate::sock::MOVED),
    }
}

/// Whether an option asks for ICMP errors.
fn is_error_queue(option: (c_int, c_int)) -> bool {
    matches!(option, (IP, libc::IP_RECVERR) | (IPV6, libc::IPV6_RECVERR))
}

/// Whether a listener passes the option on to its connections.
fn is_for_streams((level, name): (c_int, c_int)) -> bool {
    match level {
        SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE | libc::SO_SNDBUF | libc::SO_RCVLOWAT
        ),
        TCP => matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_CORK
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_QUICKACK
                | libc::TCP_NOTSENT_LOWAT
                | libc::TCP_MAXSEG
                | libc::TCP_CONGESTION
        ),
        _ => false,
    }
}

fn on_stream(
    sock: &Sock,
    stream: &TcpStream,
    option: (c_int, c_int),
    number: c_int,
) -> Result<(), c_int> {
    let on = number != 0;
    let done = match option {
        (TCP, libc::TCP_NODELAY) => stream.set_nodelay(on),
        (TCP, libc::TCP_CORK) => stream.set_cork(on),
        (TCP, libc::TCP_QUICKACK) => stream.set_quick_ack(on),
        (TCP, libc::TCP_NOTSENT_LOWAT) => {
            let least = u32::try_from(number).ok().filter(|bytes| *bytes > 0);
            stream.set_notsent_lowat(least.map(|bytes| bytes as usize))
        }
        (TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            sock.recorded(|all| all.set(option, &number.to_ne_bytes()));
            keep_alive(sock, stream, sock.is_on(SOL_SOCKET, libc::SO_KEEPALIVE))
        }
        (SOL_SOCKET, libc::SO_KEEPALIVE) => keep_alive(sock, stream, on),
        (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            stream.set_send_buffer((number.max(2304) as usize).saturating_mul(2))
        }
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            stream.set_recv_lowat(usize::try_from(number).unwrap_or(usize::MAX).max(1));
            Ok(())
        }
        _ => {
            let mut options = stream.options().map_err(|error| errno(&error))?;
            match change(&mut options, option, number) {
                Some(changed) => {
                    changed?;
                    stream.set_options(options)
                }
                None => return Err(libc::ENOPROTOOPT),
            }
        }
    };
    done.map_err(|error| match errno(&error) {
        // A connection that is over keeps the option for nothing.
        libc::ENOTCONN => libc::EINVAL,
        other => other,
    })
}

/// Linux' default of `TCP_KEEPIDLE`, in seconds.
const KEEP_IDLE_S: c_int = 7200;

/// Limits of Linux (`MAX_TCP_KEEPIDLE` and so on).
fn check_keep_alive(option: (c_int, c_int), number: c_int) -> Result<(), c_int> {
    let most = match option {
        (TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => 32_767,
        (TCP, libc::TCP_KEEPCNT) => 127,
        _ => return Ok(()),
    };
    if (1..=most).contains(&number) {
        Ok(())
    } else {
        Err(libc::EINVAL)
    }
}

fn keep_alive(sock: &Sock, stream: &TcpStream, on: bool) -> std::io::Result<()> {
    let set = |name| sock.recorded(|all| all.int((TCP, name)));
    let idle = set(libc::TCP_KEEPIDLE).unwrap_or(KEEP_IDLE_S).max(1);
    let interval = set(libc::TCP_KEEPINTVL).and_then(|value| value.try_into().ok());
    let probes = set(libc::TCP_KEEPCNT).and_then(|value| value.try_into().ok());
    stream.set_keepalive_probes(
        interval.unwrap_or(KEEPALIVE_INTERVAL_S),
        probes.unwrap_or(KEEPALIVE_PROBES_MAX),
    )?;
    stream.set_keepalive(on.then_some(Duration::from_secs(idle as u64)))
}

fn time_ns(value: &[u8]) -> Result<u64, c_int> {
    let bytes: &[u8; size_of::<timeval>()] = value.first_chunk().ok_or(libc::EINVAL)?;
    // SAFETY: all values of the bytes are valid, as many as the structure has.
    let time = unsafe { bytes.as_ptr().cast::<timeval>().read_unaligned() };
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(libc::EDOM);
    }
    // Linux takes a negative time as one that is over at once.
    let Ok(seconds) = u64::try_from(time.tv_sec) else {
        return Ok(1);
    };
    let ns = seconds.saturating_mul(1_000_000_000);
    Ok(ns.saturating_add(time.tv_usec as u64 * 1000))
}

fn linger(endpoint: &Endpoint, value: &[u8]) -> Result<(), c_int> {
    let bytes: &[u8; 8] = value.first_chunk().ok_or(libc::EINVAL)?;
    let (on, seconds) = bytes.split_at(4);
    let (on, seconds) = (int(on).unwrap_or(0) != 0, int(seconds).unwrap_or(0));
    if let Endpoint::Stream(stream) = endpoint {
        let time = Duration::from_secs(seconds.max(0) as u64);
        stream.set_linger(on.then_some(time));
    }
    Ok(())
}

/// Joins or leaves a group on the first link.
fn membership(endpoint: &Endpoint, option: (c_int, c_int), value: &[u8]) -> Result<(), c_int> {
    let Endpoint::Udp(udp) = endpoint else {
        return Err(libc::ENOPROTOOPT);
    };
    let group = if option.0 == IP {
        let bytes: &[u8; 4] = value.first_chunk().ok_or(libc::EINVAL)?;
        IpAddr::from(Ipv4Addr::from(*bytes))
    } else {
        let bytes: &[u8; 16] = value.first_chunk().ok_or(libc::EINVAL)?;
        IpAddr::from(Ipv6Addr::from(*bytes))
    };
    let joins = matches!(
        option,
        (IP, libc::IP_ADD_MEMBERSHIP) | (IPV6, libc::IPV6_ADD_MEMBERSHIP)
    );
    let done = if joins {
        udp.join_multicast(group)
    } else {
        udp.leave_multicast(group)
    };
    done.map_err(|error| errno(&error))
}

/// `getsockopt(2)` on a socket of weir.
///
/// # Errors
/// `ENOPROTOOPT` for an option that weir does not have.
pub(crate) fn get(sock: &Sock, option: (c_int, c_int)) -> Result<Vec<u8>, c_int> {
    let endpoint = sock.endpoint();
    if matches!(endpoint, Endpoint::Foreign(_)) {
        return Err(crate::fork::refuse());
    }
    let number = match option {
        (IPV6, _) if sock.domain == libc::AF_INET => return Err(libc::EOPNOTSUPP),
        (TCP, _) if sock.kind == libc::SOCK_DGRAM && sock.domain == libc::AF_INET => {
            return Err(libc::EOPNOTSUPP);
        }
        (TCP, _) if sock.kind == libc::SOCK_DGRAM => return Err(libc::ENOPROTOOPT),
        (SOL_SOCKET, libc::SO_TYPE) => sock.kind,
        (SOL_SOCKET, libc::SO_DOMAIN) => sock.domain,
        (SOL_SOCKET, libc::SO_PROTOCOL) if sock.kind == libc::SOCK_STREAM => TCP,
        (SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_UDP,
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(endpoint, Endpoint::Listener(_)).into(),
        (SOL_SOCKET, libc::SO_ERROR) => match &endpoint {
            Endpoint::Stream(stream) => crate::calls::connect::take_error(sock, stream),
            Endpoint::Udp(udp) => match udp.take_error() {
                Ok(Some(error)) => errno(&error),
                _ => 0,
            },
            _ => 0,
        },
        (TCP, libc::TCP_INFO) => return info(&endpoint),
        (TCP, libc::TCP_MAXSEG) => match &endpoint {
            Endpoint::Stream(stream) => stream.info().map_or(536, |info| info.mss as c_int),
            _ => 536,
        },
        (TCP, libc::TCP_CONGESTION) => return Ok(b"cubic\0".to_vec()),
        // The kernel shows the doubled value.
        (SOL_SOCKET, libc::SO_RCVBUF) => doubled(sock, option, 131_072),
        (SOL_SOCKET, libc::SO_SNDBUF) => doubled(sock, option, 87_040),
        (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            return Ok(recorded(sock, option, size_of::<timeval>()));
        }
        (SOL_SOCKET, libc::SO_LINGER) => return Ok(recorded(sock, option, 8)),
        (TCP, libc::TCP_QUICKACK) => match &endpoint {
            Endpoint::Stream(stream) => stream.quick_ack().unwrap_or(false).into(),
            _ => 1,
        },
        _ => {
            let set = sock.recorded(|all| all.int(option));
            match (set, default_of(option)) {
                // The value that stands for the default.
                (Some(-1), Some(value)) if option.0 != SOL_SOCKET => value,
                (Some(value), _) if is_a_switch(option) => (value != 0).into(),
                (Some(value), _) => value,
                (None, Some(value)) => value,
                (None, None) => return Err(libc::ENOPROTOOPT),
            }
        }
    };
    Ok(number.to_ne_bytes().to_vec())
}

fn recorded(sock: &Sock, option: (c_int, c_int), len: usize) -> Vec<u8> {
    let mut value = sock.recorded(|all| all.get(option).unwrap_or_default().to_vec());
    value.resize(len, 0);
    value
}

fn doubled(sock: &Sock, option: (c_int, c_int), default: c_int) -> c_int {
    let set = sock.recorded(|all| all.int(option));
    set.map_or(default, |bytes| bytes.saturating_mul(2))
}

/// Options of which the kernel shows 0 or 1, whatever was set.
fn is_a_switch((level, name): (c_int, c_int)) -> bool {
    if is_request((level, name)) || is_error_queue((level, name)) {
        return true;
    }
    match level {
        SOL_SOCKET => matches!(
            name,
            libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_KEEPALIVE
                | libc::SO_BROADCAST
                | libc::SO_OOBINLINE
                | libc::SO_DONTROUTE
        ),
        TCP => matches!(name, libc::TCP_NODELAY | libc::TCP_CORK),
        IPV6 => name == libc::IPV6_V6ONLY,
        _ => false,
    }
}

/// The value of an option that was not set.
fn default_of((level, name): (c_int, c_int)) -> Option<c_int> {
    let value = match (level, name) {
        (SOL_SOCKET, libc::SO_RCVLOWAT | libc::SO_SNDLOWAT) => 1,
        (SOL_SOCKET, libc::SO_INCOMING_CPU) => -1,
        (TCP, libc::TCP_KEEPIDLE) => KEEP_IDLE_S,
        (TCP, libc::TCP_KEEPINTVL) => KEEPALIVE_INTERVAL_S.into(),
        (TCP, libc::TCP_KEEPCNT) => KEEPALIVE_PROBES_MAX.into(),
        (TCP, libc::TCP_SYNCNT) => 6,
        (TCP, libc::TCP_USER_TIMEOUT | libc::TCP_DEFER_ACCEPT | libc::TCP_FASTOPEN) => 0,
        (TCP, libc::TCP_NODELAY | libc::TCP_CORK | libc::TCP_WINDOW_CLAMP) => 0,
        (TCP, libc::TCP_NOTSENT_LOWAT) => 0,
        (IP, libc::IP_TTL) | (IPV6, libc::IPV6_UNICAST_HOPS) => 64,
        (IP, libc::IP_MULTICAST_TTL) | (IPV6, libc::IPV6_MULTICAST_HOPS) => 1,
        (IP, libc::IP_MULTICAST_LOOP) | (IPV6, libc::IPV6_MULTICAST_LOOP) => 1,
        (IP, libc::IP_TOS) | (IPV6, libc::IPV6_TCLASS) => 0,
        (IP, libc::IP_MULTICAST_IF) | (IPV6, libc::IPV6_MULTICAST_IF) => 0,
        (SOL_SOCKET, libc::SO_KEEPALIVE) => 0,
        option if ADVICE.contains(&option) => 0,
        option if is_request(option) || is_error_queue(option) => 0,
        _ => return None,
    };
    Some(value)
}

/// `struct tcp_info`, as far as weir knows its fields; the others are 0.
fn info(endpoint: &Endpoint) -> Result<Vec<u8>, c_int> {
    use weir_stack::tcp::State;
    const LEN: usize = 104;
    let mut bytes = vec![0; LEN];
    if let Endpoint::Listener(_) = endpoint {
        bytes[0] = 10;
        return Ok(bytes);
    }
    let info = match endpoint {
        Endpoint::Stream(stream) => stream.info().ok(),
        _ => None,
    };
    let Some(info) = info else {
        bytes[0] = 7;
        return Ok(bytes);
    };
    // The numbers of `TCP_ESTABLISHED` and so on.
    bytes[0] = match info.state {
        State::SynSent => 2,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
        _ => 1,
    };
    bytes[2] = info.retries as u8;
    bytes[3] = info.probes as u8;
    bytes[4] = info.backoff as u8;
    let words = [
        (8, info.rto_ns / 1000),
        (16, info.mss as u64),
        (20, info.mss_received as u64),
        (24, info.in_flight as u64),
        (28, info.sacked as u64),
        (32, info.lost as u64),
        (36, info.retrans as u64),
        (68, info.srtt_ns.unwrap_or(0) / 1000),
        (72, info.rttvar_ns / 1000),
        (76, info.ssthresh.unwrap_or(i32::MAX as usize) as u64),
        (80, (info.cwnd / info.mss.max(1)) as u64),
        (84, info.mss_advertised as u64),
    ];
    for (at, value) in words {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    Ok(bytes)
}
