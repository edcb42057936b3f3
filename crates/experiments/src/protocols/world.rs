//! Two hosts and their link; a server's thread and a client's.

use super::ProtocolError;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;
use weir_lab::net::{Host, Lab, Offloads};

/// The server's address.
pub(super) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7000);
/// The interface of both hosts.
pub(super) const INTERFACE: &str = "eth0";

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long each figure is measured.
    pub time: Duration,
    /// How often; the best counts.
    pub rounds: u32,
}

/// Two hosts on a link without offloads.
#[derive(Debug)]
pub struct World {
    _lab: Lab,
    pub(super) a: Host,
    pub(super) b: Host,
}

impl World {
    /// Makes both, which go with the value.
    ///
    /// # Errors
    /// If there is no right to make network namespaces.
    pub fn new() -> Result<World, ProtocolError> {
        let lab = Lab::new();
        let (a, b) = (lab.host("a")?, lab.host("b")?);
        let link = lab
            .link(&a, &b)
            .addresses([10, 0, 0, 1], [10, 0, 0, 2], 24)
            .neighbours()
            .offloads(Offloads::OFF);
        link.connect()?;
        Ok(World { _lab: lab, a, b })
    }

    /// Runs a server in one host and, once it calls its second argument, a client
    /// in the other. The server ends when its first argument says so; a client's
    /// error counts before the server's.
    pub(super) fn run<T: Send, R: Send>(
        &self,
        server: impl FnOnce(&AtomicBool, &dyn Fn(R)) -> Result<(), ProtocolError> + Send,
        client: impl FnOnce(R) -> Result<T, ProtocolError> + Send,
    ) -> Result<T, ProtocolError> {
        let ended = AtomicBool::new(false);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let ended = &ended;
            let serving = scope.spawn(move || {
                self.b.run(|| {
                    server(ended, &|ready| {
                        let _ = tell.send(ready);
                    })
                })
            });
            let result = match told.recv() {
                Ok(ready) => self.a.run(|| client(ready)),
                Err(_) => Err(ProtocolError::ServerEnded),
            };
            ended.store(true, Relaxed);
            let served = serving.join().expect("it does not panic");
            match result {
                Err(ProtocolError::ServerEnded) => {
                    served?;
                    Err(ProtocolError::ServerEnded)
                }
                other => {
                    let value = other?;
                    served?;
                    Ok(value)
                }
            }
        })
    }

    /// Some rounds, of which the least counts, or the greatest.
    pub(super) fn best(
        settings: &Settings,
        least: bool,
        mut measure: impl FnMut() -> Result<f64, ProtocolError>,
    ) -> Result<Measured, ProtocolError> {
        let mut found = Measured::none(least);
        for _ in 0..settings.rounds {
            found.add(measure()?);
        }
        Ok(found)
    }
}

/// The results of some rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    least_counts: bool,
    /// The least and the greatest.
    pub(super) range: [f64; 2],
}

impl Measured {
    pub(super) fn none(least_counts: bool) -> Measured {
        Measured {
            least_counts,
            range: [f64::INFINITY, f64::NEG_INFINITY],
        }
    }

    pub(super) fn add(&mut self, one: f64) {
        let [least, most] = self.range;
        self.range = [least.min(one), most.max(one)];
    }

    /// The round that counts.
    pub(super) fn best(self) -> f64 {
        self.range[usize::from(!self.least_counts)]
    }
}

/// Microseconds for each of the operations that `operation` does within a time.
pub(super) fn microseconds(
    time: Duration,
    mut operation: impl FnMut() -> Result<(), ProtocolError>,
) -> Result<f64, ProtocolError> {
    // The first ones warm up.
    for _ in 0..50 {
        operation()?;
    }
    let began = std::time::Instant::now();
    let mut count = 0_u32;
    while began.elapsed() < time {
        for _ in 0..16 {
            operation()?;
        }
        count += 16;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// Megabytes a second that `receive` returns the bytes of, after some to warm up.
pub(super) fn megabytes(
    time: Duration,
    mut receive: impl FnMut() -> Result<usize, ProtocolError>,
) -> Result<f64, ProtocolError> {
    let warm = std::time::Instant::now();
    while warm.elapsed() < time / 10 {
        receive()?;
    }
    let began = std::time::Instant::now();
    let mut bytes = 0;
    while began.elapsed() < time {
        bytes += receive()?;
    }
    Ok(bytes as f64 / 1e6 / began.elapsed().as_secs_f64())
}
