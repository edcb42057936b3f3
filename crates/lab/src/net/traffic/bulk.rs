//! Throughput of one TCP connection, measured as by iperf3.

use crate::affinity;
use crate::net::Host;
use crate::wait;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a write, as in iperf3.
const WRITE_BYTES: usize = 128 << 10;

/// The result of a bulk transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bulk {
    /// Bytes received.
    pub bytes: u64,
    /// Time between the first and the last byte.
    pub elapsed: Duration,
}

impl Bulk {
    /// Bits of payload per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_secs_f64()
    }
}

/// Sends from `from` to `to` for `limit` as fast as TCP allows.
///
/// # Errors
/// If the port is in use, there is no route, or the connection breaks.
pub fn bulk(from: &Host, to: &Host, at: (Ipv4Addr, u16), limit: Duration) -> io::Result<Bulk> {
    between((from, None), (to, None), at, limit)
}

/// As [`bulk`], with sender and receiver on a CPU each: migration between CPUs
/// would cost more than most devices under test.
///
/// # Errors
/// As for [`bulk`], or if there is no such CPU.
pub fn bulk_on(
    from: (&Host, usize),
    to: (&Host, usize),
    at: (Ipv4Addr, u16),
    limit: Duration,
) -> io::Result<Bulk> {
    between((from.0, Some(from.1)), (to.0, Some(to.1)), at, limit)
}

/// A host, and the CPU of its process, if fixed.
type HostCpu<'a> = (&'a Host, Option<usize>);

fn between(
    (from, from_cpu): HostCpu<'_>,
    (to, to_cpu): HostCpu<'_>,
    at: (Ipv4Addr, u16),
    limit: Duration,
) -> io::Result<Bulk> {
    let at = SocketAddr::from(at);
    let listener = to.run(|| TcpListener::bind(at))?;
    let mut client = from.run(|| wait::connect(at))?;
    let (mut server, _) = wait::accept(&listener)?;
    let place = |cpu: Option<usize>| cpu.map_or(Ok(()), |cpu| affinity::pin(None, cpu));
    let sender = thread::spawn(move || {
        place(from_cpu)?;
        let bytes = vec![0; WRITE_BYTES];
        let start = Instant::now();
        while start.elapsed() < limit {
            client.write_all(&bytes)?;
        }
        io::Result::Ok(())
    });
    let receiver = thread::spawn(move || {
        place(to_cpu)?;
        let mut buffer = vec![0; WRITE_BYTES];
        let (mut bytes, start) = (0, Instant::now());
        loop {
            match server.read(&mut buffer)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
        let elapsed = start.elapsed();
        io::Result::Ok(Bulk { bytes, elapsed })
    });
    sender.join().expect("the sender does not panic")?;
    receiver.join().expect("the receiver does not panic")
}
