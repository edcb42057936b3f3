//! The frames of a port in a task of tokio, beside a timer and Ctrl-C:
//! `cargo run -p weir-broker --example port_tokio -- eth0 'udp port 53'`

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use weir_broker::{Frames, Port, Timeout};

/// A port that tasks wait for.
pub(crate) struct AsyncPort {
    port: Port,
    /// The port's descriptor, in the runtime's epoll.
    readable: AsyncFd<OwnedFd>,
}

impl AsyncPort {
    /// To be called in a runtime.
    pub(crate) fn new(port: Port) -> io::Result<AsyncPort> {
        let fd = port.as_fd().try_clone_to_owned()?;
        #[allow(
            deprecated,
            reason = "the new function is `unsafe`: it wants the promise that an OwnedFd keeps anyway"
        )]
        let readable = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(AsyncPort { port, readable })
    }

    /// The next frames: at least one. When the future is dropped, no frame is lost.
    pub(crate) async fn recv_batch(&mut self) -> io::Result<Frames<'_>> {
        // `false`: frames are there.
        while self.port.arm() {
            self.readable.readable().await?.clear_ready();
        }
        self.port.recv_batch(Timeout::NOW).map_err(io::Error::other)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(interface), filter) = (arguments.next(), arguments.next()) else {
        return Err("usage: port_tokio IF [FILTER]".into());
    };
    let port = Port::on(&interface).filter(&filter.unwrap_or_default())?;
    let mut port = AsyncPort::new(port.open()?)?;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let (mut frames, mut bytes) = (0_u64, 0_u64);
    loop {
        tokio::select! {
            batch = port.recv_batch() => for frame in batch? {
                frames += 1;
                bytes += u64::from(frame.original_len());
            },
            _ = second.tick() => println!("{frames} frames, {bytes} bytes"),
            end = tokio::signal::ctrl_c() => return Ok(end?),
        }
    }
}
