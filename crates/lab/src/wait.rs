//! Waits of tests, each with a time limit and a message.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit that suffices on a machine with other work.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Polling interval of [`until`].
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `holds` returns true, polling.
///
/// # Panics
/// If it does not return true within [`WAIT_MAX`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < WAIT_MAX,
            "not within {WAIT_MAX:?}: {what}"
        );
        thread::sleep(INTERVAL);
    }
}

/// Ends the test process if the calling test takes 15 minutes, and prints where
/// it waits. Functions that start a program or check a need call this one.
pub fn limit_this_test() {
    crate::watch::this_test();
}

/// Waits until data or the end of the stream can be read.
///
/// # Errors
/// `TimedOut` after `limit`.
pub fn readable(fd: impl AsFd, what: &str, limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => {
                let text = format!("not within {limit:?}: {what}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A pipe or socket each read of which waits at most [`WAIT_MAX`], and then
/// fails with `TimedOut`.
#[derive(Debug)]
pub struct Limited<R> {
    inner: R,
    what: String,
}

impl<R: Read + AsFd> Limited<R> {
    /// `what`: the awaited data, for the message.
    pub fn new(inner: R, what: impl Into<String>) -> Limited<R> {
        let what = what.into();
        Limited { inner, what }
    }

    /// The inner value, without limits.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read + AsFd> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        readable(&self.inner, &self.what, WAIT_MAX)?;
        self.inner.read(buffer)
    }
}

impl<R: AsFd> AsFd for Limited<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// Accepts a connection of the kernel's TCP, as [`TcpListener::accept`]; its
/// reads and writes are [limited](limit).
///
/// # Errors
/// As for [`TcpListener::accept`], and `TimedOut` after [`WAIT_MAX`].
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let at = listener.local_addr()?;
    readable(listener, &format!("a connection to {at}"), WAIT_MAX)?;
    let (stream, from) = listener.accept()?;
    Ok((limit(stream)?, from))
}

/// Opens a connection of the kernel's TCP, as [`TcpStream::connect`];
/// connecting, reads and writes each take at most [`WAIT_MAX`].
///
/// # Errors
/// As for [`TcpStream::connect`].
pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    limit(TcpStream::connect_timeout(&to, WAIT_MAX)?)
}

/// Limits reads and writes of a stream to [`WAIT_MAX`].
///
/// # Errors
/// The system's error.
pub fn limit(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    Ok(stream)
}
