//! UDP datagrams spread over many destination ports.

use crate::net::Host;
use rustix::net::{SendFlags, sendto};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Sends `count` datagrams of `payload_len` bytes to the destination ports in
/// turn. Each starts with its number, from 0, as eight big-endian bytes, as far
/// as it has room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpFlows {
    /// The receiver's address.
    pub to: Ipv4Addr,
    /// Destination ports, in turn.
    pub dst_ports: Range<u16>,
    /// Total number of datagrams.
    pub count: u64,
    /// Datagrams per second; `None` for as fast as possible.
    pub rate: Option<u32>,
    /// Payload bytes of each datagram.
    pub payload_len: usize,
}

/// Sends the datagrams from a host by a kernel socket; returns the time it
/// took.
///
/// # Errors
/// If there is no route. Datagrams that the receiver refuses or drops are not
/// an error.
pub fn spread(host: &Host, what: &UdpFlows) -> io::Result<Duration> {
    if what.dst_ports.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no destination port in {:?}", what.dst_ports),
        ));
    }
    // Not connected: otherwise an ICMP error for an unused port would fail the
    // next send.
    let socket = host.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let mut payload = vec![0; what.payload_len];
    let counted = payload.len().min(8);
    let ports = u64::try_from(what.dst_ports.len()).expect("ports are few");
    let start = Instant::now();
    for number in 0..what.count {
        if let Some(rate) = what.rate {
            wait_until(start, number, rate);
        }
        payload[..counted].copy_from_slice(&number.to_be_bytes()[..counted]);
        let port = what.dst_ports.start + (number % ports) as u16;
        let to = SocketAddrV4::new(what.to, port);
        sendto(&socket, &payload, SendFlags::empty(), &to)?;
    }
    Ok(start.elapsed())
}

/// Waits until the due time of a datagram.
fn wait_until(start: Instant, number: u64, rate: u32) {
    let due = Duration::from_secs_f64(number as f64 / f64::from(rate.max(1)));
    loop {
        let left = due.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        // A sleep takes some 50 µs longer than requested.
        match left.checked_sub(Duration::from_micros(100)) {
            Some(sleep) => thread::sleep(sleep),
            None => std::hint::spin_loop(),
        }
    }
}
