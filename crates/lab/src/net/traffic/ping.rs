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

/// Bytes that each request carries behind its header, as ping(8) does.
const PAYLOAD_BYTES: usize = 56;

/// What became of echo requests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pings {
    /// Requests sent.
    pub sent: u32,
    /// How long each reply took that came.
    pub round_trips: Vec<Duration>,
}

/// Sends `count` echo requests from a host, each after the reply to the one
/// before or after `reply_timeout`.
///
/// # Errors
/// If the host has no way to that address. An unanswered request is no error.
pub fn ping(host: &Host, to: IpAddr, count: u32, patience: Duration) -> io::Result<Pings> {
    let payload = [0x5a; PAYLOAD_BYTES];
    ping_with(host, to, count, &payload, patience)
}

/// Whether an echo request with these bytes is answered with them within
/// `reply_timeout`; both may go in fragments.
///
/// # Errors
/// As [`ping`].
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
            // Late replies to earlier requests may come first.
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
                    // An ICMP error: no reply will come, but it came at once.
                    Err(_) => thread::sleep(left.min(Duration::from_millis(1))),
                }
            }
        }
        Ok(pings)
    })
}

/// Addresses of the right version: the kernel writes the checksum, which is
/// all they are for.
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
