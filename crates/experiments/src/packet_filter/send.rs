//! Table 6-1: the cost of sending.

use super::{Bench, MeasureError};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use weir_lab::load::Sink;
use weir_lab::net::Device;
use weir_link::bpf::Hook;
use weir_link::live::{SendError, Sender};
use weir_wire::{ethernet, ipv4, udp};

pub(super) const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Bytes of a datagram's headers, from Ethernet's on.
const HEADERS_BYTES: usize = ethernet::Repr::LEN + ipv4::Repr::LEN + udp::Repr::LEN;

/// Number of frames between two readings of the clock.
const FRAMES_PER_CLOCK_READ: u64 = 256;

/// Nanoseconds for each of the frames that `send` sends, which says how many.
fn ns_per_frame(
    time: Duration,
    mut send: impl FnMut() -> Result<u64, MeasureError>,
) -> Result<f64, MeasureError> {
    let (mut sent, mut looked) = (0, 0);
    let start = Instant::now();
    loop {
        sent += send()?;
        if sent - looked >= FRAMES_PER_CLOCK_READ {
            looked = sent;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(elapsed.as_nanos() as f64 / sent as f64);
            }
        }
    }
}

/// Whole frames, several in each system call; the other end drops them.
pub(super) fn frames(
    from: &Device,
    to: &Device,
    frame: &[u8],
    batch: usize,
    time: Duration,
) -> Result<f64, MeasureError> {
    let _sink = Sink::new(to, Hook::XdpNative)?;
    let sender = from.host().run(|| Sender::open(from.index()))?;
    let frames = vec![frame; batch];
    ns_per_frame(time, || {
        let sent = match batch {
            1 => sender.send(frame).map(|()| 1),
            _ => sender.send_batch(&frames),
        };
        match sent {
            Ok(sent) => Ok(sent as u64),
            Err(SendError::Full) => Ok(0),
            Err(error) => Err(error.into()),
        }
    })
}

/// The same by UDP, whose frames have that length; the other end drops them.
pub(super) fn datagrams(bench: &Bench<'_>, frame_bytes: usize) -> Result<f64, MeasureError> {
    let _sink = Sink::new(&bench.eth_b, Hook::XdpNative)?;
    let socket = bench.eth_a.host().run(|| {
        let socket = UdpSocket::bind((A, 0))?;
        socket.connect((B, 5000))?;
        std::io::Result::Ok(socket)
    })?;
    let payload = vec![0; frame_bytes - HEADERS_BYTES];
    ns_per_frame(bench.time, || {
        socket.send(&payload)?;
        Ok(1)
    })
}
