//! Echo requests (RFC 792, RFC 4443).

use crate::net::Host;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};
use weir_wire::AddrPair;
use weir_wire::icmp::{Echo, Message};

/// Payload bytes of each request, as in ping(8).
const PAYLOAD_BYTES: usize = 56;

/// The result of echo requests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pings {
    /// Requests sent.
    pub sent: u32,
    /// The round-trip time of each reply.
    pub round_trips: Vec<Duration>,
}

/// Sends `count` echo requests from a host, each after the reply to the
/// previous one or after `patience`.
///
/// # Errors
/// If the host has no route to the address. An unanswered request is not an
/// error.
pub fn ping(host: &Host, to: IpAddr, count: u32, patience: Duration) -> io::Result<Pings> {
    let payload = [0x5a; PAYLOAD_BYTES];
    ping_with(host, to, count, &payload, patience)
}

/// Whether an echo request with this payload is answered with the same payload
/// within `patience`; both may be fragmented.
///
/// # Errors
/// As for [`ping`].
pub fn echoes(host: &Host, to: IpAddr, payload: &[u8], patience: Duration) -> io::Result<bool> {
    let pings = ping_with(host, to, 1, payload, patience)?;
    Ok(!pings.round_trips.is_empty())
}

fn ping_with(
    host: &Host,
    to: IpAddr,
    count: u32,
    payload: &[u8],
    reply_timeout: Duration,
) -> io::Result<Pings> {
    host.run(|| {
        let (family, protocol) = match to {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
        connect(&socket, &SocketAddr::new(to, 0))?;
        let mut pings = Pings::default();
        for sequence in 0..count {
            let start = Instant::now();
            send(
                &socket,
                &request(to, sequence as u16, payload),
                SendFlags::empty(),
            )?;
            pings.sent += 1;
            // Late replies to earlier requests may arrive first.
            loop {
                let left = reply_timeout.saturating_sub(start.elapsed());
                if left.is_zero() {
                    break;
                }
                set_socket_timeout(&socket, Timeout::Recv, Some(left))?;
                let mut reply = vec![0; Echo::LEN + payload.len()];
                match recv(&socket, &mut reply, RecvFlags::empty()) {
                    Ok((len, _)) if answers(&reply[..len], to, sequence as u16, payload) => {
                        pings.round_trips.push(start.elapsed());
                        break;
                    }
                    Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                    // An ICMP error: no reply will arrive.
                    Err(_) => thread::sleep(left.min(Duration::from_millis(1))),
                }
            }
        }
        Ok(pings)
    })
}

/// Addresses of the right family; the kernel computes the checksum for which
/// they are needed.
fn addresses(to: IpAddr) -> AddrPair {
    AddrPair::new(to, to).expect("both are the same")
}

fn request(to: IpAddr, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[0; Echo::LEN], payload].concat();
    let echo = Echo {
        reply: false,
        identifier: 0, // the kernel writes its own
        sequence,
    };
    echo.emit(&mut message, addresses(to));
    message
}

fn answers(reply: &[u8], to: IpAddr, sequence: u16, payload: &[u8]) -> bool {
    let echo = Message::new(reply).ok();
    let echo = echo.and_then(|message| Echo::parse(&message, addresses(to)));
    let is_ours = echo.is_some_and(|echo| echo.reply && echo.sequence == sequence);
    is_ours && reply[Echo::LEN..] == *payload
}
