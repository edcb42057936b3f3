//! A port on a live link.

use crate::batch::{Batch, Entry, Source, frame_class};
use crate::{convert, error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_broker::protocol::Event;
use weir_broker::{Bytes, Fanout, PortError, Timeout};
use weir_filter::lang::Language;

/// Frames of a batch, at most: the ring's own limit.
pub(crate) const BATCH_MAX: usize = 256;
/// The port's own way of waiting, which lets frames gather.
const GATHER: Duration = Duration::from_micros(200);
/// How long to sleep before a look at signals, the interface, and whether the port was closed.
const SLICE: Duration = Duration::from_millis(250);
/// How long to wait for room for a frame to be sent.
const SEND_MAX: Duration = Duration::from_secs(1);
const SEND_PAUSE: Duration = Duration::from_micros(50);

struct Open {
    port: weir_broker::Port,
    /// A copy of the port's descriptor, to wait for without its lock.
    ring: Arc<OwnedFd>,
    /// An event loop watches the descriptor: it must be armed after each batch.
    watched: bool,
    checked: Instant,
}

/// Why an operation on an open port failed, until Python's lock is held.
enum Failure {
    Closed,
    Port(PortError),
    Ended(String),
    System(&'static str, rustix::io::Errno),
}

impl<E: Into<PortError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Port(error.into())
    }
}

enum Step {
    Ready,
    TimedOut,
    /// A signal came, or the time has come for a look at what else can end a wait.
    Again,
}

