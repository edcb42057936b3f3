//! Datagrams of weir's UDP sockets, and ICMP errors about them.

use super::connect::{check_version, of_this_host};
use super::data::Received;
use crate::address;
use crate::control::{Ancillary, Beside, Reported};
use crate::sock::{Sock, errno};
use crate::wait::{Side, Wait};
use libc::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use weir_socket::UdpSocket;
use weir_stack::udp::SendInfo;

/// Receives a datagram, or the end of a socket that was shut down.
pub(super) fn receive(
    sock: &Sock,
    udp: &UdpSocket,
    rooms: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<Received, c_int> {
    let mut wait = Wait::new(sock, Side::Receive, flags);
    let blocks = wait.blocks();
    let received = if flags & libc::MSG_PEEK != 0 {
        wait.until(|| or_end(sock, blocks, udp.peek_datagram()))?
    } else {
        wait.until(|| or_end(sock, blocks, udp.recv_datagram()))?
    };
    let Some(datagram) = received else {
        return Ok(scatter(&[], None, rooms, flags));
    };
    let mut received = scatter(&datagram.bytes, Some(datagram.from), rooms, flags);
    if let Some(beside) = Beside::of(sock, udp, &datagram) {
        received.ancillary = Ancillary::Datagram(beside);
    }
    Ok(received)
}

/// Receives an ICMP error about a datagram (`MSG_ERRQUEUE`), with the datagram's payload and
/// destination.
pub(super) fn receive_error(
    sock: &Sock,
    udp: &UdpSocket,
    rooms: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<Received, c_int> {
    let wait = Wait::new(sock, Side::Receive, libc::MSG_DONTWAIT);
    let error = wait.once(|| udp.recv_icmp_error());
    let error = Reported::of(sock, udp, error.map_err(|error| errno(&error))?);
    let mut received = scatter(&error.bytes, Some(error.to), rooms, flags);
    received.flags |= libc::MSG_ERRQUEUE;
    received.ancillary = Ancillary::Error(Box::new(error));
    Ok(received)
}

/// A call that would wait reads the end of a socket that was shut down, as in Linux.
fn or_end<T>(sock: &Sock, blocks: bool, received: io::Result<T>) -> io::Result<Option<T>> {
    match received {
        Err(error) if blocks && sock.shut.load(Relaxed) && errno(&error) == libc::EAGAIN => {
            Ok(None)
        }
        received => received.map(Some),
    }
}

/// Spreads a datagram over buffers.
fn scatter(
    mut bytes: &[u8],
    from: Option<SocketAddr>,
    rooms: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Received {
    let whole = bytes.len();
    for room in rooms {
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
    }
    let is_cut = !bytes.is_empty();
    Received {
        count: if flags & libc::MSG_TRUNC != 0 {
            whole
        } else {
            whole - bytes.len()
        },
        from,
        flags: if is_cut { libc::MSG_TRUNC } else { 0 },
        ancillary: Ancillary::None,
    }
}

/// Sends these buffers as a datagram, to `to` if it is given.
pub(super) fn send(
    sock: &Sock,
    udp: &UdpSocket,
    parts: &[IoSlice<'_>],
    flags: c_int,
    (to, info): (Option<SocketAddr>, &SendInfo),
) -> Result<usize, c_int> {
    let joined: Vec<u8>;
    let bytes = match parts {
        [part] => &part[..],
        _ => {
            joined = parts.iter().flat_map(|part| part.iter().copied()).collect();
            &joined
        }
    };
    if to.is_some_and(address::is_mapped) && sock.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        return Err(libc::ENETUNREACH);
    }
    let to = match to.map(address::unmapped) {
        Some(to) if to.is_ipv6() => {
            let local = sock.local();
            let to = of_this_host(to, || local);
            check_version(local, to)?;
            Some(to)
        }
        to => to.map(|to| of_this_host(to, || sock.local())),
    };
    if sock.shut_write.load(Relaxed) {
        if to.is_none() && udp.peer_addr().is_err() {
            return Err(libc::EDESTADDRREQ);
        }
        let pending = udp.take_error().ok().flatten();
        return Err(pending.map_or(libc::EPIPE, |error| errno(&error)));
    }
    if let Some(to) = to
        && is_broadcast(to)
        && !sock.is_on(libc::SOL_SOCKET, libc::SO_BROADCAST)
    {
        return Err(libc::EACCES);
    }
    let mut wait = Wait::new(sock, Side::Send, flags);
    wait.until(|| udp.send_with(bytes, to, info))
}

fn is_broadcast(to: SocketAddr) -> bool {
    matches!(to, SocketAddr::V4(v4) if v4.ip().is_broadcast())
}
