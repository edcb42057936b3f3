//! An open port, as the C functions use it: any thread, waits without the lock.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_broker::protocol::Event;
use weir_broker::{Builder, Frame, Port, PortCounters, PortError, Timeout};

/// How long the port's own way of waiting, in which frames gather, has the lock: the longest
/// pause of the ring's reader.
const GATHER: Duration = Duration::from_micros(200);
/// How often a waiting call looks whether the interface and the right to it still exist.
const CHECK: Duration = Duration::from_millis(500);

/// Why a call on a port failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Port(#[from] PortError),
    /// No more frames arrive.
    #[error("the port on {interface} has ended: {why}")]
    Ended { interface: String, why: String },
    #[error("cannot {what} of the port ({source})")]
    System {
        what: &'static str,
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::System {
        what,
        source: errno.into(),
    }
}

/// An open port.
#[derive(Debug)]
pub(crate) struct Live {
    interface: String,
    linktype: u32,
    /// A copy of the port's descriptor, to wait for without the lock.
    ring: OwnedFd,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    port: Port,
    /// When the interface was last looked at.
    checked: Instant,
    /// Why no more frames arrive.
    ended: Option<String>,
}

impl Live {
    pub(crate) fn open(interface: &str, builder: Builder, latency: bool) -> Result<Live, Error> {
        let mut port = builder.open()?;
        port.set_latency_mode(latency);
        let ring = rustix::io::fcntl_dupfd_cloexec(port.as_fd(), 3);
        Ok(Live {
            interface: interface.to_owned(),
            linktype: port.linktype().0,
            ring: ring.map_err(system("copy the descriptor"))?,
            open: Mutex::new(Open {
                port,
                checked: Instant::now(),
                ended: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes up to `frames` frames to `deliver`; waits for the first until `deadline`. Returns
    /// their number: 0 if the time is over, or a signal has interrupted the wait. The frames'
    /// bytes stay in the ring until the next call that receives or waits.
    pub(crate) fn recv(
        &self,
        frames: usize,
        timeout: Option<Duration>,
        mut deliver: impl FnMut(&Frame<'_>),
    ) -> Result<usize, Error> {
        let deadline = deadline(timeout);
        loop {
            let mut open = self.lock();
            let mut received = 0;
            for frame in open.port.recv_at_most(frames, Timeout::NOW)? {
                deliver(&frame);
                received += 1;
            }
            if received > 0 {
                return Ok(received);
            }
            if timeout == Some(Duration::ZERO) {
                open.check_if_due(&self.interface)?;
                // The next frame makes the descriptor readable; it is already if this is false.
                open.port.arm();
                return Ok(0);
            }
            drop(open);
            if !self.wait_until(deadline)? {
                return Ok(0);
            }
        }
    }

    /// Waits for a frame; returns whether there is one.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.wait_until(deadline(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        let left = |most: Duration| {
            deadline.map_or(most, |at| {
                at.saturating_duration_since(Instant::now()).min(most)
            })
        };
        loop {
            let mut open = self.lock();
            if open.port.wait(Timeout::after(left(GATHER)))? || !open.port.arm() {
                return Ok(true);
            }
            open.check_if_due(&self.interface)?;
            drop(open);
            let slice = left(CHECK);
            if slice.is_zero() {
                return Ok(false);
            }
            let slice = Timespec::try_from(slice).ok();
            match poll(
                &mut [PollFd::new(&self.ring, PollFlags::IN)],
                slice.as_ref(),
            ) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(false),
                Err(errno) => return Err(system("wait for the frames")(errno)),
            }
        }
    }

    /// The descriptor for event loops, which the next frame makes readable.
    pub(crate) fn fd(&self) -> RawFd {
        self.lock().port.arm();
        self.ring.as_raw_fd()
    }

    /// Sends frames; returns how many were sent, which are the first ones.
    pub(crate) fn send(&self, frames: &[&[u8]]) -> Result<usize, Error> {
        Ok(self.lock().port.send_batch(frames)?)
    }

    pub(crate) fn set_filter(&self, text: &str) -> Result<(), Error> {
        Ok(self.lock().port.set_filter(text)?)
    }

    pub(crate) fn counters(&self) -> Result<PortCounters, Error> {
        Ok(self.lock().port.counters()?)
    }

    pub(crate) fn linktype(&self) -> u32 {
        self.linktype
    }
}

impl Open {
    /// An error if the port has ended; looked at now and then.
    fn check_if_due(&mut self, interface: &str) -> Result<(), Error> {
        if self.ended.is_none() && self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.ended = self.end(interface)?;
        }
        match &self.ended {
            None => Ok(()),
            Some(why) => Err(Error::Ended {
                interface: interface.to_owned(),
                why: why.clone(),
            }),
        }
    }

    /// Why no more frames arrive; `None` if they do.
    fn end(&mut self, interface: &str) -> Result<Option<String>, PortError> {
        let gone = || "the interface is gone; open a port again when it is back".to_owned();
        match self.port.events() {
            Ok(events) => Ok(events.into_iter().find_map(|event| match event {
                Event::Gone => Some(gone()),
                Event::Revoked { reason } => Some(reason),
                _ => None,
            })),
            // The port outlives this broker; another may take it over.
            Err(PortError::NoBroker { .. }) => Ok(None),
            // A broker that was started since does not have the port.
            Err(_) if !is_interface(interface) => Ok(Some(gone())),
            Err(error) => Err(error),
        }
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|time| Instant::now().checked_add(time))
}

/// Whether this network namespace has an interface of this name.
fn is_interface(name: &str) -> bool {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    any.is_ok_and(|any| name_to_index(any, name).is_ok())
}