#[pyclass(frozen, module = "weir", subclass)]
pub(crate) struct Port {
    interface: String,
    filter: Mutex<String>,
    open: Mutex<Option<Open>>,
    sources: Arc<[Source]>,
    number: u32,
    attached: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this network namespace has an interface of this name.
fn is_interface(name: &str) -> bool {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    any.is_ok_and(|any| name_to_index(any, name).is_ok())
}

fn queue_bytes(queue: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = queue.extract::<u64>() {
        return Ok(Bytes(bytes));
    }
    let text: String = queue.extract().map_err(|_| {
        PyValueError::new_err("queue: a number of bytes, or a text such as \"4 MiB\"")
    })?;
    text.parse()
        .map_err(|wrong| PyValueError::new_err(format!("queue={text}: {wrong}")))
}

impl Open {
    /// An error if the port has ended; looked at now and then.
    fn check_if_due(&mut self, interface: &str) -> Result<(), Failure> {
        if self.checked.elapsed() < 2 * SLICE {
            return Ok(());
        }
        self.checked = Instant::now();
        match self.port.events() {
            Ok(events) => events.into_iter().try_for_each(|event| match event {
                Event::Gone => Err(Failure::Ended("the interface disappeared".to_owned())),
                Event::Revoked { reason } => Err(Failure::Ended(reason)),
                _ => Ok(()),
            }),
            // The port outlives this broker; another may take it over.
            Err(PortError::NoBroker { .. }) => Ok(()),
            Err(_) if !is_interface(interface) => {
                Err(Failure::Ended("the interface disappeared".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Port {
    fn failed(&self, py: Python<'_>, failure: Failure) -> PyErr {
        let name = &self.interface;
        match failure {
            Failure::Closed => error::closed(&format!("the port on {name}")),
            Failure::Port(wrong) => error::port(py, wrong, &lock(&self.filter)),
            Failure::Ended(why) => error::plain(py, &format!("{name}: {why}")),
            Failure::System(what, errno) => {
                let errno = std::io::Error::from(errno);
                error::plain(py, &format!("{name}: cannot {what} ({errno})"))
            }
        }
    }

    /// Works with the open port, with Python's lock; for what takes no time.
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Open) -> Result<T, Failure>,
    ) -> PyResult<T> {
        let open = self.open.lock_py_attached(py);
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        let done = open.as_mut().ok_or(Failure::Closed).and_then(work);
        drop(open);
        done.map_err(|failure| self.failed(py, failure))
    }

    /// As [`with`](Self::with), but other threads of Python run meanwhile.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Open) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            lock(&self.open)
                .as_mut()
                .ok_or(Failure::Closed)
                .and_then(work)
        });
        done.map_err(|failure| self.failed(py, failure))
    }

    /// Waits for a frame; false if the time is over.
    fn wait(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<bool> {
        loop {
            let step = py.detach(|| self.wait_step(deadline));
            match step.map_err(|failure| self.failed(py, failure))? {
                Step::Ready => return Ok(true),
                Step::TimedOut => return Ok(false),
                // An exception of a signal's handler, such as KeyboardInterrupt.
                Step::Again => py.check_signals()?,
            }
        }
    }

    fn wait_step(&self, deadline: Option<Instant>) -> Result<Step, Failure> {
        let left = |slice: Duration| {
            deadline.map_or(slice, |at| {
                at.saturating_duration_since(Instant::now()).min(slice)
            })
        };
        let ring = {
            let mut open = lock(&self.open);
            let open = open.as_mut().ok_or(Failure::Closed)?;
            if open.port.wait(Timeout::after(left(GATHER)))? || !open.port.arm() {
                return Ok(Step::Ready);
            }
            open.check_if_due(&self.interface)?;
            Arc::clone(&open.ring)
        };
        let slice = left(SLICE);
        if slice.is_zero() {
            return Ok(Step::TimedOut);
        }
        let slice = Timespec::try_from(slice).ok();
        let mut fds = [PollFd::new(&ring, PollFlags::IN)];
        match poll(&mut fds, slice.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(Step::Again),
            Err(errno) => Err(Failure::System("wait for frames", errno)),
        }
    }

    /// Takes what is in the ring into a batch, with one copy.
    fn take(&self, py: Python<'_>, max: usize) -> PyResult<Batch> {
        let open = self.open.lock_py_attached(py);
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        let Some(Open { port, watched, .. }) = open.as_mut() else {
            drop(open);
            return Err(self.failed(py, Failure::Closed));
        };
        let frames = match port.recv_at_most(max.min(BATCH_MAX), Timeout::NOW) {
            Ok(frames) => frames,
            Err(wrong) => {
                drop(open);
                return Err(self.failed(py, wrong.into()));
            }
        };
        let mut entries = Vec::with_capacity(frames.len());
        let mut parts = Vec::with_capacity(frames.len());
        let mut end = 0;
        for frame in frames {
            end += frame.bytes().len();
            parts.push(frame.bytes());
            entries.push(Entry {
                end,
                time_ns: frame.timestamp().and_then(convert::nanoseconds),
                length: frame.original_len(),
                outgoing: frame.is_outgoing(),
                lost_before: frame.lost_before(),
                interface: 0,
            });
        }
        let data = PyBytes::new_with(py, end, |to| {
            let mut rest = to;
            for part in parts {
                let (place, behind) = rest.split_at_mut(part.len());
                place.copy_from_slice(part);
                rest = behind;
            }
            Ok(())
        })?;
        if *watched {
            port.arm();
        }
        Ok(Batch::new(data, entries, Arc::clone(&self.sources)))
    }
}

/// Sends frames in their order, and waits for room; returns how many were sent.
fn send_all(open: &mut Open, frames: &[&[u8]]) -> Result<usize, Failure> {
    let began = Instant::now();
    let mut sent = 0;
    while sent < frames.len() {
        let more = open.port.send_batch(&frames[sent..])?;
        sent += more;
        if more == 0 {
            if began.elapsed() > SEND_MAX {
                break;
            }
            std::thread::sleep(SEND_PAUSE);
        }
    }
    Ok(sent)
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (
        interface, filter = None, *, language = "expr", priority = 0, take = false, queue = None,
        snaplen = None, timestamps = true, send = false, latency = false, fanout = None,
        socket = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn new(
        py: Python<'_>,
        interface: String,
        filter: Option<&str>,
        language: &str,
        priority: u16,
        take: bool,
        queue: Option<&Bound<'_, PyAny>>,
        snaplen: Option<u32>,
        timestamps: bool,
        send: bool,
        latency: bool,
        fanout: Option<&str>,
        socket: Option<PathBuf>,
    ) -> PyResult<Port> {
        let language = convert::language(language)?;
        let queue = queue.map(queue_bytes).transpose()?;
        let fanout = fanout.map(str::parse::<Fanout>).transpose();
        let fanout = fanout.map_err(|wrong| PyValueError::new_err(format!("fanout: {wrong}")))?;
        let text = filter.unwrap_or_default().to_owned();
        let open = || -> Result<Open, Failure> {
            let mut builder = weir_broker::Port::on(&interface);
            if let Some(filter) = filter {
                builder = builder.filter_in(language, filter)?;
            }
            builder = builder
                .priority(priority)
                .take(take)
                .timestamps(timestamps)
                .send(send);
            if let Some(queue) = queue {
                builder = builder.queue(queue);
            }
            if let Some(snaplen) = snaplen {
                builder = builder.snap_len(snaplen);
            }
            if let Some(fanout) = &fanout {
                builder = builder.fanout(fanout.clone());
            }
            if let Some(socket) = &socket {
                builder = builder.broker(socket);
            }
            let mut port = builder.open()?;
            port.set_latency_mode(latency);
            let ring = rustix::io::fcntl_dupfd_cloexec(port.as_fd(), 3);
            let ring = ring.map_err(|errno| Failure::System("copy the descriptor", errno))?;
            Ok(Open {
                port,
                ring: Arc::new(ring),
                watched: false,
                checked: Instant::now(),
            })
        };
        // A broker, or the kernel's verifier, may take its time.
        let opened = py.detach(open);
        let mut made = Port {
            sources: [Source {
                linktype: 1,
                name: Some(interface.clone()),
            }]
            .into(),
            interface,
            filter: Mutex::new(text),
            open: Mutex::new(None),
            number: 0,
            attached: String::new(),
        };
        let open = opened.map_err(|failure| made.failed(py, failure))?;
        made.number = open.port.number();
        made.attached = open.port.attached().to_owned();
        made.sources = [Source {
            linktype: open.port.linktype().0,
            name: Some(made.interface.clone()),
        }]
        .into();
        made.open = Mutex::new(Some(open));
        Ok(made)
    }

    #[getter]
    fn interface(&self) -> &str {
        &self.interface
    }

    #[getter]
    fn number(&self) -> u32 {
        self.number
    }

    #[getter]
    fn attached(&self) -> &str {
        &self.attached
    }

    #[getter]
    fn linktype(&self) -> u32 {
        self.sources[0].linktype
    }

    #[getter]
    fn filter(&self) -> String {
        lock(&self.filter).clone()
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        let open = self.open.lock_py_attached(py);
        open.unwrap_or_else(PoisonError::into_inner).is_none()
    }

    #[pyo3(signature = (text, *, language = "expr"))]
    fn set_filter(&self, py: Python<'_>, text: &str, language: &str) -> PyResult<()> {
        let language: Language = convert::language(language)?;
        let changed = self.detached(py, |open| Ok(open.port.set_filter_in(language, text)));
        match changed? {
            Ok(()) => {
                text.clone_into(&mut lock(&self.filter));
                Ok(())
            }
            Err(wrong) => Err(error::port(py, wrong, text)),
        }
    }

    /// The frames that are there, or else the first that come before `timeout` has passed.
    #[pyo3(signature = (max = BATCH_MAX, timeout = None))]
    fn recv_batch(&self, py: Python<'_>, max: usize, timeout: Option<f64>) -> PyResult<Batch> {
        if max == 0 {
            return Err(PyValueError::new_err("max=0: at least one frame"));
        }
        let timeout = convert::timeout(timeout)?;
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        loop {
            let batch = self.take(py, max)?;
            let is_done = !batch.entries.is_empty() || timeout == Some(Duration::ZERO);
            if is_done || !self.wait(py, deadline)? {
                return Ok(batch);
            }
        }
    }

    /// The next frame, as an object of `weir.Frame`; `None` if the time is over.
    #[pyo3(signature = (timeout = None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = self.recv_batch(py, 1, timeout)?;
        if batch.entries.is_empty() {
            return Ok(None);
        }
        batch.frame(py, frame_class(py)?, 0).map(Some)
    }

    /// Sends one whole frame; an error if there is no room for it in time.
    fn send(&self, py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = convert::bytes(frame)?;
        let bytes = bytes.as_bytes();
        let sent = self.detached(py, |open| send_all(open, &[bytes]))?;
        if sent == 1 {
            return Ok(());
        }
        let text = format!("{}: no room for a frame to be sent", self.interface);
        Err(error::plain(py, &text))
    }

    /// Sends whole frames; returns how many were sent, which are the first ones.
    fn send_batch(&self, py: Python<'_>, frames: Vec<Bound<'_, PyAny>>) -> PyResult<usize> {
        let bytes: PyResult<Vec<_>> = frames.iter().map(convert::bytes).collect();
        let bytes = bytes?;
        let frames: Vec<&[u8]> = bytes.iter().map(|bytes| bytes.as_bytes()).collect();
        self.detached(py, |open| send_all(open, &frames))
    }

    /// The counters since the port was opened, as a tuple.
    fn counters(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let counters = self.detached(py, |open| Ok(open.port.counters()?))?;
        Ok((
            counters.delivered,
            counters.lost,
            counters.interface_lost,
            counters.sent,
            counters.refused,
        ))
    }

    /// The descriptor for event loops, readable when there are frames.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.with(py, |open| {
            open.watched = true;
            open.port.arm();
            Ok(open.ring.as_raw_fd())
        })
    }

    /// An error if the interface or the right to it is gone.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.detached(py, |open| open.check_if_due(&self.interface))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.open).take()));
    }

    fn __repr__(&self) -> String {
        let filter = lock(&self.filter);
        format!("<weir.Port on {}, filter {filter:?}>", self.interface)
    }
}
