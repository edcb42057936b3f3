//! Ports on a host, each read by a thread.

use super::report::PortReport;
use crate::error::CliError;
use crate::input::live_port;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_broker::{Bytes, Port, PortError, Timeout};
use weir_lab::net::Host;

/// Bytes of each port's queue.
const QUEUE: Bytes = Bytes(4 << 20);

/// Time limit for frames that are still in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

pub(super) struct Readers {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<Result<PortReport, PortError>>>,
}

impl Readers {
    /// Opens ports in the host: filter, and whether the port takes frames.
    pub(super) fn start(
        host: &Host,
        interface: &str,
        ports: &[(&'static str, bool)],
    ) -> Result<Readers, CliError> {
        let mut readers = Readers {
            stop: Arc::new(AtomicBool::new(false)),
            running: Vec::new(),
        };
        for (filter, take) in ports {
            let port = host.run(|| {
                let port = Port::on(interface).in_process().filter(filter)?;
                port.take(*take).queue(QUEUE).open()
            });
            let port = port.map_err(live_port::failure)?;
            let stop = Arc::clone(&readers.stop);
            let (filter, take) = (*filter, *take);
            let read = move || read(port, &stop, filter, take);
            readers.running.push(std::thread::spawn(read));
        }
        Ok(readers)
    }

    /// The results of each port.
    pub(super) fn end(mut self) -> Result<Vec<PortReport>, CliError> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.running.drain(..).map(|reader| {
            let read = reader.join().expect("a reader does not panic");
            read.map_err(live_port::failure)
        });
        ended.collect()
    }
}

fn read(
    mut port: Port,
    stop: &AtomicBool,
    filter: &'static str,
    take: bool,
) -> Result<PortReport, PortError> {
    let (mut frames, mut bytes) = (0, 0);
    loop {
        let stops = stop.load(Ordering::Relaxed);
        let batch = port.recv_batch(Timeout::after(DRAIN_TIMEOUT))?;
        if batch.is_empty() && stops {
            break;
        }
        for frame in batch {
            frames += 1;
            bytes += u64::from(frame.original_len());
        }
    }
    Ok(PortReport {
        filter,
        take,
        frames,
        bytes,
        lost: port.counters()?.lost,
        at: port.status()?.attach.unwrap_or_default(),
    })
}
