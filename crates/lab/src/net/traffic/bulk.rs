//! As much as one TCP connection carries, as iperf3 measures it.

use crate::affinity;
use crate::net::Host;
use crate::wait;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a write, as iperf3's.
const WRITE_BYTES: usize = 128 << 10;

/// What a connection carried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bulk {
    /// Bytes that arrived.
    pub bytes: u64,
    /// From the first to the last of them.
    pub elapsed: Duration,
}

impl Bulk {
    /// Bits of payload per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_secs_f64()
    }
}

/// Sends from `from` to `to` for `limit` as fast as TCP does.
///
/// # Errors
/// If the port is taken, there is no way there, or the connection breaks.
pub fn bulk(from: &Host, to: &Host, at: (Ipv4Addr, u16), limit: Duration) -> io::Result<Bulk> {
    between((from, None), (to, None), at, limit)
}

/// As [`bulk`], with who sends and who receives on a CPU each: so they are not
/// moved about, which is more than what most things in between cost.
///
/// # Errors
/// As [`bulk`], or if there is no such CPU.
pub fn bulk_on(
    from: (&Host, usize),
    to: (&Host, usize),
    at: (Ipv4Addr, u16),
    limit: Duration,
) -> io::Result<Bulk> {
    between((from.0, Some(from.1)), (to.0, Some(to.1)), at, limit)
}

/// A host, and the CPU that its program runs on, if on a certain one.
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
