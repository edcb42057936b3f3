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

/// How long the port's own way of waiting, in which frames gather, has the lock: longer than the
/// longest pause of the ring's reader, 200 µs, which it takes only if there is time for more.
const GATHER: Duration = Duration::from_micros(250);
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
    /// Whether frames do not gather.
    latency: bool,
    /// Whether the port is of this process's network namespace: through a broker that the caller
    /// has named it may be of another one.
    is_local: bool,
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
    pub(crate) fn open(
        interface: &str,
        builder: Builder,
        latency: bool,
        is_local: bool,
    ) -> Result<Live, Error> {
        let mut port = builder.open()?;
        port.set_latency_mode(latency);
        let ring = rustix::io::fcntl_dupfd_cloexec(port.as_fd(), 3);
        Ok(Live {
            interface: interface.to_owned(),
            linktype: port.linktype().0,
            latency,
            is_local,
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
                self.check_if_due(&mut open)?;
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
            let gather = if self.latency {
                Duration::ZERO
            } else {
                left(GATHER)
            };
            let began = Instant::now();
            if open.port.wait(Timeout::after(gather))? || !open.port.arm() {
                return Ok(true);
            }
            self.check_if_due(&mut open)?;
            drop(open);
            if began.elapsed() < gather {
                // A signal.
                return Ok(false);
            }
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
        let mut open = self.lock();
        match open.port.send_batch(frames) {
            Err(error) if error.is_queue_full() => Ok(0),
            sent => open.noted(sent),
        }
    }

    pub(crate) fn set_filter(&self, text: &str) -> Result<(), Error> {
        let mut open = self.lock();
        let set = open.port.set_filter(text);
        // A filter that is refused does not end the port.
        Ok(set?)
    }

    pub(crate) fn counters(&self) -> Result<PortCounters, Error> {
        let mut open = self.lock();
        let counters = open.port.counters();
        open.noted(counters)
    }

    pub(crate) fn linktype(&self) -> u32 {
        self.linktype
    }

    /// An error if the port has ended; looked at now and then.
    fn check_if_due(&self, open: &mut Open) -> Result<(), Error> {
        if open.ended.is_none() && open.checked.elapsed() >= CHECK {
            open.checked = Instant::now();
            open.ended = self.end(&mut open.port)?;
        }
        match &open.ended {
            None => Ok(()),
            Some(why) => Err(Error::Ended {
                interface: self.interface.clone(),
                why: why.clone(),
            }),
        }
    }

    /// Why no more frames arrive; `None` if they do.
    fn end(&self, port: &mut Port) -> Result<Option<String>, PortError> {
        let gone = || "the interface is gone; open a port again when it is back".to_owned();
        let is_gone = || self.is_local && !is_interface(&self.interface);
        match port.events() {
            Ok(events) => Ok(events.into_iter().find_map(|event| match event {
                Event::Gone => Some(gone()),
                Event::Revoked { reason } => Some(reason),
                _ => None,
            })),
            Err(_) if is_gone() => Ok(Some(gone())),
            // The port outlives this broker; another may take it over.
            Err(PortError::NoBroker { .. }) => Ok(None),
            // It was removed, or a broker that was started since does not grant it.
            Err(error @ (PortError::Refused(_) | PortError::Removed)) => {
                Ok(Some(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

impl Open {
    /// The result; if it says that a broker does not grant the port any more, which is said once,
    /// the port has ended for the thread that receives, too.
    fn noted<T>(&mut self, result: Result<T, PortError>) -> Result<T, Error> {
        if let Err(error @ PortError::Refused(_)) = &result {
            self.ended.get_or_insert_with(|| error.to_string());
        }
        Ok(result?)
    }
}

// C passes a port from thread to thread by its address.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Live>();
};

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|time| Instant::now().checked_add(time))
}

/// Whether this network namespace has an interface of this name.
fn is_interface(name: &str) -> bool {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    any.is_ok_and(|any| name_to_index(any, name).is_ok())
}
